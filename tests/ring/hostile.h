/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Both ends of a ring, for fuzzers of what lies in it. Its peer writes anything into the
 * ring's indexes and bytes, between the calls and within them.
 */
#ifndef TESTS_RING_HOSTILE_H
#define TESTS_RING_HOSTILE_H

#include "input.h"
#include "must.h"

static struct hallway_ring *shared;
static u32 size;
static struct hall_tx_ring tx;
static struct hall_rx_ring rx;
static bool interrupts;

/* The fuzzer's: a message is written; is looked for; is spoilt where it begins. */
static void write(void);
static void find(void);
static void scribble(void);

static void overwrite(void)
{
	u64 near[] = { tx.head, tx.tail, rx.head, rx.tail, rx.tail + size };
	u64 value = byte() & 1 ? near[byte() % 5] + (int8_t)byte() : number(8);

	if (byte() & 1)
		shared->head = value;
	else
		shared->tail = value;
}

static void make_ring(void)
{
	interrupts = false;
	size = HALLWAY_RING_MIN << (byte() % 6);
	/* To the byte: what lies behind is AddressSanitizer's. */
	shared = aligned_alloc(4096, HALLWAY_RING_HEADER + size);
	memset(shared, 0, HALLWAY_RING_HEADER + size);
	hall_ring_init_tx(&tx, shared, size, 1);
	hall_ring_set_start(&tx, 0);
	MUST(hall_ring_init_rx(&rx, shared, size, 1));
}

/* From this position on, for as long as there is input. Frees the ring. */
static void play(u64 start)
{
	tx.head = tx.tail = rx.head = rx.tail = start;
	shared->head = shared->tail = start;
	while (left) {
		u8 what = byte();

		interrupts = what & 0x80;
		switch (what & 7) {
		case 0: case 1:
			write();
			break;
		case 2: case 3:
			find();
			break;
		case 4:
			scribble();
			break;
		case 5:
			interrupts = false;
			overwrite();
			break;
		case 6:
			/* The peer has written as much, or has read it. */
			shared->head = rx.head + number(2) % (size + 1 - (rx.head - rx.tail));
			break;
		case 7:
			shared->tail = tx.tail + number(2) % (tx.head - tx.tail + 1);
			break;
		}
		MUST(tx.head - tx.tail <= size && rx.head - rx.tail <= size);
	}
	free(shared);
}

#endif /* TESTS_RING_HOSTILE_H */
