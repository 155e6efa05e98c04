// SPDX-License-Identifier: GPL-2.0
/* The ivshmem transport as a whole: see ivshmem.h. */
#define pr_fmt(fmt) "hallway: ivshmem: " fmt

#include "ivshmem.h"

#include <linux/mutex.h>
#include <linux/printk.h>

DEFINE_MUTEX(ivshmem_mutex);
LIST_HEAD(ivshmem_doorbells);
LIST_HEAD(ivshmem_regions);
struct in6_addr ivshmem_address[HALLWAY_ADDRESSES_MAX];
unsigned int ivshmem_addresses;

static void control(struct work_struct *work);
static DECLARE_DELAYED_WORK(control_work, control);

void ivshmem_control(void)
{
	mod_delayed_work(hall_workqueue, &control_work, 0);
}

static void control(struct work_struct *work)
{
	static unsigned long listen;
	bool listens = time_after_eq(jiffies, listen);
	struct doorbell *doorbell;
	struct region *region;

	mutex_lock(&ivshmem_mutex);
	if (listens)
		listen = jiffies + HALL_LISTEN;
	list_for_each_entry(region, &ivshmem_regions, list) {
		if (region->state == REGION_FULL &&
		    region->change != READ_ONCE(region->shared->change))
			region->state = REGION_IDLE;
		if (region->state == REGION_IDLE)
			ivshmem_region_ask(region);
		if (region->state == REGION_ASKED)
			ivshmem_region_take_answer(region);
		if (region->state == REGION_JOINED)
			ivshmem_region_scan(region);
		if (region->state == REGION_JOINED && listens)
			hall_peers_listen(&region->own);
	}
	list_for_each_entry(doorbell, &ivshmem_doorbells, list) {
		if (!doorbell->greeted)
			ivshmem_page_greet(doorbell);
		ivshmem_page_read_candidates(doorbell);
	}
	if (!list_empty(&ivshmem_regions) || !list_empty(&ivshmem_doorbells))
		queue_delayed_work(hall_workqueue, &control_work,
				   max((long)(listen - jiffies), 0L));
	mutex_unlock(&ivshmem_mutex);
}

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
	mutex_lock(&ivshmem_mutex);
	if (list_empty(&ivshmem_doorbells))
		pr_notice("no doorbell in use: start QEMU with ivshmem-doorbell on hallwayd's socket; connections stay on TCP\n");
	else if (list_empty(&ivshmem_regions))
		pr_notice("no region in use: plug in ivshmem-plain with a region's file; connections stay on TCP until then\n");
	mutex_unlock(&ivshmem_mutex);
}

static int ivshmem_init(void)
{
	int err;

	ivshmem_page_init();
	err = ivshmem_pci_init();
	if (err)
		return err;
	report_missing();
	return 0;
}

static void ivshmem_uninit(void)
{
	ivshmem_pci_uninit();
	cancel_delayed_work_sync(&control_work);
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
	.intact = hall_slice_intact,
	.send = hall_mailbox_send,
	.notify = ivshmem_notify,
	.publish = ivshmem_publish,
	.want = ivshmem_want,
	.own = ivshmem_own,
	.release = ivshmem_release,
};
