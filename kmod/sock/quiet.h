/* SPDX-License-Identifier: GPL-2.0 */
/* Finding out whether a foreign call is in a socket: see quiet.c. */
#ifndef HALL_QUIET_H
#define HALL_QUIET_H

#include "sock.h"

/*
 * Is no foreign call in the socket? lock_sock(). calling: the caller is a call
 * of the socket's user. earned: the connection is worth a grace period, after
 * which a later call knows where this one does not.
 */
bool hall_sock_check_quiet(struct hall_sock *hs, bool calling, bool earned);

#endif /* HALL_QUIET_H */
