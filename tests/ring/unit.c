// SPDX-License-Identifier: GPL-2.0-only
/* Each function of the ring by itself, at its edges and beyond them. */
#include "check.h"
#include "hooked.h"
#include "../../kmod/transport/shared/bounds.h"

/* What the other side does in the middle of a call; see the tests of arming. */
static void (*interrupt)(void);
static unsigned int interrupt_at;

static void hook(void)
{
	if (interrupt && !interrupt_at--) {
		void (*act)(void) = interrupt;

		interrupt = NULL;
		act();
	}
}

static struct hallway_ring *shared;
static struct hall_tx_ring tx;
static struct hall_rx_ring rx;

/* A fresh ring whose indexes stand at position: all of 2^64 is fair. */
static void fresh(u32 size, u64 position)
{
	free(shared);
	shared = aligned_alloc(4096, HALLWAY_RING_HEADER + size);
	memset(shared, 0xee, HALLWAY_RING_HEADER + size);
	hall_ring_init_tx(&tx, shared, size, 1);
	CHECK(hall_ring_init_rx(&rx, shared, size, 1));
	tx.head = tx.tail = rx.head = rx.tail = position;
	shared->head = shared->tail = position;
	shared->head_event = shared->tail_event = position;
}

static const u64 positions[] = {
	0, 1, 4095, 4096, 4097, 0xfffffff0, 0xffffffff, 0x100000000,
	(1ULL << 63) - 1, 1ULL << 63, -4097ULL, -4096ULL, -1ULL,
};

