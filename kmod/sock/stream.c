// SPDX-License-Identifier: GPL-2.0-only
/* Where the next bytes of a stream are, in either direction. */
#include "stream.h"

#include "../obs/counters.h"
#include "../obs/trace.h"
#include "info.h"

enum hall_rx_source hall_rx_find_source(struct hall_sock *hs, u32 *n)
{
	struct hall_rx *rx = &hs->rx;
	bool started = rx->ring.started;
	enum hall_rx_source source;
	u32 arrived;

	/* First the arrived bytes, then the marks: see ring.c, barrier D. */
	arrived = hall_rx_get_arrived(hs->sk);
	spin_lock_bh(&hs->channel.lock);
	source = hall_ring_find_source(&rx->ring, tcp_sk(hs->sk)->copied_seq,
				       arrived, n);
	spin_unlock_bh(&hs->channel.lock);
	if (!started && rx->ring.started) {
		hall_count(HALL_RX_PROMOTED);
		trace_hallway_promote(&hs->local, hs->local_port, &hs->remote,
				      hs->remote_port, false, rx->ring.size);
	}
	return source;
}

bool hall_rx_ring_is_next(const struct hall_sock *hs, u32 *n)
{
	const struct hall_rx_ring *ring = &hs->rx.ring;
	u64 start = ring->started ? HALLWAY_MARK_SET | ring->start_seq :
		    READ_ONCE(ring->shared->start);
	u32 copied = READ_ONCE(tcp_sk(hs->sk)->copied_seq);

	if (!(start & HALLWAY_MARK_SET))
		return false;
	*n = before(copied, (u32)start) ? (u32)start - copied : 0;
	return !*n || !after((u32)start, READ_ONCE(tcp_sk(hs->sk)->rcv_nxt));
}

u32 hall_rx_count_unread(struct hall_sock *hs)
{
	u32 used = 0;

	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED)
		used = hall_ring_count_used(&hs->rx.ring);
	spin_unlock_bh(&hs->channel.lock);
	return used;
}

u32 hall_rx_count_readable(struct hall_sock *hs)
{
	u32 n;

	if (hs->rx.state != HALL_RX_MAPPED)
		return 0;
	/* The start mark may be there. */
	hall_rx_find_source(hs, &n);
	return hall_rx_lacks_tcp(hs) ? 0 : hall_rx_count_unread(hs);
}

void hall_rx_consume(struct hall_sock *hs, u32 n)
{
	bool ringing;

	spin_lock_bh(&hs->channel.lock);
	ringing = hall_ring_consume(&hs->rx.ring, n);
	spin_unlock_bh(&hs->channel.lock);
	if (ringing)
		hall_channel_notify_sender(&hs->channel);
	hall_info_count_received(hs, n);
}

bool hall_rx_is_at_urgent(struct hall_sock *hs, u32 seen)
{
	const struct tcp_sock *tp = tcp_sk(hs->sk);
	u32 n;

	/* A sender of urgent data has ended its ring: ring bytes come first. */
	return tp->urg_data && tp->urg_seq == tp->copied_seq + seen &&
	       (hs->rx.state == HALL_RX_NATIVE ||
		hall_rx_find_source(hs, &n) != HALL_RX_RING);
}

u32 hall_tx_count_unread(struct hall_sock *hs)
{
	u32 unread;

	if (!hs->tx.memory.ring || hs->tx.state == HALL_TX_OFFERED)
		return 0;
	spin_lock_bh(&hs->channel.lock);
	unread = hall_ring_count_unread(&hs->tx.ring);
	spin_unlock_bh(&hs->channel.lock);
	return unread;
}
