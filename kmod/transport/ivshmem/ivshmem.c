// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ivshmem transport: QEMU's stock devices, served by hallwayd.
 *
 * A VM has one ivshmem-doorbell device for signals, and one ivshmem-plain device
 * for each region. Both have the same PCI id; the magic at the start of BAR2
 * tells the private page from a region.
 *
 * Each file calls only those before it: doorbell.c, page.c, cpus.c, region.c,
 * control.c, pci.c, and this one, which is the transport as a whole.
 *
 * The devices and their registers: QEMU docs/specs/ivshmem-spec.rst.
 */
#define pr_fmt(fmt) "hallway: ivshmem: " fmt

#include <linux/mutex.h>
#include <linux/printk.h>

#include <xen/xen.h>

#include "../transports.h"
#include "control.h"
#include "cpus.h"
#include "page.h"
#include "pci.h"
#include "region.h"

static void ivshmem_publish(const struct in6_addr *address, unsigned int count)
{
	struct doorbell *doorbell;
	struct region *region;

	mutex_lock(&ivshmem_mutex);
	ivshmem_addresses = count;
	memcpy(ivshmem_address, address, count * sizeof(*address));
	list_for_each_entry(doorbell, &ivshmem_doorbells, list)
		ivshmem_page_publish(doorbell);
	list_for_each_entry(region, &ivshmem_regions, list) {
		if (region->state != REGION_JOINED)
			continue;
		hall_own_slice_publish(&region->own, address, count);
		ivshmem_region_ring_all(region);
	}
	mutex_unlock(&ivshmem_mutex);
}

static void ivshmem_want(const struct in6_addr *address, unsigned int count)
{
	struct doorbell *doorbell;

	mutex_lock(&ivshmem_mutex);
	list_for_each_entry(doorbell, &ivshmem_doorbells, list)
		ivshmem_page_want(doorbell, address, count);
	mutex_unlock(&ivshmem_mutex);
}

/* Devices that are here have been probed; a region may be plugged in later. */
static void report_missing(void)
{
	/* A domain of Xen shares memory in another way. */
	if (xen_domain())
		return;
	mutex_lock(&ivshmem_mutex);
	if (list_empty(&ivshmem_doorbells))
		pr_notice("no doorbell in use: start QEMU with ivshmem-doorbell on hallwayd's socket; connections stay on TCP\n");
	else if (list_empty(&ivshmem_regions))
		pr_notice("no region in use: plug in ivshmem-plain with a region's file; connections stay on TCP until then\n");
	mutex_unlock(&ivshmem_mutex);
}

static int ivshmem_init(void)
{
	int err = ivshmem_cpus_init();

	if (err)
		return err;
	err = ivshmem_pci_init();
	if (err) {
		ivshmem_cpus_uninit();
		return err;
	}
	report_missing();
	return 0;
}

static void ivshmem_uninit(void)
{
	ivshmem_pci_uninit();
	ivshmem_control_uninit();
	ivshmem_cpus_uninit();
}

const struct hall_transport hall_ivshmem_transport = {
	.name = "ivshmem",
	.remote = true,
	.init = ivshmem_init,
	.uninit = ivshmem_uninit,
	.alloc = hall_slice_alloc,
	.free = hall_slice_free,
	.map = hall_slice_map,
	.unmap = hall_slice_unmap,
	.intact = hall_slice_is_intact,
	.find_pfn = ivshmem_find_pfn,
	.admits = ivshmem_admits,
	.send = hall_mailbox_send,
	.notify = hall_mailbox_notify,
	.forget = hall_mailbox_forget,
	.ring = ivshmem_ring,
	.publish = ivshmem_publish,
	.want = ivshmem_want,
	.own = ivshmem_own,
	.release = ivshmem_release,
};
