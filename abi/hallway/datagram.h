/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A record in a ring of kind DATAGRAM: this header, the payload, and zeros up to the
 * next multiple of HALLWAY_DATAGRAM_ALIGN. A record may wrap, and is published in one
 * step.
 */
#ifndef HALLWAY_ABI_DATAGRAM_H
#define HALLWAY_ABI_DATAGRAM_H

#include "constants.h"
#include "types.h"

struct hallway_datagram {
	__u32 length;		/* bytes of payload */
	__u16 type;		/* HALLWAY_DATAGRAM_* */
	__u16 port;		/* of the other end */
	__u8 address[16];	/* of the other end: IPv6, or IPv4 mapped */
	__u8 tos;		/* or traffic class */
	__u8 hops;		/* TTL or hop limit; 0: the host's default */
	__u8 discover;		/* of the guest: IP_PMTUDISC_* of Linux */
	__u8 origin;		/* ERROR: as in struct sock_extended_err of Linux, ... */
	__u8 icmp_type;
	__u8 icmp_code;
	/* Of the guest: DATA is datagrams of this size, the last may be shorter; 0: one. */
	__u16 segment;
	__u32 error;		/* ... the errno, ... */
	__u32 info;		/* ... ee_info, */
	__u8 offender[16];	/* and the machine that reports it; 0: none */
};

HALLWAY_ASSERT_SIZE(struct hallway_datagram, 56);
HALLWAY_ASSERT_OFFSET(struct hallway_datagram, address, 8);
HALLWAY_ASSERT_OFFSET(struct hallway_datagram, segment, 30);
HALLWAY_ASSERT_OFFSET(struct hallway_datagram, offender, 40);

#endif /* HALLWAY_ABI_DATAGRAM_H */