#define EACH(item, array) \
	(size_t i_##item = 0; i_##item < sizeof(array) / sizeof(*(array)); i_##item++)

static void sizes(void)
{
	unsigned int bit;

	for (bit = 0; bit < 64; bit++) {
		u64 size = 1ULL << bit;

		CHECK(hall_ring_is_valid_size(size) ==
		      (size >= HALLWAY_RING_MIN && size <= HALLWAY_RING_MAX),
		      "2^%u", bit);
		if (bit > 1) {
			CHECK(!hall_ring_is_valid_size(size - 1), "2^%u - 1", bit);
			CHECK(!hall_ring_is_valid_size(size + 1), "2^%u + 1", bit);
		}
		/* A size that looks right in its lower half alone. */
		if (bit >= 32)
			CHECK(!hall_ring_is_valid_size(size + HALLWAY_RING_MIN));
	}
	CHECK(!hall_ring_is_valid_size(0));
	CHECK(!hall_ring_is_valid_size(HALLWAY_RING_MIN + HALLWAY_RING_MIN / 2));
}

static void initialised(void)
{
	fresh(8192, 0);
	memset(shared, 0xff, HALLWAY_RING_HEADER);
	hall_ring_init_tx(&tx, shared, 8192, 3);
	CHECK(!shared->head && !shared->tail && !shared->head_event &&
	      !shared->tail_event && !shared->start && !shared->end);
	CHECK(shared->magic == HALLWAY_RING_MAGIC && shared->size == 8192 &&
	      shared->carrier == 3);
	CHECK(hall_ring_init_rx(&rx, shared, 8192, 3));
	CHECK(!hall_ring_init_rx(&rx, shared, 4096, 3), "another size");
	CHECK(!hall_ring_init_rx(&rx, shared, 8192, 5), "another carrier");
	shared->magic++;
	CHECK(!hall_ring_init_rx(&rx, shared, 8192, 3), "another magic");
}

/* A stream without TCP: neither a missing mark nor one that is changed later delays bytes. */
static void first(void)
{
	static const u64 marks[] = {
		0, HALLWAY_MARK_SET | 1, HALLWAY_MARK_SET | 0x80000000, HALLWAY_MARK_TRUNCATED,
		HALLWAY_MARK_SET | HALLWAY_MARK_TRUNCATED, 1,
	};
	u32 n;

	for EACH(mark, marks) {
		fresh(4096, 0);
		shared->start = marks[i_mark];
		CHECK(!hall_ring_init_first_rx(&rx, shared, 4096, 1), "mark %#llx",
		      (unsigned long long)marks[i_mark]);
	}
	for EACH(mark, marks) {
		fresh(4096, 0);
		hall_ring_set_start(&tx, 0);
		CHECK(!hall_ring_init_first_rx(&rx, shared, 8192, 1), "another size");
		CHECK(hall_ring_init_first_rx(&rx, shared, 4096, 1));
		shared->start = marks[i_mark];
		CHECK(hall_ring_find_source(&rx, 0, 0, &n) == HALL_RX_EMPTY);
		CHECK(!hall_ring_arm_head(&rx, 1));
		CHECK(hall_ring_publish(&tx, 5));
		CHECK(hall_ring_find_source(&rx, 0, 0, &n) == HALL_RX_RING && n == 5);
		hall_ring_consume(&rx, 5);
		hall_ring_set_end(&tx);
		CHECK(hall_ring_find_source(&rx, 0, 0, &n) == HALL_RX_ENDED);
	}
}

/* Positions 0 .. size, written and read in steps that meet the end anywhere. */
static void spans(void)
{
	static const u32 steps[] = { 1, 3, 1000, 4095, 4096 };
	struct hall_span span;
	u64 wrote, took, n;
	u8 *known;
	u32 i;

	for EACH(p, positions) for EACH(s, steps) {
		u64 start = positions[i_p];

		fresh(4096, start);
		wrote = took = start;
		for (n = 0; n < 40; n++) {
			known = hall_ring_find_free(&tx, steps[i_s]);
			span = hall_ring_get_tx_span(&tx, 0, steps[i_s]);
			CHECK(!known || (span.len == steps[i_s] && known == span.data));
			/* What the other call has learned is known. */
			known = hall_ring_find_free(&tx, steps[i_s]);
			CHECK(known == (span.len == steps[i_s] ? span.data : NULL));
			i = 4096 - (u32)(wrote - took);
			if (i > steps[i_s])
				i = steps[i_s];
			if (i > 4096 - (wrote & 4095))
				i = 4096 - (wrote & 4095);
			CHECK(span.len == i, "%u, not %u", span.len, i);
			CHECK(span.data == shared->data + (wrote & 4095));
			for (i = 0; i < span.len; i++)
				span.data[i] = stream_byte(wrote++);
			hall_ring_publish(&tx, span.len);
			CHECK(hall_ring_count_used(&rx) == wrote - took);
			CHECK(hall_ring_count_unread(&tx) == wrote - took);
			CHECK(hall_ring_count_space(&tx) == 4096 - (wrote - took));
			/* Every second round reads, so that it fills as well. */
			if (!(n & 1) && wrote - took < 4096)
				continue;
			span = hall_ring_get_rx_span(&rx, 0, steps[i_s] + 1);
			CHECK(span.len && span.len <= steps[i_s] + 1);
			CHECK(span.data == shared->data + (took & 4095));
			CHECK(hall_ring_find_unread(&rx, span.len) == span.data);
			CHECK(!hall_ring_find_unread(&rx, 4096 - (took & 4095) + 1));
			for (i = 0; i < span.len; i++)
				CHECK(span.data[i] == stream_byte(took++));
			hall_ring_consume(&rx, span.len);
		}
		CHECK(!tx.broken && !rx.broken);
	}
}

static void full_and_empty(void)
{
	for EACH(p, positions) {
		u32 first;

		fresh(4096, positions[i_p]);
		CHECK(!hall_ring_count_used(&rx));
		CHECK(!hall_ring_get_rx_span(&rx, 0, 4096).len);
		CHECK(hall_ring_count_space(&tx) == 4096);
		/* At most two spans fill it. */
		first = hall_ring_get_tx_span(&tx, 0, 4096).len;
		hall_ring_publish(&tx, first);
		if (first < 4096) {
			CHECK(hall_ring_get_tx_span(&tx, 0, 4096).len == 4096 - first);
			hall_ring_publish(&tx, 4096 - first);
		}
		CHECK(!hall_ring_count_space(&tx));
		CHECK(!hall_ring_get_tx_span(&tx, 0, 1).len);
		CHECK(hall_ring_count_used(&rx) == 4096);
		hall_ring_consume(&rx, 4096);
		CHECK(!hall_ring_count_used(&rx));
		CHECK(hall_ring_count_space(&tx) == 4096);
		CHECK(!tx.broken && !rx.broken);
	}
}

/* Looking ahead, as MSG_PEEK does: what is behind the offset, never more. */
static void offsets(void)
{
	struct hall_span span;
	u32 offset;

	for EACH(p, positions) {
		u64 at = positions[i_p] & 4095;

		fresh(4096, positions[i_p]);
		hall_ring_publish(&tx, 3000);
		hall_ring_count_used(&rx);
		for (offset = 0; offset < 3000; offset += 7) {
			u32 place = (at + offset) & 4095;
			u32 left = 3000 - offset;

			span = hall_ring_get_rx_span(&rx, offset, -1);
			CHECK(span.data == shared->data + place);
			CHECK(span.len == (left < 4096 - place ? left : 4096 - place));
		}
		CHECK(!hall_ring_get_rx_span(&rx, 3000, 1).len);
		CHECK(!hall_ring_get_rx_span(&rx, -1, -1).len);
	}
}

/* publish() and consume() ring if old <= event < new: tried one by one. */
static void events(void)
{
	s32 event;
	u32 step;

	for EACH(p, positions) for (step = 0; step < 20; step++)
	for (event = -25; event < 25; event++) {
		bool passed = event >= 0 && event < (s32)step;

		fresh(4096, positions[i_p]);
		shared->head_event = positions[i_p] + event;
		CHECK(hall_ring_publish(&tx, step) == passed,
		      "head: event %d, step %u", event, step);
		hall_ring_count_used(&rx);
		shared->tail_event = positions[i_p] + event;
		CHECK(hall_ring_consume(&rx, step) == passed,
		      "tail: event %d, step %u", event, step);
	}
	/* Nothing but the distance counts, however far. */
	fresh(4096, 0);
	shared->head_event = 1ULL << 32;
	CHECK(!hall_ring_publish(&tx, 1));
	shared->head_event = 1ULL << 63 | 1;
	CHECK(!hall_ring_publish(&tx, 1));
}

/* Exactly the step that brings want bytes rings, whatever the steps are. */
static void armed_reader(void)
{
	u32 there, want, step, used;

	for EACH(p, positions) for (there = 0; there < 6; there++)
	for (want = 1; want < 12; want++) for (step = 1; step < 5; step++) {
		fresh(4096, positions[i_p]);
		hall_ring_publish(&tx, there);
		CHECK(hall_ring_arm_head(&rx, want) == (there >= want));
		if (there >= want)
			continue;
		for (used = there; used < want + 8; used += step) {
			CHECK(hall_ring_publish(&tx, step) ==
			      (used < want && used + step >= want),
			      "%u there, want %u, step %u", used, want, step);
			CHECK(hall_ring_is_rx_due(&rx) == (used + step >= want));
			/* A stale doorbell is not the one that was asked for. */
			if (used + step < want)
				hall_ring_disarm_rx(&rx);
		}
		hall_ring_disarm_rx(&rx);
		CHECK(!hall_ring_is_rx_due(&rx));
	}
}

/* No step rings, whatever was armed before, until it is armed again. */
static void muted_reader(void)
{
	u32 there, want, step;

	for EACH(p, positions) for (there = 0; there < 6; there++)
	for (want = there + 1; want < 12; want++) for (step = 1; step < 5; step++) {
		fresh(4096, positions[i_p]);
		hall_ring_publish(&tx, there);
		CHECK(!hall_ring_arm_head(&rx, want));
		hall_ring_mute_rx(&rx);
		CHECK(!hall_ring_publish(&tx, step), "%u there, step %u", there, step);
		CHECK(!hall_ring_is_rx_due(&rx));
		CHECK(!hall_ring_arm_head(&rx, there + step + 1));
		CHECK(hall_ring_publish(&tx, 1));
	}
}

/* The shared word is written once for an event, and again after each other one. */
static void armed_again(void)
{
	const u64 other = 1000;

	for EACH(p, positions) {
		u64 position = positions[i_p];

		fresh(4096, position);
		CHECK(!hall_ring_arm_head(&rx, 1) && shared->head_event == position);
		shared->head_event = position + other;
		CHECK(!hall_ring_arm_head(&rx, 1) && shared->head_event == position + other);
		CHECK(!hall_ring_arm_head(&rx, 2) && shared->head_event == position + 1);
		CHECK(!hall_ring_arm_head(&rx, 1) && shared->head_event == position);
		CHECK(hall_ring_publish(&tx, 1) && hall_ring_arm_head(&rx, 1) && !rx.armed);
		hall_ring_consume(&rx, 1);
		CHECK(!hall_ring_arm_head(&rx, 1) && hall_ring_publish(&tx, 1));
		hall_ring_disarm_rx(&rx);
		CHECK(!rx.armed);
	}
}

static void armed_writer(void)
{
	static const u32 wants[] = { 1, 2, 5, 2048, 4095, 4096 };
	u32 there, least, step, free;

	for EACH(p, positions) for EACH(w, wants) for (there = 0; there < 4; there++)
	for (least = 1; least < 6; least++) for (step = 1; step < 700; step += 97) {
		u32 want = wants[i_w];

		if (want < least)
			continue;
		fresh(4096, positions[i_p]);
		hall_ring_publish(&tx, 4096 - there);
		hall_ring_count_used(&rx);
		CHECK(hall_ring_arm_tail(&tx, least, want) == (there >= least));
		if (there >= least)
			continue;
		for (free = there; free + step <= 4096; free += step) {
			CHECK(hall_ring_consume(&rx, step) ==
			      (free < want && free + step >= want),
			      "%u free, least %u, want %u, step %u", free,
			      least, want, step);
			CHECK(hall_ring_is_tx_due(&tx) == (free + step >= want));
			if (free + step < want)
				hall_ring_disarm_tx(&tx);
		}
		hall_ring_disarm_tx(&tx);
		CHECK(!hall_ring_is_tx_due(&tx));
	}
}

/* A reader that leaves more than half wakes the writer, once for a tail. */
static void writer_woken(void)
{
	u32 left;

	/* Near 2^64 no ring ever is: woken_at has 0 for none. */
	for EACH(p, positions) for (left = 4096; left; left -= 64) {
		if (positions[i_p] > -4097ULL)
			continue;
		fresh(4096, positions[i_p]);
		hall_ring_publish(&tx, 4096);
		hall_ring_count_used(&rx);
		hall_ring_consume(&rx, 4096 - left);
		CHECK(hall_ring_should_wake_writer(&rx) == (left > 2048), "%u left", left);
		CHECK(!hall_ring_should_wake_writer(&rx), "twice at a tail, %u left", left);
		hall_ring_consume(&rx, 1);
		CHECK(hall_ring_should_wake_writer(&rx) == (left > 2049), "%u left", left - 1);
	}
}

/* The other side moves in the middle of arming: one of the two must see. */
static bool rang;

static void publish_one(void)
{
	rang = hall_ring_publish(&tx, 1);
}

static void consume_all(void)
{
	rang = hall_ring_consume(&rx, 4096);
}

static void arming_races(void)
{
	unsigned int at;
	bool awake;

	for (at = 0; at < 5; at++) {
		fresh(4096, 0);
		/* No old event is left that would ring by chance. */
		shared->head_event = shared->tail_event = 1000000;
		rang = false;
		interrupt_at = at;
		interrupt = publish_one;
		awake = hall_ring_arm_head(&rx, 1);
		CHECK(interrupt || awake || rang, "reader asleep for ever, %u", at);
		interrupt = NULL;

		fresh(4096, 0);
		shared->head_event = shared->tail_event = 1000000;
		hall_ring_publish(&tx, 4096);
		hall_ring_count_used(&rx);
		rang = false;
		interrupt_at = at;
		interrupt = consume_all;
		awake = hall_ring_arm_tail(&tx, 1, 2048);
		CHECK(interrupt || awake || rang, "writer asleep for ever, %u", at);
		interrupt = NULL;
	}
}

/* Values to try for an index: near what is allowed, and far from it. */
static u64 candidate(unsigned int i, u64 low, u64 high)
{
	if (i < 128)
		return low - 64 + i;
	if (i < 256)
		return high - 64 + (i - 128);
	if (i < 320)
		return low + (1ULL << (i - 256));
	if (i < 384)
		return low - (1ULL << (i - 320));
	return high + (1ULL << (i - 384));
}

#define CANDIDATES 448

static void check_tx_broken(void)
{
	CHECK(tx.broken);
	CHECK(!hall_ring_count_space(&tx));
	CHECK(!hall_ring_get_tx_span(&tx, 0, 100).len);
	CHECK(hall_ring_arm_tail(&tx, 1, 1), "asleep on a broken ring");
	CHECK(tx.broken);
}

static void broken_tail(void)
{
	static const u32 fills[] = { 0, 1, 3, 4000, 4096 };
	unsigned int i;

	for EACH(p, positions) for EACH(f, fills) for (i = 0; i < CANDIDATES; i++) {
		u64 tail = positions[i_p], head = tail + fills[i_f];
		u64 bad = candidate(i, tail, head);
		bool possible = bad - tail <= fills[i_f];

		fresh(4096, tail);
		hall_ring_publish(&tx, fills[i_f]);
		shared->tail = bad;
		CHECK(hall_ring_count_space(&tx) == (possible ? 4096 - (head - bad) : 0));
		CHECK(tx.broken != possible, "tail %+lld, fill %u",
		      (long long)(bad - tail), fills[i_f]);
		if (possible)
			continue;
		check_tx_broken();
		CHECK(hall_ring_count_unread(&tx) == fills[i_f]);
		shared->tail = tail;
		check_tx_broken();
		/* The span looks for itself where the old copy is too small. */
		fresh(4096, tail);
		hall_ring_publish(&tx, fills[i_f]);
		shared->tail = bad;
		CHECK(!hall_ring_get_tx_span(&tx, 0, 4096).len || fills[i_f] == 0);
		CHECK(tx.broken || fills[i_f] == 0);
	}
}

static void check_rx_broken(void)
{
	u32 n;

	CHECK(rx.broken);
	CHECK(!hall_ring_count_used(&rx));
	CHECK(hall_ring_arm_head(&rx, 1), "asleep on a broken ring");
	CHECK(hall_ring_find_source(&rx, 0, 0, &n) == HALL_RX_CORRUPT);
	CHECK(rx.broken);
}

static void broken_head(void)
{
	static const u32 fills[] = { 0, 1, 3, 4000, 4096 };
	unsigned int i;

	for EACH(p, positions) for EACH(f, fills) for (i = 0; i < CANDIDATES; i++) {
		u64 tail = positions[i_p], head = tail + fills[i_f];
		u64 bad = candidate(i, head, tail + 4096);
		bool possible = bad - head <= 4096 - fills[i_f];

		fresh(4096, tail);
		hall_ring_publish(&tx, fills[i_f]);
		hall_ring_count_used(&rx);
		shared->head = bad;
		CHECK(hall_ring_count_used(&rx) == (possible ? bad - tail : 0));
		CHECK(rx.broken != possible, "head %+lld, fill %u",
		      (long long)(bad - head), fills[i_f]);
		CHECK(hall_ring_get_rx_span(&rx, 0, -1).len <= 4096);
		if (possible)
			continue;
		check_rx_broken();
		shared->head = head;
		check_rx_broken();
	}
}

/* Nothing of the peer's reaches the geometry once it was agreed. */
static void private_geometry(void)
{
	fresh(4096, 0);
	shared->size = 1 << 20;
	shared->magic = shared->carrier = 0;
	shared->head = 4097;
	CHECK(!hall_ring_count_used(&rx) && rx.broken);
	fresh(4096, 4096 + 4000);
	shared->size = 1 << 20;
	CHECK(hall_ring_get_tx_span(&tx, 0, 4096).len == 96);
	CHECK(hall_ring_get_tx_span(&tx, 0, 4096).data == shared->data + 4000);
	CHECK(hall_ring_count_space(&tx) == 4096);
	/* An own index that the peer overwrites is not read back. */
	shared->head = shared->tail = 12;
	hall_ring_publish(&tx, 8);
	CHECK(shared->head == 4096 + 4008 && !hall_ring_get_rx_span(&rx, 0, 1).len);
}

/* The head that a set end makes final is not looked at again. */
static void head_after_end(void)
{
	u32 n;

	fresh(4096, 0);
	hall_ring_set_start(&tx, 77);
	hall_ring_publish(&tx, 5);
	hall_ring_set_end(&tx);
	CHECK(hall_ring_find_source(&rx, 77, 77, &n) == HALL_RX_RING && n == 5);
	shared->head = 6;
	CHECK(hall_ring_find_source(&rx, 77, 77, &n) == HALL_RX_RING && n == 5);
}

static void put(u8 byte)
{
	struct hall_span span = hall_ring_get_tx_span(&tx, 0, 1);

	span.data[0] = byte;
	hall_ring_publish(&tx, 1);
}

/* The receiver truncates the ring: the sender resends what it did not see. */
static void truncate_at_head(void)
{
	u64 bases[] = { 0, ~0ULL - 4100, ~0ULL >> 1, (1ULL << 62) - 4100 };
	struct hall_span span;
	u32 n, i, runs;

	for EACH(b, bases) {
		fresh(4096, bases[i_b]);
		hall_ring_set_start(&tx, 77);
		/* The truncated rest wraps around the end of the ring, or not. */
		hall_ring_publish(&tx, 4090);
		CHECK(hall_ring_count_used(&rx) == 4090);
		hall_ring_consume(&rx, 4080);
		hall_ring_truncate(&rx);
		CHECK(rx.ended && !rx.broken);
		for (i = 0; i < 20; i++)
			put(i);
		/* What is there is still to be read, and TCP follows it. */
		CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_RING && n == 10);
		hall_ring_consume(&rx, 10);
		CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_ENDED);

		CHECK(hall_ring_set_end(&tx) == 20 && !tx.broken);
		for (i = runs = 0; i < 20; i += span.len, runs++) {
			span = hall_ring_get_truncated(&tx, i);
			CHECK(span.len && i + span.len <= 20);
			CHECK(span.data[0] == i);
			CHECK(span.data[span.len - 1] == i + span.len - 1);
		}
		CHECK(runs == (((bases[i_b] + 4090) & 4095) > 4076 ? 2 : 1));
		hall_ring_drop_truncated(&tx);
		CHECK(hall_ring_finish(&tx, rx.tail, &n) && !n);
	}
}

