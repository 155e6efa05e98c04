/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records in rings of UDP sockets (abi/hallway/datagram.h). The caller serialises, as for
 * the ring.
 */
#ifndef HALL_OUTSOURCE_RECORD_H
#define HALL_OUTSOURCE_RECORD_H

#include <hallway/datagram.h>

#include "../ring/ring.h"

struct iov_iter;

/* Bytes of a record with this much payload. */
u32 hall_record_size(u32 length);
/* Finds space for a record of this size: one run, or two. False: there is too little. */
bool hall_record_reserve(struct hall_tx_ring *tx, u32 total, struct hall_span space[2]);
/*
 * Into such space, without a look at the ring, which its reader may break meanwhile. No
 * lock; the caller publishes it. 0 or -EFAULT.
 */
int hall_record_write(struct hall_span space[2], const struct hallway_datagram *head,
		      struct iov_iter *payload);
/* The next one: 1, 0: there is none, -EPROTO: what is there is no record. */
int hall_record_find(struct hall_rx_ring *rx, struct hallway_datagram *head);
/* Hands out the bytes from `at` on, piece by piece. */
void hall_record_read(struct hall_rx_ring *rx, u32 at, u32 len,
		      void (*take)(void *to, u32 at, const u8 *from, u32 len), void *to);
/* A way to take them: to memory. */
void hall_record_copy(void *to, u32 at, const u8 *from, u32 len);

#endif /* HALL_OUTSOURCE_RECORD_H */
