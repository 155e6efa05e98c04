// SPDX-License-Identifier: GPL-2.0-only
/*
 * What listeners (publish.c) and bound UDP sockets (bound.c) have in common: how the
 * outsourcer is asked for the port of a native socket, and how such sockets are found that
 * are there already.
 */
#include "ports.h"

#include <linux/sched/signal.h>
#include <net/ipv6.h>

#include "../sock/lookup.h"
#include "hook.h"

/* The outsourcer answers within that time, or the port is not published. */
#define ANSWER	(5 * HZ)

void hall_port_describe(struct hall_out *out, const struct sock *sk,
			struct hallway_call *call)
{
	hall_sock_read_local(sk, &out->local);
	if (sk->sk_family == AF_INET6) {
		call->flags |= HALLWAY_SOCKET_IPV6;
		if (ipv6_only_sock(sk))
			call->flags |= HALLWAY_SOCKET_V6ONLY;
	}
	/* Of UDP sockets SO_REUSEADDR is enough. */
	if (sk->sk_reuseport || (sk->sk_type == SOCK_DGRAM && sk->sk_reuse))
		call->flags |= HALLWAY_SOCKET_REUSEPORT;
	out->local_port = inet_sk(sk)->inet_num;
}

/* 0, the outsourcer's errno, or -ETIMEDOUT. */
static int await_answer(struct hall_out *out)
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

int hall_port_publish(const struct hall_port_kind *kind, struct socket *sock)
{
	struct hall_out *out;
	int err;

	lock_sock(sock->sk);
	out = kind->make(sock, false, GFP_KERNEL);
	release_sock(sock->sk);
	if (!out)
		return 0;
	mutex_lock(&out->mutex);
	kind->ask(out);
	hall_out_unlock(out);
	err = await_answer(out);
	if (err == -ETIMEDOUT) {
		mutex_lock(&out->mutex);
		kind->close(out);
		hall_out_unlock(out);
		err = -EACCES;
	}
	hall_out_put(out);
	return err == -EACCES ? 0 : err;
}

/* Under its spinlock, and not owned. */
static struct hall_out *find_unpublished(const struct hall_port_kind *kind, struct sock *sk)
{
	struct hall_tables *tables = hall_tables_of(sk);
	struct socket *sock = sk->sk_socket;
	bool native_till_now;

	/* close() of UDP marks it under the lock, and clears its pointers without. */
	if (sock_flag(sk, SOCK_DEAD) || !tables || !sock || sk->sk_kern_sock ||
	    !kind->has_port(sk))
		return NULL;
	native_till_now = hall_is_native(sock);
	/* A close() that has begun misses the exchange: later work asks for that. */
	if (native_till_now)
		smp_store_release(&sock->ops, &tables->watched);
	return kind->make(sock, native_till_now, GFP_ATOMIC);
}

/* False: it is locked, or its outsourcer has departed, of which no event comes. */
static bool publish_one(const struct hall_port_kind *kind, struct sock *sk)
{
	struct hall_out *out = NULL;
	bool owned, pending, good;

	spin_lock_bh(&sk->sk_lock.slock);
	owned = sock_owned_by_user(sk);
	if (!owned)
		out = find_unpublished(kind, sk);
	spin_unlock_bh(&sk->sk_lock.slock);
	if (!out)
		return !owned;
	pending = READ_ONCE(out->pending);
	mutex_lock(&out->mutex);
	if (!pending)
		kind->ask(out);
	good = pending || out->channel.endpoint || !READ_ONCE(out->channel.member->departed);
	hall_out_unlock(out);
	hall_out_put(out);
	return good;
}

unsigned int hall_port_walk(const struct hall_port_kind *kind, unsigned int last)
{
	unsigned int bucket, from, i, locked = 0;
	struct hall_port_batch batch;

	for (bucket = 0; bucket <= last; bucket++) {
		from = 0;
		do {
			batch.count = 0;
			from = kind->collect(bucket, from, &batch);
			for (i = 0; i < batch.count; i++) {
				locked += !publish_one(kind, batch.sk[i]);
				sock_put(batch.sk[i]);
			}
		} while (batch.count == HALL_PORT_BATCH);
		cond_resched();
	}
	return locked;
}
