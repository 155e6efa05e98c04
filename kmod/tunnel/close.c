// SPDX-License-Identifier: GPL-2.0-only
/* shutdown(), and the end of a tunnel for its socket. */
#include "tunnel.h"

int hall_tunnel_shutdown(struct vsock_sock *vsk, int mode)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);

	if (!tunnel || tunnel->state != HALL_TUNNEL_CONNECTED)
		return 0;
	/* Before the end mark: a peer that finds that finds that we read no more. */
	if (mode & RCV_SHUTDOWN)
		hall_tunnel_truncate_rx(tunnel);
	if ((mode & SEND_SHUTDOWN) && !tunnel->failed) {
		hall_tunnel_end(tunnel);
		hall_channel_notify_receiver(&tunnel->channel);
	}
	if (mode & RCV_SHUTDOWN)
		hall_tunnel_finish_rx(tunnel, 0);
	hall_tunnel_close_channel(tunnel);
	return 0;
}

int hall_tunnel_cancel(struct vsock_sock *vsk)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);

	if (!tunnel)
		return 0;
	/* A signal may come to connect() at the same moment as the answer. */
	hall_tunnel_shutdown(vsk, SHUTDOWN_MASK);
	vsock_remove_connected(vsk);
	/*
	 * It lives on until the peer has read our ring. What answers from here on meets no
	 * socket, and is declined.
	 */
	hall_tunnel_close_channel(tunnel);
	hall_tunnel_detach(tunnel, vsk);
	return 0;
}
