/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * udp_table is no longer exported where IPv6 is not a module; newer network
 * namespaces have a pointer to theirs.
 */
#ifndef HALL_COMPAT_UDP_H
#define HALL_COMPAT_UDP_H

#include <net/udp.h>

/* That of the first namespace. */
static inline struct udp_table *hall_udp_table(void)
{
#ifdef HALL_HAS_NET_UDP_TABLE
	return init_net.ipv4.udp_table;
#else
	return &udp_table;
#endif
}

#endif /* HALL_COMPAT_UDP_H */
