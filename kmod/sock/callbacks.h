/* SPDX-License-Identifier: GPL-2.0-only */
/* The socket's callbacks, and their kernel user: see callbacks.c. */
#ifndef HALL_CALLBACKS_H
#define HALL_CALLBACKS_H

#include "sock.h"

/* Are the callbacks the socket layer's own? Any context. */
bool hall_callbacks_are_native(const struct sock *sk);
/*
 * Reports bytes, or space, to the socket layer, without looking at the callbacks. Any
 * context.
 */
void hall_callbacks_report_bytes(struct sock *sk);
void hall_callbacks_report_space(struct sock *sk);
/* Begins to watch how the present user of the callbacks reads. slock or lock_sock(). */
void hall_callbacks_record(struct hall_sock *hs);
/* May the user of the callbacks be given a ring? lock_sock(). */
bool hall_callbacks_allow_ring(struct hall_sock *hs);
/*
 * Has a user come that may take buffers from TCP's queue, while there are rings? If
 * so, has the socket detached. Any context; the answer may be outdated.
 */
bool hall_callbacks_check(struct hall_sock *hs);
/*
 * Calls foreign callbacks for what is in the rings. put_off: a read was put off, by
 * whatever user. slock or lock_sock().
 */
void hall_callbacks_call(struct hall_sock *hs, struct sock *sk, bool put_off);
/* The same, or later if the socket is in use. No lock of the socket held. */
void hall_callbacks_wake(struct hall_sock *hs, struct sock *sk);
/* Learns the socket layer's own callbacks, from a fresh socket. */
void hall_callbacks_learn(const struct sock *fresh);

#endif /* HALL_CALLBACKS_H */
