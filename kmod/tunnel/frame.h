/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Messages in rings, after their headers: abi/hallway/tunnel.h. The caller serialises,
 * as for the ring.
 */
#ifndef HALL_TUNNEL_FRAME_H
#define HALL_TUNNEL_FRAME_H

#include <hallway/tunnel.h>

#include "../ring/ring.h"

struct iov_iter;

/* Bytes of the ring that a message of this length takes. */
u32 hall_frame_size(u32 length);
u32 hall_letter_size(u32 length);

/*
 * The length of the next message, of which there are unread bytes, more than 0; or
 * -EPROTO. The header is copied first.
 */
s64 hall_frame_find(const struct hall_rx_ring *rx, u32 unread,
		    struct hallway_frame *frame);
s64 hall_letter_find(const struct hall_rx_ring *rx, u32 unread,
		     struct hallway_letter *letter);

/*
 * Copies len bytes, offset ahead of the ring's index, which are there. Returns how many:
 * fewer at a fault, or in a ring that its reader breaks meanwhile.
 */
size_t hall_frame_copy_in(struct hall_tx_ring *tx, u32 offset, struct iov_iter *from,
			  size_t len);
size_t hall_frame_copy_out(struct hall_rx_ring *rx, u32 offset, struct iov_iter *to,
			   size_t len);

/*
 * Writes a header, len bytes and zeros, for which there is space; the caller publishes
 * them. 0, or -EFAULT: `from` is where it was.
 */
int hall_frame_write(struct hall_tx_ring *tx, const struct hallway_frame *frame,
		     struct iov_iter *from);
/* The same around bytes that are there already. */
void hall_frame_enclose(struct hall_tx_ring *tx, const struct hallway_frame *frame);
int hall_letter_write(struct hall_tx_ring *tx, const struct hallway_letter *letter,
		      struct iov_iter *from);

#endif /* HALL_TUNNEL_FRAME_H */
