// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which connections get a ring, and when: the one place that offers rings, and
 * replaces them. budget.c says of how many bytes.
 *
 * A connection earns a ring by moving some bytes or by being in use for a while. It
 * gets none while it needs anything that a ring lacks. Short connections never earn
 * one, and cost nothing.
 */
#include "switch.h"

#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <net/dst.h>
#include <net/xfrm.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/callbacks.h"
#include "../sock/carrier.h"
#include "../sock/info.h"
#include "../sock/quiet.h"

static unsigned int promote_bytes = 16384;
module_param(promote_bytes, uint, 0644);
MODULE_PARM_DESC(promote_bytes, "bytes after which a connection is promoted (default: 16384)");

static unsigned int promote_ms = 10;
module_param(promote_ms, uint, 0644);
MODULE_PARM_DESC(promote_ms, "milliseconds of use after which a connection is promoted at its next send (default: 10)");

static unsigned int promote_wait_ms;
module_param(promote_wait_ms, uint, 0644);
MODULE_PARM_DESC(promote_wait_ms, "milliseconds that a connection's first send waits for its ring, for tests (default: 0)");

#define BACK_OFF_MIN	msecs_to_jiffies(5)
#define BACK_OFF_MAX	(10 * HZ)
/*
 * A connection without memory asks often: pool->wanted_at must not grow old. A
 * foreign call may leave at any time, and no event says so.
 */
#define BACK_OFF_BRIEF	HZ

/* Sends look whether they earn a ring at least this often: no pause is shorter. */
#define LOOK_EACH	(HZ / 50)

static bool is_secured(struct sock *sk)
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

u32 hall_policy_find_reason(struct hall_sock *hs, bool calling)
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
	if (is_secured(sk))
		return HALLWAY_REASON_SECURED;
	packets = hall_sock_needs_packets(sk);
	if (packets)
		return packets;
	if (hall_filters_apply(hs->sk, ipv6_addr_v4mapped(&hs->remote)))
		return HALLWAY_REASON_FILTERED;
	if (!hall_attach_ops(hs))
		return HALLWAY_REASON_FOREIGN;
	if (!hall_sock_check_quiet(hs, calling, true))
		return HALLWAY_REASON_BUSY;
	return 0;
}

void hall_policy_back_off(struct hall_sock *hs, u32 reason)
{
	bool brief = reason == HALLWAY_REASON_NO_MEMORY ||
		     reason == HALLWAY_REASON_NO_ENDPOINT ||
		     reason == HALLWAY_REASON_BUSY;

	hs->reason = reason;
	/* The size of the ring before is no use to a reader that waits for more. */
	if (reason == HALLWAY_REASON_SMALL)
		hs->demand.bytes = 0;
	hs->backoff = clamp_t(unsigned long, hs->backoff * 2, BACK_OFF_MIN,
			      brief ? BACK_OFF_BRIEF : BACK_OFF_MAX);
	hs->retry_at = jiffies + hs->backoff;
}

/* Bytes and time before a pause do not count. */
static bool has_earned(struct hall_sock *hs, size_t sending)
{
	u64 bytes = hall_sock_count_tcp(hs);

	if (hall_budget_is_new_use(hs)) {
		hs->active_since = jiffies;
		hs->active_bytes = bytes;
	}
	return bytes - hs->active_bytes + sending >= READ_ONCE(promote_bytes) ||
	       time_after_eq(jiffies, hs->active_since +
			     msecs_to_jiffies(READ_ONCE(promote_ms)));
}

/*
 * Until then no send earns a ring: it would lack bytes and time, or is not to try again
 * yet. The first send after a pause looks.
 */
static void put_off_look(struct hall_sock *hs, bool earned)
{
	unsigned long at = hs->retry_at, latest = jiffies + LOOK_EACH;

	hs->look_bytes = U64_MAX;
	if (!earned) {
		at = hs->active_since + msecs_to_jiffies(READ_ONCE(promote_ms));
		hs->look_bytes = hs->active_bytes + READ_ONCE(promote_bytes);
	}
	hs->look_at = time_before(at, latest) ? at : latest;
}

/* 0, or the reason why there is no ring to offer. */
static u32 offer_ring(struct hall_sock *hs)
{
	u32 bytes = hall_budget_get_offer(hs);
	struct hall_tokens tokens;
	int err;

	/* Else a peer that truncates each ring could fill TCP's queue beyond all limits. */
	if (tcp_sk(hs->sk)->bytes_acked < hs->tx.resent)
		return HALLWAY_REASON_BUSY;
	hall_sock_make_tokens(hs, false, &tokens);
	/* The memory left may be in pieces. */
	do {
		err = hall_tx_offer(hs, &tokens, bytes);
		bytes = hall_budget_get_smaller(bytes);
	} while (err == -ENOMEM && bytes);
	if (!err) {
		hall_budget_begin(hs);
		hs->reason = HALLWAY_REASON_OFFERED;
		return 0;
	}
	hall_budget_want(hs);
	return err == -EUSERS ? HALLWAY_REASON_NO_ENDPOINT :
				HALLWAY_REASON_NO_MEMORY;
}

