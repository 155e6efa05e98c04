// SPDX-License-Identifier: GPL-2.0
/*
 * The ivshmem transport: QEMU's stock devices, served by hallwayd.
 *
 * Theory of operation
 *
 * A VM has one ivshmem-doorbell device for signals alone, and one ivshmem-plain
 * device for each region. Both have the same PCI id; the magic at the start of
 * BAR2 tells the private page from a region.
 *
 * To join a region, control() writes a request into the private page and rings
 * the daemon; the daemon gives the VM a slot, a generation and a slice. The
 * member then formats its slice, sets the slice's magic last, and notifies
 * everyone. A member "arrives" when the table says that it is present and its
 * slice carries the table's generation; it "departs" when the table says
 * otherwise. control() alone changes any of this, under one mutex. It waits for
 * peers where streams have to leave their rings; our heartbeat does not. Sockets
 * of a peer that is gone may stay in the calls of their programs for as long as
 * those like: a work item of the peer's own waits for them, and somebody else only
 * when the region's memory is to go.
 *
 * The doorbell's only interrupt means "look": at the pending bits that every
 * member keeps for us (bit 0: messages), at the member table, and at the
 * private page. The hardirq only schedules the tasklet.
 *
 * Pending bits are the only words with two writers. They are set and taken
 * with instructions that lock the bus also in a kernel that was booted with
 * one CPU, where ordinary atomics lose their LOCK prefix.
 *
 * The devices and their register layout: QEMU docs/specs/ivshmem-spec.rst.
 */
#define pr_fmt(fmt) "hallway: ivshmem: " fmt

#include "bounds.h"
#include "transports.h"

#include <linux/dmi.h>
#include <linux/genalloc.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/utsname.h>
#include <linux/uuid.h>
#include <net/ipv6.h>
#include <asm/sync_bitops.h>

#include <hallway/reason.h>
#include <hallway/ring.h>

#include "../obs/counters.h"

#define IVSHMEM_VENDOR	0x1af4
#define IVSHMEM_DEVICE	0x1110
#define REG_DOORBELL	12		/* (peer id << 16) | vector */

#define HEARTBEAT	(HZ / 2)
/*
 * A silent member's heartbeat was looked at so often, a little faster than it beats,
 * and was the same: the member is dead for 1.75 s, and for 2.7 s at most, so that
 * others know within 3 s on a machine that takes its time.
 */
#define SILENT		5
#define LISTEN		(9 * HZ / 20)
static_assert(SILENT * LISTEN - HEARTBEAT >= HALL_SILENCE);
#define LISTEN_MS	400		/* at least between two looks that count */
#define ANSWER_DUE	10		/* looks until we say that none came */
/* Doorbells in one jiffy from which on the vector is masked until the next. */
#define STORM		512
#define BACKLOG_RETRY	msecs_to_jiffies(1)
#define SETTLE_RETRY	msecs_to_jiffies(10)

struct doorbell {
	struct list_head list;
	struct pci_dev *pdev;
	void __iomem *regs;
	struct hallway_page *page;
	struct tasklet_struct tasklet;
	struct timer_list storm_end;
	unsigned long storm_jiffy;
	unsigned int storm_count;	/* interrupts in that jiffy */
	bool closing;
	bool greeted;
	/* The neighbours, as the page last told them. */
	u32 neighbours_seq;
	unsigned int neighbour_count;
	struct in6_addr neighbour[HALLWAY_NEIGHBOURS_MAX];
};

enum region_state {
	REGION_IDLE,
	REGION_ASKED,
	REGION_JOINED,
	REGION_FULL,		/* refused until a member leaves */
	REGION_REFUSED,		/* for good */
};

struct region {
	struct list_head list;		/* RCU: the tasklet walks it */
	refcount_t refs;		/* the device, and each peer */
	struct pci_dev *pdev;
	struct hallway_region *shared;
	u64 size;
	u32 slots;
	u8 uuid[16];
	u8 key[16];
	enum region_state state;
	unsigned int silent;		/* heartbeats without an answer */
	bool told_full;			/* so was the user */
	/* The rest is valid from REGION_ASKED on. */
	struct doorbell *doorbell;
	unsigned int entry;		/* in the private page */
	u32 serial;
	u32 change;			/* of the member table, as last seen */
	/* The rest is valid while REGION_JOINED. */
	u32 slot;
	u32 generation;
	bool unsettled;			/* a present member has not arrived */
	struct hallway_slice *slice;
	u32 heartbeat;			/* beat() only */
	struct gen_pool *pool;		/* ring memory of our slice */
	struct hall_pool budget;	/* and how much of it is used */
	struct list_head departed;	/* peers that left, and have channels yet */
	struct hall_member_bytes departed_bytes; /* with those that have none */
	spinlock_t departed_lock;	/* the two above */
	wait_queue_head_t settled;	/* woken when a peer has no channel left */
	struct peer __rcu *peer[HALLWAY_SLOTS_MAX];
};

struct peer {
	struct hall_member member;
	struct region *region;
	u64 slice_size;
	struct hallway_slice *slice;	/* of the peer */
	struct hallway_mailbox *out;	/* in our slice */
	struct hallway_mailbox *in;		/* in the peer's slice */
	u32 address_seq;
	u32 heartbeat;			/* as last seen */
	unsigned int missed;		/* since then */
	ktime_t listened;
	u32 in_tail;			/* tasklet only */
	spinlock_t lock;		/* out_head and backlog */
	u32 out_head;
	struct list_head backlog;	/* messages that found the mailbox full */
	unsigned int backlogged;	/* so many */
	struct delayed_work retry;
	struct list_head list;		/* region->departed */
	struct delayed_work settle;
};

struct queued {
	struct list_head list;
	struct hallway_message message;
};

static DEFINE_MUTEX(mutex);		/* everything but what says otherwise */
static LIST_HEAD(doorbells);
static LIST_HEAD(regions);
static uuid_t vm_uuid;
static struct in6_addr local_address[HALLWAY_ADDRESSES_MAX];
static unsigned int local_count;

static void control(struct work_struct *work);
static DECLARE_DELAYED_WORK(control_work, control);

static struct workqueue_struct *beat_workqueue;
static void beat(struct work_struct *work);
static DECLARE_DELAYED_WORK(beat_work, beat);

