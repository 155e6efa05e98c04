/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of the kernel as kmod/transport/shared needs besides, in one thread: a
 * clock and work items that run when the test lets time pass, a page allocator,
 * and a hook before each access to shared memory, where a peer may act.
 */
#ifndef TESTS_RING_SHIM_PAGES_H
#define TESTS_RING_SHIM_PAGES_H

#include "lists.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>

static inline ssize_t strscpy(char *to, const char *from, size_t size)
{
	snprintf(to, size, "%s", from);
	return 0;
}

/* Each access to shared memory, and each barrier */

void shim_hook(void);

#undef READ_ONCE
#undef WRITE_ONCE
#define READ_ONCE(x)		(shim_hook(), __atomic_load_n(&(x), __ATOMIC_RELAXED))
#define WRITE_ONCE(x, v)	(shim_hook(), __atomic_store_n(&(x), (v), __ATOMIC_RELAXED))
#define virt_load_acquire(p)	(shim_hook(), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define virt_store_release(p, v) (shim_hook(), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define xchg(p, v)		(shim_hook(), __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST))
#define virt_rmb()		shim_hook()
#define virt_wmb()		shim_hook()
#define cpu_relax()		shim_hook()

static inline void sync_set_bit(unsigned int bit, unsigned long *words)
{
	shim_hook();
	words[bit / 64] |= 1UL << bit % 64;
}

/* Returns what was there. */
static inline u64 sync_cmpxchg(__u64 *word, __u64 old, __u64 new)
{
	shim_hook();
	__atomic_compare_exchange_n(word, &old, new, false, __ATOMIC_SEQ_CST,
				    __ATOMIC_SEQ_CST);
	return old;
}

#define preempt_disable()	((void)0)
#define preempt_enable()	((void)0)
#define lockdep_assert_preemption_disabled()	((void)0)

#define BITS_TO_LONGS(bits)	(((bits) + 63) / 64)
#define for_each_set_bit(bit, words, bits) \
	for (bit = 0; bit < (bits); bit++) \
		if ((words)[(bit) / 64] & 1UL << (bit) % 64)

#define __ffs64(word)		((unsigned int)__builtin_ctzll(word))

static inline u64 ror64(u64 word, unsigned int shift)
{
	return word >> (shift & 63) | word << (-shift & 63);
}

#define bitmap_zalloc(bits, gfp)	kcalloc(BITS_TO_LONGS(bits), 8, gfp)
#define bitmap_free(words)	kfree(words)

static inline bool test_bit(unsigned int bit, const unsigned long *words)
{
	return words[bit / 64] & 1UL << bit % 64;
}

static inline void __set_bit(unsigned int bit, unsigned long *words)
{
	words[bit / 64] |= 1UL << bit % 64;
}

static inline bool __test_and_set_bit(unsigned int bit, unsigned long *words)
{
	bool set = words[bit / 64] & 1UL << bit % 64;

	words[bit / 64] |= 1UL << bit % 64;
	return set;
}

static inline void __clear_bit(unsigned int bit, unsigned long *words)
{
	words[bit / 64] &= ~(1UL << bit % 64);
}

#define min(a, b)		((a) < (b) ? (a) : (b))
#define max(a, b)		((a) > (b) ? (a) : (b))
#define min_t(type, a, b)	((type)(a) < (type)(b) ? (type)(a) : (type)(b))

/* Memory */

static inline void *kmalloc(size_t size, gfp_t gfp)
{
	(void)gfp;
	return shim_no_memory ? NULL : malloc(size);
}

#define kmalloc_array(n, size, gfp)	kmalloc((n) * (size), gfp)
#define kcalloc(n, size, gfp)		kzalloc((n) * (size), gfp)

#define PAGE_SHIFT	12
#define NUMA_NO_NODE	(-1)
#define SHIM_POOL_PAGES	1024

/* One chunk; the first place that is large enough is taken. */
struct gen_pool {
	unsigned long start;
	size_t pages;
	bool used[SHIM_POOL_PAGES];
};

static inline struct gen_pool *gen_pool_create(int order, int node)
{
	MUST(order == PAGE_SHIFT && node == NUMA_NO_NODE);
	return kzalloc(sizeof(struct gen_pool), GFP_KERNEL);
}

static inline int gen_pool_add(struct gen_pool *pool, unsigned long start,
			       size_t size, int node)
{
	MUST(node == NUMA_NO_NODE && !pool->start && start % 4096 == 0);
	MUST(size && size % 4096 == 0 && size / 4096 <= SHIM_POOL_PAGES);
	pool->start = start;
	pool->pages = size / 4096;
	return 0;
}

static inline unsigned long gen_pool_alloc(struct gen_pool *pool, size_t size)
{
	size_t pages = (size + 4095) / 4096, at, run = 0;

	for (at = 0; at < pool->pages; at++) {
		run = pool->used[at] ? 0 : run + 1;
		if (run != pages)
			continue;
		at -= pages - 1;
		memset(pool->used + at, true, pages);
		return pool->start + at * 4096;
	}
	return 0;
}

static inline void gen_pool_free(struct gen_pool *pool, unsigned long start,
				 size_t size)
{
	size_t pages = (size + 4095) / 4096, at = (start - pool->start) / 4096;

	MUST(at + pages <= pool->pages);
	for (; pages--; at++) {
		MUST(pool->used[at]);
		pool->used[at] = false;
	}
}

