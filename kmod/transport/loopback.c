// SPDX-License-Identifier: GPL-2.0-only
/*
 * The loopback transport: both ends of a connection are in this kernel, in one
 * network namespace or in two. The only member is this kernel.
 *
 * Messages and doorbells are plain calls: their handlers never sleep. Ring memory
 * is reference counted: one for the sender, one for each mapping.
 */
#include "transports.h"

#include <hallway/reason.h>

#include <linux/bottom_half.h>
#include <linux/moduleparam.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/utsname.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

static bool enabled;
module_param_named(loopback, enabled, bool, 0444);
MODULE_PARM_DESC(loopback, "serve connections within this kernel too (default: off)");

/* The most ring memory within this kernel. */
#define POOL_BYTES	(256ul << 20)

/* Precedes the ring, in a page of its own, so that the ring stays aligned. */
struct block {
	refcount_t refs;
	u32 id;
	size_t size;
	struct rcu_work free;
};

static struct hall_member *self;
static struct hall_pool pool;
static DEFINE_XARRAY_FLAGS(blocks, XA_FLAGS_ALLOC1 | XA_FLAGS_LOCK_BH);

static struct block *block_of(struct hallway_ring *ring)
{
	return (void *)ring - PAGE_SIZE;
}

static void block_free(struct work_struct *work)
{
	vfree(container_of(to_rcu_work(work), struct block, free));
}

static void block_put(struct block *block)
{
	if (!refcount_dec_and_test(&block->refs))
		return;
	xa_erase_bh(&blocks, block->id);
	/* map() may be reading it, and vfree() needs process context. */
	INIT_RCU_WORK(&block->free, block_free);
	queue_rcu_work(hall_control_queue, &block->free);
}

static int loopback_alloc(struct hall_member *peer, size_t size,
			  struct hall_memory *memory)
{
	struct block *block = vzalloc(PAGE_SIZE + size);
	u64 id;

	if (!block)
		return -ENOMEM;
	refcount_set(&block->refs, 1);
	block->size = size;
	if (xa_alloc_bh(&blocks, &block->id, block, xa_limit_31b, GFP_KERNEL)) {
		vfree(block);
		return -ENOMEM;
	}
	id = block->id;
	*memory = (struct hall_memory){
		.ring = (void *)block + PAGE_SIZE,
		.size = size,
	};
	memcpy(memory->handle.opaque, &id, sizeof(id));
	return 0;
}

static void loopback_free(struct hall_member *peer, struct hall_memory *memory)
{
	block_put(block_of(memory->ring));
	memory->ring = NULL;
}

static struct hallway_ring *loopback_map(struct hall_member *peer,
					 const struct hallway_handle *handle,
					 size_t size)
{
	struct block *block;
	u64 id;

	memcpy(&id, handle->opaque, sizeof(id));
	rcu_read_lock();
	block = xa_load(&blocks, id);
	if (block && (block->size != size ||
		      !refcount_inc_not_zero(&block->refs)))
		block = NULL;
	rcu_read_unlock();
	return block ? (void *)block + PAGE_SIZE : NULL;
}

static void loopback_unmap(struct hall_member *peer, struct hallway_ring *ring)
{
	block_put(block_of(ring));
}

static bool loopback_intact(struct hall_member *peer)
{
	return true;
}

static void loopback_send(struct hall_member *peer,
			  const struct hallway_message *message)
{
	local_bh_disable();
	hall_transport_handler.message(peer, message);
	local_bh_enable();
}

static void loopback_notify(struct hall_member *peer, u32 endpoint)
{
	local_bh_disable();
	hall_transport_handler.wake(peer, endpoint);
	local_bh_enable();
}

static void loopback_publish(const struct in6_addr *address, unsigned int count)
{
	if (self)
		hall_transport_handler.addresses(self, address, count);
}

static void loopback_release(struct hall_member *member)
{
	kfree(member);
}

static int loopback_init(void)
{
	struct hall_member *member;

	if (!enabled)
		return 0;
	member = kzalloc(sizeof(*member), GFP_KERNEL);
	if (!member)
		return -ENOMEM;
	hall_pool_init(&pool, POOL_BYTES);
	if (hall_member_init(member, &hall_loopback_transport, &pool)) {
		kfree(member);
		return -ENOMEM;
	}
	member->generation = 1;
	get_random_bytes(member->key, sizeof(member->key));
	strscpy(member->name, init_utsname()->nodename, sizeof(member->name));
	hall_transport_handler.arrived(member);
	self = member;
	return 0;
}

static void loopback_uninit(void)
{
	struct hall_member *member = self;

	if (!member)
		return;
	self = NULL;
	hall_transport_handler.departed(member, HALLWAY_REASON_UNLOAD);
	hall_member_drain(member);
	hall_member_put(member);
	/* Blocks may still wait for their vfree(). */
	rcu_barrier();
	flush_workqueue(hall_control_queue);
	xa_destroy(&blocks);
}

const struct hall_transport hall_loopback_transport = {
	.name = "loopback",
	.init = loopback_init,
	.uninit = loopback_uninit,
	.alloc = loopback_alloc,
	.free = loopback_free,
	.map = loopback_map,
	.unmap = loopback_unmap,
	.intact = loopback_intact,
	.send = loopback_send,
	.notify = loopback_notify,
	.publish = loopback_publish,
	.release = loopback_release,
};
