/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a peer may claim about memory and about its mailbox: arithmetic alone, so
 * that it is tested in user space too. No sum of what the peer wrote is formed:
 * it could pass 2^64.
 */
#ifndef HALL_BOUNDS_H
#define HALL_BOUNDS_H

#include <linux/types.h>

#include <hallway/region.h>

/* Does a run of size bytes at offset lie within start .. end? start <= end. */
static inline bool hall_within(u64 offset, u64 size, u64 start, u64 end)
{
	return size <= end - start && offset >= start && offset <= end - size;
}

static inline bool hall_page_aligned(u64 n)
{
	return !(n & 4095);
}

/* The messages between the indexes of a mailbox, or -1 if there can't be so many. */
static inline int hall_mailbox_messages(u32 head, u32 tail)
{
	return head - tail <= HALLWAY_MAILBOX_MESSAGES ? (int)(head - tail) : -1;
}

#endif /* HALL_BOUNDS_H */
