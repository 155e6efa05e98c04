/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of the kernel as kmod/channel needs to run in user space, in one
 * thread: locks that check that they are taken once, counts that may not fall
 * below zero, memory that may be refused.
 */
#ifndef TESTS_RING_SHIM_KERNEL_H
#define TESTS_RING_SHIM_KERNEL_H

#include <errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../must.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef unsigned int gfp_t;

#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, v)	__atomic_store_n(&(x), (v), __ATOMIC_RELAXED)
#define smp_mb()		__atomic_thread_fence(__ATOMIC_SEQ_CST)
#define smp_wmb()		__atomic_thread_fence(__ATOMIC_RELEASE)

#define array_index_nospec(index, size)	(index)

#define GFP_KERNEL 0
#define GFP_ATOMIC 1
#define GFP_NOIO 2

extern bool shim_no_memory;

static inline void *kmemdup(const void *from, size_t size, gfp_t gfp)
{
	void *to = shim_no_memory ? NULL : malloc(size);

	(void)gfp;
	return to ? memcpy(to, from, size) : NULL;
}

#define kfree free

typedef struct {
	bool held;
} spinlock_t;

static inline void spin_lock_init(spinlock_t *lock)
{
	lock->held = false;
}

static inline void spin_lock_bh(spinlock_t *lock)
{
	MUST(!lock->held);
	lock->held = true;
}

static inline void spin_unlock_bh(spinlock_t *lock)
{
	MUST(lock->held);
	lock->held = false;
}

static inline void rcu_read_lock(void)
{
}

static inline void rcu_read_unlock(void)
{
}

struct module;

static inline void __module_get(struct module *module)
{
}

static inline bool try_module_get(struct module *module)
{
	return true;
}

static inline void module_put(struct module *module)
{
}

typedef struct {
	int refs;
} refcount_t;

static inline void refcount_set(refcount_t *r, int n)
{
	r->refs = n;
}

static inline void refcount_inc(refcount_t *r)
{
	MUST(r->refs > 0);
	r->refs++;
}

static inline bool refcount_inc_not_zero(refcount_t *r)
{
	return r->refs ? r->refs++ : 0;
}

static inline bool refcount_dec_and_test(refcount_t *r)
{
	MUST(r->refs > 0);
	return !--r->refs;
}

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	long counter;
} atomic_long_t;

#define atomic_set(v, i)	((v)->counter = (i))
#define atomic_read(v)		((v)->counter)
#define atomic_inc(v)		((v)->counter++)

static inline bool atomic_try_cmpxchg(atomic_t *v, int *old, int new)
{
	if (v->counter != *old) {
		*old = v->counter;
		return false;
	}
	v->counter = new;
	return true;
}

static inline bool atomic_dec_and_test(atomic_t *v)
{
	MUST(v->counter > 0);
	return !--v->counter;
}

static inline void set_bit(unsigned int bit, unsigned long *word)
{
	*word |= 1UL << bit;
}

struct list_head {
	struct list_head *next, *prev;
};

struct workqueue_struct;

typedef struct {
	bool unused;
} wait_queue_head_t;

void shim_wait(void);
#define wake_up(queue)			((void)(queue))
/* No other thread runs that could make it true. */
#define wait_event_timeout(queue, condition, timeout) \
	((void)(queue), (void)(timeout), !!(condition))
#define wait_event(queue, condition)	do { \
	if (!(condition)) \
		shim_wait(); \
	MUST(condition); \
} while (0)

#define SHIM_XARRAY 4096

struct xarray {
	void *entry[SHIM_XARRAY];
	bool locked;
};

struct shim_limit {
	u32 min, max;
};

#define XA_LIMIT(low, high)	((struct shim_limit){ low, high })

static inline int __xa_alloc(struct xarray *xa, u32 *id, void *entry,
			     struct shim_limit limit, gfp_t gfp)
{
	u32 n;

	(void)gfp;
	MUST(xa->locked);
	for (n = limit.min; n <= limit.max; n++) {
		if (xa->entry[n])
			continue;
		xa->entry[n] = entry;
		*id = n;
		return 0;
	}
	return -EBUSY;
}

static inline void *xa_load(struct xarray *xa, unsigned long id)
{
	return id < SHIM_XARRAY ? xa->entry[id] : NULL;
}

static inline void __xa_erase(struct xarray *xa, unsigned long id)
{
	MUST(xa->locked && xa->entry[id]);
	xa->entry[id] = NULL;
}

#define XA_PRESENT		8

static inline void *xa_find(struct xarray *xa, unsigned long *id,
			    unsigned long max, unsigned int filter)
{
	MUST(filter == XA_PRESENT);
	for (; *id <= max && *id < SHIM_XARRAY; ++*id)
		if (xa->entry[*id])
			return xa->entry[*id];
	return NULL;
}

static inline void xa_lock_bh(struct xarray *xa)
{
	MUST(!xa->locked);
	xa->locked = true;
}

static inline void xa_unlock_bh(struct xarray *xa)
{
	MUST(xa->locked);
	xa->locked = false;
}

#define xa_for_each(xa, index, item) \
	for (index = 0; index < SHIM_XARRAY; index++) \
		if (((item) = (xa)->entry[index]))

#define __percpu
#define DECLARE_PER_CPU(type, name)	extern type name
#define this_cpu_add(word, n)		((word) += (n))

/* Any keyed mixing will do: the tests ask for equality alone. */
typedef struct {
	u64 key[2];
} siphash_key_t;

static inline u64 siphash_2u32(u32 a, u32 b, const siphash_key_t *key)
{
	u64 n = ((u64)a << 32 | b) ^ key->key[0];

	n = (n ^ n >> 31) * 0x9e3779b97f4a7c15ULL;
	n = (n ^ n >> 29 ^ key->key[1]) * 0xbf58476d1ce4e5b9ULL;
	return n ^ n >> 32;
}

#endif /* TESTS_RING_SHIM_KERNEL_H */
