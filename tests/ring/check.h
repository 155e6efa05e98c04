/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tests of the ring share: checks that name their place, counting,
 * repeatable random numbers, memory for a ring.
 */
#ifndef TESTS_RING_CHECK_H
#define TESTS_RING_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned int tests_passed, tests_failed;
static bool test_ok;

#define CHECK(condition, ...) do { \
	if (!(condition)) { \
		printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
		printf("" __VA_ARGS__); \
		printf("\n"); \
		test_ok = false; \
	} \
} while (0)

static inline void test_count(const char *name)
{
	if (test_ok) {
		tests_passed++;
	} else {
		tests_failed++;
		printf("FAILED: %s\n", name);
	}
}

#define TEST(function) do { \
	test_ok = true; \
	function(); \
	test_count(#function); \
} while (0)

static inline int tests_done(void)
{
	printf("%u passed, %u failed\n", tests_passed, tests_failed);
	return tests_failed || !tests_passed;
}

/* xorshift64*; state is never 0. */
static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* 0 .. below - 1 */
static inline uint32_t random_below(uint64_t *state, uint32_t below)
{
	return (random_next(state) >> 32) * below >> 32;
}

static inline uint64_t random_seed(uint64_t seed)
{
	seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9ULL + 0x9e3779b97f4a7c15ULL;
	return seed ^ seed >> 31 ?: 1;
}

/* The byte at one position of a stream: no two places look alike for long. */
static inline uint8_t stream_byte(uint64_t position)
{
	return (position * 0x9e3779b97f4a7c15ULL ^ position >> 7) >> 29;
}

#endif /* TESTS_RING_CHECK_H */
