// SPDX-License-Identifier: GPL-2.0-only
/*
 * Attaching.
 *
 * A socket is attached when sk_prot points into its hall_sock: to a copy of its
 * own native table with our functions in it, so that IPv4, IPv6 and mapped
 * sockets need no tables of ours. sk_socket->ops, once the socket is accepted, points to
 * a copy that all sockets with the same native table have in common. Neither holds a
 * reference to the module: see switch.c for how it is unloaded.
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
		hs->prot.release_cb = hs->native->release_cb;
		hs->quiet = hall_attach_ops(hs);
	}
	hs->native->release_cb(sk);
}

/* TCP's two, those of outsource/, also of earlier loads of the module, and others'. */
#define OPS_MAX		64

static DEFINE_SPINLOCK(lock);		/* BH; of writers */
static struct hall_ops *all_ops[OPS_MAX];

static void fill_ops(struct hall_ops *to, const struct proto_ops *native)
{
	to->native = native;
	to->ops = *native;
	to->ops.splice_read = hall_splice_read;
	to->ops.sendmsg = hall_ops_sendmsg;
	to->ops.recvmsg = hall_ops_recvmsg;
	to->ops.setsockopt = hall_ops_setsockopt;
	if (native->read_sock == tcp_read_sock) {
		to->ops.read_sock = hall_read_sock;
		to->ops.peek_len = hall_peek_len;
	}
}

/* The copy of a native table. NULL: there is none. */
static struct hall_ops *find_ops(const struct proto_ops *native)
{
	struct hall_ops *ops;
	unsigned int i;

	for (i = 0; i < OPS_MAX; i++) {
		ops = smp_load_acquire(&all_ops[i]);
		if (!ops)
			break;
		if (ops->native == native)
			return ops;
	}
	return NULL;
}

/* Makes the copy, unless another thread just has. NULL: there is no memory or place. */
static struct hall_ops *make_ops(const struct proto_ops *native)
{
	struct hall_ops *made = kmalloc(sizeof(*made), GFP_ATOMIC | __GFP_NOWARN);
	struct hall_ops *ops;
	unsigned int i = 0;

	if (!made)
		return NULL;
	fill_ops(made, native);
	spin_lock_bh(&lock);
	ops = find_ops(native);
	while (!ops && i < OPS_MAX && all_ops[i])
		i++;
	if (!ops && i < OPS_MAX) {
		/* The table stays what it is while the module is loaded. */
		__module_get(native->owner);
		smp_store_release(&all_ops[i], made);
		ops = made;
	}
	spin_unlock_bh(&lock);
	if (ops != made)
		kfree(made);
	return ops;
}

void hall_attach_uninit(void)
{
	unsigned int i;

	for (i = 0; i < OPS_MAX && all_ops[i]; i++) {
		module_put(all_ops[i]->native->owner);
		kfree(all_ops[i]);
	}
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
	prot->ioctl = hall_ioctl;
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
	if (!hs->native)
		take_prot(hs, native);
	/* Called under slock alone, and so never by those that the table had before. */
	hs->prot.release_cb = sk->sk_socket ? native->release_cb : accepted_release_cb;
	hall_sock_publish(hs);
	/* A reader of the pointer sees the table filled. */
	smp_store_release(&sk->sk_prot, &hs->prot);
	hall_count(HALL_ATTACHED);
}

bool hall_attach_ops(struct hall_sock *hs)
{
	struct socket *sock = hs->sk->sk_socket;
	struct hall_ops *ops;

	if (!sock || !sock->ops)
		return false;
	if (sock->ops->sendmsg == hall_ops_sendmsg)
		return true;
	if (sock->ops->splice_read != inet_stream_ops.splice_read)
		return false;
	ops = find_ops(sock->ops) ?: make_ops(sock->ops);
	if (!ops)
		return false;
	smp_store_release(&sock->ops, &ops->ops);
	/* Buffers that were read until now were read by no call of ours. */
	hall_callbacks_record(hs);
	return true;
}
