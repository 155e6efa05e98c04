// SPDX-License-Identifier: GPL-2.0
/*
 * Readiness. tcp_poll() asks the socket's own sock_is_readable() and
 * stream_memory_free(), without the socket lock; the doorbell ends in
 * sk_data_ready() and sk_write_space(). Saying "not ready" always arms the
 * doorbell, so that level and edge triggered users are told of the change.
 */
#include "sock.h"

#include "../obs/counters.h"

/*
 * A ring is writable from the first of these on; a writer that found it full
 * is woken at the second, so that it has something to do then.
 */
#define LEAST_SPACE(size)	((size) / 16)
#define WAKE_SPACE(size)	((size) / 2)

/*
 * Are the ring's bytes the next ones, or does TCP owe us some before them?
 * channel.lock alone: a mark may be here that no reader has looked at yet.
 */
static bool ring_is_next(const struct hall_sock *hs)
{
	const struct hall_rx_ring *ring = &hs->rx.ring;
	u64 start = ring->started ? HALLWAY_MARK_SET | ring->start_seq :
		    READ_ONCE(ring->shared->start);

	return (start & HALLWAY_MARK_SET) &&
	       !before(READ_ONCE(tcp_sk(hs->sk)->copied_seq), (u32)start);
}

bool hall_sock_is_readable(struct sock *sk)
{
	struct hall_sock *hs = hall_sock_get(sk);
	bool readable = false;
	u32 target;

	if (!hs)
		return false;
	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED) {
		/* SO_RCVLOWAT, as far as the ring can hold it. */
		target = min_t(u32, sock_rcvlowat(sk, 0, INT_MAX),
			       hs->rx.ring.size / 2);
		readable = hall_ring_arm_head(&hs->rx.ring, target) &&
			   ring_is_next(hs);
	}
	spin_unlock_bh(&hs->channel.lock);
	hall_sock_put(hs);
	return readable;
}

bool hall_stream_memory_free(const struct sock *sk, int wake)
{
	struct hall_sock *hs = hall_sock_get(sk);
	bool on_ring = false, free = false;

	if (hs) {
		spin_lock_bh(&hs->channel.lock);
		on_ring = hs->tx.state == HALL_TX_RING;
		if (on_ring)
			free = hall_ring_arm_tail(&hs->tx.ring,
						  LEAST_SPACE(hs->tx.ring.size),
						  WAKE_SPACE(hs->tx.ring.size));
		spin_unlock_bh(&hs->channel.lock);
		hall_sock_put(hs);
	}
	return on_ring ? free : tcp_stream_memory_free(sk, wake);
}

void hall_sock_wake(struct hall_sock *hs)
{
	struct hall_channel *channel = &hs->channel;
	bool readable = false, writable, look = false;
	struct sock *sk = hs->sk;

	spin_lock_bh(&channel->lock);
	if (hs->rx.state == HALL_RX_MAPPED) {
		hall_ring_rx_heard(&hs->rx.ring);
		readable = hall_ring_used(&hs->rx.ring) || hs->rx.ring.broken;
		/* A mark may have come: the work sees to it. */
		look = READ_ONCE(hs->rx.ring.shared->end);
	}
	writable = hs->tx.state == HALL_TX_RING;
	if (writable)
		hall_ring_tx_heard(&hs->tx.ring);
	spin_unlock_bh(&channel->lock);
	if (unlikely(!hall_owner_native(sk))) {
		hall_owner_wake(hs);
	} else {
		if (readable)
			sk->sk_data_ready(sk);
		if (writable && hall_sock_wants_space(sk))
			sk->sk_write_space(sk);
	}
	if (look)
		hall_channel_raise(channel, HALL_EVENT_LOOK);
}
