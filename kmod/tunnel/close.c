// SPDX-License-Identifier: GPL-2.0
/* shutdown() and close(). */
#include "tunnel.h"

int hall_tunnel_shutdown(struct vsock_sock *vsk, int mode)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);

	if (!tunnel || tunnel->state != HALL_TUNNEL_CONNECTED)
		return 0;
	if ((mode & SEND_SHUTDOWN) && !tunnel->failed) {
		hall_tunnel_end(tunnel);
		hall_channel_notify_receiver(&tunnel->channel);
	}
	if (mode & RCV_SHUTDOWN)
		hall_tunnel_finish_rx(tunnel, 0);
	hall_tunnel_close_channel(tunnel);
	return 0;
}

void hall_tunnel_release(struct vsock_sock *vsk)
{
	if (sk_vsock(vsk)->sk_type == SOCK_DGRAM) {
		hall_datagram_unbind(vsk);
		hall_trunks_close();
	} else {
		/* A tunnel that still waits for its answer declines it. */
		hall_tunnel_shutdown(vsk, SHUTDOWN_MASK);
		hall_tunnel_cancel(vsk);
	}
	vsock_remove_sock(vsk);
}
