// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What no carrier of bytes can beat on a machine.
 *
 *   bounds copy SIZE SECONDS   this thread copies pieces into a ring and out of it
 *   bounds line SECONDS        round trips of a word between two CPUs that spin
 *   bounds wake SECONDS        round trips between threads that sleep, on two CPUs if
 *                              there are as many: no system call of a socket, only futex()
 *
 * Prints as JSON the MB/s that were copied into the ring and out of it, or the median of
 * round trips in ns.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "common.h"

#define RING	(256 << 10)
#define TRIPS	64	/* of a sample */
#define SAMPLES	(1 << 20)

/* What a thread waits for: the other one's turn, or the end. */
enum turn { MINE, ITS, END };

static struct {
	_Alignas(64) _Atomic uint32_t turn;
	_Alignas(64) int sleeps;
} shared;
static uint32_t samples[SAMPLES];

static void print(double value)
{
	printf("{\"value\": %.1f}\n", value);
}

static void measure_copies(size_t size, uint64_t end)
{
	static char from[RING], ring[RING], to[RING];
	uint64_t begin = now(), bytes = 0, i;
	size_t at = 0, count;

	if (!size || size > RING)
		errx(2, "SIZE: 1 to %d", RING);
	count = 1 + (1 << 20) / size;
	memset(from, 'h', sizeof(from));
	do {
		for (i = 0; i < count; i++) {
			memcpy(ring + at, from, size);
			__asm__ volatile("" ::: "memory");
			memcpy(to, ring + at, size);
			__asm__ volatile("" ::: "memory");
			at = at + 2 * size <= RING ? at + size : 0;
		}
		bytes += count * size;
	} while (now() < end);
	print(bytes * 1e3 / (now() - begin));
}

/* Where there is one CPU alone, both threads stay on it. */
static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void give(uint32_t turn)
{
	atomic_store(&shared.turn, turn);
	if (shared.sleeps)
		syscall(SYS_futex, &shared.turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Returns what it is then. */
static uint32_t wait_while(uint32_t turn)
{
	uint32_t is;

	while ((is = atomic_load(&shared.turn)) == turn)
		if (shared.sleeps)
			syscall(SYS_futex, &shared.turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
	return is;
}

static void *answer(void *unused)
{
	stay_on(1);
	while (wait_while(MINE) != END)
		give(MINE);
	return unused;
}

static void measure_trips(uint64_t end)
{
	uint64_t begin, count = 0;
	pthread_t other;
	int i;

	stay_on(0);
	if (pthread_create(&other, NULL, answer, NULL))
		errx(1, "no thread");
	do {
		begin = now();
		for (i = 0; i < TRIPS; i++) {
			give(ITS);
			wait_while(ITS);
		}
		samples[count++] = now() - begin;
	} while (now() < end && count < SAMPLES);
	give(END);
	pthread_join(other, NULL);
	qsort(samples, count, sizeof(*samples), ascending);
	print((double)samples[count / 2] / TRIPS);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "copy")) {
		measure_copies(strtoul(argv[2], NULL, 0), now() + atof(argv[3]) * 1e9);
		return 0;
	}
	if (argc != 3 || (strcmp(argv[1], "line") && strcmp(argv[1], "wake")))
		errx(2, "copy SIZE SECONDS, line SECONDS or wake SECONDS");
	shared.sleeps = argv[1][0] == 'w';
	if (!shared.sleeps && sysconf(_SC_NPROCESSORS_ONLN) < 2)
		errx(1, "two threads that spin need two CPUs");
	measure_trips(now() + atof(argv[2]) * 1e9);
	return 0;
}
