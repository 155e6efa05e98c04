// SPDX-License-Identifier: GPL-2.0-only
/*
 * SOCK_SEQPACKET: whole messages alone. One that finds too little space waits for what
 * it needs, not for the next byte.
 */
#include "tunnel.h"

#include <linux/uio.h>

#include "frame.h"
#include "loan.h"

ssize_t hall_tunnel_packet_dequeue(struct vsock_sock *vsk, struct msghdr *msg,
				   int flags)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	struct sock *sk = sk_vsock(vsk);
	struct hallway_frame frame;
	bool faults;
	u32 unread;
	s64 length;
	size_t take;

	if (!tunnel)
		return -ECONNRESET;
	unread = hall_tunnel_count_unread(tunnel, sk);
	/* The core looks for an error only after this. */
	if (!unread) {
		sk->sk_err = ECONNRESET;
		return 0;
	}
	length = hall_frame_find(&tunnel->rx, unread, &frame);
	if (length < 0) {
		hall_tunnel_corrupt(tunnel, sk);
		/* A tunnel that had failed before reports nothing again. */
		sk->sk_err = ECONNRESET;
		return 0;
	}
	take = min_t(size_t, length, msg_data_left(msg));
	/* A message that faults is gone, as in the kernel's own transports. */
	faults = hall_frame_copy_out(&tunnel->rx, sizeof(struct hallway_frame),
				     &msg->msg_iter, take) < take;
	if (!hall_tunnel_is_intact(tunnel, sk)) {
		sk->sk_err = ECONNRESET;
		return 0;
	}
	if (!(flags & MSG_PEEK))
		hall_tunnel_consume(tunnel, hall_frame_size(length), length);
	if (faults)
		return -EFAULT;
	if (frame.flags & HALLWAY_FRAME_EOR)
		msg->msg_flags |= MSG_EOR;
	return length;
}

int hall_tunnel_packet_enqueue(struct vsock_sock *vsk, struct msghdr *msg,
			       size_t len)
{
	struct hallway_frame frame = {
		.length = len,
		.flags = msg->msg_flags & MSG_EOR ? HALLWAY_FRAME_EOR : 0,
	};
	u32 size = hall_frame_size(min_t(size_t, len, HALLWAY_RING_MAX)), space;
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);

	if (!tunnel)
		return 0;
	tunnel->need = 0;
	if (hall_loan_is_reserved(tunnel)) {
		tunnel->error = -EBUSY;
		return 0;
	}
	tunnel->error = hall_tunnel_find_space(tunnel, sk_vsock(vsk), 0, &space);
	if (tunnel->error)
		return 0;
	if (size > tunnel->tx.size) {
		tunnel->error = -EMSGSIZE;
		return 0;
	}
	if (space < size) {
		tunnel->need = size;
		return 0;
	}
	tunnel->error = hall_frame_write(&tunnel->tx, &frame, &msg->msg_iter);
	if (tunnel->error)
		return 0;
	hall_tunnel_publish(tunnel, size, len);
	return len;
}
