// SPDX-License-Identifier: GPL-2.0-only
/*
 * Readiness. tcp_poll() calls the socket's own sock_is_readable() and
 * stream_memory_free(), without the socket lock; the doorbell ends in
 * sk_data_ready() and sk_write_space(). The answer "not ready" always arms the
 * doorbell, so that level and edge triggered pollers are woken by the change.
 *
 * Neither needs a reference for that: under channel.lock the states say whether there are
 * rings, and no ring outlives the last reference. A connection on TCP does not take the
 * lock either. That is as if the poller had looked just before a ring came. Its entry is
 * in the queue already, and the first byte of a ring always rings.
 */
#include "calls.h"
#include "idle.h"
#include "lookup.h"
#include "stream.h"
#include "wake.h"

static noinline bool ring_is_readable(struct hall_sock *hs, struct sock *sk)
{
	bool readable = false, next, waits = false, small = false, filled = false;
	u32 target, n = 0;

	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED && hall_sock_is_of(hs, sk)) {
		target = sock_rcvlowat(sk, 0, INT_MAX);
		small = target > HALL_RING_FILLS(hs->rx.ring.size);
		next = hall_rx_ring_is_next(hs, &n);
		readable = hall_ring_arm_head(&hs->rx.ring, next && target > n ?
							    target - n : 1);
		waits = readable && !hall_rx_ring_is_next(hs, &n);
		readable &= !waits;
		filled = !readable &&
			 hall_ring_should_wake_writer(&hs->rx.ring);
		if (readable && hall_sock_wants_edges(sk, false))
			hall_ring_arm_edge(&hs->rx.ring);
	}
	spin_unlock_bh(&hs->channel.lock);
	if (unlikely(waits || small || filled) &&
	    hall_channel_tryget(&hs->channel)) {
		if (waits)
			hall_rx_await_tcp(hs);
		if (small)
			hall_rx_report_small(hs);
		if (filled)
			hall_channel_notify_sender(&hs->channel);
		hall_sock_put(hs);
	}
	return readable;
}

bool hall_sock_is_readable(struct sock *sk)
{
	struct hall_sock *hs = hall_sock_peek(sk);

	return hs && READ_ONCE(hs->rx.state) == HALL_RX_MAPPED &&
	       ring_is_readable(hs, sk);
}

/*
 * In this order: replacing is set before the state is TCP's again, and reset after it is
 * the next ring's. A poller that misses the start of a ring is woken when TCP has space
 * again, at the latest.
 */
static bool is_sent_by_tcp(const struct hall_sock *hs)
{
	return smp_load_acquire(&hs->tx.state) == HALL_TX_TCP &&
	       !READ_ONCE(hs->tx.replacing);
}

static noinline bool ring_is_writable(struct hall_sock *hs,
				      const struct sock *sk, int wake)
{
	bool ours, on_ring, free = false;

	spin_lock_bh(&hs->channel.lock);
	on_ring = hs->tx.state == HALL_TX_RING && hall_sock_is_of(hs, sk);
	ours = on_ring || (hs->tx.replacing && hall_sock_is_of(hs, sk));
	if (on_ring)
		free = hall_ring_arm_tail(&hs->tx.ring,
					  HALL_RING_LEAST_SPACE(hs->tx.ring.size),
					  HALL_RING_WAKE_SPACE(hs->tx.ring.size));
	spin_unlock_bh(&hs->channel.lock);
	return ours ? free : tcp_stream_memory_free(sk, wake);
}

bool hall_stream_memory_free(const struct sock *sk, int wake)
{
	struct hall_sock *hs = hall_sock_peek(sk);

	return !hs || is_sent_by_tcp(hs) ? tcp_stream_memory_free(sk, wake) :
					   ring_is_writable(hs, sk, wake);
}
