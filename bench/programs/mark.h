/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Marks for the plugin that counts instructions; without it they do nothing. */
#ifndef BENCH_MARK_H
#define BENCH_MARK_H

#define MARK_SLOTS 32
#define MARK_BASE 0x48a11000
#define MARK_START 0
#define MARK_STOP MARK_SLOTS
#define MARK_END (2 * MARK_SLOTS)

/* kind: MARK_START, MARK_STOP or MARK_END; slot: 0 to MARK_SLOTS - 1, a constant */
#define mark(kind, slot) \
	__asm__ volatile("nopl %c0(%%rax)" : : "i"(MARK_BASE + (kind) + (slot)) : "memory")

#endif
