// SPDX-License-Identifier: GPL-2.0-only
/*
 * The members and the addresses that they publish.
 *
 * An address may have several holders, in regions that have nothing to do with each
 * other, and any of them may lie. The first one counts: no member takes an address
 * away by publishing it, too. A holder that is not the other end of a connection to
 * the address goes behind the others: hall_members_doubt(). So a member that
 * publishes another's address learns of a few connections to it, and no more. Their
 * tokens keep all bytes from it. While a first holder is doubted, memory to share with the
 * address is asked for as if it had none: hall_members_hold().
 */
#include "discovery.h"

#include <linux/jhash.h>
#include <linux/jiffies.h>
#include <linux/mutex.h>
#include <linux/random.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <net/ipv6.h>

#include "../obs/counters.h"

#define BUCKETS	256
/* A holder is doubted again after this time: perhaps no publisher has the address. */
#define DOUBT	(10 * HZ)

struct address {
	struct hlist_node hash;		/* RCU */
	struct list_head list;		/* member->addresses */
	struct hall_member *member;
	struct in6_addr address;
	bool listed;			/* in the newest publication */
	bool moved;			/* it went behind the others, */
	unsigned long moved_at;		/* jiffies */
	bool doubted;			/* the other end of a connection was not there, */
	unsigned long doubted_at;	/* jiffies */
	struct rcu_head rcu;
};

struct hall_discovery_handler hall_discovery_handler;

static DEFINE_MUTEX(mutex);		/* members, and writers of the hash */
static LIST_HEAD(members);		/* RCU */
static struct hall_member __rcu *outsourcer;	/* the last one that arrived */
static struct hlist_head addresses[BUCKETS];	/* holders in their order */
/* Peers choose the addresses: without a secret, those of one chain. */
static u32 secret;

static struct hlist_head *bucket_of(const struct in6_addr *address)
{
	const u32 *word = (__force const u32 *)address->s6_addr32;
	u32 hash;

	/* The other words of IPv4's addresses are the same in all of them. */
	if (ipv6_addr_v4mapped(address))
		hash = jhash2(&word[3], 1, secret);
	else
		hash = jhash2(word, 4, secret);
	return &addresses[hash % BUCKETS];
}

/* The first holder's entry, of all but one member. */
static struct address *find_entry(const struct in6_addr *address,
				  const struct hall_member *but)
{
	struct address *entry;

	hlist_for_each_entry_rcu(entry, bucket_of(address), hash,
				 lockdep_is_held(&mutex))
		if (entry->member != but &&
		    ipv6_addr_equal(&entry->address, address))
			return entry;
	return NULL;
}

struct hall_member *hall_members_find(const struct in6_addr *address)
{
	struct address *entry = find_entry(address, NULL);

	return entry ? entry->member : NULL;
}

bool hall_members_hold(const struct in6_addr *address)
{
	struct address *entry;
	bool holds;

	rcu_read_lock();
	entry = find_entry(address, NULL);
	holds = entry && !(READ_ONCE(entry->doubted) &&
			   time_before(jiffies, READ_ONCE(entry->doubted_at) + DOUBT));
	rcu_read_unlock();
	return holds;
}

/* The entry of a first holder that others follow: the new one is the last. */
static void move_behind(struct address *entry)
{
	struct address *copy = kmalloc(sizeof(*copy), GFP_KERNEL);

	if (!copy)
		return;
	*copy = *entry;
	copy->moved = true;
	copy->moved_at = jiffies;
	list_add_tail(&copy->list, &entry->member->addresses);
	hlist_add_tail_rcu(&copy->hash, bucket_of(&copy->address));
	list_del(&entry->list);
	hlist_del_rcu(&entry->hash);
	kfree_rcu(entry, rcu);
}

bool hall_members_doubt(struct hall_member *member,
			const struct in6_addr *address)
{
	struct address *first;
	bool another;

	/* The caller holds a socket's lock, for which memory may wait. */
	if (!mutex_trylock(&mutex))
		return false;
	first = find_entry(address, NULL);
	if (first && first->member == member) {
		WRITE_ONCE(first->doubted_at, jiffies);
		WRITE_ONCE(first->doubted, true);
		if (find_entry(address, member) &&
		    !(first->moved && time_before(jiffies, first->moved_at + DOUBT)))
			move_behind(first);
	}
	first = find_entry(address, NULL);
	another = first && first->member != member;
	mutex_unlock(&mutex);
	return another;
}

/* True: another member may be the first holder of one of the addresses now. */
static bool remove_unlisted(struct hall_member *member)
{
	struct address *entry, *next;
	bool passed = false;

	list_for_each_entry_safe(entry, next, &member->addresses, list) {
		if (entry->listed)
			continue;
		hlist_del_rcu(&entry->hash);
		list_del(&entry->list);
		passed |= !!find_entry(&entry->address, member);
		kfree_rcu(entry, rcu);
	}
	return passed;
}

