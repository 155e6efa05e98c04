// SPDX-License-Identifier: GPL-2.0-only
/*
 * The PCI devices: doorbells, and the memory of regions and private pages. Both
 * have the same PCI id; the magic at the start of BAR2 is what differs.
 */
#include "pci.h"

#include <linux/delay.h>
#include <linux/err.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rculist.h>
#include <linux/vmalloc.h>

#include <hallway/reason.h>

#include "../transports.h"
#include "control.h"
#include "page.h"
#include "region.h"

#define IVSHMEM_VENDOR	0x1af4
#define IVSHMEM_DEVICE	0x1110

static int doorbell_probe(struct pci_dev *pdev, struct hallway_page *page)
{
	struct doorbell *doorbell = ivshmem_doorbell_open(pdev, page,
							  ivshmem_look);

	if (IS_ERR(doorbell))
		return PTR_ERR(doorbell);
	pci_set_drvdata(pdev, doorbell);
	mutex_lock(&ivshmem_mutex);
	list_add_tail(&doorbell->list, &ivshmem_doorbells);
	mutex_unlock(&ivshmem_mutex);
	return 0;
}

/*
 * A program's call may keep a region for as long as the program likes. Memory is
 * unmapped afterwards alone; a guest that shuts down does without.
 */
#define SHUTDOWN_PATIENCE	(20 * HZ)

/* Does a region use the doorbell, or is this region still being left? */
static bool is_in_use(const struct doorbell *doorbell, const struct region *one)
{
	struct region *region;
	bool used = false;

	mutex_lock(&ivshmem_mutex);
	list_for_each_entry(region, &ivshmem_regions, list)
		used |= (region == one && region->state == REGION_LEAVING) ||
			(doorbell && region->doorbell == doorbell);
	mutex_unlock(&ivshmem_mutex);
	return used;
}

/* patience: jiffies; 0: without limit. False: that was not enough. */
static bool wait_until_left(const struct doorbell *doorbell,
			    const struct region *region, unsigned long patience)
{
	unsigned long until = jiffies + patience;

	ivshmem_control();
	while (is_in_use(doorbell, region)) {
		if (patience && time_after(jiffies, until))
			return false;
		msleep(20);
	}
	return true;
}

static bool doorbell_remove(struct doorbell *doorbell, unsigned long patience)
{
	struct region *region;

	mutex_lock(&ivshmem_mutex);
	list_del(&doorbell->list);
	list_for_each_entry(region, &ivshmem_regions, list)
		if (region->doorbell == doorbell)
			ivshmem_region_leave(region, HALLWAY_REASON_REGION_GONE);
	hall_transport_handler.candidates(&hall_ivshmem_transport, NULL, 0);
	mutex_unlock(&ivshmem_mutex);
	if (!wait_until_left(doorbell, NULL, patience))
		return false;
	/* A thread that rings has found it under RCU. */
	synchronize_rcu();
	ivshmem_doorbell_close(doorbell);
	return true;
}

static int region_probe(struct pci_dev *pdev, struct hallway_region *shared,
			u64 size, bool is_vmap)
{
	struct region *region = ivshmem_region_create(pdev, shared, size);
	bool twice;

	if (IS_ERR(region))
		return PTR_ERR(region);
	region->is_vmap = is_vmap;
	pci_set_drvdata(pdev, region);
	mutex_lock(&ivshmem_mutex);
	twice = ivshmem_region_is_known(region->uuid);
	if (!twice)
		list_add_tail_rcu(&region->list, &ivshmem_regions);
	mutex_unlock(&ivshmem_mutex);
	if (!twice)
		return 0;
	pci_err(pdev, "hallway: this region is plugged in already: unplug one of the two devices\n");
	pci_set_drvdata(pdev, NULL);
	ivshmem_region_put(region);
	return -EEXIST;
}

static bool region_remove(struct region *region, unsigned long patience)
{
	mutex_lock(&ivshmem_mutex);
	region->removed = true;
	ivshmem_region_leave(region, HALLWAY_REASON_REGION_GONE);
	mutex_unlock(&ivshmem_mutex);
	if (!wait_until_left(NULL, region, patience))
		return false;
	mutex_lock(&ivshmem_mutex);
	list_del_rcu(&region->list);
	mutex_unlock(&ivshmem_mutex);
	synchronize_rcu();
	ivshmem_region_put(region);
	return true;
}

