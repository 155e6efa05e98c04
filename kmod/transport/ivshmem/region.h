/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Regions: joining, leaving, and the member table. Everything under ivshmem_mutex
 * but what says otherwise.
 *
 * To join a region, a request is written into the private page, and the daemon's
 * doorbell rung. The daemon gives the VM a slot, a generation and a slice. A
 * member arrives when the region's table says that it is present and its slice is
 * formatted for the table's generation; it departs when the table says otherwise.
 */
#ifndef HALL_IVSHMEM_REGION_H
#define HALL_IVSHMEM_REGION_H

#include "../shared/shared.h"
#include "page.h"

enum region_state {
	REGION_IDLE,
	REGION_ASKED,
	REGION_JOINED,
	REGION_LEAVING,		/* until no channel to its peers is left */
	REGION_FULL,		/* refused until the table changes */
	REGION_REFUSED,		/* for good */
};

struct region {
	struct list_head list;		/* ivshmem_regions; RCU */
	refcount_t refs;		/* the device, and each peer */
	struct hallway_region *shared;
	bool is_vmap;			/* so is shared mapped, else by memremap() */
	phys_addr_t start;		/* of that */
	u64 size;			/* bytes */
	u32 slots;
	u8 uuid[16];
	u8 key[16];
	enum region_state state;
	bool removed;			/* its device goes: it does not join again */
	unsigned long ask_at;		/* jiffies; it does not ask before */
	unsigned long asked_at;		/* jiffies */
	bool reminded;			/* the log says that no answer came */
	u32 reported;			/* the last refusal, or 0 */
	struct hall_own_slice own;	/* open while JOINED or LEAVING */
	/* Valid but in REGION_IDLE. */
	struct doorbell *doorbell;
	unsigned int entry;		/* in the private page */
	u32 serial;
	u32 change;			/* of the member table, as last seen */
	/* Valid while REGION_JOINED. */
	u32 slot;
	u32 outsourcer;			/* its slot, or 0 */
	bool pair;			/* by hallwayd it has one other member */
	bool incomplete;		/* a present member has not arrived */
	bool occupied;			/* the one before it still has its mailboxes */
};

extern struct list_head ivshmem_regions;	/* readers: RCU */

/* A region in memory of that size, or an error pointer; checks its header. */
struct region *ivshmem_region_create(struct pci_dev *pdev,
				     struct hallway_region *shared, u64 size);
/* Any context. */
void ivshmem_region_put(struct region *region);
/*
 * Is a region of that UUID in the list, and not on its way out? Each of two would
 * take the other's place.
 */
bool ivshmem_region_is_known(const u8 *uuid);
/* Puts the member table's changes into effect, and takes new addresses. */
void ivshmem_region_scan(struct region *region);
/* Asks to join; takes the answer. */
void ivshmem_region_ask(struct region *region);
void ivshmem_region_take_answer(struct region *region);
/*
 * Begins to leave a region that was joined, or asked for, and does not wait:
 * control() has it end, in state REGION_IDLE and without a doorbell.
 */
void ivshmem_region_leave(struct region *region, u32 reason);
void ivshmem_region_end_leaving(struct region *region);
/* Has all other members look. */
void ivshmem_region_ring_all(struct region *region);
/* An entry of the private page that no region uses, or HALLWAY_PAGE_ENTRIES. */
unsigned int ivshmem_region_find_entry(void);

/* The functions of struct hall_transport that stand on regions. */
void ivshmem_ring(struct hall_member *member);
unsigned long ivshmem_find_pfn(struct hall_member *member, const void *page);
bool ivshmem_admits(struct hall_member *member, u32 port);
void ivshmem_release(struct hall_member *member);
int ivshmem_own(int (*fn)(const struct hall_own *own, void *data), void *data);

#endif /* HALL_IVSHMEM_REGION_H */