static struct peer *peer_of(struct hall_member *member)
{
	return container_of(member, struct peer, member);
}

static struct hallway_mailbox *box_at(struct hallway_slice *slice, u32 slot)
{
	return (struct hallway_mailbox *)(slice + 1) + slot;
}

static struct peer *peer_at(struct region *region, u32 slot)
{
	return rcu_dereference_protected(region->peer[slot],
					 lockdep_is_held(&mutex));
}

static u64 slice_overhead(const struct region *region)
{
	return sizeof(struct hallway_slice) +
	       (u64)region->slots * sizeof(struct hallway_mailbox);
}

static void region_put(struct region *region)
{
	if (refcount_dec_and_test(&region->refs))
		kfree(region);
}

static void kick(struct doorbell *doorbell, u16 id)
{
	if (id)
		writel((u32)id << 16, doorbell->regs + REG_DOORBELL);
}

static struct hallway_reply *reply_of(struct region *region)
{
	return &region->doorbell->page->entry[region->entry].reply;
}

/* Mailboxes */

/* False: the index is of another pair of generations, and means nothing. */
static bool box_index(struct hallway_mailbox_index *shared, u32 sender,
		      u32 receiver, u32 *index)
{
	if (virt_load_acquire(&shared->sender_generation) != sender ||
	    virt_load_acquire(&shared->receiver_generation) != receiver)
		return false;
	*index = virt_load_acquire(&shared->index);
	return true;
}

static void box_index_reset(struct hallway_mailbox_index *shared, u32 sender,
			    u32 receiver)
{
	WRITE_ONCE(shared->sender_generation, 0);
	virt_wmb();
	WRITE_ONCE(shared->index, 0);
	WRITE_ONCE(shared->receiver_generation, receiver);
	virt_store_release(&shared->sender_generation, sender);
}

static void ivshmem_notify(struct hall_member *member, u32 endpoint)
{
	struct peer *peer = peer_of(member);
	struct region *region = peer->region;

	if (endpoint >= HALLWAY_ENDPOINTS_MAX)
		return;
	sync_set_bit(endpoint, (unsigned long *)peer->out->pending);
	hall_count(HALL_DOORBELLS_SENT);
	kick(region->doorbell, READ_ONCE(reply_of(region)->doorbell[member->slot]));
}

/* Under peer->lock. False: the mailbox is full. */
static bool box_put(struct peer *peer, const struct hallway_message *message)
{
	u32 tail;
	int messages;

	/* The peer took none yet if it has not found the mailbox. */
	if (!box_index(&peer->out->tail, peer->region->generation,
		       peer->member.generation, &tail))
		tail = 0;
	messages = hall_mailbox_messages(peer->out_head, tail);
	/* An impossible tail looks like a full mailbox: the peer's own loss. */
	if (messages < 0 || messages == HALLWAY_MAILBOX_MESSAGES)
		return false;
	memcpy(peer->out->message[peer->out_head % HALLWAY_MAILBOX_MESSAGES],
	       message, sizeof(*message));
	peer->out_head++;
	virt_store_release(&peer->out->head.index, peer->out_head);
	return true;
}

static void backlog_retry(struct work_struct *work)
{
	struct peer *peer = container_of(to_delayed_work(work), struct peer,
					 retry);
	struct queued *queued, *next;
	bool left;

	spin_lock_bh(&peer->lock);
	list_for_each_entry_safe(queued, next, &peer->backlog, list) {
		if (!box_put(peer, &queued->message))
			break;
		list_del(&queued->list);
		kfree(queued);
		peer->backlogged--;
	}
	left = !list_empty(&peer->backlog);
	spin_unlock_bh(&peer->lock);
	ivshmem_notify(&peer->member, 0);
	if (left && !READ_ONCE(peer->member.departed))
		queue_delayed_work(hall_workqueue, &peer->retry, BACKLOG_RETRY);
}

static void ivshmem_send(struct hall_member *member,
			 const struct hallway_message *message)
{
	struct peer *peer = peer_of(member);
	struct queued *queued = NULL;
	bool much;

	/* Who departs waits for those who did not know, and ends their retry. */
	rcu_read_lock();
	if (READ_ONCE(member->departed))
		goto unlock;
	spin_lock_bh(&peer->lock);
	if (peer->backlogged || !box_put(peer, message)) {
		/*
		 * A peer that reads nothing may offer without end, and have us
		 * decline, or accept and be through with it. One that stands
		 * still is owed a few words for each of its endpoints.
		 */
		much = peer->backlogged >=
		       (message->type == HALLWAY_DECLINE ?
			HALLWAY_MAILBOX_MESSAGES : 4 * HALLWAY_ENDPOINTS_MAX);
		if (!much)
			queued = kmalloc(sizeof(*queued), GFP_ATOMIC);
		if (queued) {
			queued->message = *message;
			list_add_tail(&queued->list, &peer->backlog);
			peer->backlogged++;
		} else {
			hall_count(HALL_MESSAGES_LOST);
		}
	}
	spin_unlock_bh(&peer->lock);
	if (queued)
		queue_delayed_work(hall_workqueue, &peer->retry, BACKLOG_RETRY);
	else
		ivshmem_notify(member, 0);
unlock:
	rcu_read_unlock();
}

static void box_receive(struct peer *peer)
{
	u32 sender = peer->member.generation;
	u32 receiver = peer->region->generation;
	struct hallway_message message;
	u32 head;

	/* A peer that is about to leave, or to arrive. */
	if (!box_index(&peer->in->head, sender, receiver, &head))
		return;
	if (hall_mailbox_messages(head, peer->in_tail) < 0) {
		hall_count(HALL_CORRUPT_MESSAGES);
		return;
	}
	while (peer->in_tail != head) {
		memcpy(&message,
		       peer->in->message[peer->in_tail % HALLWAY_MAILBOX_MESSAGES],
		       sizeof(message));
		peer->in_tail++;
		virt_store_release(&peer->in->tail.index, peer->in_tail);
		hall_transport_handler.message(&peer->member, &message);
	}
}

