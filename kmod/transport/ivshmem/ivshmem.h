/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ivshmem transport: QEMU's stock devices, served by hallwayd.
 *
 * A VM has one ivshmem-doorbell device for signals, and one ivshmem-plain device
 * for each region. Both have the same PCI id; the magic at the start of BAR2
 * tells the private page from a region.
 *
 * To join a region, a request is written into the private page, and the daemon's
 * doorbell rung. The daemon gives the VM a slot, a generation and a slice. A
 * member arrives when the region's table says that it is present and its slice is
 * formatted for the table's generation; it departs when the table says otherwise.
 *
 * The doorbell's only interrupt means "look": at the mailboxes that peers keep
 * for this guest, at the member tables, and at the private page. The interrupt
 * handler only schedules the tasklet.
 *
 * ivshmem_mutex serialises everything but what says otherwise. control() alone
 * changes the state of a region that has its device. It waits for peers where
 * streams have to leave their rings.
 *
 * The devices and their registers: QEMU docs/specs/ivshmem-spec.rst.
 */
#ifndef HALL_IVSHMEM_H
#define HALL_IVSHMEM_H

#include <linux/interrupt.h>
#include <linux/timer.h>

#include "../shared/shared.h"
#include "../transports.h"

struct pci_dev;

struct doorbell {
	struct list_head list;		/* ivshmem_doorbells */
	struct pci_dev *pdev;
	void __iomem *regs;
	struct hallway_page *page;
	struct tasklet_struct tasklet;
	struct timer_list storm_end;
	unsigned long storm_jiffy;
	unsigned int storm_count;	/* interrupts in that jiffy */
	bool closing;
	bool greeted;			/* HELLO was sent */
	/* The candidates, as read from the page last. */
	u32 candidates_seq;
	unsigned int candidate_count;
	struct in6_addr candidate[HALLWAY_CANDIDATES_MAX];
};

enum region_state {
	REGION_IDLE,
	REGION_ASKED,
	REGION_JOINED,
	REGION_FULL,		/* refused until the table changes */
	REGION_REFUSED,		/* for good */
};

struct region {
	struct list_head list;		/* ivshmem_regions; RCU */
	refcount_t refs;		/* the device, and each peer */
	struct hallway_region *shared;
	u64 size;			/* bytes */
	u32 slots;
	u8 uuid[16];
	u8 key[16];
	enum region_state state;
	unsigned int unanswered;	/* looks at a reply that did not come */
	bool full_reported;
	struct hall_own_slice own;	/* open while REGION_JOINED */
	/* Valid from REGION_ASKED on. */
	struct doorbell *doorbell;
	unsigned int entry;		/* in the private page */
	u32 serial;
	u32 change;			/* of the member table, as last seen */
	/* Valid while REGION_JOINED. */
	u32 slot;
	bool incomplete;		/* a present member has not arrived */
};

/* ivshmem.c */

extern struct mutex ivshmem_mutex;
extern struct list_head ivshmem_doorbells;
extern struct list_head ivshmem_regions;	/* readers: RCU */
/* The addresses of this guest. */
extern struct in6_addr ivshmem_address[HALLWAY_ADDRESSES_MAX];
extern unsigned int ivshmem_addresses;

/* Has control() look at everything soon. Any context. */
void ivshmem_control(void);

/* region.c */

/* A region in memory of that size, or an error pointer; checks its header. */
struct region *ivshmem_region_create(struct pci_dev *pdev,
				     struct hallway_region *shared, u64 size);
/* Any context. */
void ivshmem_region_put(struct region *region);
/* Puts the member table's changes into effect, and takes new addresses. */
void ivshmem_region_scan(struct region *region);
/* Asks to join; takes the answer. */
void ivshmem_region_ask(struct region *region);
void ivshmem_region_take_answer(struct region *region);
void ivshmem_region_leave(struct region *region, u32 reason);
/* Has all other members look. */
void ivshmem_region_ring_all(struct region *region);
/* The functions of struct hall_transport that stand on regions. */
void ivshmem_notify(struct hall_member *member, u32 endpoint);
void ivshmem_release(struct hall_member *member);
int ivshmem_own(int (*fn)(const struct hall_own *own, void *data), void *data);

/* page.c */

void ivshmem_page_init(void);
/* An entry of the page that no region uses, or HALLWAY_PAGE_ENTRIES. */
unsigned int ivshmem_page_find_entry(void);
/* Returns the serial that the reply will have. region: a UUID, or NULL. */
u32 ivshmem_page_request(struct doorbell *doorbell, unsigned int entry,
			 u32 command, const u8 *region);
/* Says once that this guest takes part, so that the daemon plugs in its regions. */
void ivshmem_page_greet(struct doorbell *doorbell);
/* Has the daemon know this guest's addresses. */
void ivshmem_page_publish(struct doorbell *doorbell);
/* Hands up the daemon's list of candidates, if it is another one. */
void ivshmem_page_read_candidates(struct doorbell *doorbell);
/* Has the daemon know with which of the candidates there is traffic. */
void ivshmem_page_want(struct doorbell *doorbell,
		       const struct in6_addr *address, unsigned int count);

static inline struct hallway_reply *ivshmem_page_reply(struct region *region)
{
	return &region->doorbell->page->entry[region->entry].reply;
}

/* pci.c */

/* Rings the doorbell of that peer id; 0: nobody's. Any context. */
void ivshmem_doorbell_ring(struct doorbell *doorbell, u16 id);
/* Has interrupts delivered where the guest may have come by live migration. */
void ivshmem_doorbell_rearm(struct doorbell *doorbell);
int ivshmem_pci_init(void);
void ivshmem_pci_uninit(void);

#endif /* HALL_IVSHMEM_H */
