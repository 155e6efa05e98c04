// SPDX-License-Identifier: GPL-2.0-only
/*
 * UDP sockets that bind() has given a port.
 *
 * The socket stays native, and the outsourcer has one at the host's port, if its policy
 * publishes that: clients in this guest, by the NIC and by the host all reach it. Those by
 * the host get their answers by the host (clients.c). All else that the program sends is
 * native, so that it comes from the address by which the others know it.
 *
 * bind() asks the outsourcer and waits for the answer, as listen() does. Sockets that are
 * bound when an outsourcer arrives are found in UDP's table.
 */
#include "ports.h"

#include "../compat/udp.h"
#include "calls.h"
#include "datagrams.h"
#include "decide.h"
#include "hook.h"

/*
 * The socket's object, in the hash, or NULL: its port is not the program's choice, it has
 * one, or there is no outsourcer.
 */
static struct hall_out *make_bound(struct socket *sock, bool native_till_now, gfp_t gfp)
{
	struct sock *sk = sock->sk;
	struct hall_out *out;

	if (!hall_is_watched(sock) || !hall_has_chosen_port(sk) ||
	    !inet_sk(sk)->inet_num || !hall_outsource_may_publish(sk) ||
	    !hall_scope_has(sk, READ_ONCE(sock->ops)))
		return NULL;
	out = hall_out_get(sk);
	if (out) {
		hall_out_put(out);
		return NULL;
	}
	out = hall_datagram_make(gfp);
	if (!out)
		return NULL;
	out->datagrams->published = true;
	hall_out_publish(out, sk);
	return out;
}

/* Mutex. The answer is the work item's. */
static void ask_outsourcer(struct hall_out *out)
{
	struct hallway_call call = { };

	/* In another thread, as soon as it was in the hash. */
	if (out->closed)
		return;
	hall_port_describe(out, out->sk, &call);
	if (!hall_out_offer(out, out->sk, &call))
		return;
	/* As if the policy did not publish the port. */
	hall_datagram_refuse(out, EACCES);
}

static void close_bound(struct hall_out *out)
{
	hall_datagram_close(out, 0);
}

/* The port is free again: the socket was not bound after all. */
static void unbind(struct socket *sock)
{
	struct sock *sk = sock->sk;

	lock_sock(sk);
	if (sk->sk_state == TCP_CLOSE) {
		sk->sk_userlocks &= ~(SOCK_BINDADDR_LOCK | SOCK_BINDPORT_LOCK);
		__udp_disconnect(sk, 0);
	}
	release_sock(sk);
}

/* Of one bucket, from a position on; returns the next one. */
static unsigned int collect_bound(unsigned int number, unsigned int from,
				  struct hall_port_batch *batch)
{
	struct udp_hslot *bucket = &hall_udp_table()->hash[number];
	unsigned int at = 0;
	struct sock *sk;

	spin_lock_bh(&bucket->lock);
	sk_for_each(sk, &bucket->head)
		if (at++ >= from && hall_port_collect(batch, sk))
			break;
	spin_unlock_bh(&bucket->lock);
	return at;
}

static const struct hall_port_kind bound = {
	.has_port = hall_has_chosen_port,
	.make = make_bound,
	.ask = ask_outsourcer,
	.close = close_bound,
	.collect = collect_bound,
};

int hall_bound_bind(struct socket *sock, struct hall_sockaddr *address, int len)
{
	int err;

	/* It sleeps before there is an object. */
	hall_out_enter();
	err = hall_tables_of(sock->sk)->native->bind(sock, address, len);
	if (!err) {
		err = hall_port_publish(&bound, sock);
		if (err)
			unbind(sock);
	}
	hall_out_leave();
	return err;
}

unsigned int hall_bound_walk(void)
{
	return hall_port_walk(&bound, hall_udp_table()->mask);
}
