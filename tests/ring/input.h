/* SPDX-License-Identifier: GPL-2.0-only */
/* A fuzzer's input, taken piece by piece; where it ends, zeros follow. */
#ifndef TESTS_RING_INPUT_H
#define TESTS_RING_INPUT_H

#include <stddef.h>
#include <stdint.h>

static const uint8_t *input;
static size_t left;

static inline uint8_t byte(void)
{
	if (!left)
		return 0;
	left--;
	return *input++;
}

static inline uint64_t number(unsigned int bytes)
{
	uint64_t n = 0;

	while (bytes--)
		n = n << 8 | byte();
	return n;
}

#endif /* TESTS_RING_INPUT_H */
