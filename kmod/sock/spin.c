// SPDX-License-Identifier: GPL-2.0-only
/*
 * A reader whose peer has a CPU of its own spins before it sleeps, as long as that
 * pays: a hit restores its credit, a miss costs one, and a reader without credit tries
 * again after SPIN_RETRY waits.
 */
#include "spin.h"

#include <linux/moduleparam.h>
#include <linux/sched/clock.h>

#include "../obs/counters.h"

static unsigned int spin_us = 50;
module_param(spin_us, uint, 0644);
MODULE_PARM_DESC(spin_us, "microseconds that a reader spins at most before it sleeps; 0: never (default: 50)");

#define SPIN_RETRY	64	/* waits until a reader without credit spins */

bool hall_sock_may_spin(unsigned int *credit)
{
	unsigned int left = READ_ONCE(*credit);

	if (!READ_ONCE(spin_us))
		return false;
	if (left > HALL_SPIN_CREDIT) {
		WRITE_ONCE(*credit, left - 1);	/* waiting for the next try */
		return false;
	}
	return true;
}

bool hall_sock_spin(struct sock *sk, unsigned int *credit,
		    bool (*ready)(void *reader), void *reader)
{
	unsigned int budget = READ_ONCE(spin_us), left;
	bool hit = false;
	u64 until;

	if (!hall_sock_may_spin(credit))
		return false;
	left = READ_ONCE(*credit);
	hall_count(HALL_RX_SPINS);
	until = local_clock() + budget * NSEC_PER_USEC;
	do {
		hit = ready(reader);
		cpu_relax();
	} while (!hit && !need_resched() && !signal_pending(current) &&
		 !READ_ONCE(sk->sk_backlog.tail) &&
		 !waitqueue_active(&sk->sk_lock.wq) && local_clock() < until);
	if (hit) {
		hall_count(HALL_RX_SPIN_HITS);
		WRITE_ONCE(*credit, HALL_SPIN_CREDIT);
	} else {
		WRITE_ONCE(*credit, left ? left - 1 : HALL_SPIN_CREDIT + SPIN_RETRY);
	}
	return hit;
}
