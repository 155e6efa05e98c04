/* SPDX-License-Identifier: GPL-2.0-only */
/* The rest of a ring goes to TCP's receive queue: see requeue.c. */
#ifndef HALL_REQUEUE_H
#define HALL_REQUEUE_H

#include "sock.h"

/*
 * Moves the unread bytes of the ring to the head of TCP's receive queue, where
 * any native reader finds them. lock_sock(), state MAPPED. 0, -EAGAIN (bytes
 * below the start mark are still on their way), -ENOMEM, or -EPROTO (corrupt).
 */
int hall_rx_requeue(struct hall_sock *hs, gfp_t gfp);

#endif /* HALL_REQUEUE_H */