/* The second one learns what the first one wrote. */
static void truncate_and_end(void)
{
	u32 n;

	fresh(4096, 9);
	hall_ring_set_start(&tx, 77);
	hall_ring_publish(&tx, 5);
	CHECK(!hall_ring_set_end(&tx));
	hall_ring_truncate(&rx);
	CHECK(!rx.ended && shared->end == HALLWAY_MARK_SET);
	CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_RING && n == 5 && rx.ended);

	fresh(4096, 9);
	hall_ring_publish(&tx, 5);
	hall_ring_truncate(&rx);
	CHECK(!hall_ring_set_end(&tx) && !tx.broken);	/* nothing is left */
	CHECK(shared->end == (HALLWAY_MARK_TRUNCATED | 14));
}

/* Bytes before a reset are read. A ring that has ended has no other end. */
static void reset_at_end(void)
{
	u32 n;

	fresh(4096, 9);
	hall_ring_set_start(&tx, 77);
	hall_ring_publish(&tx, 5);
	hall_ring_set_reset(&tx);
	CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_RING && n == 5);
	CHECK(rx.ended && rx.reset && !rx.broken);
	hall_ring_consume(&rx, 5);
	CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_ENDED);

	fresh(4096, 9);
	hall_ring_set_end(&tx);
	hall_ring_set_reset(&tx);
	CHECK(!hall_ring_count_used(&rx) && !rx.reset);
	CHECK(shared->end == HALLWAY_MARK_SET);
}

