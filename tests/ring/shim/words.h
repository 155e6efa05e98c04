/* SPDX-License-Identifier: GPL-2.0-only */
/* What kmod/outsource/record.c and kmod/tunnel/frame.c need of the kernel. */
#ifndef TESTS_RING_SHIM_WORDS_H
#define TESTS_RING_SHIM_WORDS_H

#include <errno.h>

#define ALIGN(n, to)	(((n) + (to) - 1) / (to) * (to))
#define min(a, b)	((a) < (b) ? (a) : (b))
#define swap(a, b) do { \
	__typeof__(a) swapped = (a); \
	(a) = (b); \
	(b) = swapped; \
} while (0)

#endif /* TESTS_RING_SHIM_WORDS_H */
