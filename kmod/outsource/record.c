// SPDX-License-Identifier: GPL-2.0-only
/* Records in rings of UDP sockets (abi/hallway/datagram.h): written, found and read. */
#include "record.h"

#include <linux/align.h>
#include <linux/minmax.h>
#include <linux/uio.h>

u32 hall_record_size(u32 length)
{
	return ALIGN(sizeof(struct hallway_datagram) + length, HALLWAY_DATAGRAM_ALIGN);
}

bool hall_record_reserve(struct hall_tx_ring *tx, u32 total, struct hall_span space[2])
{
	space[0] = hall_ring_get_tx_span(tx, 0, total);
	space[1] = hall_ring_get_tx_span(tx, space[0].len, total - space[0].len);
	return space[0].len + space[1].len == total;
}

/* The next run of the space, which has at least len bytes. */
static struct hall_span take_run(struct hall_span space[2], u32 len)
{
	struct hall_span run;

	if (!space[0].len)
		swap(space[0], space[1]);
	run = (struct hall_span){ space[0].data, min(len, space[0].len) };
	space[0].data += run.len;
	space[0].len -= run.len;
	return run;
}

static void put_bytes(struct hall_span space[2], const void *from, u32 len)
{
	struct hall_span run;

	for (; len; len -= run.len, from += run.len) {
		run = take_run(space, len);
		memcpy(run.data, from, run.len);
	}
}

int hall_record_write(struct hall_span space[2], const struct hallway_datagram *head,
		      struct iov_iter *payload)
{
	static const u8 zeros[HALLWAY_DATAGRAM_ALIGN];
	u32 used = sizeof(*head) + head->length, left;
	struct hall_span run;

	put_bytes(space, head, sizeof(*head));
	for (left = head->length; left; left -= run.len) {
		run = take_run(space, left);
		if (_copy_from_iter(run.data, run.len, payload) < run.len)
			return -EFAULT;
	}
	put_bytes(space, zeros, hall_record_size(head->length) - used);
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