/* A reader that cannot wait leaves all unread bytes to the sender. */
static void truncate_at_tail(void)
{
	u32 n;

	fresh(4096, 9);
	hall_ring_set_start(&tx, 77);
	hall_ring_publish(&tx, 5);
	CHECK(hall_ring_count_used(&rx) == 5);
	hall_ring_consume(&rx, 2);
	hall_ring_truncate_unread(&rx);
	CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_ENDED);
	hall_ring_publish(&tx, 1);
	CHECK(hall_ring_set_end(&tx) == 4 && !tx.broken);
	hall_ring_drop_truncated(&tx);
	CHECK(hall_ring_finish(&tx, rx.tail, &n) && !n);

	fresh(4096, 9);
	hall_ring_set_start(&tx, 77);
	hall_ring_publish(&tx, 5);
	CHECK(!hall_ring_set_end(&tx));
	hall_ring_truncate_unread(&rx);
	CHECK(hall_ring_find_source(&rx, 77, 90, &n) == HALL_RX_RING && n == 5);
}

/* Truncated where no honest receiver does it. */
static void truncate_words(void)
{
	static const u64 words[] = {
		1, 104, HALLWAY_MARK_SET, HALLWAY_MARK_SET | HALLWAY_MARK_TRUNCATED | 104,
		HALLWAY_MARK_TRUNCATED | 99, HALLWAY_MARK_TRUNCATED | 106,
		HALLWAY_MARK_TRUNCATED, ~0ULL,
	};

	for EACH(i, words) {
		fresh(4096, 100);
		hall_ring_publish(&tx, 5);
		shared->end = words[i_i];
		CHECK(!hall_ring_set_end(&tx) && tx.broken, "word %zu", i_i);
	}
}

