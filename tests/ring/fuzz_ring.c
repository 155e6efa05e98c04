// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hostile peer on both ends: the input calls the ring's functions in any
 * order that an honest caller may, and writes anything into any shared word,
 * between the calls and between two loads of one call (hooked.h), so that a
 * word that is loaded twice is found out.
 *
 * After each call the private side must be in bounds, spans inside the data,
 * broken must stay, and what is reported must follow from the private side alone.
 */
#include "check.h"
#include "hooked.h"
#include "must.h"
#include "input.h"

static struct hallway_ring *shared;
static u32 size;
static struct hall_tx_ring tx;
static struct hall_rx_ring rx;
static u32 copied, arrived;		/* as TCP has it: not the peer's to forge */
static bool interrupts;			/* the peer also writes within calls */
static bool tx_broken, rx_broken, rx_started, rx_ended;
static bool may_grow;			/* indexes stand where those of such a ring can */
static u8 *tx_area, *rx_area;		/* to the byte, too */

/* The peer */

static void overwrite(void)
{
	u8 what = byte();
	u64 value;

	/* Values near the truth get further than random ones. */
	switch (what >> 5) {
	case 0:
		value = tx.head + (int8_t)byte();
		break;
	case 1:
		value = tx.tail + (int8_t)byte();
		break;
	case 2:
		value = rx.tail + size + (int8_t)byte();
		break;
	case 3:
		value = rx.head + number(2);
		break;
	case 4:
		value = HALLWAY_MARK_SET | (u32)(arrived + (int8_t)byte());
		break;
	case 5:
		value = HALLWAY_MARK_SET | number(4);
		break;
	case 6:
		value = number(8);
		break;
	default:
		value = byte() & 1 ? HALLWAY_MARK_SET : 0;
		value |= byte() & 1 ? HALLWAY_MARK_RESET : 0;
	}
	switch (what & 31) {
	case 0: case 1: case 2: case 3:
		shared->head = value;
		break;
	case 4: case 5: case 6: case 7:
		shared->tail = value;
		break;
	case 8: case 9: case 10:
		shared->start = value;
		break;
	case 11: case 12:
		shared->end = value;
		break;
	case 13:
		shared->head_event = value;
		break;
	case 14:
		shared->tail_event = value;
		break;
	case 15:
		shared->size = value;
		break;
	case 16:
		shared->magic = value;
		break;
	case 17:
		shared->carrier = value;
		break;
	case 18:
		memset(shared, value, HALLWAY_RING_HEADER);
		break;
	case 19: case 20:
		shared->grown = byte() & 3 ? HALLWAY_MARK_SET | (value & HALLWAY_MARK_POSITION) :
					     value;
		break;
	case 21:
		shared->area_size = byte() & 3 ? size << (byte() & 3) : value;
		break;
	}
}

static void hook(void)
{
	if (interrupts && !(byte() & 3))
		overwrite();
}

/* What holds after every call */

static u64 rx_first(void)
{
	return rx.grown && rx.grown_at > rx.tail ? rx.grown_at : rx.tail;
}

static void check(void)
{
	MUST(tx.shared == shared && (tx_area ? tx.size > size : tx.size == size));
	MUST(tx.data == (tx_area ? tx_area : shared->data));
	MUST(tx_area || tx.head - tx.tail <= size);
	MUST(hall_ring_get_known_space(&tx) <= tx.size);
	MUST(tx.broken || !tx_broken);
	tx_broken = tx.broken;

	MUST(rx.shared == shared && rx.data == shared->data && rx.data_size == size);
	MUST(rx.grown ? rx.size > size && hall_ring_is_valid_size(rx.size) :
			rx.size == size);
	MUST(rx.may_grow || !rx.grown);
	MUST(rx.head - rx.tail <= (rx.grown ? (u64)size + rx.size : size));
	MUST(!rx.grown || rx.head <= rx_first() + rx.size);
	MUST(!rx.grown || rx.tail >= rx.grown_at || rx.grown_at - rx.tail <= size);
	/* The owner maps the area before it reads. */
	if (rx.grown && !rx_area)
		rx.area = rx_area = malloc(rx.size);
	MUST(rx.broken || !rx_broken);
	MUST(rx.started || !rx_started);
	MUST(rx.ended || !rx_ended);
	rx_broken = rx.broken;
	rx_started = rx.started;
	rx_ended = rx.ended;
}