static void peer_look(struct peer *peer)
{
	unsigned int words = 1 + atomic_read(&peer->member.endpoint_high) / 64;
	u64 *pending = peer->in->pending;
	unsigned int word, bit;
	unsigned long set;

	for (word = 0; word < words; word++) {
		if (!READ_ONCE(pending[word]))
			continue;
		set = xchg(&pending[word], 0);
		for_each_set_bit(bit, &set, 64) {
			if (word == 0 && bit == 0) {
				box_receive(peer);
				mod_delayed_work(hall_workqueue, &control_work, 0);
			} else {
				hall_transport_handler.wake(&peer->member,
							    word * 64 + bit);
			}
		}
	}
}

/* Ring memory */

static int ivshmem_alloc(struct hall_member *member, size_t size,
			 struct hall_memory *memory)
{
	struct region *region = peer_of(member)->region;
	unsigned long address = gen_pool_alloc(region->pool, size);
	u64 place[2];

	if (!address)
		return -ENOMEM;
	place[0] = address - (unsigned long)region->slice;
	place[1] = size;
	*memory = (struct hall_memory){ .ring = (void *)address, .size = size };
	memcpy(memory->handle.opaque, place, sizeof(place));
	return 0;
}

static void ivshmem_free(struct hall_member *member, struct hall_memory *memory)
{
	gen_pool_free(peer_of(member)->region->pool,
		      (unsigned long)memory->ring, memory->size);
	memory->ring = NULL;
}

static struct hallway_ring *ivshmem_map(struct hall_member *member,
					const struct hallway_handle *handle,
					size_t size)
{
	struct peer *peer = peer_of(member);
	u64 place[2];

	memcpy(place, handle->opaque, sizeof(place));
	if (place[1] != size || !hall_page_aligned(place[0]) ||
	    !hall_within(place[0], size, slice_overhead(peer->region),
			 peer->slice_size))
		return NULL;
	return (void *)peer->slice + place[0];
}

static void ivshmem_unmap(struct hall_member *member, struct hallway_ring *ring)
{
}

static bool ivshmem_intact(struct hall_member *member)
{
	struct region *region = peer_of(member)->region;

	virt_rmb();
	return READ_ONCE(region->shared->member[member->slot].generation) ==
	       member->generation;
}

static void ivshmem_release(struct hall_member *member)
{
	struct peer *peer = peer_of(member);
	struct queued *queued, *next;

	list_for_each_entry_safe(queued, next, &peer->backlog, list)
		kfree(queued);
	region_put(peer->region);
	kfree(peer);
}

/* Addresses */

static void slice_publish(struct hallway_slice *slice)
{
	u32 seq = READ_ONCE(slice->address_seq) | 1;

	WRITE_ONCE(slice->address_seq, seq);
	virt_wmb();
	memcpy(slice->address, local_address, sizeof(slice->address));
	WRITE_ONCE(slice->address_count, local_count);
	virt_store_release(&slice->address_seq, seq + 1);
}

static void region_notify_all(struct region *region)
{
	unsigned int slot;

	for (slot = 0; slot < region->slots; slot++) {
		if (slot == region->slot)
			continue;
		sync_set_bit(0, (unsigned long *)box_at(region->slice, slot)->pending);
		kick(region->doorbell, READ_ONCE(reply_of(region)->doorbell[slot]));
	}
}

/* Tells the daemon where this guest is. */
static void home_publish(struct doorbell *doorbell)
{
	struct hallway_home *home = &doorbell->page->home;
	u32 seq = READ_ONCE(home->seq) | 1;
	unsigned int count = min_t(unsigned int, local_count, HALLWAY_HOME_MAX);

	WRITE_ONCE(home->seq, seq);
	virt_wmb();
	memcpy(home->address, local_address, count * sizeof(*local_address));
	WRITE_ONCE(home->count, count);
	virt_store_release(&home->seq, seq + 1);
	kick(doorbell, HALLWAY_DAEMON_ID);
}

static void ivshmem_publish(const struct in6_addr *address, unsigned int count)
{
	struct doorbell *doorbell;
	struct region *region;

	mutex_lock(&mutex);
	local_count = count;
	memcpy(local_address, address, count * sizeof(*address));
	list_for_each_entry(doorbell, &doorbells, list)
		home_publish(doorbell);
	list_for_each_entry(region, &regions, list) {
		if (region->state != REGION_JOINED)
			continue;
		slice_publish(region->slice);
		region_notify_all(region);
	}
	mutex_unlock(&mutex);
}

/* Takes the daemon's list of neighbours in, if it is another one. */
static void neighbours_read(struct doorbell *doorbell)
{
	struct hallway_neighbours *shared = &doorbell->page->neighbours;
	u32 seq = virt_load_acquire(&shared->seq);
	u32 count = READ_ONCE(shared->count);

	/* The daemon rings when it has written. */
	if (seq == doorbell->neighbours_seq || (seq & 1) ||
	    count > HALLWAY_NEIGHBOURS_MAX)
		return;
	memcpy(doorbell->neighbour, shared->address,
	       count * sizeof(*doorbell->neighbour));
	virt_rmb();
	if (READ_ONCE(shared->seq) != seq)
		return;
	doorbell->neighbour_count = count;
	doorbell->neighbours_seq = seq;
	hall_transport_handler.neighbours(doorbell->neighbour, count);
}

static void neighbours_want(struct doorbell *doorbell,
			    const struct in6_addr *address, unsigned int count)
{
	struct hallway_wanted *shared = &doorbell->page->wanted;
	unsigned int i, n;
	u64 set = 0;

	for (i = 0; i < count; i++)
		for (n = 0; n < doorbell->neighbour_count; n++)
			if (ipv6_addr_equal(&address[i], &doorbell->neighbour[n]))
				set |= BIT_ULL(n);
	if (READ_ONCE(shared->seq) == doorbell->neighbours_seq &&
	    READ_ONCE(shared->set) == set)
		return;
	WRITE_ONCE(shared->seq, 0);
	virt_wmb();
	WRITE_ONCE(shared->set, set);
	virt_store_release(&shared->seq, doorbell->neighbours_seq);
	if (set)
		kick(doorbell, HALLWAY_DAEMON_ID);
}

static void ivshmem_want(const struct in6_addr *address, unsigned int count)
{
	struct doorbell *doorbell;

	mutex_lock(&mutex);
	list_for_each_entry(doorbell, &doorbells, list)
		neighbours_want(doorbell, address, count);
	mutex_unlock(&mutex);
}