/*
 * Where the next bytes come from. S is the start mark; a case is what was read
 * from TCP and what arrived, counted from S.
 */
static const struct {
	s32 copied, arrived;
} cases[] = {
	{ -10, -10 },	/* all that arrived was read, S is to come */
	{ -10,  -4 },	/* some bytes below S */
	{ -10,   0 },	/* all bytes below S */
	{ -10,   6 },	/* those, and some that follow the ring */
	{   0,   0 },	/* drained to S */
	{   0,   6 },	/* drained to S, and some that follow the ring */
	{   1,   0 },	/* drained to S, and the FIN was read */
	{  -3,  -4 },	/* the FIN was read below S: S will never come */
	{   7,   6 },	/* bytes above S were delivered before S was known */
};

enum { UNSET, SET, NO_BIT, RESERVED };	/* start */
#define BAD 4097		/* bytes in a ring of 4096 */

/* E empty, T bytes of TCP, R bytes of the ring, D ended, X corrupt. */
static const struct {
	int start;
	bool end;
	u32 ring;
	const char *where;
} table[] = {
	{ UNSET,  false, 0,   "E  T6 T10 T16 E  T6 E  E  E" },
	{ UNSET,  false, 7,   "X  X  X   X   X  X  X  X  X" },
	{ UNSET,  false, BAD, "X  X  X   X   X  X  X  X  X" },
	/* start may have been set just after it was loaded: no fault. */
	{ UNSET,  true,  0,   "E  T6 T10 T16 E  T6 E  E  E" },
	{ UNSET,  true,  7,   "X  X  X   X   X  X  X  X  X" },
	{ UNSET,  true,  BAD, "X  X  X   X   X  X  X  X  X" },
	{ SET,    false, 0,   "E  T6 T10 X   E  X  E  E  X" },
	{ SET,    false, 7,   "E  T6 T10 X   R7 X  R7 E  X" },
	{ SET,    false, BAD, "E  T6 T10 X   X  X  X  E  X" },
	{ SET,    true,  0,   "E  T6 T10 T10 D  D  D  E  X" },
	{ SET,    true,  7,   "E  T6 T10 T10 R7 R7 R7 E  X" },
	{ SET,    true,  BAD, "X  X  X   X   X  X  X  X  X" },
	{ NO_BIT, false, 0,   "X  X  X   X   X  X  X  X  X" },
	{ NO_BIT, false, 7,   "X  X  X   X   X  X  X  X  X" },
	{ NO_BIT, false, BAD, "X  X  X   X   X  X  X  X  X" },
	{ NO_BIT, true,  0,   "X  X  X   X   X  X  X  X  X" },
	{ NO_BIT, true,  7,   "X  X  X   X   X  X  X  X  X" },
	{ NO_BIT, true,  BAD, "X  X  X   X   X  X  X  X  X" },
	{ RESERVED, false, 0, "X  X  X   X   X  X  X  X  X" },
	{ RESERVED, true,  7, "X  X  X   X   X  X  X  X  X" },
};

