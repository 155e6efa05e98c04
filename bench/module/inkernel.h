/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls that a program makes, or has the kernel make: a sequence of writes and
 * reads of one size, over and over.
 */
#ifndef BENCH_INKERNEL_H
#define BENCH_INKERNEL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define INKERNEL_STEPS	4
#define INKERNEL_SIZE	(1u << 16)

/* All of the size, or, of a read, what there is. */
enum inkernel_call {
	INKERNEL_NONE,
	INKERNEL_WRITE,
	INKERNEL_READ,
	INKERNEL_READ_SOME,
};

struct inkernel_step {
	__u32 call;
	__s32 fd;		/* a socket, or else a file */
};

struct inkernel_sequence {
	struct inkernel_step steps[INKERNEL_STEPS];
	__u32 size;
	__u32 count;		/* times; the end of all bytes ends it */
	__u64 bytes;		/* result: of all reads */
	__u64 ns;		/* result */
};

#define INKERNEL_RUN	_IOWR('h', 1, struct inkernel_sequence)

#endif
