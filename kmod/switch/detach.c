// SPDX-License-Identifier: GPL-2.0
/*
 * Leaving: one socket, all sockets of a member, or all.
 *
 * A socket has left when it is detached: every byte that was on a ring has
 * been read or is in TCP's queue, or is the peer's to repeat over TCP. Its
 * context lives on until the peer has drained what we sent; unloading waits for
 * that too, and for threads that are still inside our calls, which hold contexts
 * as well.
 *
 * A ring that the peer has ended can't be left before TCP has brought all bytes
 * that come before it, and nobody knows when: the peer may be stopped, or our own
 * reader not read. Whoever wants many sockets to leave goes on after a while; they
 * leave when they can, at the latest when the peer departs.
 */
#include "switch.h"

#include <linux/sched/signal.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/carrier.h"
#include "../sock/lookup.h"

/* How long a peer may take to read what it was sent, where memory is to go. */
#define DRAIN		(5 * HZ)

/* How long sockets are waited for; with silent peers, less than others take for silence. */
#define PATIENCE	(5 * HZ)
#define PATIENCE_SILENT	(3 * HZ / 2)

static DECLARE_WAIT_QUEUE_HEAD(detached);

struct request {
	const struct hall_member *member;	/* NULL: all */
	u32 reason;
	unsigned long until;			/* jiffies */
};

void hall_detach(struct hall_sock *hs, u32 reason)
{
	struct sock *sk = hs->sk;
	struct socket *sock = sk->sk_socket;

	if (hs->detached)
		return;
	WRITE_ONCE(hs->detached, true);
	hs->reason = reason;
	if (sock && hs->native_ops && sock->ops == &hs->ops)
		WRITE_ONCE(sock->ops, hs->native_ops);
	WRITE_ONCE(sk->sk_prot, hs->native);
	hall_sock_unpublish(hs);
	hall_count(HALL_DETACHED);
	/* Threads that sleep in our calls go on natively. */
	if (hs->rx_waiters || hs->tx_waiters)
		wake_up_all(sk_sleep(sk));
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

	request_one(hs, &request);
	if (wait_event_timeout(detached, READ_ONCE(hs->detached), PATIENCE))
		return 0;
	/* The caller needs TCP: this lets the socket leave at once. */
	hall_sock_reset(hs, ETIMEDOUT);
	wait_event(detached, READ_ONCE(hs->detached));
	return -ETIMEDOUT;
}

/*
 * Nobody but the holder of lock_sock() may be at work on the rings: not so for
 * one who came in softirq, with the spinlock alone.
 */
int hall_detach_now(struct hall_sock *hs, u32 reason)
{
	struct sock *sk = hs->sk;
	gfp_t gfp = sk->sk_allocation;
	int err;

	if (in_softirq())
		return -EAGAIN;
	/* Bytes that the peer has cut off are repeated here, and without sleep. */
	sk->sk_allocation = GFP_ATOMIC;
	err = hall_rx_demote_now(hs, reason);
	if (!err)
		hall_tx_demote(hs);
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
	bool silent = reason == HALLWAY_REASON_SILENT;

	request.until = jiffies + (silent ? PATIENCE_SILENT : PATIENCE);
	hall_sock_walk(request_one, &request);
	hall_sock_walk(await_one, &request);
}

void hall_detach_member(struct hall_member *member, u32 reason)
{
	hall_detach_streams(member, reason);
	/* What a peer has not read yet, a socket that has left can't send again. */
	if (reason != HALLWAY_REASON_SILENT)
		hall_channel_drained(member, DRAIN);
}

void hall_depart_member(struct hall_member *member, u32 reason)
{
	/* A peer that is gone answers nobody; else there is time for marks. */
	if (reason != HALLWAY_REASON_PEER_LEFT)
		hall_detach_streams(member, reason);
	hall_sock_walk(depart_one, member);
	hall_channel_departed(member);
}
