// SPDX-License-Identifier: GPL-2.0-only
/*
 * Registers the transport from host to guest with the core of AF_VSOCK.
 *
 * Each tunnel pins this module, also one whose socket is closed and whose ring the peer
 * still reads. So no tunnel is left when hall_vsock_exit() runs.
 */
#include <linux/module.h>

#include "../compat/namespace.h"
#include "loan.h"
#include "tunnel.h"

static int init_socket(struct vsock_sock *vsk, struct vsock_sock *listener)
{
	vsk->trans = NULL;
	if (sk_vsock(vsk)->sk_type == SOCK_DGRAM)
		hall_trunks_open();
	return 0;
}

/* lock_sock() */
static void release_socket(struct vsock_sock *vsk)
{
	if (sk_vsock(vsk)->sk_type == SOCK_DGRAM) {
		hall_letter_unbind(vsk);
		hall_trunks_close();
	} else {
		hall_tunnel_cancel(vsk);
	}
	vsock_remove_sock(vsk);
}

/* release_socket() has come before. */
static void destruct_socket(struct vsock_sock *vsk)
{
}

static bool allow_guest(u32 cid, u32 port)
{
	return cid > VMADDR_CID_HOST && cid != VMADDR_CID_ANY;
}

static bool allow_packets(u32 cid)
{
	return true;
}

static bool is_active(struct vsock_sock *vsk)
{
	return hall_tunnel_of(vsk) && sk_vsock(vsk)->sk_state == TCP_ESTABLISHED;
}

/* The core's loop serves any length: it takes what is there, and waits again. */
static u64 rcvhiwat(struct vsock_sock *vsk)
{
	return U64_MAX;
}

static int note_receive(struct vsock_sock *vsk, size_t target,
			struct vsock_transport_recv_notify_data *data)
{
	return 0;
}

static int note_received(struct vsock_sock *vsk, size_t target, ssize_t copied,
			 bool taken, struct vsock_transport_recv_notify_data *data)
{
	return 0;
}

/* What the message before needed, for which there was too little space, counts no more. */
static int begin_send(struct vsock_sock *vsk,
		      struct vsock_transport_send_notify_data *data)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);

	if (tunnel)
		tunnel->need = 0;
	return 0;
}

static int note_send(struct vsock_sock *vsk,
		     struct vsock_transport_send_notify_data *data)
{
	return 0;
}

/* Some kernels turn each error of an enqueuing into ENOMEM, but none from here. */
static int note_sent(struct vsock_sock *vsk, ssize_t written,
		     struct vsock_transport_send_notify_data *data)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	int err;

	if (!tunnel)
		return -EPIPE;
	err = tunnel->error;
	tunnel->error = 0;
	return err;
}

/* Under the core's mutex. */
static u32 get_local_cid(void)
{
	return READ_ONCE(hall_cid);
}

const struct vsock_transport hall_vsock_transport = {
	.module = THIS_MODULE,
	.init = init_socket,
	.destruct = destruct_socket,
	.release = release_socket,
	.cancel_pkt = hall_tunnel_cancel,
	.connect = hall_tunnel_connect,
	.dgram_bind = hall_letter_bind,
	.dgram_dequeue = hall_letter_dequeue,
	.dgram_enqueue = hall_letter_enqueue,
	.dgram_allow = allow_guest,
	.stream_dequeue = hall_tunnel_stream_dequeue,
	.stream_enqueue = hall_tunnel_stream_enqueue,
	.stream_has_data = hall_tunnel_stream_has_data,
	.stream_has_space = hall_tunnel_has_space,
	.stream_rcvhiwat = rcvhiwat,
	.stream_is_active = is_active,
	.stream_allow = allow_guest,
	.seqpacket_dequeue = hall_tunnel_packet_dequeue,
	.seqpacket_enqueue = hall_tunnel_packet_enqueue,
	.seqpacket_allow = allow_packets,
	.seqpacket_has_data = hall_tunnel_packet_has_data,
	.notify_poll_in = hall_tunnel_poll_in,
	.notify_poll_out = hall_tunnel_poll_out,
	.notify_recv_init = note_receive,
	.notify_recv_pre_block = note_receive,
	.notify_recv_pre_dequeue = note_receive,
	.notify_recv_post_dequeue = note_received,
	.notify_send_init = begin_send,
	.notify_send_pre_block = note_send,
	.notify_send_pre_enqueue = note_send,
	.notify_send_post_enqueue = note_sent,
	.shutdown = hall_tunnel_shutdown,
#ifdef HALL_HAS_UNSENT_BYTES
	.unsent_bytes = hall_tunnel_count_unsent,
#endif
	.get_local_cid = get_local_cid,
};

static int __init hall_vsock_init(void)
{
	int err = hall_tunnels_init();

	if (err)
		return err;
	hall_tunnel_events_init();
	err = vsock_core_register(&hall_vsock_transport,
				  VSOCK_TRANSPORT_F_H2G | VSOCK_TRANSPORT_F_DGRAM);
	/* Datagrams may be those of another hypervisor. */
	if (err == -EBUSY)
		err = vsock_core_register(&hall_vsock_transport, VSOCK_TRANSPORT_F_H2G);
	if (err) {
		if (err == -EBUSY)
			pr_err("hallway_vsock: another module, such as vhost_vsock, serves guests' CIDs: unload it\n");
		hall_tunnels_uninit();
		return err;
	}
	hall_channel_register(&hall_tunnel_kind);
	hall_loans_init();
	return 0;
}

static void __exit hall_vsock_exit(void)
{
	hall_loans_uninit();
	vsock_core_unregister(&hall_vsock_transport);
	hall_channel_unregister(&hall_tunnel_kind);
	/* No OFFER meets the kind after this. */
	synchronize_rcu();
	hall_tunnels_uninit();
}

module_init(hall_vsock_init);
module_exit(hall_vsock_exit);

MODULE_DESCRIPTION("AF_VSOCK between virtual machines of one host, through shared memory");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.2.0");
HALL_IMPORT;
