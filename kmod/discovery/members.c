// SPDX-License-Identifier: GPL-2.0
/* The members and the addresses that they publish. */
#include "discovery.h"

#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/mutex.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <net/ipv6.h>

struct address {
	struct hlist_node hash;		/* RCU */
	struct list_head list;		/* member->addresses */
	struct hall_member *member;
	struct in6_addr address;
	bool listed;			/* in the newest publication */
	struct rcu_head rcu;
};

struct hall_discovery_handler hall_discovery_handler;

static DEFINE_MUTEX(mutex);		/* members, and writers of the hash */
static LIST_HEAD(members);
static DEFINE_HASHTABLE(addresses, 8);

static u32 hash_of(const struct in6_addr *address)
{
	return jhash2((__force const u32 *)address->s6_addr32, 4, 0);
}

struct hall_member *hall_members_find(const struct in6_addr *address)
{
	struct address *entry;

	hash_for_each_possible_rcu(addresses, entry, hash, hash_of(address))
		if (ipv6_addr_equal(&entry->address, address))
			return entry->member;
	return NULL;
}

static void remove_unlisted(struct hall_member *member)
{
	struct address *entry, *next;

	list_for_each_entry_safe(entry, next, &member->addresses, list) {
		if (entry->listed)
			continue;
		hash_del_rcu(&entry->hash);
		list_del(&entry->list);
		kfree_rcu(entry, rcu);
	}
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
	list_add_tail(&entry->list, &member->addresses);
	hash_add_rcu(addresses, &entry->hash, hash_of(address));
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
	remove_unlisted(member);
	mutex_unlock(&mutex);
	if (added)
		hall_discovery_handler.served();
}

static void arrived(struct hall_member *member)
{
	mutex_lock(&mutex);
	list_add_tail(&member->list, &members);
	mutex_unlock(&mutex);
}

static void departed(struct hall_member *member, u32 reason)
{
	WRITE_ONCE(member->departed, true);
	set_addresses(member, NULL, 0);
	mutex_lock(&mutex);
	list_del(&member->list);
	mutex_unlock(&mutex);
	/* No reader finds the member from now on; some may have found it before. */
	synchronize_rcu();
	hall_discovery_handler.departed(member, reason);
}

/* The transport reports the addresses again once the member is usable again. */
static void detach(struct hall_member *member, u32 reason)
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
	hall_transport_handler.arrived = arrived;
	hall_transport_handler.departed = departed;
	hall_transport_handler.addresses = set_addresses;
	hall_transport_handler.detach = detach;
}

void hall_members_uninit(void)
{
	/* Every transport has departed its members; their entries may linger. */
	rcu_barrier();
}
