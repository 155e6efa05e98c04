/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the ring needs of its surroundings: in the kernel the kernel's own
 * words, in user space (tests, fuzzers) the same words over compiler builtins.
 */
#ifndef HALL_RING_ENV_H
#define HALL_RING_ENV_H

#ifdef __KERNEL__

#include <linux/compiler.h>
#include <linux/minmax.h>
#include <linux/types.h>
#include <asm/barrier.h>

#else

#include <stdbool.h>
#include <stdint.h>
#include <linux/types.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef int32_t s32;
typedef int64_t s64;
typedef uint64_t u64;

#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define virt_load_acquire(p)	__atomic_load_n((p), __ATOMIC_ACQUIRE)
#define virt_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
/* A locked instruction rather than a fence: ThreadSanitizer follows it. */
static inline void virt_mb(void)
{
	static int word;

	__atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
}

#define min_t(type, a, b)	((type)(a) < (type)(b) ? (type)(a) : (type)(b))

#endif /* __KERNEL__ */

#endif /* HALL_RING_ENV_H */
