/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Messages between two members, carried in mailboxes, in order, each 128 bytes.
 * They set channels up and down; the marks in the ring order the bytes.
 *
 * An endpoint is one side's number for one connection towards one member,
 * 1..4095; it is what that member sets in the pending bitmap to wake it.
 *
 *   OFFER    sender of a direction: here is a ring to send to you in; all
 *            words about the ring go to the endpoint that offered it
 *   ACCEPT   its receiver: mapped, and I watch for the start mark from now on;
 *            by its tokens I am the connection's other end
 *   DECLINE  its receiver: no, for this reason
 *   DEMOTE   its receiver: set the end mark, please, for this reason
 *   DONE     its receiver: I shall never touch this ring again; I consumed up
 *            to position. If the sender's head is further, what lies between
 *            will never be read: the receiver's socket was closed.
 */
#ifndef HALLWAY_ABI_MESSAGE_H
#define HALLWAY_ABI_MESSAGE_H

#include "constants.h"
#include "types.h"

/*
 * What a transport needs to find ring memory again: opaque to all above it.
 * ivshmem: offset of the ring in its owner's slice, then its size, both __u64.
 */
struct hallway_handle {
	__u8 opaque[HALLWAY_HANDLE_SIZE];
};

struct hallway_message {
	__u16 type;		/* HALLWAY_OFFER .. */
	__u16 reserved;
	__u32 from;		/* endpoint of the sender; 0 in a DECLINE of
				 * a member without one
				 */
	__u32 to;		/* endpoint of the receiver; 0 in an OFFER,
				 * which names the connection
				 */
	__u32 carrier;		/* number of the ring's carrier, odd */
	union {
		struct {
			/*
			 * The connection's name: SipHash of (own initial
			 * sequence number + 1, peer's + 1). A socket does not
			 * know whether its own count includes the SYN, hence
			 * two candidates; the reader tries both against both.
			 */
			__u64 token[2];
			__u8 local[16];	/* of the sender; a hint only */
			__u8 remote[16];
			__u16 local_port;
			__u16 remote_port;
			__u16 kind;	/* HALLWAY_KIND_* */
			__u16 features;	/* none yet: 0 */
			__u32 ring_size;	/* bytes of data */
			__u32 reserved;
			struct hallway_handle handle;
		} offer;
		struct {
			__u64 position;	/* DONE */
			__u32 reason;	/* DECLINE, DEMOTE, DONE */
			__u32 reserved;
			__u64 token[2];	/* ACCEPT: as in an OFFER of its writer */
			__u8 reserved2[80];
		} other;
	};
};

HALLWAY_ASSERT_SIZE(struct hallway_message, 128);
HALLWAY_ASSERT_OFFSET(struct hallway_message, offer.handle, 80);
HALLWAY_ASSERT_OFFSET(struct hallway_message, other.reason, 24);
HALLWAY_ASSERT_OFFSET(struct hallway_message, other.token, 32);

#endif /* HALLWAY_ABI_MESSAGE_H */
