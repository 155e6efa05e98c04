/* SPDX-License-Identifier: GPL-2.0-only */
/* Finding a hall_sock: by its socket, by addresses, or all of them. */
#ifndef HALL_LOOKUP_H
#define HALL_LOOKUP_H

#include "sock.h"

/*
 * The hall_sock of a socket, with a reference; NULL: the socket is native. Any
 * context, no lock: sk_prot alone decides.
 */
struct hall_sock *hall_sock_get(const struct sock *sk);
static inline void hall_sock_put(struct hall_sock *hs)
{
	hall_channel_put(&hs->channel);
}

/*
 * The same for what hall_sock_peek() returned, without a sleep since: false if it is not
 * attached to the socket any more. It may be another one's: see life.c.
 */
static inline bool hall_sock_tryget(struct hall_sock *hs, const struct sock *sk)
{
	if (!hall_channel_tryget(&hs->channel))
		return false;
	/* Pairs with the barrier of hall_channel_setup(): what is put is set up. */
	smp_rmb();
	if (likely(smp_load_acquire(&sk->sk_prot) == &hs->prot))
		return true;
	hall_sock_put(hs);
	return false;
}

/* The addresses of a socket, those of IPv4 mapped. Without its lock, one of IPv6 may be torn. */
void hall_sock_read_remote(const struct sock *sk, struct in6_addr *address);
/* Where it receives: zero, if it is bound to no address. */
void hall_sock_read_local(const struct sock *sk, struct in6_addr *address);

/* Adds an attached socket to those that can be found and walked. */
void hall_sock_publish(struct hall_sock *hs);
void hall_sock_unpublish(struct hall_sock *hs);
/* As offer of struct hall_channel_kind. */
struct hall_channel *
hall_sock_find_offered(struct hall_member *member,
		       const struct hallway_message *offer);
/*
 * Another socket with the same addresses, in another network namespace, for an OFFER
 * that is not for this one; with a reference, or NULL.
 */
struct hall_channel *
hall_sock_find_next_offered(const struct hall_sock *hs,
			    const struct hallway_message *offer);
/* It has got an endpoint, or has none any more. Any context. */
void hall_sock_note_ring(struct hall_sock *hs, bool has);
/*
 * Calls fn for each attached socket, with a reference and no lock held. Process
 * context.
 */
void hall_sock_walk(void (*fn)(struct hall_sock *hs, void *data), void *data);
/* The same for those that have a ring, or an offer of one. */
void hall_sock_walk_rings(void (*fn)(struct hall_sock *hs, void *data), void *data);

void hall_lookup_init(void);

#endif /* HALL_LOOKUP_H */
