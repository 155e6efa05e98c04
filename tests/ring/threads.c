// SPDX-License-Identifier: GPL-2.0-only
/*
 * A sender and a receiver on two CPUs that really sleep: on a futex, armed by
 * the event index alone. Built plainly, it is the processor that may reorder;
 * built with ThreadSanitizer, a byte read without an acquire is a race.
 *
 * The doorbells are counters without order, and futex calls are made by hand,
 * so that nothing but the ring itself orders the bytes. Doorbells that nobody
 * asked for come in between, and a thread that is woken for nothing sleeps on without
 * arming again. A sleeper that nobody wakes for WATCHDOG seconds is lost.
 *
 *   threads [SEED [MEGABYTES]]
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ring.h"

#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif
#ifndef TSAN
#define TSAN 0
#endif

#define WATCHDOG	20	/* seconds */
#define S		0xfffffff0u	/* the start mark; nothing else comes by TCP */

/* One doorbell: rung by adding one. */
struct doorbell {
	u32 count __attribute__((aligned(64)));
};

static struct doorbell reader_doorbell, writer_doorbell;
static struct hallway_ring *shared;
static u64 total;			/* bytes of this round */
static u32 ring_size;
static u64 seed;
static u64 slept_reader, slept_writer, for_nothing;

static void ring(struct doorbell *doorbell)
{
	__atomic_fetch_add(&doorbell->count, 1, __ATOMIC_RELAXED);
	syscall(SYS_futex, &doorbell->count, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static u32 heard(struct doorbell *doorbell)
{
	return __atomic_load_n(&doorbell->count, __ATOMIC_ACQUIRE);
}

/* Sleeps until the doorbell is rung past before. */
static void sleep_on(struct doorbell *doorbell, u32 before, const char *side, u64 at)
{
	struct timespec limit = { .tv_sec = WATCHDOG };

	while (heard(doorbell) == before) {
		if (syscall(SYS_futex, &doorbell->count, FUTEX_WAIT_PRIVATE, before,
			    &limit, NULL, 0) == 0 || heard(doorbell) != before)
			continue;
		if (errno != ETIMEDOUT)
			continue;
		printf("%s asleep for %d s at byte %llu of %llu: lost wake-up (seed %llu); head %llu, tail %llu\n",
		       side, WATCHDOG, (unsigned long long)at,
		       (unsigned long long)total, (unsigned long long)seed,
		       (unsigned long long)shared->head,
		       (unsigned long long)shared->tail);
		printf("0 passed, 1 failed\n");
		fflush(stdout);
		_exit(1);
	}
}

/* Short, random: both sides meet at every distance. */
static void dawdle(u64 *rng)
{
	u32 n = random_below(rng, 16);

	if (n > 13)
		sched_yield();
	else
		for (n = random_below(rng, 8 << n / 2); n; n--)
			__asm__ volatile("pause");
}

static void *sender(void *unused)
{
	u64 rng = random_seed(seed), wrote = 0;
	struct hall_tx_ring tx;
	struct hall_span span;
	u32 want, i;

	hall_ring_init_tx(&tx, shared, ring_size, 1);
	/* The carrier is offered; what follows has no order but the ring's. */
	__atomic_store_n(&writer_doorbell.count, 1, __ATOMIC_RELEASE);
	hall_ring_set_start(&tx, S);
	ring(&reader_doorbell);
	while (wrote < total && !tx.broken) {
		want = 1 + random_below(&rng, 1 << random_below(&rng, 14));
		if (want > total - wrote)
			want = total - wrote;
		span = hall_ring_get_tx_span(&tx, 0, want);
		if (!span.len) {
			u32 least = 1 + random_below(&rng, ring_size / 2);
			u32 room = least + random_below(&rng, ring_size / 2 - least + 1);
			u32 before = heard(&writer_doorbell);

			if (hall_ring_arm_tail(&tx, least, room))
				continue;
			slept_writer++;
			/* A doorbell from earlier is still on its way. */
			if (!random_below(&rng, 8))
				ring(&writer_doorbell);
			for (;;) {
				sleep_on(&writer_doorbell, before, "writer", wrote);
				before = heard(&writer_doorbell);
				if (tx.broken || hall_ring_count_space(&tx) >= least)
					break;
				__atomic_fetch_add(&for_nothing, 1, __ATOMIC_RELAXED);
			}
			continue;
		}
		for (i = 0; i < span.len; i++)
			span.data[i] = stream_byte(wrote++);
		if (hall_ring_publish(&tx, span.len))
			ring(&reader_doorbell);
		if (!random_below(&rng, 20))
			ring(&reader_doorbell);
		if (random_below(&rng, 2))
			dawdle(&rng);
	}
	hall_ring_set_end(&tx);
	ring(&reader_doorbell);
	CHECK(!tx.broken && wrote == total);
	(void)unused;
	return NULL;
}

static void *receiver(void *unused)
{
	u64 rng = random_seed(seed + 1), took = 0;
	enum hall_rx_source source;
	struct hall_rx_ring rx;
	struct hall_span span;
	u32 n, some, i, before;

	while (!__atomic_load_n(&writer_doorbell.count, __ATOMIC_ACQUIRE))
		sched_yield();
	CHECK(hall_ring_init_rx(&rx, shared, ring_size, 1));
	for (;;) {
		/* What rings from here on keeps us awake. */
		before = heard(&reader_doorbell);
		source = hall_ring_find_source(&rx, S, S, &n);
		if (source == HALL_RX_ENDED || source == HALL_RX_CORRUPT)
			break;
		if (source == HALL_RX_EMPTY) {
			u32 want = 1 + random_below(&rng, 4) * random_below(&rng, ring_size / 8);

			dawdle(&rng);
			if (!rx.started)
				want = 1;
			if (hall_ring_arm_head(&rx, want))
				continue;
			slept_reader++;
			/* A doorbell from earlier is still on its way. */
			if (!random_below(&rng, 8))
				ring(&reader_doorbell);
			for (;;) {
				sleep_on(&reader_doorbell, before, "reader", took);
				before = heard(&reader_doorbell);
				source = hall_ring_find_source(&rx, S, S, &n);
				if (source != HALL_RX_EMPTY || !rx.started)
					break;
				__atomic_fetch_add(&for_nothing, 1, __ATOMIC_RELAXED);
			}
			continue;
		}
		/* What is not taken now stays for the next look. */
		some = 1 + random_below(&rng, n);
		span = hall_ring_get_rx_span(&rx, 0, some);
		for (i = 0; i < span.len; i++) {
			if (span.data[i] != stream_byte(took)) {
				CHECK(0, "byte %llu is wrong (seed %llu)",
				      (unsigned long long)took,
				      (unsigned long long)seed);
				return NULL;
			}
			took++;
		}
		if (hall_ring_consume(&rx, span.len))
			ring(&writer_doorbell);
		if (!random_below(&rng, 20))
			ring(&writer_doorbell);
		if (random_below(&rng, 2))
			dawdle(&rng);
	}
	CHECK(!rx.broken, "broken at byte %llu (seed %llu)",
	      (unsigned long long)took, (unsigned long long)seed);
	CHECK(took == total, "%llu of %llu bytes", (unsigned long long)took,
	      (unsigned long long)total);
	(void)unused;
	return NULL;
}

static void one_round(u32 size, u64 bytes)
{
	pthread_t thread;

	ring_size = size;
	total = bytes;
	reader_doorbell.count = writer_doorbell.count = 0;
	shared = aligned_alloc(4096, HALLWAY_RING_HEADER + size);
	memset(shared, 0, HALLWAY_RING_HEADER + size);
	pthread_create(&thread, NULL, sender, NULL);
	receiver(NULL);
	pthread_join(thread, NULL);
	free(shared);
}

int main(int argc, char **argv)
{
	u64 first = argc > 1 ? strtoull(argv[1], NULL, 0) : (u64)time(NULL);
	u64 megabytes = argc > 2 ? strtoull(argv[2], NULL, 0) : TSAN ? 100 : 300;
	u64 left = megabytes << 20, bytes;
	u64 rng = random_seed(first);

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("threads: seed %llu, %llu MB%s\n", (unsigned long long)first,
	       (unsigned long long)megabytes,
	       TSAN ? ", under ThreadSanitizer" : "");
	for (seed = first; left; seed++) {
		bytes = 1 + random_below(&rng, 1 << 21);
		if (bytes > left)
			bytes = left;
		left -= bytes;
		test_ok = true;
		one_round(HALLWAY_RING_MIN << random_below(&rng, 5), bytes);
		test_count("round");
		if (!test_ok)
			break;
	}
	printf("  reader slept %llu times, writer %llu, woken for nothing %llu\n",
	       (unsigned long long)slept_reader,
	       (unsigned long long)slept_writer,
	       (unsigned long long)for_nothing);
	test_ok = slept_reader > 50 && slept_writer > 50 && for_nothing;
	test_count("both slept, and were woken for nothing");
	return tests_done();
}
