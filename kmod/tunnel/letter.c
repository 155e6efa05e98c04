// SPDX-License-Identifier: GPL-2.0-only
/* Sockets of SOCK_DGRAM: ports, and queues of datagrams. */
#include "tunnel.h"

#include <linux/skbuff.h>
#include <linux/xarray.h>

#include "../obs/counters.h"

/* Ports below need a privilege, as those of streams. */
#define PORT_FIRST	1024

/* Bytes of a datagram that lie in one piece. */
#define LINEAR_MAX	2048

struct sender {
	u32 cid;
	u32 port;
};

/* Sockets by their ports. A socket leaves before it is freed. */
static DEFINE_XARRAY_FLAGS(ports, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_BH);
static u32 next_port = PORT_FIRST;	/* under its lock */

static struct sender *sender_of(struct sk_buff *skb)
{
	return (struct sender *)skb->cb;
}

int hall_letter_bind(struct vsock_sock *vsk, struct sockaddr_vm *address)
{
	u32 port = address->svm_port;
	int err;

	if (port == VMADDR_PORT_ANY)
		err = xa_alloc_cyclic_bh(&ports, &port, sk_vsock(vsk),
					 XA_LIMIT(PORT_FIRST, VMADDR_PORT_ANY - 1),
					 &next_port, GFP_KERNEL);
	else if (port < PORT_FIRST && !capable(CAP_NET_BIND_SERVICE))
		err = -EACCES;
	else
		err = xa_insert_bh(&ports, port, sk_vsock(vsk), GFP_KERNEL);
	if (err < 0)
		return err == -EBUSY ? -EADDRINUSE : err;
	vsock_addr_init(&vsk->local_addr, address->svm_cid, port);
	return 0;
}

void hall_letter_unbind(struct vsock_sock *vsk)
{
	if (vsock_addr_bound(&vsk->local_addr))
		xa_erase_bh(&ports, vsk->local_addr.svm_port);
}

int hall_letter_dequeue(struct vsock_sock *vsk, struct msghdr *msg, size_t len,
			int flags)
{
	struct sock *sk = sk_vsock(vsk);
	struct sk_buff *skb;
	size_t copied;
	int err;

	if (flags & (MSG_OOB | MSG_ERRQUEUE))
		return -EOPNOTSUPP;
	skb = skb_recv_datagram(sk, flags, &err);
	if (!skb)
		return err;
	copied = min_t(size_t, len, skb->len);
	if (copied < skb->len)
		msg->msg_flags |= MSG_TRUNC;
	err = skb_copy_datagram_msg(skb, 0, msg, copied);
	if (!err && msg->msg_name) {
		vsock_addr_init(msg->msg_name, sender_of(skb)->cid, sender_of(skb)->port);
		msg->msg_namelen = sizeof(struct sockaddr_vm);
	}
	if (!err)
		sock_recv_cmsgs(msg, sk, skb);
	if (!err)
		err = flags & MSG_TRUNC ? skb->len : copied;
	if (err >= 0 && !(flags & MSG_PEEK))
		hall_count_add(HALL_RX_BYTES_TUNNEL, skb->len);
	skb_free_datagram(sk, skb);
	return err;
}

static struct sock *find_socket(u32 port)
{
	struct sock *sk;

	xa_lock_bh(&ports);
	sk = xa_load(&ports, port);
	if (sk)
		sock_hold(sk);
	xa_unlock_bh(&ports);
	return sk;
}

/* The bytes behind the header, or NULL. */
static struct sk_buff *copy_datagram(struct hall_rx_ring *rx,
				     const struct hallway_letter *letter)
{
	u32 linear = min_t(u32, letter->length, LINEAR_MAX), at;
	struct hall_span span;
	struct sk_buff *skb;
	int err;

	skb = alloc_skb_with_frags(linear, letter->length - linear,
				   PAGE_ALLOC_COSTLY_ORDER, &err,
				   GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;
	skb_put(skb, linear);
	skb->data_len = letter->length - linear;
	skb->len = letter->length;
	for (at = 0; at < letter->length; at += span.len) {
		span = hall_ring_get_rx_span(rx, sizeof(*letter) + at,
					     letter->length - at);
		skb_store_bits(skb, at, span.data, span.len);
	}
	return skb;
}

/* Takes the datagram, unless the socket is full. */
static bool queue_datagram(struct sock *sk, struct sk_buff *skb)
{
	bool queued = !sock_queue_rcv_skb(sk, skb);

	/* The program may have closed it since it was found, and its queue been emptied. */
	if (queued && sock_flag(sk, SOCK_DEAD))
		skb_queue_purge(&sk->sk_receive_queue);
	if (!queued)
		kfree_skb(skb);
	return queued;
}

bool hall_letter_deliver(struct hall_tunnel *tunnel, const struct hallway_letter *letter)
{
	struct hall_member *member = tunnel->channel.member;
	struct sock *sk = hall_member_may_reach(member, letter->remote_port) ?
			  find_socket(letter->remote_port) : NULL;
	struct sk_buff *skb = NULL;
	bool intact;

	/* A full socket counts what it loses; nothing is copied for it. */
	if (sk && atomic_read(&sk->sk_rmem_alloc) >= READ_ONCE(sk->sk_rcvbuf))
		atomic_inc(&sk->sk_drops);
	else if (sk)
		skb = copy_datagram(&tunnel->rx, letter);
	/* Another member may have written there meanwhile. */
	intact = member->transport->intact(member);
	if (skb && !intact) {
		kfree_skb(skb);
	} else if (skb) {
		sender_of(skb)->cid = member->cid;
		sender_of(skb)->port = letter->local_port;
		this_cpu_add(member->bytes->rx, letter->length);
		hall_count(queue_datagram(sk, skb) ? HALL_TUNNEL_DATAGRAMS_RECEIVED :
						     HALL_TUNNEL_DATAGRAMS_DROPPED);
	} else {
		hall_count(HALL_TUNNEL_DATAGRAMS_DROPPED);
	}
	if (sk)
		sock_put(sk);
	return intact;
}
