/* SPDX-License-Identifier: GPL-2.0-only */
/* What is done with listeners and bound UDP sockets alike. */
#ifndef HALL_OUT_PORTS_H
#define HALL_OUT_PORTS_H

#include <net/net_namespace.h>
#include <net/sock.h>

#include "out.h"

/* ports.c */
#define HALL_PORT_BATCH	32	/* sockets that have their turn together */

struct hall_port_batch {
	struct sock *sk[HALL_PORT_BATCH];	/* referenced */
	unsigned int count;
};

/* Functions of either, for native sockets of the first network namespace. */
struct hall_port_kind {
	/* Under its spinlock. */
	bool (*has_port)(const struct sock *sk);
	/*
	 * The socket's object, in the hash, or NULL: there is nothing to ask for. Under
	 * lock_sock(), or its spinlock. native_till_now: it was not watched before.
	 */
	struct hall_out *(*make)(struct socket *sock, bool native_till_now, gfp_t gfp);
	/* Asks the outsourcer; the answer is the work item's. Mutex. */
	void (*ask)(struct hall_out *out);
	/* Ends the host's part. Mutex. */
	void (*close)(struct hall_out *out);
	/* Those of a bucket of the native table, from a position on; returns the next one. */
	unsigned int (*collect)(unsigned int bucket, unsigned int from,
				struct hall_port_batch *batch);
};

/* The port was an argument of bind(): the kernel has not chosen it. No lock. */
static inline bool hall_has_chosen_port(const struct sock *sk)
{
	return sk->sk_userlocks & SOCK_BINDPORT_LOCK;
}

/* Adds a socket. True: the batch is full. */
static inline bool hall_port_collect(struct hall_port_batch *batch, struct sock *sk)
{
	if (net_eq(sock_net(sk), &init_net) && refcount_inc_not_zero(&sk->sk_refcnt))
		batch->sk[batch->count++] = sk;
	return batch->count == HALL_PORT_BATCH;
}

/*
 * Asks for the port of a socket, and waits for the answer. 0, also if it is not
 * published, or the host's errno: it may not have the port. No lock.
 */
int hall_port_publish(const struct hall_port_kind *kind, struct socket *sock);
/*
 * Asks for the ports of all in the native table, whose last bucket that is. Returns how
 * many have to be looked at again.
 */
unsigned int hall_port_walk(const struct hall_port_kind *kind, unsigned int last);
/* Fills in where it is, for its OFFER. */
void hall_port_describe(struct hall_out *out, const struct sock *sk,
			struct hallway_call *call);

/* bound.c */
/*
 * Asks for the ports of sockets that are bound already. Returns how many have to be looked
 * at again.
 */
unsigned int hall_bound_walk(void);

#endif /* HALL_OUT_PORTS_H */