static bool list_address(struct hall_member *member,
			 const struct in6_addr *address)
{
	struct address *entry;

	list_for_each_entry(entry, &member->addresses, list) {
		if (ipv6_addr_equal(&entry->address, address)) {
			entry->listed = true;
			return false;
		}
	}
	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return false;
	entry->member = member;
	entry->address = *address;
	entry->listed = true;
	if (find_entry(address, NULL))
		hall_count(HALL_ADDRESS_CONFLICTS);
	list_add_tail(&entry->list, &member->addresses);
	hlist_add_tail_rcu(&entry->hash, bucket_of(address));
	return true;
}

static void set_addresses(struct hall_member *member,
			  const struct in6_addr *address, unsigned int count)
{
	struct address *entry;
	bool added = false;
	unsigned int i;

	mutex_lock(&mutex);
	list_for_each_entry(entry, &member->addresses, list)
		entry->listed = false;
	for (i = 0; i < count && !member->departed; i++)
		added |= list_address(member, &address[i]);
	added |= remove_unlisted(member);
	mutex_unlock(&mutex);
	if (added)
		hall_discovery_handler.served();
}

struct hall_member *hall_members_get_outsourcer(void)
{
	struct hall_member *member;

	rcu_read_lock();
	member = rcu_dereference(outsourcer);
	if (member)
		hall_member_get(member);
	rcu_read_unlock();
	return member;
}

/* Under RCU. */
static struct hall_member *find_by_cid(u32 cid)
{
	struct hall_member *member, *found = NULL;

	list_for_each_entry_rcu(member, &members, list) {
		if (member->outsourcer || member->cid != cid)
			continue;
		if (member->vouched)
			return member;
		found = found ?: member;
	}
	return cid == READ_ONCE(hall_cid) ? NULL : found;
}

struct hall_member *hall_members_get_by_cid(u32 cid)
{
	struct hall_member *member;

	rcu_read_lock();
	member = find_by_cid(cid);
	if (member)
		hall_member_get(member);
	rcu_read_unlock();
	return member;
}

u32 hall_members_next_cid(u32 cid)
{
	const u32 own = READ_ONCE(hall_cid);
	struct hall_member *member;
	u32 next = 0;

	rcu_read_lock();
	list_for_each_entry_rcu(member, &members, list)
		if (!member->outsourcer && member->cid > cid && member->cid != own &&
		    member->cid != HALLWAY_CID_HOST && (!next || member->cid < next))
			next = member->cid;
	rcu_read_unlock();
	return next;
}

bool hall_member_has_cid(const struct hall_member *member)
{
	struct hall_member *first;
	bool has;

	rcu_read_lock();
	first = find_by_cid(member->cid);
	/* A VM that shares two regions with this one is two members. */
	has = !member->outsourcer && member->cid &&
	      (member->vouched || (first && !first->vouched));
	rcu_read_unlock();
	return has;
}

static void add_member(struct hall_member *member)
{
	mutex_lock(&mutex);
	list_add_tail_rcu(&member->list, &members);
	if (member->outsourcer)
		rcu_assign_pointer(outsourcer, member);
	mutex_unlock(&mutex);
	if (member->outsourcer)
		hall_discovery_handler.outsourcer();
}

static void forget(struct hall_member *member)
{
	WRITE_ONCE(member->departed, true);
	set_addresses(member, NULL, 0);
	mutex_lock(&mutex);
	list_del_rcu(&member->list);
	if (rcu_access_pointer(outsourcer) == member)
		RCU_INIT_POINTER(outsourcer, NULL);
	mutex_unlock(&mutex);
	/* No reader finds the member from now on; some may have found it before. */
	synchronize_rcu();
}

static void drop_member(struct hall_member *member, u32 reason)
{
	if (!member->departed)
		forget(member);
	hall_discovery_handler.departed(member, reason);
}

/* The transport reports the addresses again once the member is usable again. */
static void detach_member(struct hall_member *member, u32 reason)
{
	set_addresses(member, NULL, 0);
	synchronize_rcu();
	hall_discovery_handler.detach(member, reason);
}

int hall_members_walk(int (*fn)(struct hall_member *member, void *data),
		      void *data)
{
	struct hall_member *member;
	int ret = 0;

	mutex_lock(&mutex);
	list_for_each_entry(member, &members, list) {
		ret = fn(member, data);
		if (ret)
			break;
	}
	mutex_unlock(&mutex);
	return ret;
}

int hall_member_addresses(struct hall_member *member,
			  int (*fn)(const struct in6_addr *address, void *data),
			  void *data)
{
	struct address *entry;
	int ret = 0;

	list_for_each_entry(entry, &member->addresses, list) {
		ret = fn(&entry->address, data);
		if (ret)
			break;
	}
	return ret;
}

void hall_members_init(void)
{
	secret = get_random_u32();
	hall_transport_handler.arrived = add_member;
	hall_transport_handler.departed = drop_member;
	hall_transport_handler.addresses = set_addresses;
	hall_transport_handler.detach = detach_member;
}

void hall_members_uninit(void)
{
	/* Every transport has departed its members; their entries may linger. */
	rcu_barrier();
}