static void peer_read_addresses(struct peer *peer)
{
	struct in6_addr *address;
	u32 seq, count, taken = 0, i;
	unsigned int try;

	if (virt_load_acquire(&peer->slice->address_seq) == peer->address_seq)
		return;
	address = kmalloc_array(HALLWAY_ADDRESSES_MAX, sizeof(*address),
				GFP_KERNEL);
	if (!address)
		return;
	for (try = 0; try < 100; try++, cpu_relax()) {
		seq = virt_load_acquire(&peer->slice->address_seq);
		count = READ_ONCE(peer->slice->address_count);
		if ((seq & 1) || count > HALLWAY_ADDRESSES_MAX)
			continue;
		memcpy(address, peer->slice->address, count * sizeof(*address));
		virt_rmb();
		if (READ_ONCE(peer->slice->address_seq) != seq)
			continue;
		peer->address_seq = seq;
		for (i = 0; i < count; i++)
			if (hall_address_travels(&address[i]))
				address[taken++] = address[i];
		hall_transport_handler.addresses(&peer->member, address, taken);
		break;
	}
	kfree(address);
}

/* Members */

static bool slice_valid(const struct region *region, u64 offset, u64 size)
{
	return hall_page_aligned(offset) && hall_page_aligned(size) &&
	       hall_within(offset, size, HALLWAY_HEADER_SIZE, region->size) &&
	       size > slice_overhead(region);
}

static void add_bytes(struct hall_member_bytes *sum, const struct peer *peer)
{
	struct hall_member_bytes bytes = hall_member_bytes(&peer->member);

	sum->tx += bytes.tx;
	sum->rx += bytes.rx;
}

static void peer_settle(struct work_struct *work)
{
	struct peer *peer = container_of(to_delayed_work(work), struct peer, settle);
	struct region *region = peer->region;

	/* Not waited for: the work that ends the channels is in this queue too. */
	if (atomic_read(&peer->member.channels)) {
		queue_delayed_work(hall_workqueue, &peer->settle, SETTLE_RETRY);
		return;
	}
	spin_lock(&region->departed_lock);
	add_bytes(&region->departed_bytes, peer);
	list_del(&peer->list);
	spin_unlock(&region->departed_lock);
	wake_up(&region->settled);
	hall_member_put(&peer->member);
}

static void peer_depart(struct peer *peer, u32 reason)
{
	struct region *region = peer->region;

	/* While its answers are heard. */
	if (reason != HALLWAY_REASON_PEER_LEFT)
		hall_transport_handler.leave(&peer->member, reason);
	spin_lock(&region->departed_lock);
	list_add_tail(&peer->list, &region->departed);
	spin_unlock(&region->departed_lock);
	rcu_assign_pointer(region->peer[peer->member.slot], NULL);
	synchronize_rcu();
	hall_transport_handler.departed(&peer->member, reason);
	/* The next member in this slot has the same mailboxes. */
	cancel_delayed_work_sync(&peer->retry);
	pr_info("member %u (%s) left\n", peer->member.slot, peer->member.name);
	queue_delayed_work(hall_workqueue, &peer->settle, 0);
}

static void peer_arrive(struct region *region, u32 slot,
			const struct hallway_member *entry)
{
	struct hallway_slice *slice = (void *)region->shared + entry->slice_offset;
	struct peer *peer;

	if (virt_load_acquire(&slice->magic) != HALLWAY_SLICE_MAGIC ||
	    READ_ONCE(slice->generation) != entry->generation) {
		region->unsettled = true;
		return;
	}
	peer = kzalloc(sizeof(*peer), GFP_KERNEL);
	if (!peer || hall_member_init(&peer->member, &hall_ivshmem_transport,
				      &region->budget)) {
		kfree(peer);
		region->unsettled = true;
		return;
	}
	peer->member.slot = slot;
	peer->member.generation = entry->generation;
	memcpy(peer->member.uuid, entry->uuid, sizeof(entry->uuid));
	memcpy(peer->member.key, region->key, sizeof(region->key));
	strscpy(peer->member.name, entry->name, sizeof(entry->name));
	refcount_inc(&region->refs);
	peer->region = region;
	peer->slice = slice;
	peer->slice_size = entry->slice_size;
	peer->out = box_at(region->slice, slot);
	peer->in = box_at(slice, region->slot);
	peer->address_seq = ~0;
	spin_lock_init(&peer->lock);
	INIT_LIST_HEAD(&peer->backlog);
	INIT_DELAYED_WORK(&peer->retry, backlog_retry);
	INIT_DELAYED_WORK(&peer->settle, peer_settle);

	box_index_reset(&peer->in->tail, entry->generation, region->generation);
	box_index_reset(&peer->out->head, region->generation, entry->generation);
	pr_info("member %u (%s) arrived\n", slot, peer->member.name);
	hall_transport_handler.arrived(&peer->member);
	rcu_assign_pointer(region->peer[slot], peer);
	/* It may have sent before we looked. */
	tasklet_schedule(&region->doorbell->tasklet);
}

static void region_lose_peers(struct region *region, u32 reason)
{
	struct peer *peer;
	u32 slot;

	for (slot = 0; slot < region->slots; slot++) {
		peer = peer_at(region, slot);
		if (peer)
			peer_depart(peer, reason);
	}
}

/* The daemon may have given slot and slice to another member meanwhile. */
static bool own_slot(const struct region *region)
{
	return READ_ONCE(region->shared->member[region->slot].generation) ==
	       region->generation;
}

static void region_unjoin(struct region *region, u32 reason)
{
	region_lose_peers(region, reason);
	wait_event(region->settled, list_empty_careful(&region->departed));
	WRITE_ONCE(region->state, REGION_IDLE);
	/* Whoever beats its heart has seen that. */
	synchronize_rcu();
	if (own_slot(region))
		WRITE_ONCE(region->slice->magic, 0);
	gen_pool_destroy(region->pool);
	region->pool = NULL;
}

/* The table's entry of a slot, taken once; name always ends. */
static void read_entry(struct region *region, u32 slot,
		       struct hallway_member *entry)
{
	memcpy(entry, &region->shared->member[slot], sizeof(*entry));
	entry->name[HALLWAY_NAME_SIZE - 1] = 0;
}

