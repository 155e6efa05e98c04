// SPDX-License-Identifier: GPL-2.0
/* The PCI devices: doorbells, and the memory of regions and private pages. */

#include "ivshmem.h"

#include <linux/err.h>
#include <linux/io.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include <hallway/reason.h>

#include "../../obs/counters.h"

#define IVSHMEM_VENDOR	0x1af4
#define IVSHMEM_DEVICE	0x1110
#define REG_DOORBELL	12		/* (peer id << 16) | vector */

/* Interrupts in one jiffy from which on the vector is masked until the next. */
#define STORM		512

void ivshmem_doorbell_ring(struct doorbell *doorbell, u16 id)
{
	if (id)
		writel((u32)id << 16, doorbell->regs + REG_DOORBELL);
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
	tasklet_schedule(&doorbell->tasklet);
}

static void doorbell_tasklet(struct tasklet_struct *tasklet)
{
	struct doorbell *doorbell = from_tasklet(doorbell, tasklet, tasklet);
	bool look = READ_ONCE(doorbell->page->candidates.seq) !=
		    READ_ONCE(doorbell->candidates_seq);
	struct region *region;

	rcu_read_lock();
	list_for_each_entry_rcu(region, &ivshmem_regions, list) {
		if (READ_ONCE(region->doorbell) != doorbell)
			continue;
		look |= READ_ONCE(region->state) == REGION_ASKED ||
			READ_ONCE(region->incomplete) ||
			READ_ONCE(region->shared->change) != READ_ONCE(region->change);
		look |= hall_peers_look(&region->own);
	}
	rcu_read_unlock();
	if (look)
		ivshmem_control();
}

static irqreturn_t doorbell_irq(int irq, void *data)
{
	struct doorbell *doorbell = data;

	hall_count(HALL_DOORBELLS_RECEIVED);
	if (doorbell->storm_jiffy != jiffies) {
		doorbell->storm_jiffy = jiffies;
		doorbell->storm_count = 0;
	}
	if (++doorbell->storm_count == STORM && !READ_ONCE(doorbell->closing)) {
		hall_count(HALL_STORMS);
		disable_irq_nosync(irq);
		mod_timer(&doorbell->storm_end, jiffies + 1);
	}
	tasklet_schedule(&doorbell->tasklet);
	return IRQ_HANDLED;
}

static void storm_ended(struct timer_list *timer)
{
	struct doorbell *doorbell = container_of(timer, struct doorbell,
						 storm_end);

	enable_irq(pci_irq_vector(doorbell->pdev, 0));
	/* Doorbells may have rung while the vector was masked. */
	tasklet_schedule(&doorbell->tasklet);
}

static int doorbell_probe(struct pci_dev *pdev, struct hallway_page *page)
{
	struct doorbell *doorbell;
	u16 major = READ_ONCE(page->major);
	int err;

	if (major != HALLWAY_MAJOR) {
		pci_err(pdev, "hallway: hallwayd speaks version %u, this module %u: update the older side\n",
			major, HALLWAY_MAJOR);
		return -EPROTONOSUPPORT;
	}
	doorbell = kzalloc(sizeof(*doorbell), GFP_KERNEL);
	if (!doorbell)
		return -ENOMEM;
	doorbell->pdev = pdev;
	doorbell->page = page;
	tasklet_setup(&doorbell->tasklet, doorbell_tasklet);
	timer_setup(&doorbell->storm_end, storm_ended, 0);
	doorbell->regs = pci_ioremap_bar(pdev, 0);
	if (!doorbell->regs) {
		err = -ENOMEM;
		goto free;
	}
	pci_set_master(pdev);
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (err < 0) {
		pci_err(pdev, "hallway: no MSI-X vector: the device wants vectors=1\n");
		goto unmap;
	}
	err = request_irq(pci_irq_vector(pdev, 0), doorbell_irq, 0, "hallway",
			  doorbell);
	if (err)
		goto vectors;
	pci_set_drvdata(pdev, doorbell);
	mutex_lock(&ivshmem_mutex);
	list_add_tail(&doorbell->list, &ivshmem_doorbells);
	mutex_unlock(&ivshmem_mutex);
	return 0;
vectors:
	pci_free_irq_vectors(pdev);
unmap:
	iounmap(doorbell->regs);
free:
	kfree(doorbell);
	return err;
}

static void doorbell_remove(struct doorbell *doorbell)
{
	struct pci_dev *pdev = doorbell->pdev;
	struct region *region;

	mutex_lock(&ivshmem_mutex);
	list_del(&doorbell->list);
	list_for_each_entry(region, &ivshmem_regions, list) {
		if (region->doorbell != doorbell)
			continue;
		if (region->state == REGION_JOINED)
			ivshmem_region_leave(region, HALLWAY_REASON_REGION_GONE);
		region->state = REGION_IDLE;
		region->doorbell = NULL;
	}
	hall_transport_handler.candidates(&hall_ivshmem_transport, NULL, 0);
	mutex_unlock(&ivshmem_mutex);
	/* No storm begins from now on; then the last one ends. */
	WRITE_ONCE(doorbell->closing, true);
	synchronize_irq(pci_irq_vector(pdev, 0));
	timer_delete_sync(&doorbell->storm_end);
	free_irq(pci_irq_vector(pdev, 0), doorbell);
	tasklet_kill(&doorbell->tasklet);
	pci_free_irq_vectors(pdev);
	iounmap(doorbell->regs);
	kfree(doorbell);
}

