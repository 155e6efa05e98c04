/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Tunnels: sockets of AF_VSOCK between two VMs of a region.
 *
 * A message of SOCK_SEQPACKET lies in its ring as a header, the bytes, and zeros up
 * to the next multiple of HALLWAY_FRAME_ALIGN. It may wrap, and is published in one
 * step. SOCK_STREAM has no headers.
 *
 * A trunk is one ring for all datagrams of a VM to another one: SOCK_DGRAM has no
 * rings of its own. A datagram lies there as a letter: a header, the bytes, and zeros up
 * to the next multiple of HALLWAY_LETTER_ALIGN. Its sender is the ring's owner.
 */
#ifndef HALLWAY_ABI_TUNNEL_H
#define HALLWAY_ABI_TUNNEL_H

#include "constants.h"
#include "types.h"

struct hallway_frame {
	__u32 length;		/* bytes of the message */
	__u32 flags;		/* HALLWAY_FRAME_EOR; others are not looked at */
};

struct hallway_letter {
	__u32 length;		/* bytes of the datagram */
	__u32 local_port;	/* of the writer's socket */
	__u32 remote_port;	/* of the reader's socket */
	__u32 reserved;
};

HALLWAY_ASSERT_SIZE(struct hallway_frame, 8);
HALLWAY_ASSERT_SIZE(struct hallway_letter, 16);

/*
 * The CID of the VM with this UUID: 30 bits of FNV-1a, so that each member finds
 * that of each other one, and a VM that migrates keeps its own.
 */
static inline __u32 hallway_cid(const __u8 uuid[16])
{
	__u32 hash = 0x811c9dc5;
	int i;

	for (i = 0; i < 16; i++)
		hash = (hash ^ uuid[i]) * 0x01000193;
	return HALLWAY_CID_FIRST | hash >> 2;
}

/*
 * The CID of the VM with this UUID, to which the configuration gives one. Any number that it
 * cannot give stands for none.
 */
static inline __u32 hallway_member_cid(__u32 given, const __u8 uuid[16])
{
	return given >= HALLWAY_CID_GIVEN_FIRST && given < HALLWAY_CID_FIRST ?
		       given : hallway_cid(uuid);
}

#endif /* HALLWAY_ABI_TUNNEL_H */