/* Every sum of these with the cases crosses 2^32 or 2^31 somewhere. */
static const u32 bases[] = {
	1000, 0, 3, 8, 0xffffffff, 0xfffffffc, 0xfffffff8, 0x80000000,
	0x80000003, 0x7fffffff, 0x7ffffff9,
};

static void expect(const char *cell, enum hall_rx_source source, u32 n,
		   unsigned int row, unsigned int column, u32 base)
{
	static const char letters[] = {
		[HALL_RX_EMPTY] = 'E', [HALL_RX_TCP] = 'T', [HALL_RX_RING] = 'R',
		[HALL_RX_ENDED] = 'D', [HALL_RX_CORRUPT] = 'X',
	};

	CHECK(letters[source] == cell[0],
	      "row %u, case %u, S %#x: %c, want %c", row, column, base,
	      letters[source], cell[0]);
	if (source == HALL_RX_TCP || source == HALL_RX_RING)
		CHECK(n == (u32)atoi(cell + 1), "row %u, case %u, S %#x: %u bytes",
		      row, column, base, n);
}

static void marks(void)
{
	unsigned int row, column;

	for (row = 0; row < sizeof(table) / sizeof(*table); row++)
	for EACH(b, bases) {
		u32 base = bases[i_b], n;
		const char *cell = table[row].where;

		for (column = 0; column < sizeof(cases) / sizeof(*cases); column++) {
			enum hall_rx_source source;
			u32 copied = base + cases[column].copied;
			u32 arrived = base + cases[column].arrived;

			fresh(4096, 0);
			if (table[row].start == SET)
				hall_ring_set_start(&tx, base);
			else if (table[row].start == NO_BIT)
				shared->start = (u64)base | 1ULL << 40;
			else if (table[row].start == RESERVED)
				shared->start = HALLWAY_MARK_SET | base | 1ULL << 40;
			shared->head = table[row].ring;
			if (table[row].end)
				hall_ring_set_end(&tx);
			source = hall_ring_find_source(&rx, copied, arrived, &n);
			expect(cell, source, n, row, column, base);
			/* Asked again it says the same. */
			source = hall_ring_find_source(&rx, copied, arrived, &n);
			expect(cell, source, n, row, column, base);
			CHECK(rx.broken == (cell[0] == 'X'));
			if (rx.broken) {
				hall_ring_init_tx(&tx, shared, 4096, 1);
				hall_ring_set_start(&tx, base);
				check_rx_broken();
			}
			cell += strcspn(cell, " ");
			cell += strspn(cell, " ");
		}
		CHECK(!*cell, "row %u has more cells than cases", row);
	}
}

