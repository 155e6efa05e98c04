// SPDX-License-Identifier: GPL-2.0
/* Records in rings of UDP sockets (abi/hallway/datagram.h): written, found and read. */
#include "outsource.h"

#include <linux/uio.h>

u32 hall_record_size(u32 length)
{
	return ALIGN(sizeof(struct hallway_datagram) + length, HALLWAY_DATAGRAM_ALIGN);
}

static void put_bytes(struct hall_tx_ring *tx, u32 at, const void *from, u32 len)
{
	struct hall_span span;

	for (; len; len -= span.len, at += span.len, from += span.len) {
		span = hall_ring_get_tx_span(tx, at, len);
		memcpy(span.data, from, span.len);
	}
}

int hall_record_write(struct hall_tx_ring *tx, const struct hallway_datagram *head,
		      struct iov_iter *payload)
{
	static const u8 zeros[HALLWAY_DATAGRAM_ALIGN];
	u32 at = sizeof(*head), end = at + head->length;
	struct hall_span span;
	size_t copied;

	put_bytes(tx, 0, head, sizeof(*head));
	while (at < end) {
		span = hall_ring_get_tx_span(tx, at, end - at);
		copied = _copy_from_iter(span.data, span.len, payload);
		if (copied < span.len)
			return -EFAULT;
		at += copied;
	}
	put_bytes(tx, end, zeros, hall_record_size(head->length) - end);
	return 0;
}

void hall_record_read(struct hall_rx_ring *rx, u32 at, u32 len,
		      void (*take)(void *to, u32 at, const u8 *from, u32 len), void *to)
{
	struct hall_span span;
	u32 done;

	for (done = 0; done < len; done += span.len) {
		span = hall_ring_get_rx_span(rx, at + done, len - done);
		take(to, done, span.data, span.len);
	}
}

void hall_record_copy(void *to, u32 at, const u8 *from, u32 len)
{
	memcpy(to + at, from, len);
}

int hall_record_find(struct hall_rx_ring *rx, struct hallway_datagram *head)
{
	u32 used = hall_ring_count_used(rx);

	if (!used && !rx->broken)
		return 0;
	/* A record is published in one step. */
	if (used < sizeof(*head))
		return -EPROTO;
	hall_record_read(rx, 0, sizeof(*head), hall_record_copy, head);
	if (head->length > HALLWAY_DATAGRAM_MAX || hall_record_size(head->length) > used)
		return -EPROTO;
	return 1;
}
