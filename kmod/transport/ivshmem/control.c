// SPDX-License-Identifier: GPL-2.0-only
/* Looking at what peers and the daemon wrote: see control.h. */
#include "control.h"

#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/mutex.h>
#include <linux/rculist.h>
#include <linux/sched/mm.h>

#include "cpus.h"
#include "region.h"

/* How soon to look again at what waits for peers to be gone. */
#define AGAIN	msecs_to_jiffies(10)

static void control(struct work_struct *work);
static DECLARE_DELAYED_WORK(control_work, control);
static unsigned long rested;	/* jiffies: the work item does not run before */

void ivshmem_control(void)
{
	long pause = READ_ONCE(rested) - jiffies;

	/* Each message of a peer comes here. */
	mod_delayed_work(hall_control_queue, &control_work, clamp(pause, 0L, 1L));
}

/* True: look again soon. */
static bool control_region(struct region *region, bool listens)
{
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
	if (region->state == REGION_LEAVING)
		ivshmem_region_end_leaving(region);
	return region->state == REGION_LEAVING ||
	       (region->state == REGION_JOINED && region->occupied);
}

static void control(struct work_struct *work)
{
	static unsigned long listen;
	bool listens = time_after_eq(jiffies, listen), again = false;
	/* Departures want the mutex, and memory may wait for a disk behind their peers. */
	unsigned int noio = memalloc_noio_save();
	struct doorbell *doorbell;
	struct region *region;
	long next;

	mutex_lock(&ivshmem_mutex);
	if (listens)
		listen = jiffies + HALL_LISTEN;
	list_for_each_entry(region, &ivshmem_regions, list)
		again |= control_region(region, listens);
	if (listens)
		hall_send_round_next();
	ivshmem_cpus_take_order();
	list_for_each_entry(doorbell, &ivshmem_doorbells, list) {
		if (!doorbell->greeted)
			ivshmem_page_greet(doorbell,
					   ivshmem_region_find_entry());
		ivshmem_page_read_candidates(doorbell);
	}
	next = max((long)(listen - jiffies), 0L);
	if (again)
		next = min_t(long, next, AGAIN);
	if (!list_empty(&ivshmem_regions) || !list_empty(&ivshmem_doorbells))
		queue_delayed_work(hall_control_queue, &control_work, next);
	WRITE_ONCE(rested, jiffies + 1);
	mutex_unlock(&ivshmem_mutex);
	memalloc_noio_restore(noio);
}

void ivshmem_look(struct doorbell *doorbell)
{
	bool look = READ_ONCE(doorbell->page->candidates.seq) !=
		    READ_ONCE(doorbell->candidates_seq) ||
		    ivshmem_cpus_differ(doorbell);
	unsigned int found = 0;
	struct region *region;

	rcu_read_lock();
	list_for_each_entry_rcu(region, &ivshmem_regions, list) {
		if (READ_ONCE(region->doorbell) != doorbell)
			continue;
		look |= READ_ONCE(region->state) == REGION_ASKED ||
			READ_ONCE(region->incomplete) ||
			READ_ONCE(region->shared->change) != READ_ONCE(region->change);
		found |= hall_peers_look(&region->own);
	}
	rcu_read_unlock();
	/* The rest in another run: programs get the CPU between the two. */
	if (found & HALL_LOOK_MORE)
		ivshmem_doorbell_look(doorbell);
	if (look || (found & HALL_LOOK_MESSAGES))
		ivshmem_control();
}

void ivshmem_control_uninit(void)
{
	cancel_delayed_work_sync(&control_work);
}
