/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef HALL_COMPAT_RTO_H
#define HALL_COMPAT_RTO_H

#include <net/tcp.h>

/* The longest time between two retransmissions, in jiffies: of each socket from 6.15 on. */
#ifdef TCP_RTO_MAX_MS
#define HALL_RTO_MAX(sk)	tcp_rto_max(sk)
#else
#define HALL_RTO_MAX(sk)	TCP_RTO_MAX
#endif

#endif /* HALL_COMPAT_RTO_H */
