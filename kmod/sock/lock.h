/* SPDX-License-Identifier: GPL-2.0-only */
/* The locks of a socket, for the work item: see lock.c. */
#ifndef HALL_LOCK_H
#define HALL_LOCK_H

#include "sock.h"

/*
 * Takes rx_mutex and lock_sock(). False: one of them is taken; the work item
 * runs again when it is released. For the work item alone.
 */
bool hall_sock_trylock(struct hall_sock *hs);
void hall_sock_unlock(struct hall_sock *hs);
/* Is lock_sock() taken? The work item runs again when it is released. No lock held. */
bool hall_sock_is_taken(struct hall_sock *hs);
/* Releases the rx_mutex of a reader. */
void hall_rx_unlock(struct hall_sock *hs);

#endif /* HALL_LOCK_H */
