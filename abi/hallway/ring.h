/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The ring: one direction of one connection, for one carrier.
 *
 * head and tail are free-running 64-bit byte positions; byte p lies at
 * data[p % size]. The sender owns head, tail_event, start and end; the receiver
 * owns tail and head_event. Only end has two writers: the first one wins.
 *
 * Notification is by event index (virtio 1.2, 2.7.10). A side that is about to
 * sleep writes the position that it waits for, issues a full barrier, and looks
 * once more. The other side rings the doorbell when a step of its own index passes
 * that position. A stale doorbell therefore clears nothing.
 *
 * A ring serves one promotion and one demotion, in this order, each set once:
 *   start  the TCP sequence number at which the stream leaves TCP: bytes below
 *          it come over TCP, the next byte is byte 0 of the ring;
 *   end    the stream returns to TCP after the byte at head - 1. head was final
 *          before end was set, and TCP continues at start's number.
 *
 * A receiver that cannot wait for the end mark truncates the ring instead: it
 * takes the bytes below a position, and the sender resends all others over TCP,
 * from start's number on. Both sides write end by a compare-and-exchange from 0
 * that locks the bus.
 *
 * A ring of kind SOCKET or TUNNEL may grow, once, if both sides know how: from the position in
 * grown on, byte p lies at byte p % area_size of the area, other memory of the sender's.
 * Positions go on, and so does all else in the head. The data here serves no more once
 * it is read.
 */
#ifndef HALLWAY_ABI_RING_H
#define HALLWAY_ABI_RING_H

#include "constants.h"
#include "message.h"
#include "types.h"

/*
 * Options of a socket that the outsourcer executes, in the head of the guest's ring.
 * The guest writes a value, then sets its bit in changed; the outsourcer clears the
 * bits, then reads the values. Values are ints, as setsockopt() of Linux has them.
 *
 * The guest asks for struct tcp_info by another number in asked. The outsourcer
 * writes info and info_size, then that number to answered.
 */
struct hallway_options {
	__u64 changed;		/* 1 << HALLWAY_OPTION_*; both write it */
	__u32 asked;		/* the guest */
	__u32 answered;		/* the outsourcer, and all below but value */
	__u32 info_size;	/* bytes of info; 0: there is none */
	__u32 unacked;		/* bytes of which the host has no ACK; with info */
	__s32 value[HALLWAY_OPTIONS];	/* the guest */
	__u8 info[HALLWAY_INFO_MAX];	/* struct tcp_info of the host */
};

struct hallway_ring {
	/* The sender's line. */
	__u64 head;
	__u64 tail_event;	/* ring when tail passes this position */
	__u8 reserved0[48];
	/* The receiver's line. */
	__u64 tail;
	__u64 head_event;	/* ring when head passes this position */
	__u8 reserved1[48];
	/* Written by the sender, rarely; end by either. */
	__u32 magic;		/* HALLWAY_RING_MAGIC */
	__u32 size;		/* bytes of data, a power of two */
	__u32 carrier;		/* number of this carrier, odd */
	__u32 reserved2;
	__u64 start;		/* 0, or HALLWAY_MARK_SET | sequence number */
	/* 0, SET, SET | RESET, or TRUNCATED | the low bits of the first position not taken. */
	__u64 end;
	/* 0, SHORT, or SET | the low bits of the first position in the area. Sender's. */
	__u64 grown;
	__u32 area_size;	/* bytes, a power of two above size; written before grown */
	__u32 reserved3;
	struct hallway_handle area;	/* the same */
	__u8 reserved4[32];
	struct hallway_options options;	/* of kind SOCKET, in the guest's ring */
	__u8 reserved5[3176];
	__u8 data[];
};

HALLWAY_ASSERT_SIZE(struct hallway_ring, HALLWAY_RING_HEADER);
HALLWAY_ASSERT_OFFSET(struct hallway_ring, tail, 64);
HALLWAY_ASSERT_OFFSET(struct hallway_ring, magic, 128);
HALLWAY_ASSERT_OFFSET(struct hallway_ring, start, 144);
HALLWAY_ASSERT_OFFSET(struct hallway_ring, grown, 160);
HALLWAY_ASSERT_OFFSET(struct hallway_ring, area, 176);
HALLWAY_ASSERT_SIZE(struct hallway_options, 664);
HALLWAY_ASSERT_OFFSET(struct hallway_options, value, 24);
HALLWAY_ASSERT_OFFSET(struct hallway_ring, options, 256);

#endif /* HALLWAY_ABI_RING_H */
