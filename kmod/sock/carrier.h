/* SPDX-License-Identifier: GPL-2.0-only */
/* Steps that change the carrier of a direction. lock_sock(). */
#ifndef HALL_CARRIER_H
#define HALL_CARRIER_H

#include "sock.h"

/* The direction that we send. */

/* Offers a ring of that size. 0, -ENOMEM, or -EUSERS (no endpoint number). */
int hall_tx_offer(struct hall_sock *hs, const struct hall_tokens *tokens, u32 bytes);
/* The peer accepted: sets the start mark. */
void hall_tx_promote(struct hall_sock *hs);
/*
 * Sets the end mark; later bytes go over TCP. Where the peer has truncated the
 * ring before, resends the rest. The reason is for the tracepoint alone.
 */
void hall_tx_demote(struct hall_sock *hs, u32 reason);
/*
 * The same for a full ring that a larger one follows. Bytes wait for that one, for
 * 0.1 s at most: any that went over TCP would have to arrive before it could be
 * read. hall_tx_resume() ends the wait; so do promotion and demotion.
 */
void hall_tx_replace(struct hall_sock *hs);
void hall_tx_resume(struct hall_sock *hs);
/* Frees the ring: the peer reads it no more. */
void hall_tx_release(struct hall_sock *hs);

/* The direction that we receive. */

/* Accepts the peer's ring. rx_mutex, too. 0, or a reason against. */
u32 hall_rx_accept(struct hall_sock *hs, const struct hallway_message *offer);
/*
 * Ends the ring at the position that the reader can reach: at its head, or at
 * its tail while TCP owes bytes that come before. The peer resends the rest over
 * TCP. Without effect on a ring that has ended. State MAPPED.
 */
void hall_rx_truncate(struct hall_sock *hs);
/*
 * Truncates and requeues without waiting or sleeping. 0, or an error of
 * hall_rx_requeue().
 */
int hall_rx_demote_now(struct hall_sock *hs, u32 reason);
/* Unmaps the ring and says DONE. */
void hall_rx_release(struct hall_sock *hs, u32 reason);
/*
 * Bytes of a ring are lost, and TCP's later bytes must not take their place:
 * discards them, as in tcp_disconnect(). The socket is about to be reset.
 */
void hall_rx_discard_queue(struct sock *sk);

/* Both. */

/* Frees the endpoint number, if no ring is left. */
void hall_sock_close_channel(struct hall_sock *hs);
/* The peer broke the rules: ends both rings for good and has the socket reset. */
void hall_sock_break(struct hall_sock *hs);
/*
 * Has the connection reset, as an RST from the peer would: in a work item, once the
 * socket's lock is free. Any context.
 */
void hall_sock_reset(struct hall_sock *hs, int err);
void hall_sock_run_reset(struct work_struct *work);
int hall_reset_init(void);
void hall_reset_uninit(void);

#endif /* HALL_CARRIER_H */
