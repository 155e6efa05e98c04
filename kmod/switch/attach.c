// SPDX-License-Identifier: GPL-2.0-only
/*
 * Attaching.
 *
 * A socket is attached when sk_prot points into its hall_sock: to a copy of its
 * own native table with our functions in it, so that IPv4, IPv6 and mapped
 * sockets need no tables of ours. The same holds for sk_socket->ops, once the
 * socket is accepted. Neither holds a reference to the module: see switch.c for
 * how it is unloaded.
 */
#include "switch.h"

#include <linux/net.h>
#include <linux/skmsg.h>
#include <net/inet_common.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/callbacks.h"
#include "../sock/calls.h"
#include "../sock/life.h"
#include "../sock/lookup.h"

/*
 * The lock of a socket that is yet to be accepted is first released at the end of
 * accept(), when no program has its file: no call was made on it, and none can be
 * native later. (Sockets that the kernel itself accepts, or MPTCP's listener, get
 * their operations later.)
 */
static void accepted_release_cb(struct sock *sk)
{
	struct hall_sock *hs = container_of(sk->sk_prot, struct hall_sock, prot);

	if (sk->sk_socket) {
		hs->prot.release_cb = hall_release_cb;
		hs->quiet = hall_attach_ops(hs);
	}
	hall_release_cb(sk);
}

static void take_prot(struct hall_sock *hs, struct proto *native)
{
	struct proto *prot = &hs->prot;

	hs->native = native;
	*prot = *native;
	prot->close = hall_close;
	prot->shutdown = hall_shutdown;
	prot->destroy = hall_destroy;
	prot->disconnect = hall_disconnect;
	prot->sendmsg = hall_sendmsg;
	prot->recvmsg = hall_recvmsg;
#ifdef HALL_HAS_SENDPAGE
	prot->sendpage = hall_sendpage;
#endif
	prot->release_cb = hall_release_cb;
	prot->sock_is_readable = hall_sock_is_readable;
	prot->stream_memory_free = hall_stream_memory_free;
	prot->ioctl = hall_ioctl;
	prot->setsockopt = hall_setsockopt;
	prot->getsockopt = hall_getsockopt;
#if IS_ENABLED(CONFIG_NET_SOCK_MSG) && IS_ENABLED(CONFIG_BPF_SYSCALL)
	prot->psock_update_sk_prot = hall_psock_update_sk_prot;
#endif
}

bool hall_can_attach(const struct sock *sk)
{
	/* Attached, or of another user of sk_prot: kTLS, sockmap. */
	return READ_ONCE(sk->sk_prot)->sendmsg == tcp_sendmsg &&
	       !sk_psock(sk) && !READ_ONCE(inet_csk(sk)->icsk_ulp_ops);
}

void hall_attach(struct sock *sk, struct hall_member *member)
{
	struct proto *native = sk->sk_prot;
	struct hall_sock *hs;

	if (!hall_can_attach(sk))
		return;
	hs = hall_sock_new(sk, member);
	if (!hs)
		return;
	take_prot(hs, native);
	if (!sk->sk_socket)
		hs->prot.release_cb = accepted_release_cb;
	hall_sock_publish(hs);
	/* A reader of the pointer sees the table filled. */
	smp_store_release(&sk->sk_prot, &hs->prot);
	hall_count(HALL_ATTACHED);
}

bool hall_attach_ops(struct hall_sock *hs)
{
	struct socket *sock = hs->sk->sk_socket;

	if (hs->native_ops)
		return true;
	if (!sock || !sock->ops ||
	    sock->ops->splice_read != inet_stream_ops.splice_read)
		return false;
	hs->native_ops = sock->ops;
	hs->ops = *sock->ops;
	hs->ops.splice_read = hall_splice_read;
	hs->ops.sendmsg = hall_ops_sendmsg;
	hs->ops.recvmsg = hall_ops_recvmsg;
	if (sock->ops->read_sock == tcp_read_sock) {
		hs->ops.read_sock = hall_read_sock;
		hs->ops.peek_len = hall_peek_len;
	}
	smp_store_release(&sock->ops, &hs->ops);
	/* Buffers that were read until now were read by no call of ours. */
	hall_callbacks_record(hs);
	return true;
}