static void check_span(struct hall_span span, u32 max)
{
	MUST(span.len <= max);
	if (!span.len)
		return;
	if (tx_area && span.data >= tx_area && span.data < tx_area + tx.size) {
		MUST(span.data + span.len <= tx_area + tx.size);
	} else if (rx_area && span.data >= rx_area && span.data < rx_area + rx.size) {
		MUST(span.data + span.len <= rx_area + rx.size);
	} else {
		MUST(span.data >= shared->data);
		MUST(span.data + span.len <= shared->data + size);
	}
}

/* The sender's calls */

/* A load of tail that the peer can't disturb: is the verdict right? */
static void judge_tail(void (*call)(void))
{
	u64 before = tx.tail, tail = shared->tail;
	bool possible = tail - before <= tx.head - before;
	bool was = tx.broken;

	call();
	if (interrupts)
		return;
	MUST(tx.broken == (was || !possible));
	MUST(tx.tail == (possible ? tail : before));
}

static void call_space(void)
{
	u32 space = hall_ring_count_space(&tx);

	MUST(space <= tx.size);
	MUST(space == (tx.broken ? 0 : hall_ring_get_known_space(&tx)));
	MUST(tx_area || space == (tx.broken ? 0 : size - (u32)(tx.head - tx.tail)));
}

static void call_unread(void)
{
	MUST(hall_ring_count_unread(&tx) == tx.head - tx.tail);
}

static void tx_write(void)
{
	u32 max = number(2), n;
	bool was = tx.broken;
	struct hall_span span = hall_ring_get_tx_span(&tx, 0, max);
	u64 head = tx.head;

	check();
	check_span(span, max);
	MUST(!was || !span.len);
	MUST(span.len <= hall_ring_get_known_space(&tx));
	memset(span.data, 0x5a, span.len);
	n = span.len ? number(2) % (span.len + 1) : 0;
	hall_ring_publish(&tx, n);
	MUST(tx.head == head + n);
	if (!interrupts)
		MUST(shared->head == tx.head);
}

/* An honest caller maps handle and size of memory that is there. */
static void tx_grow(void)
{
	static const struct hallway_handle handle;
	u32 larger = size << (1 + (byte() & 1));

	if (tx_area || !may_grow)
		return;
	tx_area = malloc(larger);
	hall_ring_grow(&tx, tx_area, larger, &handle);
	MUST(hall_ring_get_known_space(&tx) == larger && tx.grown_at == tx.head);
}

static void tx_arm(void)
{
	u32 least = 1 + number(2) % tx.size;
	u32 want = least + number(2) % (tx.size - least + 1);

	if (hall_ring_arm_tail(&tx, least, want)) {
		MUST(tx.broken || hall_ring_get_known_space(&tx) >= least);
		MUST(!tx.armed);
	} else {
		MUST(!tx.broken && hall_ring_get_known_space(&tx) < least);
		MUST(tx.armed);
	}
	hall_ring_disarm_tx(&tx);
	MUST(!tx.armed || (s64)(tx.tail - tx.event) <= 0);
}

static void tx_done(void)
{
	u64 before = tx.tail, position = before + (int8_t)byte() + number(2);
	bool was = tx.broken, possible = position - before <= tx.head - before;
	u32 lost;

	MUST(hall_ring_finish(&tx, position, &lost) == (!was && possible));
	MUST(tx.broken == (was || !possible));
	MUST(tx.tail == (possible ? position : before));
	MUST(lost == tx.head - tx.tail && (tx_area || lost <= size));
}

