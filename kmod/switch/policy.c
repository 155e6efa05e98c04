// SPDX-License-Identifier: GPL-2.0
/*
 * Which connections get a ring: those that have moved some bytes or have lived
 * a while, and have nothing about them that a ring could not give. Short
 * connections never get that far and stay as fast as they were.
 */
#include "switch.h"

#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <net/dst.h>
#include <net/xfrm.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/callbacks.h"
#include "../sock/info.h"
#include "../sock/quiet.h"

static unsigned int promote_bytes = 16384;
module_param(promote_bytes, uint, 0644);
MODULE_PARM_DESC(promote_bytes, "a connection that moved so many bytes is promoted (default: 16384)");

static unsigned int promote_ms = 10;
module_param(promote_ms, uint, 0644);
MODULE_PARM_DESC(promote_ms, "a connection that was in use for so many milliseconds is promoted at its next send (default: 10)");

static unsigned int promote_wait_ms;
module_param(promote_wait_ms, uint, 0644);
MODULE_PARM_DESC(promote_wait_ms, "a connection's first send waits so many milliseconds for its ring, for tests (default: 0)");

#define BACK_OFF_MIN	msecs_to_jiffies(5)
#define BACK_OFF_MAX	(10 * HZ)
/* Who needs what others give back asks often enough to show that it is wanted. */
#define BACK_OFF_SCARCE	HZ

static bool secured(struct sock *sk)
{
	bool secured = false;
#ifdef CONFIG_XFRM
	struct dst_entry *dst;

	rcu_read_lock();
	dst = rcu_dereference(sk->sk_dst_cache);
	secured = dst && dst_xfrm(dst);
	rcu_read_unlock();
#endif
#ifdef CONFIG_TCP_MD5SIG
	secured |= !!rcu_access_pointer(tcp_sk(sk)->md5sig_info);
#endif
#ifdef CONFIG_TCP_AO
	secured |= !!rcu_access_pointer(tcp_sk(sk)->ao_info);
#endif
	return secured;
}

u32 hall_policy_against(struct hall_sock *hs, bool calling)
{
	struct sock *sk = hs->sk;
	u32 packets;

	if (hs->pinned)
		return hs->pinned;
	if (!READ_ONCE(hall_enabled) || hs->detaching)
		return HALLWAY_REASON_OFF;
	if (sk->sk_state != TCP_ESTABLISHED)
		return HALLWAY_REASON_STATE;
	if (!sk->sk_socket)
		return HALLWAY_REASON_UNACCEPTED;
	if (!hall_callbacks_allow_ring(hs))
		return HALLWAY_REASON_FOREIGN;
	if (tcp_sk(sk)->repair)
		return HALLWAY_REASON_REPAIR;
	if (tcp_sk(sk)->urg_data)
		return HALLWAY_REASON_URGENT;
	if (secured(sk))
		return HALLWAY_REASON_SECURED;
	packets = hall_sock_needs_packets(sk);
	if (packets)
		return packets;
	if (hall_filters_apply(hs))
		return HALLWAY_REASON_FILTERED;
	if (!hall_attach_ops(hs))
		return HALLWAY_REASON_FOREIGN;
	if (!hall_sock_check_quiet(hs, calling, true))
		return HALLWAY_REASON_BUSY;
	return 0;
}

void hall_policy_back_off(struct hall_sock *hs, u32 reason)
{
	bool scarce = reason == HALLWAY_REASON_NO_MEMORY ||
		      reason == HALLWAY_REASON_NO_ENDPOINT;

	hs->reason = reason;
	hs->backoff = clamp_t(unsigned long, hs->backoff * 2, BACK_OFF_MIN,
			      scarce ? BACK_OFF_SCARCE : BACK_OFF_MAX);
	/* Calls leave soon; nothing else changes that fast. */
	if (reason == HALLWAY_REASON_BUSY)
		hs->backoff = BACK_OFF_MIN;
	hs->retry_at = jiffies + hs->backoff;
}

/* What was before a pause does not count: a ring is for those who use it. */
static bool earned(struct hall_sock *hs, size_t sending)
{
	u64 bytes = hs->tx.bytes_tcp + hs->rx.bytes_tcp;

	if (hall_budget_new_use(hs)) {
		hs->active_since = jiffies;
		hs->active_bytes = bytes;
	}
	return bytes - hs->active_bytes + sending >= READ_ONCE(promote_bytes) ||
	       time_after_eq(jiffies, hs->active_since +
			     msecs_to_jiffies(READ_ONCE(promote_ms)));
}

static void consider(struct hall_sock *hs, size_t sending)
{
	struct hall_tokens tokens;
	u32 reason;

	if (hs->detached || hs->pinned)
		return;
	/* A program's first call tells best that no other is inside. */
	if (!hs->quiet && hall_attach_ops(hs))
		hall_sock_check_quiet(hs, true, false);
	if (!earned(hs, sending) || time_before(jiffies, hs->retry_at))
		return;
	reason = hall_policy_against(hs, true);
	if (!reason && sending && hs->tx.state == HALL_TX_TCP) {
		hall_sock_make_tokens(hs, false, &tokens);
		switch (hall_budget_offer(hs, &tokens)) {
		case 0:
			hs->reason = HALLWAY_REASON_OFFERED;
			return;
		case -EUSERS:
			reason = HALLWAY_REASON_NO_ENDPOINT;
			break;
		default:
			reason = HALLWAY_REASON_NO_MEMORY;
		}
	}
	if (reason)
		hall_policy_back_off(hs, reason);
}

/* May a ring still come to this connection before its first byte? */
static bool may_come(const struct hall_sock *hs)
{
	return (hs->tx.state == HALL_TX_TCP || hs->tx.state == HALL_TX_OFFERED) &&
	       !hs->tx.bytes_tcp && !hs->detached && !hs->pinned &&
	       !hs->detaching && !hs->sk->sk_err && !signal_pending(current) &&
	       hs->sk->sk_state == TCP_ESTABLISHED;
}

void hall_policy(struct hall_sock *hs, size_t sending)
{
	unsigned long until = jiffies +
			      msecs_to_jiffies(READ_ONCE(promote_wait_ms));

	consider(hs, sending);
	while (sending && time_before(jiffies, until) && may_come(hs)) {
		release_sock(hs->sk);
		schedule_timeout_interruptible(1);
		lock_sock(hs->sk);
		if (hs->tx.state == HALL_TX_TCP)
			consider(hs, sending);
	}
}
