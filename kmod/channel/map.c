// SPDX-License-Identifier: GPL-2.0-only
/* Mapping what a peer offers: its rings, and the areas of those that grow. */
#include "channel.h"

#include <hallway/ring.h>

bool hall_channel_map_ring(struct hall_channel *channel, const struct hallway_message *offer,
			   u32 carrier, struct hall_rx_ring *rx)
{
	struct hall_member *member = channel->member;
	u32 size = offer->offer.ring_size;
	struct hallway_ring *ring;

	if (offer->carrier != carrier || !hall_ring_is_valid_size(size))
		return false;
	ring = member->transport->map(member, &offer->offer.handle,
				      HALLWAY_RING_HEADER + size);
	if (!ring)
		return false;
	if (hall_ring_init_first_rx(rx, ring, size, carrier))
		return true;
	member->transport->unmap(member, ring);
	return false;
}

void hall_channel_map_area(struct hall_channel *channel, struct hall_rx_ring *rx)
{
	struct hallway_handle handle = rx->shared->area;
	struct hall_member *member = channel->member;
	u8 *area;

	/* The peer may write it meanwhile: all that counts is what map() is given. */
	barrier_data(&handle);
	area = (u8 *)member->transport->map(member, &handle, rx->size);
	spin_lock_bh(&channel->lock);
	rx->area = area;
	rx->broken |= !area;
	spin_unlock_bh(&channel->lock);
}
