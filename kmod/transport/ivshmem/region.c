// SPDX-License-Identifier: GPL-2.0-only
/* Regions: see region.h. */
#define pr_fmt(fmt) "hallway: ivshmem: " fmt

#include "region.h"

#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/printk.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <hallway/reason.h>
#include <hallway/tunnel.h>

#include "../../obs/counters.h"
#include "../shared/bounds.h"
#include "../transports.h"

#define ANSWER_DUE	(5 * HZ)	/* then a missing answer is reported */
/*
 * Members can have this guest lose its place in the table, not find it there, or
 * believe that another one is free, as often as they like.
 */
#define ASK_AGAIN	HZ
/* Between two requests for a region that hallwayd does not know, or does not allow. */
#define OTHER_AGAIN	(10 * HZ)

LIST_HEAD(ivshmem_regions);

static struct region *region_of(struct hall_member *member)
{
	return container_of(hall_peer_of(member)->own, struct region, own);
}

/*
 * For each request to join: a member may overwrite them, and hallwayd restores them. hallwayd
 * also writes how the key begins into the private page. Otherwise a member could give two
 * regions one key, and pass tokens from a VM to another: see ../../channel/token.c.
 */
static void read_names(struct region *region)
{
	memcpy(region->uuid, region->shared->uuid, sizeof(region->uuid));
	memcpy(region->key, region->shared->key, sizeof(region->key));
}

struct region *ivshmem_region_create(struct pci_dev *pdev,
				     struct hallway_region *shared, u64 size)
{
	struct region *region;
	u16 major = READ_ONCE(shared->major);

	if (major != HALLWAY_MAJOR) {
		pci_err(pdev, "hallway: the region is of version %u, this module speaks %u: update the older side\n",
			major, HALLWAY_MAJOR);
		return ERR_PTR(-EPROTONOSUPPORT);
	}
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return ERR_PTR(-ENOMEM);
	refcount_set(&region->refs, 1);
	region->shared = shared;
	region->start = pci_resource_start(pdev, 2);
	region->size = size;
	region->slots = READ_ONCE(shared->slots);
	region->ask_at = jiffies;
	read_names(region);
	if (READ_ONCE(shared->size) != size || region->slots < 2 ||
	    region->slots > HALLWAY_SLOTS_MAX ||
	    READ_ONCE(shared->header_size) != HALLWAY_HEADER_SIZE) {
		pci_err(pdev, "hallway: the region says %llu bytes and %u slots, the device has %llu bytes: give QEMU the size that hallway status shows on the host\n",
			READ_ONCE(shared->size), region->slots, size);
		kfree(region);
		return ERR_PTR(-EINVAL);
	}
	hall_own_slice_init(&region->own, region->slots, &ivshmem_mutex);
	return region;
}

bool ivshmem_region_is_known(const u8 *uuid)
{
	struct region *region;

	list_for_each_entry(region, &ivshmem_regions, list)
		if (!region->removed &&
		    !memcmp(region->uuid, uuid, sizeof(region->uuid)))
			return true;
	return false;
}

void ivshmem_region_put(struct region *region)
{
	if (refcount_dec_and_test(&region->refs))
		kfree(region);
}

void ivshmem_release(struct hall_member *member)
{
	struct region *region = region_of(member);

	hall_peer_free(hall_peer_of(member));
	ivshmem_region_put(region);
}

static void ring_slot(struct region *region, u32 slot)
{
	struct doorbell *doorbell = READ_ONCE(region->doorbell);
	struct hallway_reply *reply;

	/* Its device may have gone. */
	if (!doorbell)
		return;
	reply = &doorbell->page->entry[region->entry].reply;
	ivshmem_doorbell_ring(doorbell, READ_ONCE(reply->doorbell[slot]));
}

unsigned long ivshmem_find_pfn(struct hall_member *member, const void *page)
{
	struct region *region = region_of(member);

	return PHYS_PFN(region->start + (page - (const void *)region->shared));
}

/* Has hallwayd changed nothing of the rule since? It may write others at any moment. */
static bool is_same(struct hallway_reply *reply, u32 ranges, u32 i,
		    const struct hallway_ports *ports)
{
	virt_rmb();
	return READ_ONCE(reply->tunnel_ranges) == ranges &&
	       READ_ONCE(reply->tunnel_ports[i].first) == ports->first &&
	       READ_ONCE(reply->tunnel_ports[i].last) == ports->last;
}

