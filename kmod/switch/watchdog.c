// SPDX-License-Identifier: GPL-2.0
/*
 * A slow watchdog over sleepers. The event indexes leave no wake-up to be
 * lost; if one is lost all the same, by a bug of ours or a doorbell that the
 * hypervisor dropped, the sleeper gets up within two seconds, and the counter
 * watchdog_wakes says that something is wrong.
 */
#include "switch.h"

#include "../obs/counters.h"

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(look_work, look);

/* Asleep on the ring, with something to do, since the last look at least? */
static bool stuck(struct hall_sock *hs)
{
	struct hall_channel *channel = &hs->channel;
	u64 head = hs->watched_head, tail = hs->watched_tail;
	bool stuck = false;

	spin_lock_bh(&channel->lock);
	if (hs->rx.state == HALL_RX_MAPPED && hs->rx.ring.started) {
		hs->watched_tail = hs->rx.ring.tail;
		stuck |= hs->rx_waiters && tail == hs->watched_tail &&
			 hall_ring_used(&hs->rx.ring);
	}
	if (hs->tx.state == HALL_TX_RING) {
		hs->watched_head = hs->tx.ring.head;
		stuck |= hs->tx_waiters && head == hs->watched_head &&
			 hall_ring_space(&hs->tx.ring) > hs->tx.ring.size / 2;
	}
	spin_unlock_bh(&channel->lock);
	return stuck;
}

static void look_at(struct hall_sock *hs, void *data)
{
	if (!hs->rx_waiters && !hs->tx_waiters)
		return;
	lock_sock(hs->sk);
	if (!stuck(hs)) {
		hs->watched_stuck = false;
	} else if (!hs->watched_stuck) {
		hs->watched_stuck = true;	/* it may be about to get up */
	} else {
		hall_count(HALL_WATCHDOG_WAKES);
		wake_up_all(sk_sleep(hs->sk));
	}
	release_sock(hs->sk);
}

static void look(struct work_struct *work)
{
	hall_sock_walk(look_at, NULL);
	queue_delayed_work(hall_workqueue, &look_work, HZ);
}

void hall_watchdog_init(void)
{
	queue_delayed_work(hall_workqueue, &look_work, HZ);
}

void hall_watchdog_uninit(void)
{
	cancel_delayed_work_sync(&look_work);
}
