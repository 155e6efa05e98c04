// SPDX-License-Identifier: GPL-2.0-only
/*
 * A sender and a receiver of one direction, with a TCP queue between them, in
 * one thread: at each turn a random side takes a random step that the protocol
 * (spec/protocol.md) allows. Steps also happen in the middle of a ring's
 * functions, wherever they touch shared memory (hooked.h).
 *
 * Both carriers carry numbered bytes: each must come in its place, and all of
 * them. A side that sleeps is woken by a doorbell or by TCP and by nothing
 * else; after each turn it is looked up whether it sleeps on something that is
 * there already: that is a lost wake-up, whatever would have followed.
 *
 *   model [SEED [STREAMS]]    repeats a run
 */
#include <time.h>

#include "check.h"
#include "hooked.h"

#define TCP_QUEUE	(1u << 14)	/* that the sender may fill */
#define TCP_MAX		(1u << 15)	/* with what it resends of a ring */
#define REQUEUED_MAX	(1u << 17)

enum tx_state { TX_TCP, TX_OFFERED, TX_RING, TX_DRAINING };

static u64 rng;

static u32 below(u32 n)
{
	return random_below(&rng, n);
}

static bool chance(u32 one_in)
{
	return !below(one_in);
}

/* What must have happened by the end of the run, all of it. */
static struct {
	u64 streams, bytes_tcp, bytes_ring, promoted, demoted, full, empty, wrapped;
	u64 left_in_tcp, left_in_ring, under_reader, under_writer;
	u64 reader_slept, writer_slept, woken_for_nothing, requeued, declined;
	u64 larger, smaller, grown, grown_full, read_across;
	u64 truncated, resent, closed_early, fin_in_ring, fin_read_first;
	u64 in_midst, seq_wrapped;
} counted;

/* One message of each kind is enough: the protocol allows no second. */
struct mail {
	bool offer, accept, decline, demote, done;
	u64 position;
};

static struct {
	u64 total;			/* bytes of this stream */

	/* TCP: counts of bytes; what is between sent and read is in queue. */
	u32 isn;
	u64 sent, arrived, took;
	bool fin_sent, fin_arrived, fin_read;
	u8 queue[TCP_MAX];

	/* The sender. */
	struct {
		bool busy, asleep, doorbell, closing;
		enum tx_state state;
		u64 wrote;
		u32 carrier, size, least, want;
		bool may_grow;
		struct hallway_ring *memory;
		u8 *area;
		struct hall_tx_ring ring;
		struct mail mail;
	} tx;

	/* The receiver. */
	struct {
		bool busy, asleep, doorbell, tcp_event, mapped, asked, over, closed;
		u64 read;
		u32 want;
		struct hallway_ring *memory;
		struct hall_rx_ring ring;
		struct mail mail;
		/* Moved from a ring to the head of TCP's queue. */
		u32 requeued_at, requeued_end;
		u8 requeued[REQUEUED_MAX];
	} rx;
} w;

/* The network and doorbells */

static void network_step(void)
{
	u32 some = w.sent - w.arrived;

	if (some) {
		w.arrived += 1 + below(some);
		w.rx.tcp_event = true;
	} else if (w.fin_sent && !w.fin_arrived) {
		w.fin_arrived = true;
		w.rx.tcp_event = true;
	} else if (chance(50)) {
		/* A stale doorbell, and a segment without news. */
		w.rx.doorbell |= chance(2);
		w.tx.doorbell |= chance(2);
		w.rx.tcp_event |= chance(2);
	}
}

/* The sender */

static void tx_free(void)
{
	memset(w.tx.memory, 0xdd, HALLWAY_RING_HEADER + w.tx.size);
	free(w.tx.memory);
	w.tx.memory = NULL;
	free(w.tx.area);
	w.tx.area = NULL;
	w.tx.state = TX_TCP;
}

/* Each ring is of a size of its own, in the midst of the stream. */
static void tx_offer(void)
{
	u32 before = w.tx.size;

	w.tx.size = HALLWAY_RING_MIN << below(3);
	counted.larger += before && w.tx.size > before;
	counted.smaller += w.tx.size < before;
	w.tx.may_grow = chance(2);
	w.tx.memory = aligned_alloc(4096, HALLWAY_RING_HEADER + w.tx.size);
	memset(w.tx.memory, 0xcc, HALLWAY_RING_HEADER + w.tx.size);
	w.tx.carrier += 2;
	hall_ring_init_tx(&w.tx.ring, w.tx.memory, w.tx.size, w.tx.carrier);
	w.tx.state = TX_OFFERED;
	w.rx.mail.offer = true;
}