static int region_probe(struct pci_dev *pdev, struct hallway_region *shared,
			u64 size)
{
	struct region *region = ivshmem_region_create(pdev, shared, size);

	if (IS_ERR(region))
		return PTR_ERR(region);
	pci_set_drvdata(pdev, region);
	mutex_lock(&ivshmem_mutex);
	list_add_tail_rcu(&region->list, &ivshmem_regions);
	mutex_unlock(&ivshmem_mutex);
	return 0;
}

static void region_remove(struct region *region)
{
	mutex_lock(&ivshmem_mutex);
	if (region->state == REGION_JOINED) {
		ivshmem_region_leave(region, HALLWAY_REASON_REGION_GONE);
		ivshmem_page_request(region->doorbell, region->entry,
				     HALLWAY_COMMAND_LEAVE, region->uuid);
	}
	list_del_rcu(&region->list);
	mutex_unlock(&ivshmem_mutex);
	synchronize_rcu();
	ivshmem_region_put(region);
}

/* The firmware's MTRRs overrule memremap(): rings would be slower than TCP. */
static bool uncached(const void *address)
{
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)address, &level);

	return pte && (pte_flags(*pte) & (_PAGE_PCD | _PAGE_PWT));
}

static int ivshmem_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	resource_size_t size = pci_resource_len(pdev, 2);
	void *bar;
	u64 magic;
	int err;

	err = pci_enable_device(pdev);
	if (err)
		return err;
	if (!size || !pci_resource_start(pdev, 2)) {
		pci_err(pdev, "hallway: BAR2 has no address: give QEMU's PCI host a larger pci-hole64-size, and on q35 the root port a pref64-reserve, of more than the region's size\n");
		err = -ENODEV;
		goto disable;
	}
	err = pci_request_regions(pdev, "hallway");
	if (err)
		goto disable;
	bar = memremap(pci_resource_start(pdev, 2), size, MEMREMAP_WB);
	if (!bar) {
		err = -ENOMEM;
		goto release;
	}
	magic = size >= sizeof(magic) ? virt_load_acquire((u64 *)bar) : 0;
	if (magic == HALLWAY_PAGE_MAGIC && size >= HALLWAY_PAGE_SIZE) {
		err = doorbell_probe(pdev, bar);
	} else if (magic != HALLWAY_REGION_MAGIC) {
		pci_err(pdev, "hallway: BAR2 starts with magic %#llx, which hallwayd did not write: give ivshmem-doorbell hallwayd's socket, and ivshmem-plain a region's file\n",
			magic);
		err = -ENODEV;
	} else if (size < HALLWAY_SLICE_MIN) {
		pci_err(pdev, "hallway: a region of %llu bytes is too small: give QEMU the size that hallway status shows on the host\n",
			(u64)size);
		err = -EINVAL;
	} else if (uncached(bar)) {
		pci_err(pdev, "hallway: BAR2 at %pa is mapped uncached, which is slower than TCP: plug the region in after boot, so that it lies above 4 GiB\n",
			&pdev->resource[2].start);
		err = -EINVAL;
	} else {
		err = region_probe(pdev, bar, size);
	}
	if (err)
		goto unmap;
	ivshmem_control();
	return 0;
unmap:
	memunmap(bar);
release:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
	return err;
}

/* The doorbell of that driver data; NULL: the data is a region's. */
static struct doorbell *find_doorbell(const void *data)
{
	struct doorbell *doorbell, *found = NULL;

	mutex_lock(&ivshmem_mutex);
	list_for_each_entry(doorbell, &ivshmem_doorbells, list)
		if (doorbell == data)
			found = doorbell;
	mutex_unlock(&ivshmem_mutex);
	return found;
}

static void ivshmem_remove(struct pci_dev *pdev)
{
	void *data = pci_get_drvdata(pdev), *bar;
	struct doorbell *doorbell = find_doorbell(data);

	/* The device was shut down before. */
	if (!data)
		return;
	pci_set_drvdata(pdev, NULL);
	if (doorbell) {
		bar = doorbell->page;
		doorbell_remove(doorbell);
	} else {
		bar = ((struct region *)data)->shared;
		region_remove(data);
	}
	memunmap(bar);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

static const struct pci_device_id ivshmem_ids[] = {
	{ PCI_DEVICE(IVSHMEM_VENDOR, IVSHMEM_DEVICE) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ivshmem_ids);

static struct pci_driver ivshmem_driver = {
	.name = "hallway",
	.id_table = ivshmem_ids,
	.probe = ivshmem_probe,
	.remove = ivshmem_remove,
	/* A kernel that shuts down, also by kexec, leaves at once: no peer waits. */
	.shutdown = ivshmem_remove,
};

int ivshmem_pci_init(void)
{
	return pci_register_driver(&ivshmem_driver);
}

void ivshmem_pci_uninit(void)
{
	pci_unregister_driver(&ivshmem_driver);
}
