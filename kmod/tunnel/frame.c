// SPDX-License-Identifier: GPL-2.0-only
/*
 * Messages in rings. A message is published in one step; a reader does not rely on that.
 * Its header does not wrap: the ring's size is a multiple of the header's, and so are the
 * own positions of writer and reader, whatever the peer does.
 */
#include "frame.h"

#include <linux/align.h>
#include <linux/uio.h>

u32 hall_frame_size(u32 length)
{
	return ALIGN(sizeof(struct hallway_frame) + length, HALLWAY_FRAME_ALIGN);
}

u32 hall_letter_size(u32 length)
{
	return ALIGN(sizeof(struct hallway_letter) + length, HALLWAY_LETTER_ALIGN);
}

/* The header of the next message, or NULL. */
static const void *find_header(const struct hall_rx_ring *rx, u32 unread, u32 size)
{
	return size <= unread ? rx->data + (rx->tail & (rx->size - 1)) : NULL;
}

s64 hall_frame_find(const struct hall_rx_ring *rx, u32 unread,
		    struct hallway_frame *frame)
{
	const struct hallway_frame *shared = find_header(rx, unread, sizeof(*shared));

	if (!shared)
		return -EPROTO;
	frame->length = READ_ONCE(shared->length);
	frame->flags = READ_ONCE(shared->flags);
	/* To a reader one without bytes would be the end. */
	if (!frame->length || frame->length > unread ||
	    hall_frame_size(frame->length) > unread)
		return -EPROTO;
	return frame->length;
}

s64 hall_letter_find(const struct hall_rx_ring *rx, u32 unread,
		     struct hallway_letter *letter)
{
	const struct hallway_letter *shared = find_header(rx, unread, sizeof(*shared));

	if (!shared)
		return -EPROTO;
	letter->length = READ_ONCE(shared->length);
	letter->local_port = READ_ONCE(shared->local_port);
	letter->remote_port = READ_ONCE(shared->remote_port);
	if (letter->length > HALLWAY_LETTER_MAX ||
	    hall_letter_size(letter->length) > unread)
		return -EPROTO;
	return letter->length;
}

size_t hall_frame_copy_in(struct hall_tx_ring *tx, u32 offset, struct iov_iter *from,
			  size_t len)
{
	struct hall_span span;
	size_t done, n;

	for (done = 0; done < len; done += n) {
		span = hall_ring_get_tx_span(tx, offset + done, len - done);
		n = _copy_from_iter(span.data, span.len, from);
		if (n < span.len || !span.len)
			return done + n;
	}
	return done;
}

size_t hall_frame_copy_out(struct hall_rx_ring *rx, u32 offset, struct iov_iter *to,
			   size_t len)
{
	struct hall_span span;
	size_t done, n;

	for (done = 0; done < len; done += n) {
		span = hall_ring_get_rx_span(rx, offset + done, len - done);
		n = _copy_to_iter(span.data, span.len, to);
		if (n < span.len || !span.len)
			return done + n;
	}
	return done;
}

/* Writes what goes before and behind a message. Neither the header nor the zeros wrap. */
static void enclose(struct hall_tx_ring *tx, const void *header, u32 size, u32 len, u32 total)
{
	struct hall_span span = hall_ring_get_tx_span(tx, 0, size);

	memcpy(span.data, header, span.len);
	span = hall_ring_get_tx_span(tx, size + len, total - size - len);
	memset(span.data, 0, span.len);
}

static int write_message(struct hall_tx_ring *tx, const void *header, u32 size, u32 len,
			 u32 total, struct iov_iter *from)
{
	size_t copied = hall_frame_copy_in(tx, size, from, len);

	if (copied < len) {
		iov_iter_revert(from, copied);
		return -EFAULT;
	}
	enclose(tx, header, size, len, total);
	return 0;
}

void hall_frame_enclose(struct hall_tx_ring *tx, const struct hallway_frame *frame)
{
	enclose(tx, frame, sizeof(*frame), frame->length, hall_frame_size(frame->length));
}

int hall_frame_write(struct hall_tx_ring *tx, const struct hallway_frame *frame,
		     struct iov_iter *from)
{
	return write_message(tx, frame, sizeof(*frame), frame->length,
			     hall_frame_size(frame->length), from);
}

int hall_letter_write(struct hall_tx_ring *tx, const struct hallway_letter *letter,
		      struct iov_iter *from)
{
	return write_message(tx, letter, sizeof(*letter), letter->length,
			     hall_letter_size(letter->length), from);
}