bool ivshmem_admits(struct hall_member *member, u32 port)
{
	struct region *region = region_of(member);
	struct doorbell *doorbell = READ_ONCE(region->doorbell);
	struct hallway_reply *reply;
	struct hallway_ports ports;
	u32 ranges, i;

	/* Its device may have gone. */
	if (!doorbell)
		return false;
	reply = &doorbell->page->entry[region->entry].reply;
	ranges = READ_ONCE(reply->tunnel_ranges);
	if (!ranges)
		return true;
	for (i = 0; i < min_t(u32, ranges - 1, HALLWAY_TUNNEL_RANGES); i++) {
		virt_rmb();
		ports.first = READ_ONCE(reply->tunnel_ports[i].first);
		ports.last = READ_ONCE(reply->tunnel_ports[i].last);
		if (port >= ports.first && port <= ports.last)
			return is_same(reply, ranges, i, &ports);
	}
	return false;
}

void ivshmem_ring(struct hall_member *member)
{
	ring_slot(region_of(member), member->slot);
}

void ivshmem_region_ring_all(struct region *region)
{
	u32 slot;

	for (slot = 0; slot < region->slots; slot++) {
		if (slot == region->slot)
			continue;
		preempt_disable();
		hall_mailbox_mark(hall_mailbox_at(&region->own.slice, slot), 0);
		ring_slot(region, slot);
		preempt_enable();
	}
}

/* The member table */

/* The table's entry of a slot, taken once; its name always ends. */
static void read_entry(struct region *region, u32 slot,
		       struct hallway_member *entry)
{
	struct hallway_member *shared = &region->shared->member[slot];
	u32 generation = virt_load_acquire(&shared->generation);

	/* The rest, and the peer's CID in the page, is at least as new as its generation. */
	memcpy(entry, shared, sizeof(*entry));
	entry->generation = generation;
	entry->name[HALLWAY_NAME_SIZE - 1] = 0;
}

static bool slice_valid(const struct region *region,
			const struct hallway_member *entry)
{
	return hall_is_page_aligned(entry->slice_offset) &&
	       hall_is_page_aligned(entry->slice_size) &&
	       hall_is_within(entry->slice_offset, entry->slice_size,
			      HALLWAY_HEADER_SIZE, region->size) &&
	       entry->slice_size > hall_slice_overhead(region->slots);
}

static struct hall_slice slice_at(const struct region *region, u32 slot,
				  const struct hallway_member *entry)
{
	return (struct hall_slice){
		.header = (void *)region->shared + entry->slice_offset,
		.size = entry->slice_size,
		.generation = entry->generation,
		.occupant = &region->shared->member[slot].generation,
	};
}

int ivshmem_own(int (*fn)(const struct hall_own *own, void *data), void *data)
{
	struct hall_own own = { .transport = &hall_ivshmem_transport };
	struct hallway_member entry;
	struct region *region;
	int err = mutex_lock_killable(&ivshmem_mutex);

	if (err)
		return err;
	own.address = ivshmem_address;
	own.addresses = ivshmem_addresses;
	list_for_each_entry(region, &ivshmem_regions, list) {
		if (region->state != REGION_JOINED)
			continue;
		read_entry(region, region->slot, &entry);
		own.slot = region->slot;
		own.generation = region->own.slice.generation;
		memcpy(own.uuid, entry.uuid, sizeof(own.uuid));
		strscpy(own.name, entry.name, sizeof(own.name));
		err = fn(&own, data);
		if (err)
			break;
	}
	mutex_unlock(&ivshmem_mutex);
	return err;
}

/*
 * Each member can write the table, so hallwayd's word comes first. It has written that before
 * the table had this member. Slot 0 is its own, which has no tunnels.
 */
static void name_peer(struct region *region, struct hall_member *member,
		      const struct hallway_member *entry)
{
	if (member->slot) {
		member->vouched = region->pair;
		member->cid = region->pair ?
				      ivshmem_page_read_peer(region->doorbell, region->entry) :
				      hallway_member_cid(entry->cid, entry->uuid);
	}
	memcpy(member->uuid, entry->uuid, sizeof(member->uuid));
	hall_member_copy_name(member->name, entry->name);
}

