/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The short way of small calls on rings: they hold slock from begin to end, copy with
 * page faults off, and change no carrier. Calls on a connection without a ring have one,
 * too: a single native call, after the same checks. Whatever else there may be to do takes
 * the long way, under lock_sock().
 */
#ifndef HALL_IDLE_H
#define HALL_IDLE_H

#include "calls.h"
#include "sock.h"

/* Bytes that are copied with bottom halves off, at most. */
#define HALL_SMALL	16384

/*
 * The hall_sock of a socket, without a reference, or NULL: its memory stays until the
 * caller sleeps; in softirq by the grace period of RCU with which that of tasks begins.
 * It may be another socket's by then: see hall_sock_is_of() and hall_sock_tryget().
 */
static inline struct hall_sock *hall_sock_peek(const struct sock *sk)
{
	struct proto *prot = READ_ONCE(sk->sk_prot);

	return prot->close == hall_close ?
	       container_of(prot, struct hall_sock, prot) : NULL;
}

/* What sock->ops is, or was before it was ours. Until the caller sleeps. */
static inline const struct proto_ops *
hall_sock_find_native_ops(const struct socket *sock)
{
	const struct proto_ops *ops = READ_ONCE(sock->ops);

	return ops->sendmsg == hall_ops_sendmsg ?
	       container_of(ops, struct hall_ops, ops)->native : ops;
}

/*
 * Is this, which hall_sock_peek() returned, attached to the socket? slock; or
 * channel.lock, under which neither gets another ring.
 */
static inline bool hall_sock_is_of(const struct hall_sock *hs, const struct sock *sk)
{
	return READ_ONCE(sk->sk_prot) == &hs->prot;
}

/*
 * Is a socket still attached, unlocked, and without pending work? hs is what
 * hall_sock_peek() returned, without a sleep since. No reference: the attachment has one
 * until slock is released. slock.
 */
static inline bool hall_sock_is_idle(const struct hall_sock *hs, struct sock *sk)
{
	/* What else hall_release_cb() would see is set under lock_sock(). */
	return hall_sock_is_of(hs, sk) && !sock_owned_by_user(sk) &&
	       hs->quiet && !sk->sk_err && !hall_sock_needs_packets(sk) &&
	       sk->sk_data_ready == hs->callbacks.data_ready;
}

#endif /* HALL_IDLE_H */
