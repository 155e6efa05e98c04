// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections: the OFFER of the caller's ring is the request, that of the listener's
 * side the answer. One round trip.
 */
#include "tunnel.h"

#include <hallway/reason.h>

#include "../obs/counters.h"

static u32 type_of(const struct sock *sk)
{
	return sk->sk_type == SOCK_SEQPACKET ? HALLWAY_TUNNEL_SEQPACKET :
					       HALLWAY_TUNNEL_STREAM;
}

/* A message has to fit into the ring that there is: packets keep theirs. */
static bool can_grow(const struct sock *sk)
{
	return sk->sk_type == SOCK_STREAM;
}

void hall_tunnel_offer(struct hall_tunnel *tunnel, const struct hallway_tunnel *names)
{
	hall_channel_tunnel(&tunnel->channel, HALL_TUNNEL_CARRIER, names,
			    &tunnel->memory);
}

static void send_offer(struct hall_tunnel *tunnel, const struct vsock_sock *vsk,
		       u32 answers)
{
	hall_tunnel_offer(tunnel, &(struct hallway_tunnel){
		.answers = answers,
		.type = type_of(&vsk->sk),
		.local_port = vsk->local_addr.svm_port,
		.remote_port = vsk->remote_addr.svm_port,
	});
}

int hall_tunnel_connect(struct vsock_sock *vsk)
{
	struct hall_member *member = hall_members_get_by_cid(vsk->remote_addr.svm_cid);
	struct hall_tunnel *tunnel;
	int err;

	/* Of an attempt before, which failed. */
	hall_tunnel_cancel(vsk);
	/* It may have been answered and reset before connect() could return. */
	vsk->peer_shutdown = 0;
	if (!member)
		return -EHOSTUNREACH;
	tunnel = hall_tunnel_new(member, GFP_KERNEL);
	hall_member_put(member);
	if (IS_ERR(tunnel))
		return PTR_ERR(tunnel);
	tunnel->state = HALL_TUNNEL_CALLING;
	hall_tunnel_attach(tunnel, sk_vsock(vsk));
	err = hall_tunnel_open(tunnel);
	if (!err && !READ_ONCE(hall_tunnels_enabled))
		err = -ENODEV;
	err = err ?: hall_tunnel_alloc(tunnel, vsk->buffer_size, can_grow(sk_vsock(vsk)));
	if (err) {
		hall_tunnel_cancel(vsk);
		return err;
	}
	hall_count(HALL_TUNNEL_CALLS);
	send_offer(tunnel, vsk, 0);
	return 0;
}

/* The listener's new socket, under both locks; or NULL. */
static struct sock *make_child(struct sock *listener, u32 cid, u32 port)
{
	struct sock *child = vsock_create_connected(listener);
	struct vsock_sock *vchild;

	if (!child)
		return NULL;
	lock_sock_nested(child, SINGLE_DEPTH_NESTING);
	vchild = vsock_sk(child);
	child->sk_state = TCP_ESTABLISHED;
	vsock_addr_init(&vchild->remote_addr, cid, port);
	/* Between two CIDs of guests the core would choose the way over the host. */
	vsock_addr_init(&vchild->local_addr, VMADDR_CID_HOST,
			vsock_sk(listener)->local_addr.svm_port);
	if (vsock_assign_transport(vchild, vsock_sk(listener)) ||
	    vchild->transport->module != THIS_MODULE) {
		release_sock(child);
		sock_put(child);
		return NULL;
	}
	vchild->local_addr.svm_cid = READ_ONCE(hall_cid);
	return child;
}

/* Both locks. 0, or the reason to decline. */
static u32 answer(struct hall_tunnel *tunnel, struct sock *child,
		  const struct hallway_message *offer)
{
	struct vsock_sock *vchild = vsock_sk(child);

	if (hall_tunnel_open(tunnel))
		return HALLWAY_REASON_PEER_LEFT;
	/* As if nothing listened. */
	if (!READ_ONCE(hall_tunnels_enabled))
		return HALLWAY_REASON_NO_MATCH;
	if (hall_tunnel_map(tunnel, offer, can_grow(child)))
		return HALLWAY_REASON_CORRUPT;
	if (hall_tunnel_alloc(tunnel, vchild->buffer_size, can_grow(child)))
		return HALLWAY_REASON_NO_MEMORY;
	tunnel->state = HALL_TUNNEL_CONNECTED;
	/* For the socket. */
	refcount_inc(&tunnel->channel.refs);
	hall_tunnel_attach(tunnel, child);
	send_offer(tunnel, vchild, offer->from);
	return 0;
}

