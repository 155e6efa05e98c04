// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ring memory: allocated from this guest's slice, mapped from a peer's. A handle
 * is an offset in the owner's slice and a size, so it means the same wherever a
 * slice is mapped.
 */
#include "shared.h"

#include <linux/genalloc.h>

#include "bounds.h"

struct place {
	u64 offset, size;	/* bytes */
};

int hall_slice_alloc(struct hall_member *member, size_t size,
		     struct hall_memory *memory)
{
	struct hall_own_slice *own = hall_peer_of(member)->own;
	unsigned long address = gen_pool_alloc(own->rings, size);
	struct place place = {
		.offset = address - (unsigned long)own->slice.header,
		.size = size,
	};

	if (!address)
		return -ENOMEM;
	*memory = (struct hall_memory){ .ring = (void *)address, .size = size };
	memcpy(memory->handle.opaque, &place, sizeof(place));
	return 0;
}

void hall_slice_free(struct hall_member *member, struct hall_memory *memory)
{
	gen_pool_free(hall_peer_of(member)->own->rings,
		      (unsigned long)memory->ring, memory->size);
	memory->ring = NULL;
}

struct hallway_ring *hall_slice_map(struct hall_member *member,
				    const struct hallway_handle *handle,
				    size_t size)
{
	struct hall_peer *peer = hall_peer_of(member);
	struct place place;

	memcpy(&place, handle->opaque, sizeof(place));
	if (place.size != size || !hall_is_page_aligned(place.offset) ||
	    !hall_is_within(place.offset, size,
			    hall_slice_overhead(peer->own->mailboxes),
			    peer->slice.size))
		return NULL;
	return (void *)peer->slice.header + place.offset;
}

/* A slice is mapped whole, from arrival on. */
void hall_slice_unmap(struct hall_member *member, struct hallway_ring *ring)
{
}

bool hall_slice_is_intact(struct hall_member *member)
{
	virt_rmb();
	return hall_slice_is_owned(&hall_peer_of(member)->slice);
}
