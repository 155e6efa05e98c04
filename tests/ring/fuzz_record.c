// SPDX-License-Identifier: GPL-2.0-only
/*
 * kmod/outsource/record.c with a hostile peer, which writes anything into the ring's words
 * and bytes, between the calls and between two loads of one call (hooked.h).
 *
 * What is found lies in the ring, and its bytes are read from there alone. What is written
 * is what was to be written, whatever became of the indexes meanwhile.
 */
#include "check.h"
#include "hooked.h"
#include "must.h"
#include "input.h"

/* Of linux/uio.h: bytes of a program, some of which may not be there. */
struct iov_iter {
	const u8 *data;
	size_t left;
};

static size_t _copy_from_iter(void *to, size_t length, struct iov_iter *from)
{
	size_t copied = length < from->left ? length : from->left;

	memcpy(to, from->data, copied);
	from->data += copied;
	from->left -= copied;
	return copied;
}

#include "record.c"

#include "hostile.h"

static void hook(void)
{
	if (interrupts && !(byte() & 3))
		overwrite();
}

/* The head of a record, near to what is possible. */
static void scribble(void)
{
	u32 at = (rx.tail + (byte() & 3 ? 0 : number(2))) & (size - 1);
	struct hallway_datagram head = { .type = byte() & 3 };
	u32 n;

	switch (byte() & 3) {
	case 0:
		head.length = number(4);
		break;
	case 1:
		head.length = HALLWAY_DATAGRAM_MAX + (int8_t)byte();
		break;
	default:
		head.length = number(2) % size;
	}
	for (n = 0; n < sizeof(head); n++)
		shared->data[(at + n) & (size - 1)] = ((u8 *)&head)[n];
}

static u8 taken[HALLWAY_DATAGRAM_MAX];

static void find(void)
{
	struct hallway_datagram head, wrapped;
	u64 tail = rx.tail;
	int found = hall_record_find(&rx, &head);
	u32 used = rx.head - rx.tail, total, n;

	MUST(rx.tail == tail && used <= size);
	MUST(found == 1 || found == 0 || found == -EPROTO);
	MUST(found != 0 || !used || interrupts);
	MUST(found != 1 || !rx.broken);
	if (found != 1)
		return;
	for (n = 0; n < sizeof(head); n++)
		((u8 *)&wrapped)[n] = shared->data[(tail + n) & (size - 1)];
	MUST(!memcmp(&head, &wrapped, sizeof(head)));
	total = hall_record_size(head.length);
	MUST(head.length <= HALLWAY_DATAGRAM_MAX);
	MUST(total <= used && total % HALLWAY_DATAGRAM_ALIGN == 0);
	hall_record_read(&rx, sizeof(head), head.length, hall_record_copy, taken);
	for (n = 0; n < head.length; n++)
		MUST(taken[n] == shared->data[(tail + sizeof(head) + n) & (size - 1)]);
	hall_ring_consume(&rx, total);
}

static u8 payload[HALLWAY_DATAGRAM_MAX];

static void write(void)
{
	struct hallway_datagram head = { .length = number(2) % (size + 100), .port = byte() };
	struct iov_iter from = { payload, head.length };
	u32 total, n;
	struct hall_span space[2];
	u64 start = tx.head;

	if (head.length > HALLWAY_DATAGRAM_MAX)
		return;
	total = hall_record_size(head.length);
	if (!(byte() & 7))
		from.left = number(2) % (head.length + 1);
	if (!hall_record_reserve(&tx, total, space))
		return;
	MUST(total <= size && space[0].len + space[1].len == total);
	if (from.left < head.length) {
		MUST(hall_record_write(space, &head, &from) == -EFAULT);
		return;
	}
	MUST(!hall_record_write(space, &head, &from));
	for (n = 0; n < total; n++) {
		u8 found = shared->data[(start + n) & (size - 1)];

		if (n < sizeof(head))
			MUST(found == ((u8 *)&head)[n]);
		else if (n < sizeof(head) + head.length)
			MUST(found == payload[n - sizeof(head)]);
		else
			MUST(!found);
	}
	hall_ring_publish(&tx, total);
	MUST(tx.head == start + total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	u32 n;

	input = data;
	left = length;
	make_ring();
	for (n = 0; n < sizeof(payload); n++)
		payload[n] = n * 7 + 1;
	play(number(8));
	return 0;
}