/* listener's lock. 0, or the reason to decline. */
static u32 accept_request(struct hall_tunnel *tunnel, struct sock *listener,
			  const struct hallway_message *offer)
{
	struct sock *child;
	u32 reason;

	/* It may have been closed since it was found. */
	if (listener->sk_state != TCP_LISTEN || sock_flag(listener, SOCK_DEAD) ||
	    listener->sk_shutdown == SHUTDOWN_MASK ||
	    /* Of a connect() before: accept() would fail, and lose the child. */
	    listener->sk_err ||
	    type_of(listener) != offer->offer.tunnel.type)
		return HALLWAY_REASON_NO_MATCH;
	if (sk_acceptq_is_full(listener))
		return HALLWAY_REASON_BUSY;
	child = make_child(listener, tunnel->channel.member->cid,
			   offer->offer.tunnel.local_port);
	if (!child)
		return HALLWAY_REASON_NO_MEMORY;
	reason = answer(tunnel, child, offer);
	if (!reason) {
		vsock_insert_connected(vsock_sk(child));
		vsock_enqueue_accept(listener, child);
		sk_acceptq_added(listener);
	}
	release_sock(child);
	if (reason)
		sock_put(child);
	else
		listener->sk_data_ready(listener);
	return reason;
}

void hall_tunnel_refuse(struct hall_tunnel *tunnel, const struct hallway_message *offer,
			u32 reason)
{
	tunnel->state = HALL_TUNNEL_ENDED;
	hall_tunnel_unmap(tunnel);
	hall_tunnel_free_tx(tunnel);
	hall_channel_close(&tunnel->channel);
	hall_count(HALL_TUNNEL_REFUSALS);
	hall_channel_decline(tunnel->channel.member, offer, reason);
}

bool hall_tunnel_serve(struct hall_tunnel *tunnel,
		       const struct hallway_message *offer)
{
	struct hall_member *member = tunnel->channel.member;
	u32 reason = HALLWAY_REASON_NO_MATCH;
	struct sockaddr_vm address;
	struct sock *listener;

	vsock_addr_init(&address, READ_ONCE(hall_cid), offer->offer.tunnel.remote_port);
	/* As if nothing listened there. */
	listener = hall_member_may_reach(member, address.svm_port) ?
			   vsock_find_bound_socket(&address) : NULL;
	if (listener && !hall_turn_trylock(&tunnel->turn, listener)) {
		sock_put(listener);
		return false;
	}
	if (listener) {
		reason = accept_request(tunnel, listener, offer);
		release_sock(listener);
		sock_put(listener);
	}
	if (reason)
		hall_tunnel_refuse(tunnel, offer, reason);
	else
		hall_count(HALL_TUNNEL_ARRIVALS);
	return true;
}

void hall_tunnel_report_refused(struct sock *sk)
{
	if (sk->sk_state != TCP_SYN_SENT)
		return;
	sk->sk_state = TCP_CLOSE;
	sk->sk_err = ECONNRESET;
	sk_error_report(sk);
	sk->sk_state_change(sk);
}

void hall_tunnel_take_refusal(struct hall_tunnel *tunnel, struct sock *sk)
{
	tunnel->state = HALL_TUNNEL_ENDED;
	hall_tunnel_free_tx(tunnel);
	if (sk)
		hall_tunnel_report_refused(sk);
}

void hall_tunnel_take_answer(struct hall_tunnel *tunnel, struct sock *sk,
			     const struct hallway_message *offer)
{
	if (tunnel->state != HALL_TUNNEL_CALLING || !sk ||
	    sk->sk_state != TCP_SYN_SENT ||
	    hall_tunnel_map(tunnel, offer, can_grow(sk))) {
		/* Our own ring is freed when the peer has done with it. */
		hall_channel_decline(tunnel->channel.member, offer,
				     HALLWAY_REASON_STATE);
		if (tunnel->state == HALL_TUNNEL_CALLING && sk)
			hall_tunnel_report_refused(sk);
		return;
	}
	tunnel->state = HALL_TUNNEL_CONNECTED;
	sk->sk_state = TCP_ESTABLISHED;
	sk->sk_socket->state = SS_CONNECTED;
	vsock_insert_connected(vsock_sk(sk));
	hall_count(HALL_TUNNEL_CONNECTIONS);
	/* The program may not have waited for the answer. */
	hall_tunnel_shutdown(vsock_sk(sk), sk->sk_shutdown);
	sk->sk_state_change(sk);
}
