// SPDX-License-Identifier: GPL-2.0
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
#include "outsource.h"

#include <linux/sched/signal.h>
#include <net/ipv6.h>
#include <net/udp.h>

/* The outsourcer answers within that time, or the port is not published. */
#define ANSWER	(5 * HZ)
/* Sockets of one bucket that have their turn together. */
#define BATCH	32

void hall_bound_describe(struct hall_out *out, const struct sock *sk,
			 struct hallway_call *call)
{
	const struct inet_sock *inet = inet_sk(sk);

	ipv6_addr_set_v4mapped(inet->inet_rcv_saddr, &out->local);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		out->local = sk->sk_v6_rcv_saddr;
		call->flags |= HALLWAY_SOCKET_IPV6;
		if (ipv6_only_sock(sk))
			call->flags |= HALLWAY_SOCKET_V6ONLY;
	}
#endif
	/* Of UDP sockets SO_REUSEADDR is enough. */
	if (sk->sk_reuseport || (sk->sk_type == SOCK_DGRAM && sk->sk_reuse))
		call->flags |= HALLWAY_SOCKET_REUSEPORT;
	out->local_port = inet->inet_num;
}

int hall_bound_await(struct hall_out *out)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = out->sk;
	long timeo = ANSWER;

	add_wait_queue(sk_sleep(sk), &wait);
	while (hall_out_state(out) == HALL_OUT_CALLING && timeo &&
	       !READ_ONCE(out->closed) && !fatal_signal_pending(current))
		timeo = wait_woken(&wait, TASK_KILLABLE, timeo);
	remove_wait_queue(sk_sleep(sk), &wait);
	switch (hall_out_state(out)) {
	case HALL_OUT_CONNECTED:
		return 0;
	case HALL_OUT_CALLING:
		return -ETIMEDOUT;
	default:
		return -out->error;
	}
}

/*
 * The socket's object, in the hash, or NULL: its port is not the program's choice, it has
 * one, or there is no outsourcer. Under lock_sock(), or its spinlock.
 */
static struct hall_out *make_bound(struct socket *sock, gfp_t gfp)
{
	struct sock *sk = sock->sk;
	struct hall_out *out;

	if (!hall_is_watched(sock) || !(sk->sk_userlocks & SOCK_BINDPORT_LOCK) ||
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
	hall_bound_describe(out, out->sk, &call);
	if (!hall_out_offer(out, out->sk, &call))
		return;
	/* As if the policy did not publish the port. */
	hall_datagram_refuse(out, EACCES);
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

static int bind_watched(struct socket *sock, struct hall_sockaddr *address, int len)
{
	int err = hall_tables_of(sock->sk)->native->bind(sock, address, len);
	struct hall_out *out;

	if (err)
		return err;
	lock_sock(sock->sk);
	out = make_bound(sock, GFP_KERNEL);
	release_sock(sock->sk);
	if (!out)
		return 0;
	mutex_lock(&out->mutex);
	ask_outsourcer(out);
	hall_out_unlock(out);
	err = hall_bound_await(out);
	if (err == -ETIMEDOUT) {
		hall_datagram_forget(sock->sk);
		err = -EACCES;
	}
	hall_out_put(out);
	if (!err || err == -EACCES)
		return 0;
	unbind(sock);
	return err;
}

int hall_bound_bind(struct socket *sock, struct hall_sockaddr *address, int len)
{
	int err;

	/* It sleeps before there is an object. */
	hall_out_enter();
	err = bind_watched(sock, address, len);
	hall_out_leave();
	return err;
}

/* Sockets that are there already */

/* Under its spinlock, and not owned. */
static struct hall_out *find_unpublished(struct sock *sk)
{
	struct hall_tables *tables = hall_tables_of(sk);
	struct socket *sock = sk->sk_socket;

	if (!tables || !sock || sk->sk_kern_sock ||
	    !(sk->sk_userlocks & SOCK_BINDPORT_LOCK))
		return NULL;
	/* A close() that has begun misses the exchange: see hall_datagram_is_orphan(). */
	if (hall_is_native(sock))
		smp_store_release(&sock->ops, &tables->watched);
	return make_bound(sock, GFP_ATOMIC);
}

/* False: it is locked, or its outsourcer has departed, of which no event comes. */
static bool publish_one(struct sock *sk)
{
	struct hall_out *out = NULL;
	bool owned, good;

	spin_lock_bh(&sk->sk_lock.slock);
	owned = sock_owned_by_user(sk);
	if (!owned)
		out = find_unpublished(sk);
	spin_unlock_bh(&sk->sk_lock.slock);
	if (!out)
		return !owned;
	mutex_lock(&out->mutex);
	ask_outsourcer(out);
	good = out->channel.endpoint || !READ_ONCE(out->channel.member->departed);
	hall_out_unlock(out);
	hall_out_put(out);
	return good;
}

/*
 * Collects sockets of one bucket from a position on, which is moved behind them. Returns
 * their count.
 */
static unsigned int collect_batch(struct udp_hslot *bucket, unsigned int *from,
				  struct sock **batch)
{
	unsigned int at = 0, n = 0;
	struct sock *sk;

	spin_lock_bh(&bucket->lock);
	sk_for_each(sk, &bucket->head) {
		if (at++ < *from || !net_eq(sock_net(sk), &init_net) ||
		    !refcount_inc_not_zero(&sk->sk_refcnt))
			continue;
		batch[n++] = sk;
		if (n == BATCH)
			break;
	}
	spin_unlock_bh(&bucket->lock);
	*from = at;
	return n;
}

unsigned int hall_bound_walk(void)
{
	unsigned int bucket, n, i, from, locked = 0;
	struct sock *batch[BATCH];

	for (bucket = 0; bucket <= udp_table.mask; bucket++) {
		from = 0;
		do {
			n = collect_batch(&udp_table.hash[bucket], &from, batch);
			for (i = 0; i < n; i++) {
				locked += !publish_one(batch[i]);
				sock_put(batch[i]);
			}
		} while (n == BATCH);
		cond_resched();
	}
	return locked;
}
