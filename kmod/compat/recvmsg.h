/* SPDX-License-Identifier: GPL-2.0-only */
/* proto.recvmsg with and without its last parameter. */
#ifndef HALL_COMPAT_RECVMSG_H
#define HALL_COMPAT_RECVMSG_H

#include <net/sock.h>

#ifdef HALL_RECVMSG_ADDR_LEN
#define HALL_RECVMSG_LAST	, int *addr_len
#define HALL_RECVMSG_PASS	, addr_len
#define HALL_RECVMSG_NONE	, NULL
#else
#define HALL_RECVMSG_LAST
#define HALL_RECVMSG_PASS
#define HALL_RECVMSG_NONE
#endif

#endif /* HALL_COMPAT_RECVMSG_H */