static int ivshmem_own(int (*fn)(const struct hall_own *own, void *data),
		       void *data)
{
	struct hall_own own = { .transport = &hall_ivshmem_transport };
	struct hallway_member entry;
	struct region *region;
	int err = mutex_lock_killable(&mutex);

	if (err)
		return err;
	own.address = local_address;
	own.addresses = local_count;
	list_for_each_entry(region, &regions, list) {
		if (region->state != REGION_JOINED)
			continue;
		read_entry(region, region->slot, &entry);
		own.slot = region->slot;
		own.generation = region->generation;
		memcpy(own.uuid, entry.uuid, sizeof(own.uuid));
		strscpy(own.name, entry.name, sizeof(own.name));
		err = fn(&own, data);
		if (err)
			break;
	}
	mutex_unlock(&mutex);
	return err;
}

static void region_scan(struct region *region)
{
	u32 change = virt_load_acquire(&region->shared->change), slot;
	struct hallway_member entry;
	struct peer *peer;

	if (change == region->change && !region->unsettled)
		goto addresses;
	region->change = change;
	region->unsettled = false;
	read_entry(region, region->slot, &entry);
	if (entry.state != HALLWAY_MEMBER_PRESENT ||
	    entry.generation != region->generation) {
		pr_warn("no longer a member of region %pUb: joining anew\n",
			region->uuid);
		region_unjoin(region, HALLWAY_REASON_PEER_LEFT);
		return;
	}
	for (slot = 0; slot < region->slots; slot++) {
		if (slot == region->slot)
			continue;
		read_entry(region, slot, &entry);
		peer = peer_at(region, slot);
		if (peer && (entry.state != HALLWAY_MEMBER_PRESENT ||
			     entry.generation != peer->member.generation)) {
			peer_depart(peer, HALLWAY_REASON_PEER_LEFT);
			peer = NULL;
		}
		if (!peer && entry.state == HALLWAY_MEMBER_PRESENT &&
		    slice_valid(region, entry.slice_offset, entry.slice_size))
			peer_arrive(region, slot, &entry);
	}
addresses:
	for (slot = 0; slot < region->slots; slot++) {
		peer = peer_at(region, slot);
		if (peer && peer->missed < SILENT)
			peer_read_addresses(peer);
	}
}

/* Joining */

/* Returns the serial that the reply will have. */
static u32 request(struct doorbell *doorbell, unsigned int entry, u32 command,
		   const u8 *region)
{
	struct hallway_request *shared = &doorbell->page->entry[entry].request;
	struct hallway_reply *reply = &doorbell->page->entry[entry].reply;
	struct hallway_request request = {
		.major = HALLWAY_MAJOR,
		.minor = HALLWAY_MINOR,
		.command = command,
	};
	u32 serial;

	if (region)
		memcpy(request.region, region, sizeof(request.region));
	memcpy(request.vm, &vm_uuid, sizeof(request.vm));
	strscpy(request.name, init_utsname()->nodename, sizeof(request.name));
	/*
	 * The page outlives the guest: go on from what is there, so that no
	 * old reply passes for the answer. Serial 0 means "no request".
	 */
	serial = max(READ_ONCE(shared->serial), READ_ONCE(reply->serial)) + 1;
	serial += !serial;
	WRITE_ONCE(shared->serial, 0);
	virt_wmb();
	memcpy((void *)shared + sizeof(u32), (void *)&request + sizeof(u32),
	       sizeof(request) - sizeof(u32));
	virt_store_release(&shared->serial, serial);
	kick(doorbell, HALLWAY_DAEMON_ID);
	return serial;
}

/* An entry of the page that no region uses, or HALLWAY_PAGE_ENTRIES. */
static unsigned int free_entry(void)
{
	struct region *region;
	unsigned long used = 0;

	list_for_each_entry(region, &regions, list)
		if (region->state != REGION_IDLE)
			__set_bit(region->entry, &used);
	return find_first_zero_bit(&used, HALLWAY_PAGE_ENTRIES);
}

/*
 * Tells the daemon that this guest takes part, so that it plugs in what the
 * guest lacks. Nobody waits for the reply, and a request that takes the entry
 * before it was read says the same.
 */
static void greet(struct doorbell *doorbell)
{
	unsigned int entry = free_entry();

	doorbell->greeted = true;
	home_publish(doorbell);
	if (entry < HALLWAY_PAGE_ENTRIES)
		request(doorbell, entry, HALLWAY_COMMAND_HELLO, NULL);
}

/*
 * Where a guest came by live migration, KVM delivers no interrupt of the device
 * before MSI-X is enabled anew: QEMU routes the vectors only then. A guest can't
 * tell that it migrated, but does not go without losing its regions.
 */
static void doorbell_rearm(struct doorbell *doorbell)
{
	struct pci_dev *pdev = doorbell->pdev;
	int at = pdev->msix_cap + PCI_MSIX_FLAGS;
	u16 flags;

	pci_read_config_word(pdev, at, &flags);
	pci_write_config_word(pdev, at, flags & ~PCI_MSIX_FLAGS_ENABLE);
	pci_write_config_word(pdev, at, flags);
	/* For those that rang meanwhile. */
	tasklet_schedule(&doorbell->tasklet);
}

static void region_ask(struct region *region)
{
	region->doorbell = list_first_entry_or_null(&doorbells, struct doorbell,
						    list);
	if (!region->doorbell)
		return;
	region->entry = free_entry();
	if (region->entry == HALLWAY_PAGE_ENTRIES) {
		pr_warn_once("more than %u regions: the others stay unused\n",
			     HALLWAY_PAGE_ENTRIES);
		return;
	}
	region->silent = 0;
	region->change = virt_load_acquire(&region->shared->change);
	region->state = REGION_ASKED;
	doorbell_rearm(region->doorbell);
	region->serial = request(region->doorbell, region->entry,
				 HALLWAY_COMMAND_JOIN, region->uuid);
}

static const char *refusal(u32 status)
{
	switch (status) {
	case HALLWAY_STATUS_VERSION:
		return "it speaks another major version: update the older side";
	case HALLWAY_STATUS_UNKNOWN:
		return "it does not serve this region: give the device one of its memory files";
	case HALLWAY_STATUS_FULL:
		return "no slot is left until another VM leaves: give the region more slots";
	case HALLWAY_STATUS_DENIED:
		return "this VM is not allowed in, or another VM has its UUID";
	default:
		return "it found the request malformed";
	}
}

