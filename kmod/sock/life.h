/* SPDX-License-Identifier: GPL-2.0-only */
/* Making and freeing a hall_sock. */
#ifndef HALL_LIFE_H
#define HALL_LIFE_H

#include "sock.h"

/*
 * A new hall_sock, not yet published; prot is filled if native is set. Does not sleep.
 * NULL: no memory. lock_sock() or slock.
 */
struct hall_sock *hall_sock_new(struct sock *sk, struct hall_member *member);
/*
 * In the work item of a detached socket: lets go of the socket, if it was closed for
 * some time and only a ring is left. False: ask again later.
 */
bool hall_sock_orphan(struct hall_sock *hs);

/* How many exist; detached ones that wait for the peer included. */
unsigned int hall_sock_count(void);

int hall_sock_init(void);
void hall_sock_uninit(void);

#endif /* HALL_LIFE_H */
