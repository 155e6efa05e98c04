/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Checks of what a peer claims about memory and mailboxes: arithmetic alone. No
 * sum of the peer's numbers is formed: it could pass 2^64.
 */
#ifndef HALL_BOUNDS_H
#define HALL_BOUNDS_H

#include <linux/types.h>

#include <hallway/region.h>

/* Do size bytes at offset lie within start .. end? start <= end. */
static inline bool hall_is_within(u64 offset, u64 size, u64 start, u64 end)
{
	return size <= end - start && offset >= start && offset <= end - size;
}

static inline bool hall_is_page_aligned(u64 n)
{
	return !(n & 4095);
}

/* The number of messages between two indexes of a mailbox; -1: impossible. */
static inline int hall_mailbox_messages(u32 head, u32 tail)
{
	return head - tail <= HALLWAY_MAILBOX_MESSAGES ? (int)(head - tail) : -1;
}

#endif /* HALL_BOUNDS_H */
