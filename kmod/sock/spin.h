/* SPDX-License-Identifier: GPL-2.0-only */
/* Spinning of a reader before it sleeps. */
#ifndef HALL_SPIN_H
#define HALL_SPIN_H

#include <net/sock.h>

/* Spins of a reader that may miss in a row: what a reader begins with. */
#define HALL_SPIN_CREDIT	16

/* Would a reader that waits now spin? One that is asked and does not has waited once. */
bool hall_sock_may_spin(unsigned int *credit);

/*
 * Spins until ready(reader), for at most spin_us, and not at all if that has not paid
 * lately. True: ready. Ends where a thread waits for lock_sock(). Several readers may share
 * a credit: each keeps it in its bounds.
 */
bool hall_sock_spin(struct sock *sk, unsigned int *credit,
		    bool (*ready)(void *reader), void *reader);

#endif /* HALL_SPIN_H */
