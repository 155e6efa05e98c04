/* SPDX-License-Identifier: GPL-2.0-only */
/* Socket options of outsourced sockets: see options.c. */
#ifndef HALL_OUT_OPTIONS_H
#define HALL_OUT_OPTIONS_H

#include "out.h"

/* In our ring, before it is offered. */
void hall_options_init(struct hall_out *out, struct hallway_ring *ring,
		       const struct sock *sk);
/* Passes what has changed to the outsourcer. Mutex. */
void hall_options_pass(struct hall_out *out);
/* The same for SO_KEEPALIVE, which is set without a call of ours. No lock. */
static inline void hall_options_note(struct hall_out *out)
{
	if (READ_ONCE(out->passed[HALLWAY_OPTION_KEEPALIVE]) ==
	    sock_flag(out->sk, SOCK_KEEPOPEN))
		return;
	mutex_lock(&out->mutex);
	hall_options_pass(out);
	hall_out_unlock(out);
}

/*
 * Bytes that have left our ring, and of which the host has no ACK; unsent: those of them
 * that it has not sent. Or an error. Sleeps, for a second at most; no lock.
 */
int hall_options_count_unacked(struct hall_out *out, bool unsent);

/* A connection that arrived has what TCP copies of the listener's. lock_sock(sk). */
void hall_options_inherit(struct sock *sk, const struct sock *listener);

#endif /* HALL_OUT_OPTIONS_H */
