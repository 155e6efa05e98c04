// SPDX-License-Identifier: GPL-2.0-only
/* This guest's own slice. */
#include "shared.h"

#include <linux/genalloc.h>
#include <linux/mutex.h>

void hall_own_slice_init(struct hall_own_slice *own, u32 mailboxes,
			 struct mutex *mutex)
{
	own->mutex = mutex;
	own->mailboxes = mailboxes;
	spin_lock_init(&own->lock);
	INIT_LIST_HEAD(&own->departed);
}

void hall_own_slice_publish(struct hall_own_slice *own,
			    const struct in6_addr *address, unsigned int count)
{
	struct hallway_slice *header = own->slice.header;
	u32 seq = READ_ONCE(header->address_seq) | 1;

	WRITE_ONCE(header->address_seq, seq);
	virt_wmb();
	memcpy(header->address, address, count * sizeof(*address));
	WRITE_ONCE(header->address_count, count);
	virt_store_release(&header->address_seq, seq + 1);
}

void hall_own_slice_report(struct hall_own_slice *own)
{
	if (list_empty(&own->departed) && hall_slice_is_owned(&own->slice))
		virt_store_release(&own->slice.header->settled, own->change);
}

void hall_own_slice_settle(struct hall_own_slice *own, u32 change)
{
	spin_lock(&own->lock);
	own->change = change;
	hall_own_slice_report(own);
	spin_unlock(&own->lock);
}

int hall_own_slice_open(struct hall_own_slice *own,
			const struct hall_slice *slice,
			const struct in6_addr *address, unsigned int count)
{
	u64 overhead = hall_slice_overhead(own->mailboxes);
	struct hallway_slice *header = slice->header;
	struct gen_pool *rings = gen_pool_create(PAGE_SHIFT, NUMA_NO_NODE);

	if (!rings)
		return -ENOMEM;
	if (gen_pool_add(rings, (unsigned long)header + overhead,
			 slice->size - overhead, NUMA_NO_NODE)) {
		gen_pool_destroy(rings);
		return -ENOMEM;
	}
	own->rings = rings;
	own->slice = *slice;
	hall_pool_init(&own->pool, slice->size - overhead);
	memset(header, 0, overhead);
	WRITE_ONCE(header->generation, slice->generation);
	hall_own_slice_publish(own, address, count);
	virt_store_release(&header->magic, HALLWAY_SLICE_MAGIC);
	hall_heartbeat_start(own);
	return 0;
}

void hall_own_slice_close(struct hall_own_slice *own)
{
	hall_heartbeat_stop(own);
	/* Another member may have got it meanwhile. */
	if (hall_slice_is_owned(&own->slice))
		WRITE_ONCE(own->slice.header->magic, 0);
	gen_pool_destroy(own->rings);
	own->rings = NULL;
}