static void consider_ring(struct hall_sock *hs, size_t sending)
{
	bool earned;
	u32 reason;

	if (hs->detached)
		return;
	if (hs->pinned) {
		hs->look_at = jiffies + HZ;
		hs->look_bytes = U64_MAX;
		return;
	}
	/* In a program's first call it is easiest to see that no other is inside. */
	if (!hs->quiet && hall_attach_ops(hs))
		hall_sock_check_quiet(hs, true, false);
	earned = has_earned(hs, sending);
	put_off_look(hs, earned);
	if (!earned || time_before(jiffies, hs->retry_at))
		return;
	reason = hall_policy_find_reason(hs, true);
	if (!reason && sending && hs->tx.state == HALL_TX_TCP)
		reason = offer_ring(hs);
	if (reason)
		hall_policy_back_off(hs, reason);
}

/* Ends a ring that should have another size; 0: none. False: it stays. */
static bool replace_ring(struct hall_sock *hs, u32 bytes)
{
	u32 size = hs->tx.ring.size;

	if (bytes == size)
		return false;
	/* The peer would decline the next ring if it has sent a FIN, say. */
	if (bytes && hall_policy_find_reason(hs, false))
		return false;
	hs->demand.bytes = bytes;
	if (bytes > size) {
		hall_count(HALL_RINGS_GROWN);
		hall_tx_replace(hs);
		return true;
	}
	/*
	 * The ring may have space, and poll() have said so: bytes must not wait for
	 * the next one, which their sends ask for.
	 */
	hall_count(bytes ? HALL_RINGS_SHRUNK : HALL_RINGS_IDLE);
	hs->reason = bytes ? HALLWAY_REASON_NO_MEMORY : HALLWAY_REASON_IDLE;
	hall_tx_demote(hs, hs->reason);
	return true;
}

bool hall_policy_grow(struct hall_sock *hs)
{
	return replace_ring(hs, hall_budget_grow(hs));
}

void hall_policy_shrink(struct hall_sock *hs)
{
	if (hs->tx.state == HALL_TX_RING)
		replace_ring(hs, hall_budget_shrink(hs));
}

bool hall_policy_replace(struct hall_sock *hs)
{
	u32 reason;

	if (!hs->tx.replacing)
		return true;
	if (hs->tx.state == HALL_TX_TCP && !time_before(jiffies, hs->retry_at)) {
		reason = hall_policy_find_reason(hs, false) ?: offer_ring(hs);
		if (reason)
			hall_policy_back_off(hs, reason);
	}
	if (hs->tx.state == HALL_TX_TCP ||
	    time_after_eq(jiffies, hs->tx.replace_by))
		hall_tx_resume(hs);
	return !hs->tx.replacing;
}

void hall_policy_check(struct hall_sock *hs)
{
	/* No lock is held: the work item looks again. */
	if (READ_ONCE(hs->tx.state) == HALL_TX_OFFERED &&
	    time_after(jiffies, READ_ONCE(hs->tx.answer_by)))
		hall_channel_raise(&hs->channel, HALL_EVENT_UNANSWERED);
	if (READ_ONCE(hs->tx.state) == HALL_TX_RING &&
	    hall_budget_shrink(hs) != READ_ONCE(hs->tx.ring.size))
		hall_channel_raise(&hs->channel, HALL_EVENT_SPARE);
}

/* May a ring still come to this connection before its first byte? */
static bool may_come(const struct hall_sock *hs)
{
	return (hs->tx.state == HALL_TX_TCP || hs->tx.state == HALL_TX_OFFERED) &&
	       !hs->tx.bytes_tcp && !hs->detached && !hs->pinned &&
	       !hs->detaching && !hs->sk->sk_err && !signal_pending(current) &&
	       hs->sk->sk_state == TCP_ESTABLISHED;
}

void hall_policy_offer_ring(struct hall_sock *hs, size_t sending)
{
	unsigned long until = jiffies +
			      msecs_to_jiffies(READ_ONCE(promote_wait_ms));

	consider_ring(hs, sending);
	while (sending && time_before(jiffies, until) && may_come(hs)) {
		release_sock(hs->sk);
		schedule_timeout_interruptible(1);
		lock_sock(hs->sk);
		if (hs->tx.state == HALL_TX_TCP)
			consider_ring(hs, sending);
	}
}
