/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Messages between two members, carried in mailboxes, in order, each 128 bytes.
 * They set channels up and down; the marks in a ring order the bytes.
 *
 * An endpoint is a member's number for its end of a connection with another
 * member, 1..4095. The other member sets this bit of pending to ring it.
 *
 *   OFFER    The sender of a direction offers a ring. All other messages about
 *            the ring go to the endpoint that offered it.
 *   ACCEPT   The receiver has mapped the ring, and watches for the start mark.
 *            Its tokens prove that it is the connection's other end.
 *   DECLINE  The receiver does not take the ring, for this reason.
 *   DEMOTE   The receiver asks for the end mark, for this reason.
 *   DONE     The receiver does not touch the ring any more, and has consumed the
 *            bytes below position. If the sender's head is further, the bytes
 *            between stay unread: the receiver's socket was closed.
 *
 * The kinds SOCKET, LISTENER, DATAGRAM and TUNNEL use them in their own way: see
 * outsourcing and tunnels in spec/protocol.md.
 */
#ifndef HALLWAY_ABI_MESSAGE_H
#define HALLWAY_ABI_MESSAGE_H

#include "constants.h"
#include "types.h"

/*
 * What a transport needs to map ring memory: opaque to the rooms above it.
 * ivshmem: offset of the ring in its owner's slice, then its size, both __u64.
 */
struct hallway_handle {
	__u8 opaque[HALLWAY_HANDLE_SIZE];
};

/* In an OFFER of kind SOCKET or LISTENER, in place of the tokens. */
struct hallway_call {
	__u32 answers;		/* SOCKET: this answers the OFFER of that endpoint; or 0 */
	__u32 listener;		/* SOCKET: the guest's endpoint of the LISTENER at
				 * which a connection arrived; or 0
				 */
	__u32 flags;		/* HALLWAY_SOCKET_* */
	__u32 reserved;
};

/* In an OFFER of kind TUNNEL, in place of the tokens. Ports are those of AF_VSOCK. */
struct hallway_tunnel {
	__u32 answers;		/* this answers the OFFER of that endpoint; or 0 */
	__u32 type;		/* HALLWAY_TUNNEL_* */
	__u32 local_port;	/* of the writer's socket */
	__u32 remote_port;	/* of the reader's socket */
};

struct hallway_message {
	__u16 type;		/* HALLWAY_OFFER .. */
	__u16 reserved;
	__u32 from;		/* endpoint of the writer; 0 in a DECLINE of an end
				 * that has none
				 */
	__u32 to;		/* endpoint of the reader; 0 in an OFFER, which
				 * identifies the connection itself
				 */
	__u32 carrier;		/* number of the ring's carrier, odd */
	union {
		struct {
			/*
			 * SipHash of the writer's initial sequence number and
			 * the reader's, both plus 1. A socket does not know
			 * whether its own count includes the SYN, hence two
			 * tokens; the reader compares both with both of its own.
			 */
			union {
				__u64 token[2];
				struct hallway_call call;
				struct hallway_tunnel tunnel;
			};
			__u8 local[16];	/* of the sender; a hint only */
			__u8 remote[16];	/* of the receiver; a hint only */
			__u16 local_port;
			__u16 remote_port;
			__u16 kind;	/* HALLWAY_KIND_* */
			__u16 features;	/* HALLWAY_FEATURE_* */
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
HALLWAY_ASSERT_SIZE(struct hallway_call, 16);
HALLWAY_ASSERT_OFFSET(struct hallway_call, flags, 8);
HALLWAY_ASSERT_SIZE(struct hallway_tunnel, 16);
HALLWAY_ASSERT_OFFSET(struct hallway_tunnel, local_port, 8);
HALLWAY_ASSERT_OFFSET(struct hallway_message, offer.local, 32);
HALLWAY_ASSERT_OFFSET(struct hallway_message, offer.handle, 80);
HALLWAY_ASSERT_OFFSET(struct hallway_message, other.reason, 24);
HALLWAY_ASSERT_OFFSET(struct hallway_message, other.token, 32);

#endif /* HALLWAY_ABI_MESSAGE_H */
