// SPDX-License-Identifier: GPL-2.0
/*
 * SOCK_SEQPACKET: whole messages alone. One that finds too little space waits for what
 * it needs, not for the next byte.
 */
#include "tunnel.h"

#include <linux/uio.h>

static u32 frame_size(size_t length)
{
	return ALIGN(sizeof(struct hallway_frame) + length, HALLWAY_FRAME_ALIGN);
}

/* The length of the next message, of which there are unread bytes; or -EPROTO. */
static s64 find_message(struct hall_tunnel *tunnel, u32 unread)
{
	struct hall_rx_ring *rx = &tunnel->rx;
	struct hall_span span;
	u32 length;

	/* A frame is published in one step, and its head does not wrap. */
	span = hall_ring_get_rx_span(rx, 0, sizeof(struct hallway_frame));
	if (span.len < sizeof(struct hallway_frame))
		return -EPROTO;
	length = READ_ONCE(((struct hallway_frame *)span.data)->length);
	if (length > unread - span.len || frame_size(length) > unread)
		return -EPROTO;
	return length;
}

ssize_t hall_tunnel_packet_dequeue(struct vsock_sock *vsk, struct msghdr *msg,
				   int flags)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	struct sock *sk = sk_vsock(vsk);
	u32 unread = hall_tunnel_count_unread(tunnel, sk);
	s64 length;
	size_t take;

	/* The core looks for an error only after this. */
	if (!unread) {
		sk->sk_err = ECONNRESET;
		return 0;
	}
	length = find_message(tunnel, unread);
	if (length < 0) {
		hall_tunnel_corrupt(tunnel, sk);
		return 0;
	}
	take = min_t(size_t, length, msg_data_left(msg));
	/* A message that faults stays unread. */
	if (hall_tunnel_copy_out(tunnel, sizeof(struct hallway_frame), &msg->msg_iter,
				 take) < take)
		return -EFAULT;
	if (!(flags & MSG_PEEK))
		hall_tunnel_consume(tunnel, frame_size(length), length);
	return length;
}

/* 0, or an error; sets what the message needs if there is too little space. */
static int write_message(struct hall_tunnel *tunnel, struct msghdr *msg, u32 len)
{
	static const u8 zeros[HALLWAY_FRAME_ALIGN];
	struct hallway_frame frame = { .length = len };
	u32 total = frame_size(len);
	struct hall_span span;

	/* Neither the head nor the zeros wrap: positions and size are aligned. */
	span = hall_ring_get_tx_span(&tunnel->tx, 0, sizeof(frame));
	memcpy(span.data, &frame, sizeof(frame));
	if (hall_tunnel_copy_in(tunnel, sizeof(frame), &msg->msg_iter, len) < len)
		return -EFAULT;
	span = hall_ring_get_tx_span(&tunnel->tx, sizeof(frame) + len,
				     total - sizeof(frame) - len);
	memcpy(span.data, zeros, span.len);
	hall_tunnel_publish(tunnel, total, len);
	return 0;
}

int hall_tunnel_packet_enqueue(struct vsock_sock *vsk, struct msghdr *msg,
			       size_t len)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 space;

	tunnel->need = 0;
	tunnel->error = hall_tunnel_find_space(tunnel, sk_vsock(vsk), &space);
	if (tunnel->error)
		return 0;
	if (len > tunnel->tx.size || frame_size(len) > tunnel->tx.size) {
		tunnel->error = -EMSGSIZE;
		return 0;
	}
	if (space < frame_size(len)) {
		tunnel->need = frame_size(len);
		return 0;
	}
	tunnel->error = write_message(tunnel, msg, len);
	return tunnel->error ? 0 : len;
}