/* A truncation lies in what was not taken, or is none; what is left lies in the ring. */
static void tx_end(void)
{
	u64 end = shared->end, taken = (end - tx.tail) & HALLWAY_MARK_POSITION;
	bool was = tx.broken, truncated = end >> 62 == 1 && taken <= tx.head - tx.tail;
	u32 left = hall_ring_set_end(&tx), ahead, n, sum = 0;
	struct hall_span span;

	MUST(tx.broken == (was || (end && !truncated)));
	MUST(left == (truncated && !was ? tx.head - tx.tail - taken : 0));
	if (!end)
		MUST(shared->end == HALLWAY_MARK_SET);
	/* There is no TCP beneath a ring that grows, to resend anything. */
	if (tx_area)
		return;
	for (ahead = 0; ahead < left; ahead += span.len) {
		span = hall_ring_get_truncated(&tx, ahead);
		check_span(span, left - ahead);
		MUST(span.len);
		for (n = 0; n < span.len; n++)
			sum += span.data[n];
	}
	__asm__ volatile("" :: "r"(sum));
	if (left)
		hall_ring_drop_truncated(&tx);
}

/* The receiver's calls */

static void rx_truncate(bool unread)
{
	bool ended = rx.ended;
	u64 end = shared->end;

	if (unread)
		hall_ring_truncate_unread(&rx);
	else
		hall_ring_truncate(&rx);
	if (interrupts)
		return;
	MUST(rx.ended == (ended || (!end && !rx.broken)));
	if (rx.ended && !ended)
		MUST(shared->end == (HALLWAY_MARK_TRUNCATED |
				     ((unread ? rx.tail : rx.head) &
				      HALLWAY_MARK_POSITION)));
}

static void rx_look(void)
{
	u64 tail = rx.tail, before = rx.head, head = shared->head;
	bool known = rx.grown || !rx.may_grow;
	bool possible = rx.ended || head - before <= rx_first() + rx.size - before;
	bool was = rx.broken;
	u32 used = hall_ring_count_used(&rx);

	MUST(used == (rx.broken ? 0 : rx.head - rx.tail) && rx.tail == tail);
	if (!interrupts && known)
		MUST(rx.broken == (was || !possible));
	if (rx.broken)
		MUST(rx.head == before);
}

static void rx_take(u32 limit, bool leave)
{
	u32 offset = leave ? number(2) : 0, max = number(2) + 1, n, sum = 0;
	struct hall_span span;
	u64 tail = rx.tail;

	if (max > limit)
		max = limit;
	span = hall_ring_get_rx_span(&rx, offset, max);
	if (!offset && max <= rx.head - rx.tail) {
		const u8 *unread = hall_ring_find_unread(&rx, max);

		MUST(!unread || (span.len == max && unread == span.data));
		MUST(unread || rx.grown || span.len < max);
	}
	check_span(span, max);
	MUST(offset + (u64)span.len <= rx.head - rx.tail || !span.len);
	for (n = 0; n < span.len; n++)
		sum += span.data[n];
	__asm__ volatile("" :: "r"(sum));
	if (leave)
		return;
	n = span.len ? number(2) % (span.len + 1) : 0;
	hall_ring_consume(&rx, n);
	MUST(rx.tail == tail + n);
	if (!interrupts)
		MUST(shared->tail == rx.tail);
}

static void rx_arm(void)
{
	u32 want = 1 + number(2) % size;

	if (hall_ring_arm_head(&rx, want)) {
		MUST(rx.broken || rx.head - rx.tail >= want);
		MUST(!rx.armed);
	} else {
		MUST(!rx.broken && rx.head - rx.tail < want);
		MUST(rx.armed);
	}
	hall_ring_disarm_rx(&rx);
	MUST(!rx.armed || (s64)(rx.head - rx.event) <= 0);
}

