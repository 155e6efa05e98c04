// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ring and its marks.
 *
 * Theory of operation
 *
 * Indexes are free-running byte positions, so that full and empty differ
 * without a spare byte, and a step of an index can be compared with an event
 * position by subtraction alone (virtio's vring_need_event()).
 *
 * The peer is hostile. Each shared word is loaded once into a local; the local
 * is bounded against private geometry: an index may only move forward, and
 * never further than size past the other. A word that fails this makes the end
 * broken, for ever; the caller resets the connection. The data itself is not
 * checked: the peer may send any byte.
 *
 * Barriers
 *
 *   A  publish: head is stored with release after the data; the receiver loads
 *      head with acquire before it reads the data.
 *   B  consume: tail is stored with release after the data was read; the
 *      sender loads tail with acquire before it overwrites.
 *   C  sleep: the sleeper stores its event position, virt_mb(), loads the
 *      other's index; the waker stores its index, virt_mb(), loads the event
 *      position. One of the two sees the other.
 *   D  marks: start is stored after all bytes that went over TCP before. A
 *      receiver that has seen a TCP byte sent after a mark sees the mark, since
 *      the network orders them. It therefore samples first which bytes have
 *      arrived, and loads the marks after (acquire, with the caller's lock).
 *   E  end: stored with release after the final head; loaded with acquire
 *      before head, so that a head read after a set end is the final one.
 *
 * Both ends may write end: the compare-and-exchange decides, and is a full
 * barrier. A receiver that wins says in the same word which bytes it takes. A
 * sender that loses has sent no byte over TCP since start, and it alone writes
 * the ring's data, so it can resend the truncated rest.
 *
 * Growth
 *
 *   F  grown is stored with release after the area that it tells of, and before any
 *      head above it. The receiver loads it after head (A): a byte that lies in the
 *      area is never looked for in the data before.
 *
 * The sender writes no byte of the former data any more, so the receiver may read there
 * for as long as it likes. Both lie in the sender's memory until the ring is freed.
 */
#include "ring.h"

bool hall_ring_is_valid_size(u64 size)
{
	return size >= HALLWAY_RING_MIN && size <= HALLWAY_RING_MAX &&
	       !(size & (size - 1));
}

void hall_ring_init_tx(struct hall_tx_ring *tx, struct hallway_ring *shared,
		       u32 size, u32 carrier)
{
	*tx = (struct hall_tx_ring){
		.shared = shared, .data = shared->data, .size = size,
	};
	WRITE_ONCE(shared->head, 0);
	WRITE_ONCE(shared->tail, 0);
	WRITE_ONCE(shared->head_event, 0);
	WRITE_ONCE(shared->tail_event, 0);
	WRITE_ONCE(shared->start, 0);
	WRITE_ONCE(shared->end, 0);
	WRITE_ONCE(shared->grown, 0);
	WRITE_ONCE(shared->size, size);
	WRITE_ONCE(shared->carrier, carrier);
	WRITE_ONCE(shared->magic, HALLWAY_RING_MAGIC);
}

bool hall_ring_init_rx(struct hall_rx_ring *rx, struct hallway_ring *shared,
		       u32 size, u32 carrier)
{
	*rx = (struct hall_rx_ring){
		.shared = shared, .data = shared->data, .data_size = size, .size = size,
	};
	return READ_ONCE(shared->magic) == HALLWAY_RING_MAGIC &&
	       READ_ONCE(shared->size) == size &&
	       READ_ONCE(shared->carrier) == carrier;
}

bool hall_ring_init_first_rx(struct hall_rx_ring *rx, struct hallway_ring *shared,
			     u32 size, u32 carrier)
{
	bool good = hall_ring_init_rx(rx, shared, size, carrier);

	rx->started = true;
	return good && virt_load_acquire(&shared->start) == HALLWAY_MARK_SET;
}

u32 hall_ring_count_unread(struct hall_tx_ring *tx)
{
	u64 tail = virt_load_acquire(&tx->shared->tail);	/* B */
	u64 head = READ_ONCE(tx->head);

	if (tail - tx->tail > head - tx->tail)
		tx->broken = true;
	else
		WRITE_ONCE(tx->tail, tail);
	return head - tx->tail;
}

u32 hall_ring_count_space(struct hall_tx_ring *tx)
{
	hall_ring_count_unread(tx);
	return tx->broken ? 0 : hall_ring_get_known_space(tx);
}

struct hall_span hall_ring_get_tx_span(struct hall_tx_ring *tx, u32 offset,
				       u32 max)
{
	u32 at = (tx->head + offset) & (tx->size - 1);
	u32 space = tx->broken ? 0 : hall_ring_get_known_space(tx);

	/* The copy of tail may be old: look again only if it is too small. */
	if (space < offset + max)
		space = hall_ring_count_space(tx);
	space -= min_t(u32, space, offset);
	return (struct hall_span){
		.data = tx->data + at,
		.len = min_t(u32, min_t(u32, space, max), tx->size - at),
	};
}

void hall_ring_grow(struct hall_tx_ring *tx, u8 *data, u32 size,
		    const struct hallway_handle *handle)
{
	u64 mark = HALLWAY_MARK_SET | (tx->head & HALLWAY_MARK_POSITION);

	tx->data = data;
	tx->size = size;
	tx->grown_at = tx->head;
	/* There is space, so nobody of this end need wait. */
	tx->armed = false;
	tx->shared->area = *handle;
	WRITE_ONCE(tx->shared->area_size, size);
	virt_store_release(&tx->shared->grown, mark);		/* F */
}

bool hall_ring_report_short(struct hall_tx_ring *tx)
{
	if (tx->is_short)
		return false;
	tx->is_short = true;
	virt_store_release(&tx->shared->grown, HALLWAY_MARK_SHORT);	/* F */
	return true;
}

bool hall_ring_arm_tail(struct hall_tx_ring *tx, u32 least, u32 want)
{
	tx->armed = false;
	if (hall_ring_count_space(tx) >= least || tx->broken)
		return true;
	/* Free bytes reach want when tail passes head + want - size - 1. */
	tx->event = READ_ONCE(tx->head) + want - tx->size - 1;
	WRITE_ONCE(tx->shared->tail_event, tx->event);
	virt_mb();						/* C */
	tx->armed = hall_ring_count_space(tx) < least && !tx->broken;
	return !tx->armed;
}

bool hall_ring_is_tx_due(struct hall_tx_ring *tx)
{
	hall_ring_count_unread(tx);
	return tx->armed && (s64)(tx->tail - tx->event) > 0;
}

void hall_ring_disarm_tx(struct hall_tx_ring *tx)
{
	/* A stale doorbell leaves the next one armed. */
	tx->armed &= !hall_ring_is_tx_due(tx);
}

void hall_ring_set_start(struct hall_tx_ring *tx, u32 seq)
{
	virt_store_release(&tx->shared->start, HALLWAY_MARK_SET | seq); /* D */
}

u32 hall_ring_set_end(struct hall_tx_ring *tx)
{
	u64 end = virt_cmpxchg(&tx->shared->end, 0, HALLWAY_MARK_SET);	/* E */
	u64 taken = (end - tx->tail) & HALLWAY_MARK_POSITION;

	if (!end || tx->broken)
		return 0;
	if ((end & ~HALLWAY_MARK_POSITION) != HALLWAY_MARK_TRUNCATED ||
	    taken > tx->head - tx->tail) {
		tx->broken = true;
		return 0;
	}
	tx->truncated = tx->tail + taken;
	return tx->head - tx->truncated;
}

void hall_ring_set_reset(struct hall_tx_ring *tx)
{
	virt_cmpxchg(&tx->shared->end, 0, HALLWAY_MARK_SET | HALLWAY_MARK_RESET); /* E */
}

bool hall_ring_is_truncated(const struct hall_tx_ring *tx)
{
	return READ_ONCE(tx->shared->end) & HALLWAY_MARK_TRUNCATED;
}

struct hall_span hall_ring_get_truncated(const struct hall_tx_ring *tx,
					 u32 offset)
{
	u32 at = (tx->truncated + offset) & (tx->size - 1);

	return (struct hall_span){
		.data = tx->data + at,
		.len = min_t(u32, tx->head - tx->truncated - offset, tx->size - at),
	};
}

void hall_ring_drop_truncated(struct hall_tx_ring *tx)
{
	tx->head = tx->truncated;
}

bool hall_ring_finish(struct hall_tx_ring *tx, u64 position, u32 *lost)
{
	if (position - tx->tail > tx->head - tx->tail)
		tx->broken = true;
	else
		tx->tail = position;
	*lost = tx->head - tx->tail;
	return !tx->broken;
}

/* Take up the area if there is one. False: an impossible one. */
static bool take_area(struct hall_rx_ring *rx)
{
	u64 mark = virt_load_acquire(&rx->shared->grown);	/* F */
	u64 ahead = (mark - rx->head) & HALLWAY_MARK_POSITION;
	u32 size;

	rx->is_short = mark == HALLWAY_MARK_SHORT;
	if (!mark || rx->is_short)
		return true;
	size = READ_ONCE(rx->shared->area_size);
	if ((mark & ~HALLWAY_MARK_POSITION) != HALLWAY_MARK_SET ||
	    ahead > rx->data_size - (rx->head - rx->tail) ||
	    !hall_ring_is_valid_size(size) || size <= rx->data_size)
		return false;
	rx->grown_at = rx->head + ahead;
	rx->size = size;
	smp_store_release(&rx->grown, true);
	return true;
}

/* first: the byte for which the sender has had no space before. */
static u32 take_head(struct hall_rx_ring *rx, u64 head, u64 first)
{
	if (head - rx->head > first + rx->size - rx->head) {
		rx->broken = true;
		return 0;
	}
	rx->head = head;
	return head - rx->tail;
}

/* Not inline: it would make other rings slower, which are those of small messages. */
static noinline u32 take_head_or_area(struct hall_rx_ring *rx, u64 head)
{
	if (!rx->grown && !take_area(rx)) {
		rx->broken = true;
		return 0;
	}
	return take_head(rx, head, rx->grown ? max_t(u64, rx->tail, rx->grown_at) : rx->tail);
}

u32 hall_ring_count_used(struct hall_rx_ring *rx)
{
	u64 head;

	if (rx->broken)
		return 0;
	if (rx->ended)
		return rx->head - rx->tail;
	head = virt_load_acquire(&rx->shared->head);	/* A */
	if (rx->may_grow)
		return take_head_or_area(rx, head);
	return take_head(rx, head, rx->tail);
}

u32 hall_ring_find_most(struct hall_rx_ring *rx)
{
	/* It may have grown, or be short, since the last look. */
	hall_ring_count_used(rx);
	return rx->may_grow && !rx->grown && !rx->is_short ? HALLWAY_RING_MAX : rx->size;
}

struct hall_span hall_ring_get_rx_span(struct hall_rx_ring *rx, u32 offset,
				       u32 max)
{
	u64 position = rx->tail + offset;
	u32 used = rx->head - rx->tail, size = rx->data_size, at;
	u8 *data = rx->data;

	max = offset < used ? min_t(u32, used - offset, max) : 0;
	/* Others may look for an area meanwhile, and find one above what is used. */
	if (smp_load_acquire(&rx->grown)) {
		if (position < rx->grown_at) {
			max = min_t(u64, rx->grown_at - position, max);
		} else {
			data = rx->area;
			size = rx->size;
		}
	}
	at = position & (size - 1);
	return (struct hall_span){
		.data = data + at,
		.len = data ? min_t(u32, max, size - at) : 0,
	};
}

bool hall_ring_arm_head(struct hall_rx_ring *rx, u32 want)
{
	u64 event = rx->tail + want - 1;

	if (hall_ring_count_used(rx) >= want || rx->broken) {
		rx->armed = false;
		return true;
	}
	/* The writer was not past it just now, and rings once it is: no barrier is needed. */
	if (rx->armed && rx->event == event)
		return false;
	rx->event = event;
	WRITE_ONCE(rx->shared->head_event, event);
	virt_mb();						/* C */
	rx->armed = hall_ring_count_used(rx) < want && !rx->broken;
	return !rx->armed;
}

/* With bottom halves off; a hostile writer could keep on until the ring is full. */
#define ARM_TURNS	10000

bool hall_ring_arm_next(struct hall_rx_ring *rx, u32 target)
{
	unsigned int turns = 0;
	u32 used;

	/* Until no byte came in between. A real writer is not that fast that often. */
	while ((used = hall_ring_count_used(rx)) < target && !rx->broken) {
		if (!hall_ring_arm_head(rx, used + 1))
			return false;
		rx->broken |= ++turns == ARM_TURNS;
	}
	return true;
}

void hall_ring_arm_edge(struct hall_rx_ring *rx)
{
	hall_ring_arm_next(rx, ~0u);
}

void hall_ring_mute_rx(struct hall_rx_ring *rx)
{
	rx->armed = false;
	WRITE_ONCE(rx->shared->head_event, rx->head - 1);
}

bool hall_ring_is_rx_due(struct hall_rx_ring *rx)
{
	hall_ring_count_used(rx);
	return rx->armed && (s64)(rx->head - rx->event) > 0;
}

void hall_ring_disarm_rx(struct hall_rx_ring *rx)
{
	rx->armed &= !hall_ring_is_rx_due(rx);
}

/* Take up the start mark if it is there. False: an impossible one. */
static bool take_start(struct hall_rx_ring *rx, u32 copied)
{
	u64 start = virt_load_acquire(&rx->shared->start);	/* D */

	if (!start)
		return true;
	if ((start & ~HALLWAY_MARK_SEQ) != HALLWAY_MARK_SET)
		return false;
	rx->start_seq = start & HALLWAY_MARK_SEQ;
	rx->started = true;
	return (s32)(rx->start_seq - copied) >= 0;
}

/* Take up the end mark if it is there. */
static void take_end(struct hall_rx_ring *rx)
{
	u64 end = virt_load_acquire(&rx->shared->end);		/* E */

	if (!end)
		return;
	if ((end & ~HALLWAY_MARK_RESET) != HALLWAY_MARK_SET)
		rx->broken = true;
	hall_ring_count_used(rx);
	rx->reset = end & HALLWAY_MARK_RESET;
	rx->ended = true;
}

static void truncate_at(struct hall_rx_ring *rx, u64 position)
{
	u64 mark = HALLWAY_MARK_TRUNCATED | (position & HALLWAY_MARK_POSITION);

	if (rx->broken || rx->ended ||
	    virt_cmpxchg(&rx->shared->end, 0, mark))		/* E */
		return;
	rx->head = position;
	rx->ended = true;
}

void hall_ring_truncate(struct hall_rx_ring *rx)
{
	hall_ring_count_used(rx);
	truncate_at(rx, rx->head);
}

void hall_ring_truncate_unread(struct hall_rx_ring *rx)
{
	truncate_at(rx, rx->tail);
}

enum hall_rx_source hall_ring_find_source(struct hall_rx_ring *rx, u32 copied,
					  u32 arrived, u32 *n)
{
	s32 unread = arrived - copied, before;

	/* A FIN that was read counts in copied, not in arrived. */
	if (unread < 0) {
		copied = arrived;
		unread = 0;
	}
	*n = unread;
	if (!rx->started && !take_start(rx, copied))
		rx->broken = true;
	/* A reader would look for bytes before the start mark without end. */
	if (!rx->started && hall_ring_count_used(rx) &&
	    (!take_start(rx, copied) || !rx->started))
		rx->broken = true;
	if (rx->broken)
		return HALL_RX_CORRUPT;
	if (!rx->started)
		return unread ? HALL_RX_TCP : HALL_RX_EMPTY;

	if (!rx->ended)
		take_end(rx);
	if (!rx->ended && (s32)(arrived - rx->start_seq) > 0)
		rx->broken = true;

	before = rx->start_seq - copied;
	if (before > 0 && !rx->broken) {
		*n = min_t(u32, before, unread);
		return *n ? HALL_RX_TCP : HALL_RX_EMPTY;
	}
	*n = hall_ring_count_used(rx);
	if (rx->broken)
		return HALL_RX_CORRUPT;
	if (*n)
		return HALL_RX_RING;
	return rx->ended ? HALL_RX_ENDED : HALL_RX_EMPTY;
}