static void add_peer(struct region *region, u32 slot,
		     const struct hallway_member *entry)
{
	struct hall_slice slice = slice_at(region, slot, entry);
	struct hall_peer *peer = NULL;

	if (hall_peer_lingers(&region->own, slot))
		region->occupied = true;
	else if (hall_slice_is_formatted(&slice))
		peer = hall_peer_create(&region->own, &slice,
					&hall_ivshmem_transport);
	if (!peer) {
		region->incomplete = true;
		return;
	}
	refcount_inc(&region->refs);
	peer->member.slot = slot;
	peer->member.outsourcer = slot && slot == region->outsourcer;
	memcpy(peer->member.key, region->key, sizeof(region->key));
	name_peer(region, &peer->member, entry);
	hall_peer_arrive(peer, slot, region->slot);
	/* The peer may have sent before it arrived here. */
	ivshmem_doorbell_look(region->doorbell);
}

/* A region of two has one other member: hallwayd's word, whatever the table says. */
static bool has_room_for(struct region *region, u32 slot)
{
	u32 other;

	if (!region->pair || !slot)
		return true;
	for (other = 1; other < region->slots; other++)
		if (other != slot && hall_peer_at(&region->own, other))
			return false;
	return true;
}

static void scan_slot(struct region *region, u32 slot)
{
	struct hall_peer *peer = hall_peer_at(&region->own, slot);
	struct hallway_member entry;
	bool present;

	read_entry(region, slot, &entry);
	/* An outsourcer shares its region with no one else, whatever the table says. */
	present = entry.state == HALLWAY_MEMBER_PRESENT &&
		  (!region->outsourcer || slot == region->outsourcer);
	if (peer && (!present || entry.generation != peer->member.generation)) {
		hall_peer_depart(peer, HALLWAY_REASON_PEER_LEFT);
		peer = NULL;
	}
	if (peer || !present || !slice_valid(region, &entry))
		return;
	if (has_room_for(region, slot))
		add_peer(region, slot, &entry);
	else
		region->incomplete = true;
}

static void scan_table(struct region *region, u32 change)
{
	struct hallway_member entry;
	u32 slot;

	region->change = change;
	region->incomplete = false;
	region->occupied = false;
	read_entry(region, region->slot, &entry);
	if (entry.state != HALLWAY_MEMBER_PRESENT ||
	    entry.generation != region->own.slice.generation) {
		pr_warn_ratelimited("no longer a member of region %pUb: joining again\n",
				    region->uuid);
		region->ask_at = jiffies + ASK_AGAIN;
		ivshmem_region_leave(region, HALLWAY_REASON_PEER_LEFT);
		return;
	}
	for (slot = 0; slot < region->slots; slot++)
		if (slot != region->slot)
			scan_slot(region, slot);
	hall_own_slice_settle(&region->own, change);
}

void ivshmem_region_scan(struct region *region)
{
	u32 change = virt_load_acquire(&region->shared->change);

	if (change != region->change || region->incomplete || region->occupied)
		scan_table(region, change);
	if (region->state == REGION_JOINED)
		hall_peers_read_addresses(&region->own);
}

/* Joining */

unsigned int ivshmem_region_find_entry(void)
{
	struct region *region;
	unsigned long used = 0;

	list_for_each_entry(region, &ivshmem_regions, list)
		if (region->state != REGION_IDLE)
			__set_bit(region->entry, &used);
	return find_first_zero_bit(&used, HALLWAY_PAGE_ENTRIES);
}

/*
 * Does another device have a region of this UUID in use? Each of the two would take the
 * other's place. A place that is being left is still in use.
 */
static bool is_asked_for(const struct region *region)
{
	const struct region *other;

	list_for_each_entry(other, &ivshmem_regions, list)
		if (other != region && other->state != REGION_IDLE &&
		    other->state != REGION_FULL && other->state != REGION_REFUSED &&
		    !memcmp(other->uuid, region->uuid, sizeof(other->uuid)))
			return true;
	return false;
}

void ivshmem_region_ask(struct region *region)
{
	if (region->removed || time_before(jiffies, region->ask_at))
		return;
	region->doorbell = list_first_entry_or_null(&ivshmem_doorbells,
						    struct doorbell, list);
	if (!region->doorbell)
		return;
	region->entry = ivshmem_region_find_entry();
	if (region->entry == HALLWAY_PAGE_ENTRIES) {
		pr_warn_once("more than %u regions: the others stay unused\n",
			     HALLWAY_PAGE_ENTRIES);
		return;
	}
	read_names(region);
	if (is_asked_for(region))
		return;
	region->asked_at = jiffies;
	region->reminded = false;
	region->change = virt_load_acquire(&region->shared->change);
	region->state = REGION_ASKED;
	ivshmem_doorbell_rearm(region->doorbell);
	region->serial = ivshmem_page_request(region->doorbell, region->entry,
					      HALLWAY_COMMAND_JOIN,
					      region->uuid);
}

