// SPDX-License-Identifier: GPL-2.0-only
/* SOCK_STREAM. The core waits, and makes calls again that did a part. */
#include "tunnel.h"

#include <linux/uio.h>

#include "frame.h"

ssize_t hall_tunnel_stream_dequeue(struct vsock_sock *vsk, struct msghdr *msg,
				   size_t len, int flags)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 n = tunnel ? hall_tunnel_count_unread(tunnel, sk_vsock(vsk)) : 0;
	size_t done;

	/* The core has seen bytes, under the same lock: another transport's, or corrupt. */
	if (!n)
		return -ECONNRESET;
	done = hall_frame_copy_out(&tunnel->rx, 0, &msg->msg_iter, min_t(size_t, len, n));
	if (!hall_tunnel_is_intact(tunnel, sk_vsock(vsk)))
		return -ECONNRESET;
	if (!(flags & MSG_PEEK) && done)
		hall_tunnel_consume(tunnel, done, done);
	return done ?: -EFAULT;
}

ssize_t hall_tunnel_stream_enqueue(struct vsock_sock *vsk, struct msghdr *msg,
				   size_t len)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 space;
	size_t n;

	if (!tunnel)
		return 0;
	tunnel->error = hall_tunnel_find_space(tunnel, sk_vsock(vsk),
					       min_t(size_t, len, HALLWAY_RING_MAX), &space);
	if (tunnel->error)
		return 0;
	n = hall_frame_copy_in(&tunnel->tx, 0, &msg->msg_iter, min_t(size_t, len, space));
	if (n)
		hall_tunnel_publish(tunnel, n, n);
	else if (space)
		tunnel->error = -EFAULT;
	return n;
}
