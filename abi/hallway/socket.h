/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * What a program in a guest can ask for, socket by socket:
 *
 *   int on = 0;
 *   setsockopt(fd, HALLWAY_SOL, HALLWAY_SO_OUTSOURCE, &on, sizeof(on));
 *
 * of a TCP socket, before connect() or listen(); of a UDP socket, before bind() or connect().
 * 1 takes CAP_NET_ADMIN. EISCONN: it listens, or it is a connected UDP socket. ENOPROTOOPT: it
 * was decided already, or nothing is outsourced here.
 */
#ifndef HALLWAY_ABI_SOCKET_H
#define HALLWAY_ABI_SOCKET_H

#include "constants.h"

#endif /* HALLWAY_ABI_SOCKET_H */
