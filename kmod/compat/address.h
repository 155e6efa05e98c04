/* SPDX-License-Identifier: GPL-2.0-only */
/* What proto_ops.connect is given. */
#ifndef HALL_COMPAT_ADDRESS_H
#define HALL_COMPAT_ADDRESS_H

#include <linux/socket.h>

#ifdef HALL_HAS_SOCKADDR_UNSIZED
#define hall_sockaddr	sockaddr_unsized
#else
#define hall_sockaddr	sockaddr
#endif

#endif /* HALL_COMPAT_ADDRESS_H */
