// SPDX-License-Identifier: GPL-2.0-only
/*
 * kmod/tunnel/frame.c with a hostile peer, which writes anything into the ring's words
 * and bytes, between the calls and between two loads of one call (hooked.h).
 *
 * What is found lies among the published bytes. What is written is what was to be
 * written, or nothing is, and the program's bytes are where they were.
 */
#include "check.h"
#include "hooked.h"
#include "must.h"
#include "input.h"

/* Of linux/uio.h: bytes of a program, some of which may not be there. */
struct iov_iter {
	u8 *data;
	size_t left;
};

static size_t advance(struct iov_iter *iter, size_t length)
{
	size_t done = length < iter->left ? length : iter->left;

	iter->data += done;
	iter->left -= done;
	return done;
}

static size_t _copy_from_iter(void *to, size_t length, struct iov_iter *from)
{
	u8 *data = from->data;

	length = advance(from, length);
	memcpy(to, data, length);
	return length;
}

static size_t _copy_to_iter(const void *from, size_t length, struct iov_iter *to)
{
	u8 *data = to->data;

	length = advance(to, length);
	memcpy(data, from, length);
	return length;
}

static void iov_iter_revert(struct iov_iter *iter, size_t length)
{
	iter->data -= length;
	iter->left += length;
}

#include "frame.c"

#define MOST	(HALLWAY_RING_MIN << 5)

#include "hostile.h"

static bool letters;

/* The length of a message, near to what is possible. */
static void scribble(void)
{
	u32 at = (rx.tail + (byte() & 3 ? 0 : number(2))) & (size - 1), n;
	u32 length;

	switch (byte() & 3) {
	case 0:
		length = number(4);
		break;
	case 1:
		length = (letters ? HALLWAY_LETTER_MAX : size) + (int8_t)byte();
		break;
	case 2:
		length = shared->head - rx.tail - byte() % 32;
		break;
	default:
		length = number(2) % size;
	}
	for (n = 0; n < sizeof(length); n++)
		shared->data[(at + n) & (size - 1)] = ((u8 *)&length)[n];
}

static void hook(void)
{
	if (interrupts && !(byte() & 3)) {
		if (byte() & 1)
			overwrite();
		else
			scribble();
	}
}

static u32 size_of(u32 length)
{
	return letters ? hall_letter_size(length) : hall_frame_size(length);
}

static u8 bytes[MOST];

static void find(void)
{
	u32 header = letters ? sizeof(struct hallway_letter) : sizeof(struct hallway_frame);
	struct iov_iter to = { bytes, sizeof(bytes) };
	struct hallway_letter letter;
	struct hallway_frame frame;
	u32 unread, n;
	s64 length;

	if (hall_ring_find_source(&rx, 0, 0, &unread) != HALL_RX_RING)
		return;
	MUST(unread && unread <= size);
	length = letters ? hall_letter_find(&rx, unread, &letter) :
			   hall_frame_find(&rx, unread, &frame);
	MUST(length == -EPROTO || length >= 0);
	if (length < 0)
		return;
	MUST(!letters || (letter.length == length && length <= HALLWAY_LETTER_MAX));
	MUST(letters || frame.length == length);
	MUST(size_of(length) <= unread && header + length <= size_of(length));
	if (!(byte() & 7))
		to.left = number(2);
	n = hall_frame_copy_out(&rx, header, &to, length);
	MUST(n <= length && to.data == bytes + n);
	MUST(n == length || !to.left);
	while (n--)
		MUST(bytes[n] == shared->data[(rx.tail + header + n) & (size - 1)]);
	hall_ring_consume(&rx, size_of(length));
}

static u8 payload[MOST];

static int write_one(u32 length, struct iov_iter *from)
{
	struct hallway_letter letter = { .length = length, .remote_port = 7 };
	struct hallway_frame frame = { .length = length };

	return letters ? hall_letter_write(&tx, &letter, from) :
			 hall_frame_write(&tx, &frame, from);
}

static void write(void)
{
	u32 header = letters ? sizeof(struct hallway_letter) : sizeof(struct hallway_frame);
	u32 length = number(2) % (size + 100), total = size_of(length), n;
	struct iov_iter from = { payload, length };
	u64 start = tx.head;
	bool faults;

	if (total > size || !hall_ring_arm_tail(&tx, total, total) || tx.broken)
		return;
	if (!(byte() & 7))
		from.left = number(2) % (length + 1);
	faults = from.left < length;
	n = from.left;
	if (write_one(length, &from)) {
		MUST(faults || tx.broken);
		MUST(from.data == payload && from.left == n);
		return;
	}
	MUST(!faults && from.data == payload + length);
	if (tx.broken)
		return;
	for (n = 0; n < total - header; n++)
		MUST(interrupts || shared->data[(start + header + n) & (size - 1)] ==
				   (n < length ? payload[n] : 0));
	hall_ring_publish(&tx, total);
	MUST(tx.head == start + total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	u32 n;

	input = data;
	left = length;
	letters = byte() & 1;
	make_ring();
	for (n = 0; !payload[0] && n < sizeof(payload); n++)
		payload[sizeof(payload) - 1 - n] = n * 7 + 1;
	play(number(6) * HALLWAY_LETTER_ALIGN);
	return 0;
}