/* An end mark is one word and no other. */
static void end_words(void)
{
	static const u64 words[] = {
		1, HALLWAY_MARK_SET | 1, HALLWAY_MARK_SET >> 1, ~0ULL, HALLWAY_MARK_RESET,
		HALLWAY_MARK_RESET | HALLWAY_MARK_SET | 1,
	};
	u32 n;

	for EACH(i, words) {
		fresh(4096, 0);
		hall_ring_set_start(&tx, 500);
		shared->end = words[i_i];
		CHECK(hall_ring_find_source(&rx, 490, 495, &n) == HALL_RX_CORRUPT);
		hall_ring_set_end(&tx);
		check_rx_broken();
	}
}

/* A reader would neither find bytes before the start mark nor sleep. */
static void bytes_without_start(void)
{
	u32 n;

	fresh(4096, 0);
	shared->head = 1;
	CHECK(hall_ring_find_source(&rx, 490, 490, &n) == HALL_RX_CORRUPT);
	check_rx_broken();
	/* TCP's bytes before it make it no better. */
	fresh(4096, 0);
	shared->head = 4096;
	CHECK(hall_ring_find_source(&rx, 490, 495, &n) == HALL_RX_CORRUPT);
	check_rx_broken();
}

/* What the receiver left behind, as its last word has it. */
static void last_word(void)
{
	static const struct {
		u64 position;
		bool possible;
		u32 lost;
	} words[] = {
		{ 100, true, 0 }, { 99, true, 1 }, { 40, true, 60 },
		{ 39, false, 60 }, { 101, false, 60 }, { 0, false, 60 },
		{ ~0ULL, false, 60 },
	};
	u64 bases[] = { 0, ~0ULL - 50, 1ULL << 32 };
	u32 lost;

	for EACH(b, bases)
	for EACH(w, words) {
		u64 base = bases[i_b];

		fresh(4096, base);
		hall_ring_publish(&tx, 100);
		hall_ring_consume(&rx, 40);
		CHECK(hall_ring_count_unread(&tx) == 60);
		/* The word counts, not what the shared tail says now. */
		shared->tail = base + 70;
		CHECK(hall_ring_finish(&tx, base + words[i_w].position, &lost) ==
		      words[i_w].possible, "word %zu", i_w);
		CHECK(lost == words[i_w].lost, "word %zu: %u", i_w, lost);
		CHECK(tx.broken == !words[i_w].possible);
		if (!tx.broken)
			continue;
		CHECK(!hall_ring_finish(&tx, base + 100, &lost) && tx.broken);
	}
}

/* A mark counts as it was first seen. */
static void marks_once(void)
{
	u32 n;

	fresh(4096, 0);
	hall_ring_set_start(&tx, 500);
	CHECK(hall_ring_find_source(&rx, 490, 495, &n) == HALL_RX_TCP && n == 5);
	hall_ring_set_start(&tx, 900);
	CHECK(hall_ring_find_source(&rx, 490, 500, &n) == HALL_RX_TCP && n == 10);
	hall_ring_publish(&tx, 3);
	CHECK(hall_ring_find_source(&rx, 500, 500, &n) == HALL_RX_RING && n == 3);
	shared->start = 0;
	hall_ring_set_end(&tx);
	CHECK(hall_ring_find_source(&rx, 500, 520, &n) == HALL_RX_RING && n == 3);
	shared->end = 0;
	hall_ring_consume(&rx, 3);
	CHECK(hall_ring_find_source(&rx, 500, 520, &n) == HALL_RX_ENDED);
}

