// SPDX-License-Identifier: GPL-2.0-only
/*
 * How many bytes of ring memory a connection should have. policy.c offers rings,
 * and ends them, by these answers.
 *
 * A ring begins with ring_bytes. One that its writer keeps filling, while its reader
 * keeps up, is shorter than a wake-up: it grows at once to ring_bytes_max. The less
 * memory is left, the smaller is either, so that there is a ring for many before
 * there is a large one for few; and SO_SNDBUF bounds both. Each change of size is
 * a demotion and an offer, a millisecond or two on TCP.
 *
 * Memory is wanted while a connection finds none, or is full and smaller than
 * ring_bytes for want of it. Then a ring begins with the least; one above ring_bytes
 * shrinks to that, full or not, and none grows above it; a smaller one that is not
 * filled shrinks to the least; and the ring of a connection that sent nothing for
 * pause_ms goes, which otherwise takes idle_ms. Sends further apart than pause_ms do
 * not add up to a ring (policy.c), so that no connection earns one by what loses it one.
 *
 * A send that finds space in its ring pays nothing for this: TCP itself notes when
 * it was (lsndtime).
 */
#include "switch.h"

#include <linux/log2.h>
#include <linux/moduleparam.h>

#include "../obs/counters.h"

static unsigned int ring_bytes = 256 << 10;
static unsigned int ring_bytes_max = 4 << 20;

static int set_bytes(const char *text, const struct kernel_param *param)
{
	unsigned int bytes;
	int err = kstrtouint(text, 0, &bytes);

	if (err)
		return err;
	if (!hall_ring_is_valid_size(bytes)) {
		pr_err("hallway: %s=%u: want a power of two from %u to %u\n",
		       param->name, bytes, HALLWAY_RING_MIN, HALLWAY_RING_MAX);
		return -EINVAL;
	}
	WRITE_ONCE(*(unsigned int *)param->arg, bytes);
	return 0;
}

static const struct kernel_param_ops bytes_ops = {
	.set = set_bytes,
	.get = param_get_uint,
};
module_param_cb(ring_bytes, &bytes_ops, &ring_bytes, 0644);
MODULE_PARM_DESC(ring_bytes, "bytes that a ring begins with, a power of two (default: 262144)");
module_param_cb(ring_bytes_max, &bytes_ops, &ring_bytes_max, 0644);
MODULE_PARM_DESC(ring_bytes_max, "bytes that a ring grows to while it is filled and memory is plenty, a power of two; none grows if it is not above ring_bytes (default: 4194304)");

static unsigned int idle_ms = 30000;
module_param(idle_ms, uint, 0644);
MODULE_PARM_DESC(idle_ms, "milliseconds without a send after which a connection's ring is freed (default: 30000)");

static unsigned int pause_ms = 1000;
module_param(pause_ms, uint, 0644);
MODULE_PARM_DESC(pause_ms, "the same, while memory is wanted; sends further apart don't earn a ring (default: 1000)");

#define STEP		4		/* between sizes */
/* A ring above HALL_RING_SHORT takes at most this part of the memory that is left. */
#define PART		8

/* A ring grows when it was full this often. */
#define FULL		2
/* After a refusal a ring keeps its size for this long. */
#define HOLD		HZ
/* A ring that was not full for this long is larger than need be. */
#define UNFILLED	HZ
/* Memory is wanted for this long after the last refusal. */
#define WANTED		(2 * HZ)

static u32 least_bytes(void)
{
	return min(HALL_RING_SHORT, READ_ONCE(ring_bytes));
}

/*
 * A program that sets SO_SNDBUF wants to be stopped once that much, and what the
 * peer's window takes, is on its way: its ring holds no more than both.
 */
static u32 bound(const struct sock *sk, u32 bytes)
{
	u64 buffers = (u64)READ_ONCE(sk->sk_sndbuf) + tcp_sk(sk)->snd_wnd;

	if (!(sk->sk_userlocks & SOCK_SNDBUF_LOCK) || buffers >= bytes)
		return bytes;
	return max_t(u32, roundup_pow_of_two(buffers), HALLWAY_RING_MIN);
}

static bool has_room(const struct hall_member *member, u32 bytes)
{
	return bytes <= least_bytes() ||
	       (s64)(HALLWAY_RING_HEADER + bytes) * PART <=
	       hall_memory_count_left(member);
}

void hall_budget_want(struct hall_sock *hs)
{
	hall_count(HALL_RINGS_REFUSED);
	WRITE_ONCE(hs->channel.member->pool->wanted_at, jiffies);
}

static bool is_wanted(const struct hall_sock *hs)
{
	return time_before(jiffies,
			   READ_ONCE(hs->channel.member->pool->wanted_at) + WANTED);
}

static bool is_paused(const struct hall_sock *hs, unsigned int ms)
{
	return tcp_jiffies32 - READ_ONCE(tcp_sk(hs->sk)->lsndtime) >=
	       msecs_to_jiffies(ms);
}

bool hall_budget_is_new_use(const struct hall_sock *hs)
{
	return is_paused(hs, READ_ONCE(pause_ms));
}

u32 hall_budget_get_smaller(u32 bytes)
{
	return bytes > least_bytes() ? max(bytes / STEP, least_bytes()) : 0;
}

u32 hall_budget_get_offer(const struct hall_sock *hs)
{
	u32 first = is_wanted(hs) ? least_bytes() : READ_ONCE(ring_bytes);
	u32 bytes = bound(hs->sk, hs->demand.bytes ?: first);

	while (!has_room(hs->channel.member, bytes))
		bytes = hall_budget_get_smaller(bytes);
	return bytes;
}

void hall_budget_begin(struct hall_sock *hs)
{
	hs->demand.full = 0;
	hs->demand.head = 0;
	WRITE_ONCE(hs->demand.full_at, jiffies);
}

u32 hall_budget_grow(struct hall_sock *hs)
{
	const struct hall_tx_ring *ring = &hs->tx.ring;
	u32 least = bound(hs->sk, READ_ONCE(ring_bytes));
	struct hall_demand *demand = &hs->demand;
	u32 bytes = least;

	/* Once for each half of a ring: a reader that stands still is no reason. */
	if (ring->head - demand->head < ring->size / 2)
		return ring->size;
	demand->head = ring->head;
	WRITE_ONCE(demand->full_at, jiffies);
	if (++demand->full < FULL || time_before(jiffies, demand->hold_until))
		return ring->size;
	if (!is_wanted(hs))
		bytes = max(least, bound(hs->sk, READ_ONCE(ring_bytes_max)));
	while (bytes > ring->size && !has_room(hs->channel.member, bytes))
		bytes = hall_budget_get_smaller(bytes);
	if (bytes > ring->size)
		return bytes;
	demand->hold_until = jiffies + HOLD;
	if (ring->size < least)
		hall_budget_want(hs);
	return ring->size;
}

u32 hall_budget_shrink(const struct hall_sock *hs)
{
	u32 size = READ_ONCE(hs->tx.ring.size), first = READ_ONCE(ring_bytes);
	bool wanted = is_wanted(hs);

	if (is_paused(hs, READ_ONCE(idle_ms)) ||
	    (wanted && hall_budget_is_new_use(hs)))
		return 0;
	if (!wanted)
		return size;
	if (size > first)
		return first;
	if (time_after(jiffies, READ_ONCE(hs->demand.full_at) + UNFILLED))
		return min(size, least_bytes());
	return size;
}