static void region_refused(struct region *region, u32 status,
			   const struct hallway_reply *reply)
{
	bool full = status == HALLWAY_STATUS_FULL;

	if (!full || !region->told_full)
		pr_err("hallwayd %u.%u refused this VM (status %u; this module is %u.%u): %s\n",
		       READ_ONCE(reply->major), READ_ONCE(reply->minor), status,
		       HALLWAY_MAJOR, HALLWAY_MINOR, refusal(status));
	region->told_full = full;
	region->state = full ? REGION_FULL : REGION_REFUSED;
}

static void region_answered(struct region *region)
{
	struct hallway_reply *reply = reply_of(region);
	struct hallway_member entry;
	u32 status, slot;
	u64 start;

	if (virt_load_acquire(&reply->serial) != region->serial) {
		if (++region->silent == ANSWER_DUE)
			pr_warn("hallwayd does not answer: start it, and this guest joins; connections stay on TCP\n");
		return;
	}
	status = READ_ONCE(reply->status);
	slot = READ_ONCE(reply->slot);
	if (status != HALLWAY_STATUS_OK) {
		region_refused(region, status, reply);
		return;
	}
	if (slot >= region->slots)
		goto invalid;
	read_entry(region, slot, &entry);
	if (entry.generation != READ_ONCE(reply->generation) ||
	    !slice_valid(region, entry.slice_offset, entry.slice_size))
		goto invalid;

	region->slot = slot;
	region->generation = entry.generation;
	region->change = virt_load_acquire(&region->shared->change) - 1;
	region->slice = (void *)region->shared + entry.slice_offset;
	start = entry.slice_offset + slice_overhead(region);
	region->pool = gen_pool_create(PAGE_SHIFT, NUMA_NO_NODE);
	if (!region->pool ||
	    gen_pool_add(region->pool, (unsigned long)region->shared + start,
			 entry.slice_size - slice_overhead(region),
			 NUMA_NO_NODE)) {
		pr_err("no memory to join a region\n");
		if (region->pool)
			gen_pool_destroy(region->pool);
		region->state = REGION_REFUSED;
		return;
	}
	hall_pool_init(&region->budget,
		       entry.slice_size - slice_overhead(region));
	memset(region->slice, 0, slice_overhead(region));
	WRITE_ONCE(region->slice->generation, region->generation);
	slice_publish(region->slice);
	virt_store_release(&region->slice->magic, HALLWAY_SLICE_MAGIC);
	smp_store_release(&region->state, REGION_JOINED);
	region->told_full = false;
	pr_info("joined region %pUb as member %u\n", region->uuid, slot);
	region_notify_all(region);
	return;
invalid:
	pr_err("hallwayd gave this VM an impossible slot or slice\n");
	region->state = REGION_REFUSED;
}

/*
 * At each look: does the peer live? Where a busy host stopped this VM, several
 * may come in no time: only those count that have about their distance.
 */
static void peer_listen(struct peer *peer)
{
	u32 heartbeat = READ_ONCE(peer->slice->heartbeat);
	ktime_t now = ktime_get();

	if (heartbeat != peer->heartbeat) {
		if (peer->missed >= SILENT) {
			pr_info("member %u (%s) is heard again\n",
				peer->member.slot, peer->member.name);
			peer->address_seq = ~0;
		}
		peer->heartbeat = heartbeat;
		peer->missed = 0;
		peer->listened = now;
		return;
	}
	if (peer->missed >= SILENT ||
	    ktime_before(now, ktime_add_ms(peer->listened, LISTEN_MS)))
		return;
	peer->listened = now;
	if (++peer->missed < SILENT)
		return;
	pr_info("member %u (%s) is silent\n", peer->member.slot,
		peer->member.name);
	hall_transport_handler.leave(&peer->member, HALLWAY_REASON_SILENT);
}

/* At each look: who else lives, and what we did. */
static void region_listen(struct region *region)
{
	struct hallway_slice *slice = region->slice;
	struct hall_member_bytes sum;
	struct peer *peer;
	u32 slot, channels = 0;

	spin_lock(&region->departed_lock);
	sum = region->departed_bytes;
	list_for_each_entry(peer, &region->departed, list) {
		add_bytes(&sum, peer);
		channels += atomic_read(&peer->member.channels);
	}
	spin_unlock(&region->departed_lock);
	for (slot = 0; slot < region->slots; slot++) {
		peer = peer_at(region, slot);
		if (!peer)
			continue;
		peer_listen(peer);
		add_bytes(&sum, peer);
		channels += atomic_read(&peer->member.channels);
	}
	WRITE_ONCE(slice->tx_bytes, sum.tx);
	WRITE_ONCE(slice->rx_bytes, sum.rx);
	WRITE_ONCE(slice->channels, channels);
}

/*
 * We live. Waits for nobody, as control() does for peers that do not answer: those
 * who can't be heard are not to make us unheard by others.
 */
static void beat(struct work_struct *work)
{
	struct region *region;

	rcu_read_lock();
	list_for_each_entry_rcu(region, &regions, list)
		if (smp_load_acquire(&region->state) == REGION_JOINED &&
		    own_slot(region))
			WRITE_ONCE(region->slice->heartbeat,
				   ++region->heartbeat);
	rcu_read_unlock();
	queue_delayed_work(beat_workqueue, &beat_work, HEARTBEAT);
}

static void control(struct work_struct *work)
{
	static unsigned long listen;
	bool listens = time_after_eq(jiffies, listen);
	struct doorbell *doorbell;
	struct region *region;

	mutex_lock(&mutex);
	if (listens)
		listen = jiffies + LISTEN;
	list_for_each_entry(region, &regions, list) {
		if (region->state == REGION_FULL &&
		    region->change != READ_ONCE(region->shared->change))
			region->state = REGION_IDLE;
		if (region->state == REGION_IDLE)
			region_ask(region);
		if (region->state == REGION_ASKED)
			region_answered(region);
		if (region->state == REGION_JOINED)
			region_scan(region);
		if (region->state == REGION_JOINED && listens)
			region_listen(region);
	}
	list_for_each_entry(doorbell, &doorbells, list) {
		if (!doorbell->greeted)
			greet(doorbell);
		neighbours_read(doorbell);
	}
	if (!list_empty(&regions) || !list_empty(&doorbells))
		queue_delayed_work(hall_workqueue, &control_work,
				   max((long)(listen - jiffies), 0L));
	mutex_unlock(&mutex);
}

