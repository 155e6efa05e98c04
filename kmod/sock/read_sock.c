// SPDX-License-Identifier: GPL-2.0-only
/*
 * read_sock(): users in the kernel that take buffers in place of bytes. NVMe over TCP
 * and AF_KCM call the socket's read_sock() with a function of theirs, the actor, and
 * get from TCP the buffers that it has. A ring's bytes are copied into a fresh buffer:
 * the actor may keep a clone of it, and the peer may change the ring at any time. Bytes
 * that the actor does not take stay in the ring.
 *
 * The caller has lock_sock(), so that rx_mutex, which is outside of it, can't be taken.
 * It is not needed: buffers do not change while that lock is held, and tcp_read_sock()
 * goes no further than the bytes that had arrived. Only where one of TCP's buffers may
 * reach across the ring's start is the ring's rest requeued first: users take whole
 * buffers.
 *
 * TCP calls a user's sk_data_ready() in softirq, too, with the spinlock alone, and some
 * users read there. No carrier changes there, so a read is put off: the work item calls
 * sk_data_ready() again.
 *
 * A user that calls tcp_read_sock() itself, as iSCSI's initiator does, makes no call of
 * ours and gets no ring: see callbacks.c.
 */
#include "calls.h"

#include <net/tcp.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "carrier.h"
#include "idle.h"
#include "lookup.h"
#include "quiet.h"
#include "requeue.h"
#include "stream.h"
#include "wake.h"

/* Of one buffer, at most. */
#define CHUNK	SKB_WITH_OVERHEAD(16384)

/* A peer may write as fast as a read goes on: one takes this many bytes at most. */
#define TURN	(256u << 10)

/* How soon to try again where memory was short. */
#define MEMORY	(HZ / 10)

struct reader {
	read_descriptor_t *desc;
	sk_read_actor_t actor;
};

/* Has the work item call sk_data_ready(). */
static void put_off(struct hall_sock *hs, unsigned long delay)
{
	WRITE_ONCE(hs->rx.put_off, true);
	hall_sock_queue_work(hs, delay);
}

static int read_tcp(struct hall_sock *hs, const struct reader *reader)
{
	int n = tcp_read_sock(hs->sk, reader->desc, reader->actor);

	if (n > 0) {
		atomic64_add(n, &hs->rx.bytes_tcp);
		hall_count_add(HALL_RX_BYTES_TCP, n);
	}
	return n;
}

/* The next bytes are the ring's, which has `unread`. */
static int read_ring(struct hall_sock *hs, const struct reader *reader,
		     u32 unread)
{
	gfp_t gfp = hs->sk->sk_allocation | __GFP_NOWARN;
	u32 len = min_t(u32, unread, CHUNK);
	struct hall_span span;
	struct sk_buff *skb;
	int n = -ECONNRESET;

	skb = alloc_skb(len, gfp);
	/* A disk's user may not wait for memory that is in one piece. */
	if (!skb) {
		len = min_t(u32, unread, SKB_WITH_OVERHEAD(PAGE_SIZE));
		skb = alloc_skb(len, gfp);
	}
	if (!skb) {
		put_off(hs, MEMORY);
		return 0;
	}
	span = hall_ring_get_rx_span(&hs->rx.ring, 0, len);
	skb_put_data(skb, span.data, span.len);
	if (hall_rx_is_intact(hs) && span.len)
		n = reader->actor(reader->desc, skb, 0, span.len);
	else
		hall_sock_break(hs);
	if (n > 0)
		hall_rx_consume(hs, min_t(u32, n, span.len));
	consume_skb(skb);
	return n;
}

/* Puts the ring's bytes before those that TCP has brought behind it. */
static int requeue_and_read(struct hall_sock *hs, const struct reader *reader)
{
	switch (hall_rx_requeue(hs, hs->sk->sk_allocation | __GFP_NOWARN)) {
	case 0:
		hall_rx_release(hs, HALLWAY_REASON_NONE);
		return read_tcp(hs, reader);
	case -EPROTO:
		hall_sock_break(hs);
		return -ECONNRESET;
	default:
		put_off(hs, MEMORY);
		return 0;
	}
}