static inline void gen_pool_destroy(struct gen_pool *pool)
{
	MUST(!memchr(pool->used, true, sizeof(pool->used)));
	free(pool);
}

/* One CPU has its own of everything. */

#define alloc_percpu(type) \
	((type *)(shim_no_memory ? NULL : calloc(1, sizeof(type))))
#define free_percpu		free
#define per_cpu_ptr(pointer, cpu)	((void)(cpu), (pointer))
#define for_each_possible_cpu(cpu)	for (cpu = 0; cpu < 1; cpu++)

#define atomic_long_set(v, i)	((v)->counter = (i))
#define atomic_long_read(v)	((v)->counter)
#define atomic_long_add(n, v)	((v)->counter += (n))
#define atomic_long_add_return(n, v)	((v)->counter += (n))

static inline void atomic_long_sub(long n, atomic_long_t *v)
{
	MUST(v->counter >= n);
	v->counter -= n;
}

#define XA_FLAGS_ALLOC1		1
#define XA_FLAGS_LOCK_BH	2
#define xa_init_flags(xa, flags)	memset(xa, 0, sizeof(*(xa)))
#define xa_destroy(xa)			((void)(xa))

/* Pointers of RCU: nothing runs beside their writers. */

#define __rcu
#define spin_lock		spin_lock_bh
#define spin_unlock		spin_unlock_bh
#define list_empty(list)	((list)->next == (list))
#define list_empty_careful	list_empty
#define rcu_dereference(p)	(p)
#define rcu_access_pointer(p)	(p)
#define rcu_assign_pointer(p, v) ((p) = (v))
#define RCU_INIT_POINTER(p, v)	((p) = (v))
#define rcu_dereference_protected(p, condition) ({ MUST(condition); (p); })

static inline bool lockdep_is_held(struct mutex *mutex)
{
	if (pthread_mutex_trylock(&mutex->lock))
		return true;
	pthread_mutex_unlock(&mutex->lock);
	return false;
}

#define init_waitqueue_head(queue)	((void)(queue))
#define wait_event_idle			wait_event

/* Time passes in shim_pass() alone. */

#define HZ		1000
#define jiffies		shim_jiffies
#define MAX_JIFFY_OFFSET	(LONG_MAX / 2 - 1)
#define msecs_to_jiffies(ms)	((unsigned long)(ms))
#define time_before(a, b)	((long)((a) - (b)) < 0)
#define time_after(a, b)	time_before(b, a)
#define time_after_eq(a, b)	(!time_before(a, b))

extern unsigned long shim_jiffies;

typedef int64_t ktime_t;

#define ktime_get()		((ktime_t)shim_jiffies)
#define ktime_add_ms(t, ms)	((t) + (ms))
#define ktime_before(a, b)	((a) < (b))

struct work_struct {
	void (*run)(struct work_struct *work);
};

struct delayed_work {
	struct work_struct work;
	struct delayed_work *next;	/* queued after this one */
	bool queued;
	unsigned long due;
};

#define to_delayed_work(w)	container_of(w, struct delayed_work, work)
#define DECLARE_DELAYED_WORK(name, function) \
	struct delayed_work name = { .work.run = function }
#define INIT_DELAYED_WORK(w, function) \
	(*(w) = (struct delayed_work){ .work.run = function })

#define WQ_UNBOUND	1
#define WQ_FREEZABLE	2
#define WQ_MEM_RECLAIM	4
#define alloc_workqueue(name, flags, max)	((struct workqueue_struct *)malloc(1))
#define destroy_workqueue			free

extern struct delayed_work *shim_queue;

static inline bool queue_delayed_work(struct workqueue_struct *queue,
				      struct delayed_work *work,
				      unsigned long delay)
{
	struct delayed_work **end = &shim_queue;

	(void)queue;
	if (work->queued)
		return false;
	work->queued = true;
	work->due = shim_jiffies + delay;
	work->next = NULL;
	while (*end)
		end = &(*end)->next;
	*end = work;
	return true;
}

static inline bool cancel_delayed_work_sync(struct delayed_work *work)
{
	struct delayed_work **at = &shim_queue;

	if (!work->queued)
		return false;
	while (*at != work)
		at = &(*at)->next;
	*at = work->next;
	work->queued = false;
	return true;
}

static inline bool mod_delayed_work(struct workqueue_struct *queue,
				    struct delayed_work *work,
				    unsigned long delay)
{
	bool queued = cancel_delayed_work_sync(work);

	queue_delayed_work(queue, work, delay);
	return queued;
}

/* Runs what is due now, as long as there is any. */
static inline void shim_run(void)
{
	struct delayed_work *work = shim_queue;

	while (work) {
		if (work->due > shim_jiffies) {
			work = work->next;
			continue;
		}
		cancel_delayed_work_sync(work);
		work->work.run(&work->work);
		work = shim_queue;
	}
}

static inline void shim_pass(unsigned long time)
{
	for (shim_run(); time--; shim_run())
		shim_jiffies++;
}

/* Messages and parameters are for people. */

#define pr_info_ratelimited(...)	((void)0)
#define module_param(name, type, mode)	static_assert(sizeof(name), "")
#define MODULE_PARM_DESC(name, text)	static_assert(sizeof(name), "")

#endif /* TESTS_RING_SHIM_PAGES_H */