/* The handle names no memory here: the receiver looks at what the sender has. */
static void tx_grow(void)
{
	static const struct hallway_handle handle;
	u32 size = w.tx.size << (1 + below(2)), unread = hall_ring_count_unread(&w.tx.ring);

	w.tx.area = aligned_alloc(4096, size);
	memset(w.tx.area, 0xcc, size);
	hall_ring_grow(&w.tx.ring, w.tx.area, size, &handle);
	counted.grown++;
	counted.grown_full += unread == w.tx.size;
}

static void tx_start(void)
{
	counted.promoted++;
	counted.left_in_tcp += w.sent != w.took;
	counted.under_reader += w.rx.asleep;
	hall_ring_set_start(&w.tx.ring, w.isn + (u32)w.sent);
	w.tx.state = TX_RING;
	w.rx.doorbell = true;
}

/* What the receiver truncated goes over TCP, before anything else. */
static void tx_resend(u32 left)
{
	struct hall_span span;
	u32 done, i;

	counted.resent += left;
	for (done = 0; done < left; done += span.len) {
		span = hall_ring_get_truncated(&w.tx.ring, done);
		CHECK(span.len && span.len <= left - done);
		for (i = 0; i < span.len; i++)
			w.queue[w.sent++ % TCP_MAX] = span.data[i];
	}
	CHECK(w.sent - w.took <= TCP_MAX);
	hall_ring_drop_truncated(&w.tx.ring);
}

static void tx_end(void)
{
	u32 left;

	counted.demoted++;
	counted.left_in_ring += hall_ring_count_unread(&w.tx.ring) != 0;
	counted.under_reader += w.rx.asleep;
	counted.under_writer += w.tx.asleep;
	left = hall_ring_set_end(&w.tx.ring);
	if (left)
		tx_resend(left);
	w.tx.state = TX_DRAINING;
	w.rx.doorbell = true;
	w.tx.asleep = false;
}

static void tx_done(u64 position)
{
	u32 lost;

	if (w.tx.state == TX_RING)
		tx_end();
	CHECK(hall_ring_finish(&w.tx.ring, position, &lost), "DONE at %llu",
	      (unsigned long long)position);
	if (lost) {
		/* Only an end that closed may leave bytes: the stream is reset. */
		CHECK(w.rx.closed);
		w.rx.over = true;
	}
	w.tx.asleep = false;
	tx_free();
}

static void tx_mail(void)
{
	struct mail mail = w.tx.mail;

	w.tx.mail = (struct mail){};
	if (mail.decline)
		tx_free();
	if (mail.accept) {
		tx_start();
		/* The FIN is out: nothing will come by the ring. */
		if (w.fin_sent)
			tx_end();
	}
	if (mail.demote && w.tx.state == TX_RING)
		tx_end();
	if (mail.done)
		tx_done(mail.position);
}

static void tx_tcp(void)
{
	u32 n = below(3000), queued = w.sent - w.took;
	u32 room = queued < TCP_QUEUE ? TCP_QUEUE - queued : 0;

	if (w.tx.wrote == w.total) {
		w.fin_sent = true;
		return;
	}
	if (n > room)
		n = room;
	for (; n && w.tx.wrote < w.total; n--) {
		w.queue[w.sent++ % TCP_MAX] = stream_byte(w.tx.wrote++);
		counted.bytes_tcp++;
	}
}

/* True: the writer sleeps. */
static bool tx_full(void)
{
	u32 size = w.tx.ring.size;

	counted.full++;
	w.tx.least = 1 + below(size / 2);
	w.tx.want = w.tx.least + below(size / 2 - w.tx.least + 1);
	w.tx.asleep = !hall_ring_arm_tail(&w.tx.ring, w.tx.least, w.tx.want);
	counted.writer_slept += w.tx.asleep;
	return w.tx.asleep;
}

static void tx_ring(void)
{
	u32 want = chance(4) ? w.tx.ring.size : 1 + below(3000), n;
	u64 left = w.total - w.tx.wrote;
	struct hall_span span;
	u8 *data;

	if (!left) {
		/* All bytes are published: the end mark, then the FIN. */
		counted.fin_in_ring += hall_ring_count_unread(&w.tx.ring) != 0;
		tx_end();
		w.fin_sent = true;
		return;
	}
	if (want > left)
		want = left;
	if (w.tx.may_grow && !w.tx.area &&
	    (hall_ring_count_space(&w.tx.ring) < want || chance(20)))
		tx_grow();
	span = hall_ring_get_tx_span(&w.tx.ring, 0, want);
	CHECK(!w.tx.ring.broken);
	CHECK(span.len <= want);
	if (!span.len) {
		tx_full();
		return;
	}
	data = w.tx.area ? w.tx.area : w.tx.memory->data;
	CHECK(span.data >= data && span.data + span.len <= data + w.tx.ring.size);
	counted.wrapped += span.data + span.len == data + w.tx.ring.size;
	for (n = 0; n < span.len; n++)
		span.data[n] = stream_byte(w.tx.wrote++);
	counted.bytes_ring += span.len;
	if (hall_ring_publish(&w.tx.ring, span.len))
		w.rx.doorbell = true;
}

