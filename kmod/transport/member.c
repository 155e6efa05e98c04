// SPDX-License-Identifier: GPL-2.0-only
/* Members, and the quota of ring memory that each may hold. */
#include "transport.h"

#include <linux/ctype.h>
#include <linux/jiffies.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/string.h>

static unsigned long memory_bytes = ULONG_MAX;
module_param(memory_bytes, ulong, 0444);
MODULE_PARM_DESC(memory_bytes, "ring memory that this guest uses of a region at most (default: all of its slice)");

/* Bytes of members that have departed, of all of them together. */
#define COPIED_MAX	(64L << 20)

/* Between sizes of rings that are made where memory is short. */
#define RING_STEP	4

static atomic_long_t copied;

u32 hall_send_round;

void hall_send_round_next(void)
{
	WRITE_ONCE(hall_send_round, hall_send_round + 1);
}

void hall_pool_init(struct hall_pool *pool, size_t size)
{
	*pool = (struct hall_pool){
		.size = min_t(size_t, size, memory_bytes),
		.wanted_at = jiffies - MAX_JIFFY_OFFSET,
	};
}

int hall_member_init(struct hall_member *member,
		     const struct hall_transport *transport,
		     struct hall_pool *pool)
{
	member->bytes = alloc_percpu(struct hall_member_bytes);
	if (!member->bytes)
		return -ENOMEM;
	member->transport = transport;
	member->pool = pool;
	atomic_long_set(&member->held, 0);
	refcount_set(&member->refs, 1);
	INIT_LIST_HEAD(&member->list);
	INIT_LIST_HEAD(&member->addresses);
	xa_init_flags(&member->endpoints, XA_FLAGS_ALLOC1 | XA_FLAGS_LOCK_BH);
	member->blocks = 1;
	atomic_set(&member->channels, 0);
	atomic_set(&member->tunnels, 0);
	atomic_long_set(&member->charged, 0);
	init_waitqueue_head(&member->idle);
	return 0;
}

void hall_member_copy_name(char *to, const char *from)
{
	strscpy(to, from, HALLWAY_NAME_SIZE);
	for (; *to; to++)
		if (iscntrl(*to))
			*to = '?';
}

struct hall_member_bytes
hall_member_count_bytes(const struct hall_member *member)
{
	struct hall_member_bytes sum = { }, *bytes;
	int cpu;

	for_each_possible_cpu(cpu) {
		bytes = per_cpu_ptr(member->bytes, cpu);
		sum.tx += READ_ONCE(bytes->tx);
		sum.rx += READ_ONCE(bytes->rx);
		sum.sends += READ_ONCE(bytes->sends);
	}
	return sum;
}

void hall_member_drain(struct hall_member *member)
{
	wait_event_idle(member->idle, !atomic_read(&member->channels));
}

void hall_member_put(struct hall_member *member)
{
	if (refcount_dec_and_test(&member->refs)) {
		xa_destroy(&member->endpoints);
		free_percpu(member->bytes);
		member->transport->release(member);
	}
}

bool hall_member_charge(struct hall_member *member, size_t bytes)
{
	if (atomic_long_add_return(bytes, &member->charged) <= member->memory ||
	    !member->memory)
		return true;
	atomic_long_sub(bytes, &member->charged);
	return false;
}

void hall_member_uncharge(struct hall_member *member, size_t bytes)
{
	atomic_long_sub(bytes, &member->charged);
}

bool hall_copied_charge(size_t bytes)
{
	if (atomic_long_add_return(bytes, &copied) <= COPIED_MAX)
		return true;
	atomic_long_sub(bytes, &copied);
	return false;
}

void hall_copied_uncharge(size_t bytes)
{
	atomic_long_sub(bytes, &copied);
}

long hall_memory_count_left(const struct hall_member *peer)
{
	const struct hall_pool *pool = peer->pool;
	long unused = pool->size - atomic_long_read(&pool->used);

	/* held + left <= SHARE * (unused - left) */
	return (HALL_POOL_SHARE * unused - atomic_long_read(&peer->held)) /
	       (HALL_POOL_SHARE + 1);
}

int hall_memory_alloc(struct hall_member *peer, size_t size,
		      struct hall_memory *memory)
{
	int err;

	if ((long)size > hall_memory_count_left(peer))
		return -ENOMEM;
	err = peer->transport->alloc(peer, size, memory);
	if (err)
		return err;
	atomic_long_add(size, &peer->pool->used);
	atomic_long_add(size, &peer->held);
	return 0;
}

int hall_memory_alloc_large(struct hall_member *peer, size_t header, u32 *bytes,
			    struct hall_memory *memory)
{
	long left = hall_memory_count_left(peer);
	long kept = (atomic_long_read(&peer->held) + left) / 2;

	for (; *bytes > HALL_RING_SHORT; kept /= 2) {
		size_t size = header + *bytes;

		if (left - (long)size >= kept && !hall_memory_alloc(peer, size, memory))
			return 0;
		*bytes = max(*bytes / RING_STEP, HALL_RING_SHORT);
	}
	return -ENOMEM;
}

int hall_memory_alloc_ring(struct hall_member *peer, u32 *bytes,
			   struct hall_memory *memory)
{
	if (!hall_memory_alloc_large(peer, HALLWAY_RING_HEADER, bytes, memory))
		return 0;
	return hall_memory_alloc(peer, HALLWAY_RING_HEADER + *bytes, memory);
}

void hall_memory_free(struct hall_member *peer, struct hall_memory *memory)
{
	peer->transport->free(peer, memory);
	atomic_long_sub(memory->size, &peer->held);
	atomic_long_sub(memory->size, &peer->pool->used);
}
