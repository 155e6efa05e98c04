// SPDX-License-Identifier: GPL-2.0
/* Bytes between programs and rings. */
#include "tunnel.h"

#include <linux/uio.h>

#include "../obs/counters.h"

size_t hall_tunnel_copy_in(struct hall_tunnel *tunnel, u32 offset,
			   struct iov_iter *from, size_t len)
{
	struct hall_span span;
	size_t done, n;

	for (done = 0; done < len; done += n) {
		span = hall_ring_get_tx_span(&tunnel->tx, offset + done, len - done);
		n = _copy_from_iter(span.data, span.len, from);
		if (n < span.len || !span.len)
			return done + n;
	}
	return done;
}

size_t hall_tunnel_copy_out(struct hall_tunnel *tunnel, u32 offset,
			    struct iov_iter *to, size_t len)
{
	struct hall_span span;
	size_t done, n;

	for (done = 0; done < len; done += n) {
		span = hall_ring_get_rx_span(&tunnel->rx, offset + done, len - done);
		n = _copy_to_iter(span.data, span.len, to);
		if (n < span.len || !span.len)
			return done + n;
	}
	return done;
}

void hall_tunnel_publish(struct hall_tunnel *tunnel, u32 n, u32 payload)
{
	if (hall_ring_publish(&tunnel->tx, n))
		hall_channel_notify_receiver(&tunnel->channel);
	hall_count_add(HALL_TX_BYTES_TUNNEL, payload);
	this_cpu_add(tunnel->channel.member->bytes->tx, payload);
}

void hall_tunnel_consume(struct hall_tunnel *tunnel, u32 n, u32 payload)
{
	struct hall_channel *channel = &tunnel->channel;
	bool ringing;

	spin_lock_bh(&channel->lock);
	ringing = hall_ring_consume(&tunnel->rx, n);
	/* Waiters for edges take each arrival for one, also in a ring with bytes. */
	hall_tunnel_arm_edge(tunnel, false);
	spin_unlock_bh(&channel->lock);
	if (ringing)
		hall_channel_notify_sender(channel);
	hall_count_add(HALL_RX_BYTES_TUNNEL, payload);
	this_cpu_add(channel->member->bytes->rx, payload);
}