/* A writer that a doorbell woke for nothing sleeps on, armed as before. */
static bool tx_still_asleep(void)
{
	if (!w.tx.asleep)
		return false;
	if (!w.tx.doorbell)
		return true;
	w.tx.doorbell = false;
	if (hall_ring_count_space(&w.tx.ring) < w.tx.least) {
		counted.woken_for_nothing++;
		return true;
	}
	w.tx.asleep = false;
	return false;
}

static void sender_step(void)
{
	if (w.tx.busy)
		return;
	w.tx.busy = true;
	tx_mail();
	switch (w.tx.state) {
	case TX_TCP:
		if (!w.fin_sent && chance(8))
			tx_offer();
		else if (!w.fin_sent)
			tx_tcp();
		break;
	case TX_OFFERED:
	case TX_DRAINING:
		if (!w.fin_sent)
			tx_tcp();
		break;
	case TX_RING:
		if (chance(40))
			tx_end();
		else if (!tx_still_asleep())
			tx_ring();
		break;
	}
	w.tx.busy = false;
}

/* The receiver */

static u32 copied_seq(void)
{
	return w.isn + (u32)w.took - (w.rx.requeued_end - w.rx.requeued_at) +
	       w.fin_read;
}

static void take_byte(u8 byte)
{
	if (byte != stream_byte(w.rx.read))
		CHECK(0, "byte %llu is wrong", (unsigned long long)w.rx.read);
	w.rx.read++;
}

static void rx_release(void)
{
	w.tx.mail.done = true;
	w.tx.mail.position = w.rx.ring.tail;
	w.rx.mapped = false;
}

static void rx_mail(void)
{
	bool fin = w.fin_arrived;

	if (!w.rx.mail.offer)
		return;
	w.rx.mail.offer = false;
	CHECK(!w.rx.mapped, "an OFFER before DONE");
	if (fin || w.rx.closed || chance(8)) {
		counted.declined++;
		w.tx.mail.decline = true;
		return;
	}
	w.rx.memory = w.tx.memory;
	CHECK(hall_ring_init_rx(&w.rx.ring, w.rx.memory, w.tx.size, w.tx.carrier));
	w.rx.ring.may_grow = w.tx.may_grow;
	w.rx.mapped = true;
	w.rx.asked = false;
	w.tx.mail.accept = true;
}

static void rx_tcp(u32 n)
{
	u32 some = 1 + below(n);

	while (some--) {
		if (w.rx.requeued_at != w.rx.requeued_end) {
			take_byte(w.rx.requeued[w.rx.requeued_at++]);
			continue;
		}
		CHECK(w.took < w.arrived);
		take_byte(w.queue[w.took++ % TCP_MAX]);
	}
}

static void rx_ring(u32 n)
{
	u32 some = chance(3) ? n : 1 + below(n), i;
	struct hall_span span;

	/* What is counted may lie in the area. */
	if (w.rx.ring.grown)
		w.rx.ring.area = w.tx.area;
	counted.read_across += w.rx.ring.grown && w.rx.ring.tail < w.rx.ring.grown_at &&
			       w.rx.ring.tail + n > w.rx.ring.grown_at;
	/* A look ahead takes nothing. */
	if (chance(4)) {
		u32 offset = below(n);

		span = hall_ring_get_rx_span(&w.rx.ring, offset, n);
		CHECK(span.len);
		for (i = 0; i < span.len; i++)
			CHECK(span.data[i] == stream_byte(w.rx.read + offset + i));
	}
	while (some) {
		span = hall_ring_get_rx_span(&w.rx.ring, 0, some);
		CHECK(span.len && span.len <= some);
		if (!span.len)
			return;
		for (i = 0; i < span.len; i++)
			take_byte(span.data[i]);
		if (hall_ring_consume(&w.rx.ring, span.len))
			w.tx.doorbell = true;
		some -= span.len;
	}
}

