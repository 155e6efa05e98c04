/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the ring needs of its surroundings: in the kernel its own
 * macros, in user space (tests, fuzzers) the same macros over compiler builtins.
 */
#ifndef HALL_RING_ENV_H
#define HALL_RING_ENV_H

#ifdef __KERNEL__

#include <linux/atomic.h>
#include <linux/compiler.h>
#include <linux/minmax.h>
#include <linux/types.h>
#include <asm/barrier.h>
#include <asm/sync_bitops.h>

/* Locks the bus also where this kernel runs on one CPU: the peer has another. */
#define virt_cmpxchg(p, old, new)	sync_cmpxchg((p), (old), (new))

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
/* Not by the virt_ ones: tests hook those, and no peer touches these words. */
#define smp_load_acquire(p)	__atomic_load_n((p), __ATOMIC_ACQUIRE)
#define smp_store_release(p, v)	__atomic_store_n((p), (v), __ATOMIC_RELEASE)
/* A locked instruction rather than a fence: ThreadSanitizer follows it. */
static inline void virt_mb(void)
{
	static int word;

	__atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
}

/* Returns what was there. */
static inline u64 virt_cmpxchg(__u64 *word, u64 old, u64 new)
{
	__u64 found = old;

	__atomic_compare_exchange_n(word, &found, (__u64)new, false,
				    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return found;
}

#define noinline
#define min_t(type, a, b)	((type)(a) < (type)(b) ? (type)(a) : (type)(b))
#define max_t(type, a, b)	((type)(a) > (type)(b) ? (type)(a) : (type)(b))

#endif /* __KERNEL__ */

#endif /* HALL_RING_ENV_H */
