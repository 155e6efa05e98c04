/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The doorbell device: its registers and its only interrupt, which means "look".
 * The interrupt handler only schedules the tasklet, which calls look().
 *
 * All peers ring by one vector, and it is not known which one rang. A peer that
 * rings without end would take all of the CPU, so the vector is masked for the rest
 * of a jiffy in which it came too often. A timer looks meanwhile, often enough that
 * the doorbells of all other peers are answered without much delay.
 */
#ifndef HALL_IVSHMEM_DOORBELL_H
#define HALL_IVSHMEM_DOORBELL_H

#include <linux/hrtimer.h>
#include <linux/in6.h>
#include <linux/interrupt.h>
#include <linux/list.h>

#include <hallway/region.h>

#include "../shared/shared.h"

struct pci_dev;

struct doorbell {
	struct list_head list;		/* ivshmem_doorbells */
	struct pci_dev *pdev;
	int irq;			/* looking it up may sleep */
	void __iomem *regs;
	struct hallway_page *page;	/* see page.h */
	void (*look)(struct doorbell *doorbell);	/* softirq */
	struct tasklet_struct tasklet;
	struct hrtimer poll;		/* while the vector is masked */
	struct hall_storm storm;	/* of the vector */
	bool closing;
	/* page.c's */
	bool greeted;			/* HELLO was sent */
	u32 candidates_seq;		/* the candidates, as read last */
	unsigned int candidate_count;
	struct in6_addr candidate[HALLWAY_CANDIDATES_MAX];
	/* cpus.c's */
	u32 cpu_order;			/* as read last */
	struct hallway_cpu_report cpu_report;	/* as written last */
};

/* Serialises everything in this folder but what says otherwise. */
extern struct mutex ivshmem_mutex;
extern struct list_head ivshmem_doorbells;

/*
 * Opens the doorbell of a device with a mapped page. Returns an error pointer if
 * memory or an interrupt is missing. It is not in the list yet; look() may be
 * called at once. No lock.
 */
struct doorbell *ivshmem_doorbell_open(struct pci_dev *pdev,
				       struct hallway_page *page,
				       void (*look)(struct doorbell *doorbell));
/* Nothing uses it any more, and it is in no list. No lock. */
void ivshmem_doorbell_close(struct doorbell *doorbell);
/* Rings the doorbell of a peer id; none if it is 0. Any context. */
void ivshmem_doorbell_ring(struct doorbell *doorbell, u16 id);
/* Has look() called soon. Any context. */
void ivshmem_doorbell_look(struct doorbell *doorbell);
/* Has interrupts delivered where the guest may have come by live migration. */
void ivshmem_doorbell_rearm(struct doorbell *doorbell);

#endif /* HALL_IVSHMEM_DOORBELL_H */