/* The rest of an ended ring becomes the head of TCP's queue. */
static void rx_requeue(void)
{
	struct hall_span span;
	u32 n = hall_ring_count_used(&w.rx.ring);

	if (w.rx.ring.grown)
		w.rx.ring.area = w.tx.area;
	CHECK(w.rx.requeued_at == w.rx.requeued_end);
	CHECK(n <= REQUEUED_MAX);
	w.rx.requeued_at = w.rx.requeued_end = 0;
	counted.requeued += n;
	while (n) {
		span = hall_ring_get_rx_span(&w.rx.ring, 0, n);
		memcpy(w.rx.requeued + w.rx.requeued_end, span.data, span.len);
		w.rx.requeued_end += span.len;
		n -= span.len;
		if (hall_ring_consume(&w.rx.ring, span.len))
			w.tx.doorbell = true;
	}
	rx_release();
}

static void rx_sleep(void)
{
	struct hall_rx_ring *ring = &w.rx.ring;

	w.rx.want = chance(3) ? 1 + below(w.tx.size / 2) : 1;
	/* As kmod/sock/rx.c: below S only TCP can wake, nothing is armed. */
	if (w.rx.mapped &&
	    (!ring->started || (s32)(ring->start_seq - copied_seq()) <= 0)) {
		/* Where marks may come, the first byte has to wake. */
		if (!ring->started)
			w.rx.want = 1;
		if (hall_ring_arm_head(ring, w.rx.want))
			return;
	}
	/* What came after the look marked the sleeper as woken. */
	if (w.rx.tcp_event)
		return;
	w.rx.asleep = true;
	counted.reader_slept++;
}

/* Nothing is there: was it the last? If not, sleep. */
static void rx_nothing(bool fin)
{
	counted.empty++;
	if (!fin) {
		rx_sleep();
	} else if (w.rx.mapped) {
		rx_release();
	} else {
		CHECK(w.rx.read == w.total, "%llu of %llu bytes",
		      (unsigned long long)w.rx.read,
		      (unsigned long long)w.total);
		w.rx.over = true;
	}
}

static void rx_read(void)
{
	/* First what arrived, then the marks. */
	u32 copied = copied_seq(), arrived = w.isn + (u32)w.arrived, n = 0;
	bool fin = w.fin_arrived;

	w.rx.tcp_event = false;
	if (!w.rx.mapped) {
		n = arrived - (copied - w.fin_read);
		if (n)
			rx_tcp(n);
		else
			rx_nothing(fin);
		return;
	}
	switch (hall_ring_find_source(&w.rx.ring, copied, arrived, &n)) {
	case HALL_RX_TCP:
		rx_tcp(n);
		break;
	case HALL_RX_RING:
		if (w.rx.ring.ended && chance(3))
			rx_requeue();
		else
			rx_ring(n);
		break;
	case HALL_RX_ENDED:
		CHECK(w.rx.ring.tail == w.rx.ring.head);
		rx_release();
		break;
	case HALL_RX_EMPTY:
		rx_nothing(fin);
		break;
	default:
		CHECK(0, "corrupt");
		w.rx.over = true;
	}
}

static bool rx_still_asleep(void)
{
	u32 n;

	if (!w.rx.asleep)
		return false;
	if (w.rx.tcp_event) {
		w.rx.asleep = false;
		return false;
	}
	if (!w.rx.doorbell)
		return true;
	w.rx.doorbell = false;
	w.rx.asleep = false;
	/* Woken for nothing: some sleep on, armed as before. */
	if (w.rx.mapped && w.rx.ring.started && chance(2) &&
	    hall_ring_find_source(&w.rx.ring, copied_seq(), w.isn + (u32)w.arrived,
				  &n) == HALL_RX_EMPTY && !w.rx.tcp_event) {
		counted.woken_for_nothing++;
		w.rx.asleep = true;
	}
	return w.rx.asleep;
}

static void receiver_step(void)
{
	if (w.rx.busy || w.rx.over)
		return;
	w.rx.busy = true;
	rx_mail();
	if (w.tx.closing && chance(300)) {
		/* The program closes with whatever is unread. */
		counted.closed_early++;
		w.rx.closed = true;
		if (w.rx.mapped)
			rx_release();
		else
			w.rx.over = true;
	} else if (w.rx.closed) {
		w.rx.over = !w.tx.mail.done;
	} else if (w.rx.mapped && !w.rx.asked && w.tx.state >= TX_RING && chance(60)) {
		w.rx.asked = true;
		w.tx.mail.demote = true;
	} else if (w.rx.mapped && w.rx.ring.started && !w.tx.may_grow && chance(150)) {
		/* The program can't wait for the end mark. */
		if (chance(2))
			hall_ring_truncate(&w.rx.ring);
		else
			hall_ring_truncate_unread(&w.rx.ring);
		counted.truncated += w.rx.ring.ended;
		w.rx.asleep = false;
	} else if (w.rx.mapped && w.fin_arrived && !w.fin_read &&
		   w.took == w.arrived &&
		   w.rx.requeued_at == w.rx.requeued_end && chance(4)) {
		/* A native read took the FIN before the ring was drained. */
		counted.fin_read_first += w.rx.ring.started;
		w.fin_read = true;
	} else if (!rx_still_asleep()) {
		rx_read();
	}
	w.rx.busy = false;
}