static const char *explain_refusal(u32 status)
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

static void take_refusal(struct region *region, u32 status,
			 const struct hallway_reply *reply)
{
	if (status != region->reported)
		pr_err("hallwayd %u.%u refused this VM (status %u; this module is %u.%u): %s\n",
		       READ_ONCE(reply->major), READ_ONCE(reply->minor), status,
		       HALLWAY_MAJOR, HALLWAY_MINOR, explain_refusal(status));
	region->reported = status;
	region->ask_at = jiffies + ASK_AGAIN;
	if (status == HALLWAY_STATUS_FULL) {
		region->state = REGION_FULL;
	} else if (status == HALLWAY_STATUS_UNKNOWN ||
		   status == HALLWAY_STATUS_DENIED) {
		/* A member may have overwritten the UUID: it is read again. */
		region->ask_at = jiffies + OTHER_AGAIN;
		region->state = REGION_IDLE;
	} else {
		region->state = REGION_REFUSED;
	}
}

static void take_slot(struct region *region, const struct hallway_reply *reply)
{
	u32 slot = READ_ONCE(reply->slot);
	u32 generation = READ_ONCE(reply->generation);
	struct hallway_member entry;
	struct hall_slice slice;

	if (!ivshmem_page_has_key(region->doorbell, region->entry, region->key)) {
		pr_err_ratelimited("a member has overwritten the header of region %pUb: asking again\n",
				   region->uuid);
		goto again;
	}
	if (slot >= region->slots)
		goto invalid;
	read_entry(region, slot, &entry);
	if (entry.generation != generation || !slice_valid(region, &entry))
		goto invalid;
	region->slot = slot;
	region->outsourcer = READ_ONCE(reply->outsourcer);
	region->pair = ivshmem_page_read_peer(region->doorbell, region->entry);
	WRITE_ONCE(hall_cid, ivshmem_page_read_cid(region->doorbell, region->entry));
	region->change = virt_load_acquire(&region->shared->change) - 1;
	slice = slice_at(region, slot, &entry);
	if (hall_own_slice_open(&region->own, &slice, ivshmem_address,
				ivshmem_addresses)) {
		pr_err_ratelimited("no memory to join a region: asking again\n");
		goto again;
	}
	region->state = REGION_JOINED;
	region->reported = HALLWAY_STATUS_OK;
	pr_info_ratelimited("joined region %pUb as member %u\n", region->uuid,
			    slot);
	ivshmem_region_ring_all(region);
	return;
invalid:
	/* A member may have overwritten the table, which hallwayd writes again. */
	pr_err_ratelimited("hallwayd gave this VM an impossible slot or slice: asking again\n");
again:
	region->ask_at = jiffies + ASK_AGAIN;
	region->state = REGION_IDLE;
}

void ivshmem_region_take_answer(struct region *region)
{
	struct hallway_reply *reply =
		&region->doorbell->page->entry[region->entry].reply;
	u32 status;

	if (virt_load_acquire(&reply->serial) != region->serial) {
		if (!region->reminded &&
		    time_after(jiffies, region->asked_at + ANSWER_DUE)) {
			region->reminded = true;
			pr_warn("hallwayd does not answer: start it, and this guest joins; connections stay on TCP\n");
		}
		return;
	}
	status = READ_ONCE(reply->status);
	if (status == HALLWAY_STATUS_OK)
		take_slot(region, reply);
	else
		take_refusal(region, status, reply);
}

void ivshmem_region_leave(struct region *region, u32 reason)
{
	if (region->state == REGION_JOINED) {
		hall_peers_depart(&region->own, reason);
		WRITE_ONCE(region->state, REGION_LEAVING);
	} else if (region->state != REGION_LEAVING) {
		WRITE_ONCE(region->state, REGION_IDLE);
		WRITE_ONCE(region->doorbell, NULL);
	}
}

void ivshmem_region_end_leaving(struct region *region)
{
	if (!hall_peers_are_gone(&region->own))
		return;
	hall_own_slice_close(&region->own);
	/* The daemon may give the slice to another member. */
	if (region->removed)
		ivshmem_page_request(region->doorbell, region->entry,
				     HALLWAY_COMMAND_LEAVE, region->uuid);
	WRITE_ONCE(region->state, REGION_IDLE);
	WRITE_ONCE(region->doorbell, NULL);
}
