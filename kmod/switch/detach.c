// SPDX-License-Identifier: GPL-2.0-only
/*
 * Detaching one socket, all sockets of a member, or all.
 *
 * Once a socket is detached, each byte that was on a ring has been read, is in
 * TCP's queue, or will be resent by the peer over TCP. Its hall_sock remains until
 * the peer has drained our ring. Unloading waits for that, and for threads in our
 * calls, which hold a reference, too.
 *
 * A ring that the peer has ended can't be given up before TCP has brought all
 * bytes that come before it. That has no time limit: the peer may be stopped, or
 * our program may not read. So detaching many sockets waits for a limited time;
 * the rest follows when it can, at the latest when the peer departs.
 */
#include "switch.h"

#include <linux/sched/signal.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/calls.h"
#include "../sock/carrier.h"
#include "../sock/idle.h"
#include "../sock/lock.h"
#include "../sock/lookup.h"

/* For which a peer may read what it was sent, before its memory goes. */
#define DRAIN		(5 * HZ)

/*
 * Wait for sockets at most; with an unresponsive peer less than the time after
 * which others would find us unresponsive.
 */
#define PATIENCE	(5 * HZ)
#define PATIENCE_UNRESPONSIVE	(3 * HZ / 2)

static DECLARE_WAIT_QUEUE_HEAD(detached);

struct request {
	const struct hall_member *member;	/* NULL: all */
	u32 reason;
	unsigned long until;			/* jiffies */
};

void hall_restore_tables(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;
	struct socket *sock = sk->sk_socket;
	/* The kernel's own users of accept() set them later. */
	const struct proto_ops *ops = sock ? sock->ops : NULL;

	/* Since a ULP had its own, the socket may be attached again: see ulp.c. */
	if (sk->sk_prot != &hs->prot && sk->sk_prot->close == hall_close)
		return;
	if (ops && ops->sendmsg == hall_ops_sendmsg)
		WRITE_ONCE(sock->ops, hall_sock_find_native_ops(sock));
	/* A ULP may have put its own there. */
	if (sk->sk_prot == &hs->prot)
		WRITE_ONCE(sk->sk_prot, hs->native);
}

void hall_detach(struct hall_sock *hs, u32 reason)
{
	struct sock *sk = hs->sk;

	if (hs->detached)
		return;
	hs->detached_at = jiffies;
	hs->reason = reason;
	/* A call that sees it goes on by the tables, which must not lead here again. */
	hall_restore_tables(hs);
	smp_store_release(&hs->detached, true);
	hall_sock_unpublish(hs);
	hall_count(HALL_DETACHED);
	/* The next ring does not come: writers and pollers that wait for it go on. */
	hall_tx_resume(hs);
	/* Threads that sleep in our calls go on natively. Pairs with wait_small(). */
	smp_mb();
	if (atomic_read(&hs->rx_waiters) || hs->tx_waiters)
		wake_up_all(sk_sleep(sk));
	if (wq_has_sleeper(&detached))
		wake_up_all(&detached);
	hall_sock_put(hs);
}

static void request_one(struct hall_sock *hs, void *data)
{
	const struct request *request = data;

	if (request->member && hs->channel.member != request->member)
		return;
	hall_sock_request_detach(hs, request->reason);
}

static void await_one(struct hall_sock *hs, void *data)
{
	const struct request *request = data;
	long left = request->until - jiffies;

	if (!request->member || hs->channel.member == request->member)
		wait_event_timeout(detached, READ_ONCE(hs->detached),
				   max(left, 0L));
}

static void depart_one(struct hall_sock *hs, void *data)
{
	if (hs->channel.member == data)
		hall_channel_raise(&hs->channel, HALL_EVENT_DEPARTED);
}

int hall_detach_sync(struct hall_sock *hs, u32 reason)
{
	struct request request = { .reason = reason };
	struct sock *sk = hs->sk;

	lock_sock(sk);
	/* At once if that is possible: a program at the other end can delay its peer's answer. */
	if (!hall_sock_has_ring(hs))
		hall_detach(hs, reason);
	else if (!hs->detached)
		hall_detach_now(hs, reason);
	release_sock(sk);
	if (READ_ONCE(hs->detached))
		return 0;
	request_one(hs, &request);
	if (wait_event_timeout(detached, READ_ONCE(hs->detached), PATIENCE))
		return 0;
	/* The caller needs TCP: a reset detaches the socket at once. */
	hall_sock_reset(hs, ETIMEDOUT);
	wait_event(detached, READ_ONCE(hs->detached));
	return -ETIMEDOUT;
}

/*
 * Only the holder of lock_sock() may work on the rings; a caller in softirq has
 * the spinlock alone.
 */
int hall_detach_now(struct hall_sock *hs, u32 reason)
{
	struct sock *sk = hs->sk;
	gfp_t gfp = sk->sk_allocation;
	int err;

	if (in_softirq())
		return -EAGAIN;
	/* A truncated rest is resent here, without sleeping. */
	sk->sk_allocation = GFP_ATOMIC;
	err = hall_rx_demote_now(hs, reason);
	if (!err)
		hall_tx_demote(hs, reason);
	if (hs->tx.lost)
		err = -ENOBUFS;
	sk->sk_allocation = gfp;
	if (!err)
		hall_detach(hs, reason);
	return err;
}

void hall_detach_streams(struct hall_member *member, u32 reason)
{
	struct request request = { .member = member, .reason = reason };
	bool unresponsive = reason == HALLWAY_REASON_UNRESPONSIVE;

	request.until = jiffies + (unresponsive ? PATIENCE_UNRESPONSIVE : PATIENCE);
	hall_sock_walk(request_one, &request);
	hall_sock_walk(await_one, &request);
}

void hall_detach_member(struct hall_member *member, u32 reason)
{
	hall_detach_streams(member, reason);
	/* Bytes that the peer has not read can't be resent by a detached socket. */
	if (reason != HALLWAY_REASON_UNRESPONSIVE)
		hall_channel_drain(member, DRAIN);
}

/*
 * This guest is suspended in a moment. The peer may go on reading the rings that it
 * writes, without a limit of time. Where the guest is resumed, its memory may be
 * another one.
 */
static void abandon_one(struct hall_sock *hs, void *data)
{
	int err = 0;

	if (hs->channel.member != data)
		return;
	mutex_lock(&hs->rx_mutex);
	lock_sock(hs->sk);
	if (!hs->detached)
		err = hall_detach_now(hs, HALLWAY_REASON_SUSPENDED);
	if (!err) {
		hall_tx_release(hs);
		hall_sock_close_channel(hs);
	}
	release_sock(hs->sk);
	hall_rx_unlock(hs);
	/* TCP lacks bytes that come before those of a ring that has ended. */
	if (err)
		hall_sock_reset(hs, ETIMEDOUT);
}

void hall_depart_member(struct hall_member *member, u32 reason)
{
	/* A peer that is gone sets no marks; any other has the time for it. */
	if (reason == HALLWAY_REASON_SUSPENDED)
		hall_sock_walk(abandon_one, member);
	else if (reason != HALLWAY_REASON_PEER_LEFT)
		hall_detach_streams(member, reason);
	hall_sock_walk(depart_one, member);
	hall_channel_raise_all(member, NULL, HALL_EVENT_DEPARTED);
}