/* Devices */

static void doorbell_tasklet(struct tasklet_struct *tasklet)
{
	struct doorbell *doorbell = from_tasklet(doorbell, tasklet, tasklet);
	bool look = READ_ONCE(doorbell->page->neighbours.seq) !=
		    READ_ONCE(doorbell->neighbours_seq);
	struct region *region;
	struct peer *peer;
	u32 slot;

	rcu_read_lock();
	list_for_each_entry_rcu(region, &regions, list) {
		if (READ_ONCE(region->doorbell) != doorbell)
			continue;
		look |= READ_ONCE(region->state) == REGION_ASKED ||
			READ_ONCE(region->unsettled) ||
			READ_ONCE(region->shared->change) != READ_ONCE(region->change);
		for (slot = 0; slot < region->slots; slot++) {
			peer = rcu_dereference(region->peer[slot]);
			if (peer)
				peer_look(peer);
		}
	}
	rcu_read_unlock();
	if (look)
		mod_delayed_work(hall_workqueue, &control_work, 0);
}

static irqreturn_t doorbell_irq(int irq, void *data)
{
	struct doorbell *doorbell = data;

	hall_count(HALL_DOORBELLS_RECEIVED);
	if (doorbell->storm_jiffy != jiffies) {
		doorbell->storm_jiffy = jiffies;
		doorbell->storm_count = 0;
	}
	if (++doorbell->storm_count == STORM && !READ_ONCE(doorbell->closing)) {
		hall_count(HALL_STORMS);
		disable_irq_nosync(irq);
		mod_timer(&doorbell->storm_end, jiffies + 1);
	}
	tasklet_schedule(&doorbell->tasklet);
	return IRQ_HANDLED;
}

static void storm_ended(struct timer_list *timer)
{
	struct doorbell *doorbell = container_of(timer, struct doorbell,
						 storm_end);

	enable_irq(pci_irq_vector(doorbell->pdev, 0));
	/* For the doorbells that rang behind the mask. */
	tasklet_schedule(&doorbell->tasklet);
}

static int doorbell_probe(struct pci_dev *pdev, struct hallway_page *page)
{
	struct doorbell *doorbell;
	u16 major = READ_ONCE(page->major);
	int err;

	if (major != HALLWAY_MAJOR) {
		pci_err(pdev, "hallway: hallwayd speaks version %u, this module %u: update the older side\n",
			major, HALLWAY_MAJOR);
		return -EPROTONOSUPPORT;
	}
	doorbell = kzalloc(sizeof(*doorbell), GFP_KERNEL);
	if (!doorbell)
		return -ENOMEM;
	doorbell->pdev = pdev;
	doorbell->page = page;
	tasklet_setup(&doorbell->tasklet, doorbell_tasklet);
	timer_setup(&doorbell->storm_end, storm_ended, 0);
	doorbell->regs = pci_ioremap_bar(pdev, 0);
	if (!doorbell->regs) {
		err = -ENOMEM;
		goto free;
	}
	pci_set_master(pdev);
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (err < 0) {
		pci_err(pdev, "hallway: no MSI-X vector: the device wants vectors=1\n");
		goto unmap;
	}
	err = request_irq(pci_irq_vector(pdev, 0), doorbell_irq, 0, "hallway",
			  doorbell);
	if (err)
		goto vectors;
	pci_set_drvdata(pdev, doorbell);
	mutex_lock(&mutex);
	list_add_tail(&doorbell->list, &doorbells);
	mutex_unlock(&mutex);
	return 0;
vectors:
	pci_free_irq_vectors(pdev);
unmap:
	iounmap(doorbell->regs);
free:
	kfree(doorbell);
	return err;
}

static void doorbell_remove(struct doorbell *doorbell)
{
	struct pci_dev *pdev = doorbell->pdev;
	struct region *region;

	mutex_lock(&mutex);
	list_del(&doorbell->list);
	list_for_each_entry(region, &regions, list) {
		if (region->doorbell != doorbell)
			continue;
		if (region->state == REGION_JOINED)
			region_unjoin(region, HALLWAY_REASON_REGION_GONE);
		region->state = REGION_IDLE;
		region->doorbell = NULL;
	}
	hall_transport_handler.neighbours(NULL, 0);
	mutex_unlock(&mutex);
	/* No storm begins any more; then none is left to end. */
	WRITE_ONCE(doorbell->closing, true);
	synchronize_irq(pci_irq_vector(pdev, 0));
	timer_delete_sync(&doorbell->storm_end);
	free_irq(pci_irq_vector(pdev, 0), doorbell);
	tasklet_kill(&doorbell->tasklet);
	pci_free_irq_vectors(pdev);
	iounmap(doorbell->regs);
	kfree(doorbell);
}

static int region_probe(struct pci_dev *pdev, struct hallway_region *shared,
			u64 size)
{
	struct region *region;
	u16 major = READ_ONCE(shared->major);

	if (major != HALLWAY_MAJOR) {
		pci_err(pdev, "hallway: the region is of version %u, this module speaks %u: update the older side\n",
			major, HALLWAY_MAJOR);
		return -EPROTONOSUPPORT;
	}
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return -ENOMEM;
	refcount_set(&region->refs, 1);
	INIT_LIST_HEAD(&region->departed);
	spin_lock_init(&region->departed_lock);
	init_waitqueue_head(&region->settled);
	region->pdev = pdev;
	region->shared = shared;
	region->size = size;
	region->slots = READ_ONCE(shared->slots);
	memcpy(region->uuid, shared->uuid, sizeof(region->uuid));
	memcpy(region->key, shared->key, sizeof(region->key));
	if (READ_ONCE(shared->size) != size || region->slots < 2 ||
	    region->slots > HALLWAY_SLOTS_MAX ||
	    READ_ONCE(shared->header_size) != HALLWAY_HEADER_SIZE) {
		pci_err(pdev, "hallway: the region says %llu bytes and %u slots, the device has %llu bytes: give QEMU the size that hallway status shows on the host\n",
			READ_ONCE(shared->size), region->slots, size);
		kfree(region);
		return -EINVAL;
	}
	pci_set_drvdata(pdev, region);
	mutex_lock(&mutex);
	list_add_tail_rcu(&region->list, &regions);
	mutex_unlock(&mutex);
	return 0;
}