static void rx_where(void)
{
	u32 from = copied, to = arrived, n = -1;
	bool was = rx.broken, started = rx.started, ended = rx.ended;
	u64 start = shared->start, end = shared->end;
	enum hall_rx_source source = hall_ring_find_source(&rx, from, to, &n);

	check();
	/* A FIN that was read counts in copied only. */
	if ((s32)(to - from) < 0)
		from = to;
	MUST((source == HALL_RX_CORRUPT) == rx.broken);
	/* A mark with a bit that means nothing is none. */
	if (!interrupts && !rx.broken) {
		MUST(rx.started == (started || start));
		MUST(started || !start ||
		     start - HALLWAY_MARK_SET <= HALLWAY_MARK_SEQ);
		MUST(rx.ended == (ended || (rx.started && end)));
		MUST(ended || !rx.ended ||
		     (end & ~HALLWAY_MARK_RESET) == HALLWAY_MARK_SET);
	}
	MUST(!was || source == HALL_RX_CORRUPT);
	switch (source) {
	case HALL_RX_TCP:
		MUST(n && n <= to - from);
		/* Not one byte past the start mark. */
		if (rx.started)
			MUST((s32)(rx.start_seq - from) > 0 &&
			     n <= rx.start_seq - from);
		else
			MUST(n == to - from);
		copied = from + (number(2) % n + 1);
		break;
	case HALL_RX_RING:
		/* Not one byte of the ring before TCP is drained to it. */
		MUST(rx.started && (s32)(rx.start_seq - from) <= 0);
		MUST(n == rx.head - rx.tail && n);
		MUST(rx.ended || (s32)(to - rx.start_seq) <= 0);
		rx_take(n, false);
		break;
	case HALL_RX_ENDED:
		MUST(rx.started && rx.ended && rx.head == rx.tail);
		MUST((s32)(rx.start_seq - from) <= 0);
		break;
	case HALL_RX_EMPTY:
		if (rx.started && (s32)(rx.start_seq - from) <= 0)
			MUST(rx.head == rx.tail && !rx.ended);
		else
			MUST(to == from);
		break;
	case HALL_RX_CORRUPT:
		break;
	}
}

/* A fresh ring, which the peer may have spoiled before we take it up. */
static void begin(void)
{
	struct hall_rx_ring fresh;
	bool good;

	hall_ring_init_tx(&tx, shared, size, 1);
	if (!(byte() & 7))
		overwrite();
	good = shared->magic == HALLWAY_RING_MAGIC && shared->size == size &&
	       shared->carrier == 1;
	MUST(hall_ring_init_rx(&fresh, shared, size, 1) == good);
	MUST(!fresh.head && !fresh.tail && fresh.size == size && !fresh.broken);
	free(tx_area);
	free(rx_area);
	tx_area = rx_area = NULL;
	rx = fresh;
	rx.may_grow = may_grow = byte() & 1;
	tx_broken = rx_broken = rx_started = rx_ended = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	input = data;
	left = length;
	interrupts = false;
	size = HALLWAY_RING_MIN << (byte() & 1);
	/* To the byte: what lies behind is AddressSanitizer's. */
	shared = aligned_alloc(4096, HALLWAY_RING_HEADER + size);
	memset(shared, 0, HALLWAY_RING_HEADER + size);
	copied = arrived = number(4);
	begin();
	/* Indexes that stand anywhere, as after 2^32 or 2^64 bytes. */
	if (byte() & 1) {
		tx.head = tx.tail = rx.head = rx.tail = number(8);
		shared->head = shared->tail = tx.head;
		rx.may_grow = may_grow = false;
	}
	while (left) {
		u8 what = byte();

		interrupts = what & 0x80;
		switch (what & 15) {
		case 0:
			judge_tail(call_space);
			break;
		case 1:
			judge_tail(call_unread);
			break;
		case 2: case 3:
			tx_write();
			break;
		case 4:
			tx_arm();
			break;
		case 5:
			if (what & 0x10)
				tx_done();
			else
				hall_ring_set_start(&tx, arrived + (int8_t)byte());
			break;
		case 6:
			if (what & 0x10)
				tx_end();
			else
				rx_truncate(what & 0x20);
			break;
		case 7:
			rx_look();
			break;
		case 8:
			rx_take(rx.size, false);
			break;
		case 9:
			if (what & 0x10)
				tx_grow();
			else
				rx_take(rx.size, true);
			break;
		case 10:
			rx_arm();
			break;
		case 11: case 12:
			rx_where();
			break;
		case 13:
			/* TCP goes on, or its FIN is read. */
			if (what & 0x10)
				arrived += number(2);
			else if (copied == arrived)
				copied++;
			break;
		case 14:
			interrupts = false;
			overwrite();
			break;
		case 15:
			if ((what & 0x70) == 0x70) {
				interrupts = false;
				begin();
			} else if (what & 0x10) {
				/* Repair, as if nothing had been. */
				shared->head = rx.head;
				shared->tail = tx.tail;
			}
			break;
		}
		check();
	}
	free(tx_area);
	free(rx_area);
	tx_area = rx_area = NULL;
	free(shared);
	return 0;
}
