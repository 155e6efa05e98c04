/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Loans: a program of the guest writes messages into the rings of a tunnel, and reads them
 * there, by the device /dev/hallway-loan. One open file of it serves one tunnel of
 * SOCK_SEQPACKET.
 *
 * A program attaches the file to a socket, and maps the data of both rings at the offsets that
 * it is given: tx_size and rx_size bytes, or twice as many. Then each ring follows itself, so
 * that no message wraps. The ring that the peer writes is mapped for reading. Both mappings
 * are MAP_SHARED; a child has none of them.
 *
 * A tunnel may end at any moment. Its memory is another tunnel's then, and the program has
 * pages of its own in its place: it reads zeros, or what it wrote there, and a call says what
 * has happened.
 *
 * What is reserved and not sent may be read by the peer, too. The peer may write into messages
 * until they are released, if it breaks the rules.
 */
#ifndef HALLWAY_ABI_LOAN_H
#define HALLWAY_ABI_LOAN_H

#include "types.h"

/*
 * HALLWAY_LOAN_ATTACH. Errors: EBADF, ENOTSOCK; EPROTOTYPE: it is no SOCK_SEQPACKET of
 * AF_VSOCK; ENOTCONN: it has no tunnel; EOPNOTSUPP: memory of that peer cannot be mapped;
 * EBUSY: the socket has a loan, or the file is attached; EINVAL: reserved is not 0.
 */
struct hallway_loan_attach {
	__s32 socket;		/* descriptor, as are those below: in */
	__u32 reserved;		/* 0 */
	__u32 tx_size;		/* bytes of the ring that the program writes: out */
	__u32 rx_size;
	__u64 tx_offset;	/* for mmap(): out */
	__u64 rx_offset;
};

/* What a call has found. */
#define HALLWAY_LOAN_NONE	0	/* no space or message yet: poll() the socket */
#define HALLWAY_LOAN_FOUND	1
#define HALLWAY_LOAN_END	2	/* no message follows */

/* In flags: the message ends a record (MSG_EOR). */
#define HALLWAY_LOAN_EOR	1

/*
 * HALLWAY_LOAN_SEND: sends `commit` bytes of the message that was reserved, then reserves
 * space for one of `reserve` bytes. Either may be 0; a reservation that is not committed is
 * given up. While there is one, send() gives EBUSY. No error means that the message is sent:
 * that nothing more can be is for the next call to say. Errors: EPIPE, ECONNRESET, ENOTCONN;
 * EMSGSIZE: no message of that length fits; EINVAL: more is committed than is reserved, or an
 * unknown flag is set.
 */
struct hallway_loan_send {
	__u32 commit;		/* bytes: in */
	__u32 flags;		/* of that message: in */
	__u32 reserve;		/* bytes: in */
	__u32 state;		/* HALLWAY_LOAN_NONE or _FOUND: out */
	__u32 offset;		/* of the message in the ring: out */
	__u32 reserved;		/* 0 */
};

/*
 * HALLWAY_LOAN_RECEIVE: releases the message that was found before, if `release` is 1, then
 * looks for the next one. No error means that this one is taken. Errors: ECONNRESET: the peer
 * has gone, and what was read of the message may be another's; EREMCHG: the memory has gone,
 * and recv() gives what is left, the message included; EINVAL: there is none to release;
 * ENOTCONN.
 */
struct hallway_loan_receive {
	__u32 release;		/* 0 or 1: in */
	__u32 state;		/* HALLWAY_LOAN_*: out */
	__u32 offset;		/* of the message in the ring: out */
	__u32 length;		/* bytes: out */
	__u32 flags;		/* HALLWAY_LOAN_EOR: out */
	__u32 reserved;		/* 0 */
};

HALLWAY_ASSERT_SIZE(struct hallway_loan_attach, 32);
HALLWAY_ASSERT_SIZE(struct hallway_loan_send, 24);
HALLWAY_ASSERT_SIZE(struct hallway_loan_receive, 24);

/* _IOWR('H', 0xe0, struct hallway_loan_attach), and so on. */
#define HALLWAY_LOAN_ATTACH	0xc02048e0u
#define HALLWAY_LOAN_SEND	0xc01848e1u
#define HALLWAY_LOAN_RECEIVE	0xc01848e2u

#endif /* HALLWAY_ABI_LOAN_H */