/* The sender ends and goes on over TCP in the middle of the receiver's look. */
static void end_meanwhile(void)
{
	hall_ring_publish(&tx, 9);
	hall_ring_set_end(&tx);
}

static void start_meanwhile(void)
{
	hall_ring_set_start(&tx, 500);
	end_meanwhile();
}

static void looks_race(void)
{
	unsigned int at;
	u32 n;

	for (at = 0; at < 5; at++) {
		enum hall_rx_source source;
		bool happened;

		fresh(4096, 0);
		hall_ring_set_start(&tx, 500);
		interrupt_at = at;
		interrupt = end_meanwhile;
		source = hall_ring_find_source(&rx, 500, 500, &n);
		happened = !interrupt;
		interrupt = NULL;
		/* Empty is no lie, for it came late; ended without them is. */
		CHECK(source == HALL_RX_EMPTY || (source == HALL_RX_RING && n == 9),
		      "%u: %d", at, source);
		if (happened)
			CHECK(hall_ring_find_source(&rx, 500, 510, &n) == HALL_RX_RING &&
			      n == 9, "%u", at);

		fresh(4096, 0);
		interrupt_at = at;
		interrupt = start_meanwhile;
		source = hall_ring_find_source(&rx, 490, 500, &n);
		interrupt = NULL;
		CHECK(source == HALL_RX_TCP && n == 10, "%u: %d", at, source);
	}
}

/* Against sums that can't overflow, at every edge of the numbers. */
static void ranges(void)
{
	static const u64 n[] = {
		0, 1, 4095, 4096, 8192, 12288, 1ULL << 31, 1ULL << 32,
		(1ULL << 32) + 4096, 1ULL << 63, ~0ULL - 4096, ~0ULL - 4095,
		~0ULL - 1, ~0ULL,
	};

	for EACH(o, n) for EACH(s, n) for EACH(a, n) for EACH(b, n) {
		bool within = n[i_o] >= n[i_a] &&
			(__uint128_t)n[i_o] + n[i_s] <= n[i_b];

		if (n[i_a] > n[i_b])
			continue;
		CHECK(hall_is_within(n[i_o], n[i_s], n[i_a], n[i_b]) == within,
		      "%#llx + %#llx in %#llx .. %#llx",
		      (unsigned long long)n[i_o], (unsigned long long)n[i_s],
		      (unsigned long long)n[i_a], (unsigned long long)n[i_b]);
	}
	for EACH(p, n)
		CHECK(hall_is_page_aligned(n[i_p]) == !(n[i_p] % 4096));
}

static void mailbox_indexes(void)
{
	static const u32 tails[] = { 0, 5, 0x7fffffff, 0xffffffc0, 0xffffffff };
	u32 ahead;

	for EACH(t, tails) {
		for (ahead = 0; ahead < 200; ahead++)
			CHECK(hall_mailbox_messages(tails[i_t] + ahead, tails[i_t]) ==
			      (ahead <= HALLWAY_MAILBOX_MESSAGES ? (int)ahead : -1));
		/* Behind is as far ahead as can be. */
		CHECK(hall_mailbox_messages(tails[i_t] - 1, tails[i_t]) == -1);
		CHECK(hall_mailbox_messages(tails[i_t] + (1u << 31), tails[i_t]) == -1);
	}
}

/* A reader waits for no more than a ring holds whose writer can't have it grow. */
static void short_of_memory(void)
{
	static u8 area[8192];
	struct hallway_handle handle = { };

	for EACH(p, positions) {
		fresh(4096, positions[i_p]);
		rx.may_grow = true;
		CHECK(hall_ring_find_most(&rx) == HALLWAY_RING_MAX);
		CHECK(hall_ring_report_short(&tx));
		CHECK(!hall_ring_report_short(&tx), "said once");
		CHECK(hall_ring_find_most(&rx) == 4096);
		hall_ring_grow(&tx, area, sizeof(area), &handle);
		CHECK(hall_ring_find_most(&rx) == sizeof(area) && !rx.broken);
	}
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	TEST(sizes);
	TEST(initialised);
	TEST(first);
	TEST(spans);
	TEST(full_and_empty);
	TEST(offsets);
	TEST(events);
	TEST(armed_reader);
	TEST(muted_reader);
	TEST(armed_again);
	TEST(armed_writer);
	TEST(writer_woken);
	TEST(arming_races);
	TEST(broken_tail);
	TEST(broken_head);
	TEST(private_geometry);
	TEST(head_after_end);
	TEST(truncate_at_head);
	TEST(truncate_and_end);
	TEST(reset_at_end);
	TEST(truncate_at_tail);
	TEST(truncate_words);
	TEST(marks);
	TEST(end_words);
	TEST(bytes_without_start);
	TEST(last_word);
	TEST(marks_once);
	TEST(looks_race);
	TEST(short_of_memory);
	TEST(ranges);
	TEST(mailbox_indexes);
	free(shared);
	return tests_done();
}
