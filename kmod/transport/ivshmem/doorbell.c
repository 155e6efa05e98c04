// SPDX-License-Identifier: GPL-2.0-only
/* The doorbell device: see doorbell.h. */
#include "doorbell.h"

#include <linux/delay.h>
#include <linux/err.h>
#include <linux/io.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>

#include "../../compat/hrtimer.h"
#include "../../obs/counters.h"

#define REG_DOORBELL	12		/* (peer id << 16) | vector */

#define POLL_NS		(100 * NSEC_PER_USEC)	/* between two looks meanwhile */

DEFINE_MUTEX(ivshmem_mutex);
LIST_HEAD(ivshmem_doorbells);

void ivshmem_doorbell_ring(struct doorbell *doorbell, u16 id)
{
	if (id)
		writel((u32)id << 16, doorbell->regs + REG_DOORBELL);
}

void ivshmem_doorbell_look(struct doorbell *doorbell)
{
	tasklet_schedule(&doorbell->tasklet);
}

/*
 * After live migration KVM delivers no interrupt of the device before MSI-X is
 * enabled again: QEMU routes the vectors only then. A guest can't tell that it
 * migrated, but it loses its regions on the way.
 */
void ivshmem_doorbell_rearm(struct doorbell *doorbell)
{
	struct pci_dev *pdev = doorbell->pdev;
	int at = pdev->msix_cap + PCI_MSIX_FLAGS;
	u16 flags;

	pci_read_config_word(pdev, at, &flags);
	pci_write_config_word(pdev, at, flags & ~PCI_MSIX_FLAGS_ENABLE);
	pci_write_config_word(pdev, at, flags);
	/* For interrupts that were lost meanwhile. */
	ivshmem_doorbell_look(doorbell);
}

static void run_look(struct tasklet_struct *tasklet)
{
	struct doorbell *doorbell = from_tasklet(doorbell, tasklet, tasklet);

	doorbell->look(doorbell);
}

static irqreturn_t doorbell_irq(int irq, void *data)
{
	struct doorbell *doorbell = data;

	hall_count(HALL_DOORBELLS_RECEIVED);
	/* Once: with threadirqs more may be on their way. */
	if (hall_storm_count(&doorbell->storm) == 1 &&
	    !READ_ONCE(doorbell->closing)) {
		disable_irq_nosync(irq);
		hrtimer_start(&doorbell->poll, ns_to_ktime(POLL_NS),
			      HRTIMER_MODE_REL_SOFT);
	}
	tasklet_schedule(&doorbell->tasklet);
	return IRQ_HANDLED;
}

static enum hrtimer_restart poll(struct hrtimer *timer)
{
	struct doorbell *doorbell = container_of(timer, struct doorbell, poll);

	tasklet_schedule(&doorbell->tasklet);
	if (doorbell->storm.jiffy == jiffies && !READ_ONCE(doorbell->closing)) {
		hrtimer_forward_now(timer, ns_to_ktime(POLL_NS));
		return HRTIMER_RESTART;
	}
	enable_irq(doorbell->irq);
	return HRTIMER_NORESTART;
}

struct doorbell *ivshmem_doorbell_open(struct pci_dev *pdev,
				       struct hallway_page *page,
				       void (*look)(struct doorbell *doorbell))
{
	struct doorbell *doorbell;
	u16 major = READ_ONCE(page->major);
	int err;

	if (major != HALLWAY_MAJOR) {
		pci_err(pdev, "hallway: hallwayd speaks version %u, this module %u: update the older side\n",
			major, HALLWAY_MAJOR);
		return ERR_PTR(-EPROTONOSUPPORT);
	}
	doorbell = kzalloc(sizeof(*doorbell), GFP_KERNEL);
	if (!doorbell)
		return ERR_PTR(-ENOMEM);
	doorbell->pdev = pdev;
	doorbell->page = page;
	doorbell->look = look;
	tasklet_setup(&doorbell->tasklet, run_look);
	hrtimer_setup(&doorbell->poll, poll, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_SOFT);
	doorbell->regs = pci_ioremap_bar(pdev, 0);
	if (!doorbell->regs) {
		err = -ENOMEM;
		goto free;
	}
	pci_set_master(pdev);
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (err < 0) {
		pci_err(pdev, "hallway: no MSI-X vector: give the device vectors=1\n");
		goto unmap;
	}
	doorbell->irq = pci_irq_vector(pdev, 0);
	err = request_irq(doorbell->irq, doorbell_irq, 0, "hallway", doorbell);
	if (err)
		goto vectors;
	return doorbell;
vectors:
	pci_free_irq_vectors(pdev);
unmap:
	iounmap(doorbell->regs);
free:
	kfree(doorbell);
	return ERR_PTR(err);
}

void ivshmem_doorbell_close(struct doorbell *doorbell)
{
	struct pci_dev *pdev = doorbell->pdev;

	/* No storm begins from now on; then the last one ends. */
	WRITE_ONCE(doorbell->closing, true);
	synchronize_irq(doorbell->irq);
	while (hrtimer_active(&doorbell->poll))
		usleep_range(100, 200);
	free_irq(doorbell->irq, doorbell);
	tasklet_kill(&doorbell->tasklet);
	pci_free_irq_vectors(pdev);
	iounmap(doorbell->regs);
	kfree(doorbell);
}
