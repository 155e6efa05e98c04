/* SPDX-License-Identifier: GPL-2.0-only */
/* What holds whatever a peer does; a fuzzer finds the input where it does not. */
#ifndef TESTS_RING_MUST_H
#define TESTS_RING_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define MUST(condition) do { \
	if (!(condition)) { \
		fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
		abort(); \
	} \
} while (0)

#endif /* TESTS_RING_MUST_H */