/* All together */

static void any_step(void)
{
	switch (below(3)) {
	case 0:
		network_step();
		break;
	case 1:
		sender_step();
		break;
	case 2:
		receiver_step();
		break;
	}
}

static void hook(void)
{
	if (!chance(4))
		return;
	counted.in_midst++;
	any_step();
}

/* Between two turns: does anyone sleep on what is there? */
static void check_sleepers(void)
{
	struct hallway_ring *ring = w.rx.memory;
	u32 copied = copied_seq(), arrived = w.isn + (u32)w.arrived;
	bool lost = false;
	u64 first;

	if (w.rx.asleep && !w.rx.doorbell && !w.rx.tcp_event) {
		if (!w.rx.mapped || !ring->start)
			lost = (s32)(arrived - copied) > 0;
		else if ((s32)((u32)ring->start - copied) > 0)
			lost = (s32)(arrived - copied) > 0;
		else
			lost = ring->head - w.rx.ring.tail >= w.rx.want || ring->end;
		CHECK(!lost, "lost wake-up of the reader at byte %llu",
		      (unsigned long long)w.rx.read);
	}
	if (w.tx.asleep && !w.tx.doorbell) {
		first = w.tx.memory->tail;
		if (first < w.tx.ring.grown_at)
			first = w.tx.ring.grown_at;
		lost = w.tx.ring.size - (w.tx.ring.head - first) >= w.tx.want;
		CHECK(!lost, "lost wake-up of the writer at byte %llu",
		      (unsigned long long)w.tx.wrote);
	}
}

static void stream(u64 seed)
{
	u64 turns = 0;

	rng = random_seed(seed);
	memset(&w, 0, sizeof(w));
	w.total = below(300000);
	/* Half of the streams cross 2^32 soon. */
	w.isn = chance(2) ? random_next(&rng) : -1 - below(20000);
	w.tx.carrier = -1;
	w.tx.closing = chance(10);
	while (!w.rx.over && test_ok) {
		any_step();
		if (w.rx.over)
			break;
		check_sleepers();
		CHECK(++turns < 1000000, "stuck");
	}
	if (!w.rx.closed)
		CHECK(w.rx.read == w.tx.wrote);
	counted.seq_wrapped += w.isn + (u32)w.sent < w.isn;
	counted.streams++;
	free(w.tx.memory);
	free(w.tx.area);
}

#define SHOW(what) do { \
	printf("  %-18s %llu\n", #what, (unsigned long long)counted.what); \
	test_ok = counted.what != 0; \
	test_count(#what " was never reached"); \
} while (0)

int main(int argc, char **argv)
{
	u64 seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (u64)time(NULL);
	u64 streams = argc > 2 ? strtoull(argv[2], NULL, 0) : 2000, i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("model: seed %llu, %llu streams\n", (unsigned long long)seed,
	       (unsigned long long)streams);
	for (i = 0; i < streams; i++) {
		test_ok = true;
		stream(seed + i);
		test_count("stream");
		if (!test_ok) {
			printf("repeat: model %llu 1\n", (unsigned long long)(seed + i));
			return tests_done();
		}
	}
	if (streams < 100)
		return tests_done();
	SHOW(streams);
	SHOW(bytes_tcp);
	SHOW(bytes_ring);
	SHOW(promoted);
	SHOW(demoted);
	SHOW(full);
	SHOW(empty);
	SHOW(wrapped);
	SHOW(left_in_tcp);
	SHOW(left_in_ring);
	SHOW(under_reader);
	SHOW(under_writer);
	SHOW(reader_slept);
	SHOW(writer_slept);
	SHOW(woken_for_nothing);
	SHOW(requeued);
	SHOW(declined);
	SHOW(larger);
	SHOW(smaller);
	SHOW(grown);
	SHOW(grown_full);
	SHOW(read_across);
	SHOW(truncated);
	SHOW(resent);
	SHOW(closed_early);
	SHOW(fin_in_ring);
	SHOW(fin_read_first);
	SHOW(seq_wrapped);
	SHOW(in_midst);
	return tests_done();
}