/* Bytes of a region for which page tables are made, a page each: 16 MiB of them. */
#define REMAPPED_MAX	(8ULL << 30)

static void unmap_bar(void *bar, bool is_vmap)
{
	if (is_vmap)
		vunmap(bar);
	else
		memunmap(bar);
}

/*
 * For memremap() the firmware's MTRRs decide: UEFI has one over all memory of PCI devices
 * above 4 GiB, and a microvm's firmware sets none. To the hypervisor a region is ordinary
 * memory, so it is mapped as that. A hypervisor that honours the guest's MTRRs all the same
 * (KVM before Linux 6.11, for a VM with a passed-through device) leaves it uncached.
 * NULL: it lies lower, or the kernel has no way.
 */
static void *map_cached(resource_size_t start, resource_size_t size)
{
	void *mapped = NULL;
#ifdef CONFIG_VMAP_PFN
	unsigned long first = start >> PAGE_SHIFT, n = size >> PAGE_SHIFT, i;
	unsigned long *pfns;

	if (!upper_32_bits(start))
		return NULL;
	pfns = kvmalloc_array(n, sizeof(*pfns), GFP_KERNEL | __GFP_NOWARN | __GFP_RETRY_MAYFAIL);
	if (!pfns)
		return NULL;
	for (i = 0; i < n && !pfn_valid(first + i); i++)
		pfns[i] = first + i;
	if (i == n)
		mapped = vmap_pfn(pfns, n, pgprot_decrypted(PAGE_KERNEL));
	kvfree(pfns);
#endif
	return mapped;
}

/* Rings would be slower than TCP. */
static bool is_uncached(const void *address)
{
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)address, &level);

	return pte && (pte_flags(*pte) & (_PAGE_PCD | _PAGE_PWT));
}

static int ivshmem_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	resource_size_t size = pci_resource_len(pdev, 2);
	void *bar, *cached = NULL;
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
	if (magic == HALLWAY_REGION_MAGIC && size <= REMAPPED_MAX && is_uncached(bar))
		cached = map_cached(pci_resource_start(pdev, 2), size);
	if (cached) {
		memunmap(bar);
		bar = cached;
	}
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
	} else if (is_uncached(bar)) {
		pci_err(pdev, "hallway: BAR2 at %pa is mapped uncached, which is slower than TCP: %s\n",
			&pdev->resource[2].start,
			upper_32_bits(pci_resource_start(pdev, 2)) ?
			"this kernel has no CONFIG_VMAP_PFN, or the region more than 8 GiB" :
			"plug the region in after boot, so that it lies above 4 GiB");
		err = -EINVAL;
	} else {
		err = region_probe(pdev, bar, size, cached);
	}
	if (err)
		goto unmap;
	ivshmem_control();
	return 0;
unmap:
	unmap_bar(bar, cached);
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

static void remove(struct pci_dev *pdev, unsigned long patience)
{
	void *data = pci_get_drvdata(pdev), *bar;
	struct doorbell *doorbell;
	bool left, is_vmap = false;

	/* The device was shut down before. */
	if (!data)
		return;
	pci_set_drvdata(pdev, NULL);
	/* A device is removed once: nothing else removes this doorbell. */
	doorbell = find_doorbell(data);
	if (doorbell) {
		bar = doorbell->page;
		left = doorbell_remove(doorbell, patience);
	} else {
		bar = ((struct region *)data)->shared;
		is_vmap = ((struct region *)data)->is_vmap;
		left = region_remove(data, patience);
	}
	if (!left)
		return;
	unmap_bar(bar, is_vmap);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

static void ivshmem_remove(struct pci_dev *pdev)
{
	remove(pdev, 0);
}

/* A kernel that shuts down, also by kexec, leaves at once: no peer waits. */
static void ivshmem_shutdown(struct pci_dev *pdev)
{
	remove(pdev, SHUTDOWN_PATIENCE);
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
	.shutdown = ivshmem_shutdown,
};

int ivshmem_pci_init(void)
{
	return pci_register_driver(&ivshmem_driver);
}

void ivshmem_pci_uninit(void)
{
	pci_unregister_driver(&ivshmem_driver);
}