static void region_remove(struct region *region)
{
	mutex_lock(&mutex);
	if (region->state == REGION_JOINED) {
		region_unjoin(region, HALLWAY_REASON_REGION_GONE);
		request(region->doorbell, region->entry, HALLWAY_COMMAND_LEAVE,
			region->uuid);
	}
	list_del_rcu(&region->list);
	mutex_unlock(&mutex);
	synchronize_rcu();
	region_put(region);
}

/* The firmware's MTRRs overrule us; rings there would be slower than TCP. */
static bool uncached(const void *address)
{
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)address, &level);

	return pte && (pte_flags(*pte) & (_PAGE_PCD | _PAGE_PWT));
}

static int ivshmem_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	resource_size_t size = pci_resource_len(pdev, 2);
	void *bar;
	u64 magic;
	int err;

	err = pci_enable_device(pdev);
	if (err)
		return err;
	if (!size || !pci_resource_start(pdev, 2)) {
		pci_err(pdev, "hallway: BAR2 has no address: give QEMU's PCI host a larger pci-hole64-size, and on q35 the root port a pref64-reserve, of more than the region's size\n");
		err = -ENODEV;
		goto disable;
	}
	err = pci_request_regions(pdev, "hallway");
	if (err)
		goto disable;
	bar = memremap(pci_resource_start(pdev, 2), size, MEMREMAP_WB);
	if (!bar) {
		err = -ENOMEM;
		goto release;
	}
	magic = size >= sizeof(magic) ? virt_load_acquire((u64 *)bar) : 0;
	if (magic == HALLWAY_PAGE_MAGIC && size >= HALLWAY_PAGE_SIZE) {
		err = doorbell_probe(pdev, bar);
	} else if (magic != HALLWAY_REGION_MAGIC) {
		pci_err(pdev, "hallway: BAR2 starts with magic %#llx, which hallwayd did not write: give ivshmem-doorbell hallwayd's socket, and ivshmem-plain a region's file\n",
			magic);
		err = -ENODEV;
	} else if (size < HALLWAY_SLICE_MIN) {
		pci_err(pdev, "hallway: a region of %llu bytes is too small: give QEMU the size that hallway status shows on the host\n",
			(u64)size);
		err = -EINVAL;
	} else if (uncached(bar)) {
		pci_err(pdev, "hallway: BAR2 at %pa is mapped uncached, which is slower than TCP: plug the region in after boot, so that it lies above 4 GiB\n",
			&pdev->resource[2].start);
		err = -EINVAL;
	} else {
		err = region_probe(pdev, bar, size);
	}
	if (err)
		goto unmap;
	mod_delayed_work(hall_workqueue, &control_work, 0);
	return 0;
unmap:
	memunmap(bar);
release:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
	return err;
}

static void ivshmem_remove(struct pci_dev *pdev)
{
	void *data = pci_get_drvdata(pdev), *bar;
	struct doorbell *doorbell;

	/* It was shut down before. */
	if (!data)
		return;
	pci_set_drvdata(pdev, NULL);
	list_for_each_entry(doorbell, &doorbells, list) {
		if (doorbell != data)
			continue;
		bar = doorbell->page;
		doorbell_remove(doorbell);
		goto unmap;
	}
	bar = ((struct region *)data)->shared;
	region_remove(data);
unmap:
	memunmap(bar);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

static const struct pci_device_id ivshmem_ids[] = {
	{ PCI_DEVICE(IVSHMEM_VENDOR, IVSHMEM_DEVICE) },
	{ }
};
MODULE_DEVICE_TABLE(pci, ivshmem_ids);

static struct pci_driver ivshmem_driver = {
	.name = "hallway",
	.id_table = ivshmem_ids,
	.probe = ivshmem_probe,
	.remove = ivshmem_remove,
	/* A kernel that goes, also by kexec, leaves: nobody waits for its heartbeat. */
	.shutdown = ivshmem_remove,
};

/* What is here was probed by now; a region may well be plugged in later. */
static void say_what_lacks(void)
{
	mutex_lock(&mutex);
	if (list_empty(&doorbells))
		pr_notice("no doorbell in use: start QEMU with ivshmem-doorbell on hallwayd's socket; connections stay on TCP\n");
	else if (list_empty(&regions))
		pr_notice("no region in use: plug in ivshmem-plain with a region's file; connections stay on TCP until then\n");
	mutex_unlock(&mutex);
}

static int ivshmem_init(void)
{
	const char *text = dmi_get_system_info(DMI_PRODUCT_UUID);
	int err;

	if (!text || uuid_parse(text, &vm_uuid)) {
		pr_warn("the machine has no UUID (start QEMU with -uuid): using a random one\n");
		uuid_gen(&vm_uuid);
	}
	/* Of its own: whatever holds up other work, others are to hear us. */
	beat_workqueue = alloc_workqueue("hallway_beat",
					 WQ_UNBOUND | WQ_FREEZABLE |
					 WQ_MEM_RECLAIM, 1);
	if (!beat_workqueue)
		return -ENOMEM;
	err = pci_register_driver(&ivshmem_driver);
	if (err) {
		destroy_workqueue(beat_workqueue);
		return err;
	}
	queue_delayed_work(beat_workqueue, &beat_work, 0);
	say_what_lacks();
	return 0;
}

static void ivshmem_uninit(void)
{
	pci_unregister_driver(&ivshmem_driver);
	cancel_delayed_work_sync(&beat_work);
	destroy_workqueue(beat_workqueue);
	cancel_delayed_work_sync(&control_work);
}

const struct hall_transport hall_ivshmem_transport = {
	.name = "ivshmem",
	.remote = true,
	.init = ivshmem_init,
	.uninit = ivshmem_uninit,
	.alloc = ivshmem_alloc,
	.free = ivshmem_free,
	.map = ivshmem_map,
	.unmap = ivshmem_unmap,
	.intact = ivshmem_intact,
	.send = ivshmem_send,
	.notify = ivshmem_notify,
	.publish = ivshmem_publish,
	.want = ivshmem_want,
	.own = ivshmem_own,
	.release = ivshmem_release,
};