/*
 * No byte is there. Those of a ring that has to wait for TCP's, or for its start mark, do
 * not count: their arrival is reported.
 */
static void arm(struct hall_sock *hs)
{
	bool come;
	u32 n;

	spin_lock_bh(&hs->channel.lock);
	come = hall_ring_arm_head(&hs->rx.ring, 1);
	spin_unlock_bh(&hs->channel.lock);
	if (come && hall_rx_find_source(hs, &n) != HALL_RX_EMPTY)
		put_off(hs, 0);
}

/* Reads from one carrier. Bytes, 0 if none is there, or an error. lock_sock(). */
static int read_once(struct hall_sock *hs, const struct reader *reader)
{
	u32 n;

	if (hs->rx.state == HALL_RX_NATIVE)
		return read_tcp(hs, reader);
	switch (hall_rx_find_source(hs, &n)) {
	case HALL_RX_TCP:
		if (hs->rx.ring.started &&
		    after(hall_rx_get_arrived(hs->sk), hs->rx.ring.start_seq))
			return requeue_and_read(hs, reader);
		return read_tcp(hs, reader);
	case HALL_RX_RING:
		return read_ring(hs, reader, n);
	case HALL_RX_ENDED:
		hall_rx_release(hs, HALLWAY_REASON_NONE);
		return read_tcp(hs, reader);
	case HALL_RX_CORRUPT:
		hall_sock_break(hs);
		return -ECONNRESET;
	default:
		arm(hs);
		return 0;
	}
}

/* lock_sock(). */
static int read_all(struct hall_sock *hs, const struct reader *reader)
{
	struct hall_call call;
	int copied = 0, n;

	hall_call_begin(hs, &call);
	hall_sock_apply_policy(hs, 0);
	do {
		n = read_once(hs, reader);
		if (n > 0)
			copied += n;
	} while (n > 0 && reader->desc->count && copied < TURN);
	if (copied >= TURN)
		put_off(hs, 0);
	hall_call_end(hs, &call);
	return copied ?: n;
}

int hall_read_sock(struct sock *sk, read_descriptor_t *desc,
		   sk_read_actor_t actor)
{
	const struct reader reader = { .desc = desc, .actor = actor };
	struct hall_sock *hs = hall_sock_get(sk);
	int n = 0;

	if (!hs)
		return tcp_read_sock(sk, desc, actor);
	/* TCP may bring bytes until the socket is reset. */
	if (unlikely(hs->pinned == HALLWAY_REASON_CORRUPT))
		n = -ECONNRESET;
	else if (sock_owned_by_user(sk))
		n = read_all(hs, &reader);
	else if (hs->rx.state == HALL_RX_NATIVE)
		n = read_tcp(hs, &reader);
	else
		put_off(hs, 0);
	hall_sock_put(hs);
	return n;
}

int hall_peek_len(struct socket *sock)
{
	int n = hall_sock_find_native_ops(sock)->peek_len(sock);
	struct hall_sock *hs = hall_sock_peek(sock->sk);
	bool come = false, filled = false;
	u32 unread, tcp;

	/* One that never had a ring may be set up for the next socket now: see life.c. */
	if (!hs || READ_ONCE(hs->rx.state) != HALL_RX_MAPPED)
		return n;
	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED && hall_sock_is_of(hs, sock->sk) &&
	    hall_rx_ring_is_next(hs, &tcp)) {
		unread = hall_ring_count_used(&hs->rx.ring);
		/* A user that waits for more than this does not read now. */
		come = hall_ring_arm_head(&hs->rx.ring, unread + 1);
		filled = unread >= HALL_RING_FILLS(hs->rx.ring.size) ||
			 hall_ring_should_wake_writer(&hs->rx.ring);
		n += unread;
	}
	spin_unlock_bh(&hs->channel.lock);
	if (!(come || filled) || !hall_sock_tryget(hs, sock->sk))
		return n;
	if (come)
		put_off(hs, 0);
	/* Not under the socket's lock: on_small() wakes the writer, or ends the ring. */
	if (unlikely(filled))
		hall_rx_report_small(hs);
	hall_sock_put(hs);
	return n;
}
