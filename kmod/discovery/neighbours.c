// SPDX-License-Identifier: GPL-2.0
/*
 * VMs of this host that share no region with this guest, and might: the host
 * tells their addresses. With traffic to one of them the host is asked for a
 * region; once the neighbour is a member there, the member counts, and the
 * neighbour is wanted no more.
 */
#include "discovery.h"

#include <linux/mutex.h>
#include <linux/slab.h>
#include <net/ipv6.h>

/* So long traffic that was seen counts: what it asks for may be refused. */
#define WANTED	(10 * HZ)
#define LOOK	HZ

struct hall_neighbour {
	struct in6_addr address;
	bool met;
	unsigned long met_at;		/* jiffies */
	/* Bytes of its connections, as counted last and now; ~0: never. */
	u64 counted, count;
};

struct hall_neighbours {
	struct rcu_head rcu;
	unsigned int number;
	struct hall_neighbour at[HALLWAY_NEIGHBOURS_MAX];
};

static DEFINE_MUTEX(mutex);		/* who replaces the list, or counts */
static struct hall_neighbours __rcu *neighbours;

static void ask(struct work_struct *work);
static DECLARE_DELAYED_WORK(ask_work, ask);

static struct hall_neighbour *find(struct hall_neighbours *list,
				   const struct in6_addr *address)
{
	unsigned int i;

	for (i = 0; list && i < list->number; i++)
		if (ipv6_addr_equal(&list->at[i].address, address))
			return &list->at[i];
	return NULL;
}

static struct hall_neighbours *list_locked(void)
{
	return rcu_dereference_protected(neighbours, lockdep_is_held(&mutex));
}

static void meet(struct hall_neighbour *neighbour)
{
	WRITE_ONCE(neighbour->met_at, jiffies);
	if (READ_ONCE(neighbour->met))
		return;
	WRITE_ONCE(neighbour->met, true);
	mod_delayed_work(hall_workqueue, &ask_work, 0);
}

void hall_neighbours_met(const struct in6_addr *address)
{
	struct hall_neighbour *neighbour = find(rcu_dereference(neighbours), address);

	if (neighbour)
		meet(neighbour);
}

/* Whether the neighbour is to be asked for now. */
static bool wanted(struct hall_neighbour *neighbour)
{
	bool member;

	if (!READ_ONCE(neighbour->met))
		return false;
	rcu_read_lock();
	member = hall_members_find(&neighbour->address);
	rcu_read_unlock();
	if (!member && time_before(jiffies, READ_ONCE(neighbour->met_at) + WANTED))
		return true;
	WRITE_ONCE(neighbour->met, false);
	return false;
}

static void ask(struct work_struct *work)
{
	struct in6_addr *address = kcalloc(HALLWAY_NEIGHBOURS_MAX,
					   sizeof(*address), GFP_KERNEL);
	unsigned int count = 0, i;
	struct hall_neighbours *list;

	mutex_lock(&mutex);
	list = list_locked();
	for (i = 0; address && list && i < list->number; i++)
		if (wanted(&list->at[i]))
			address[count++] = list->at[i].address;
	mutex_unlock(&mutex);
	if (address)
		hall_transport_want(address, count);
	if (count || !address)
		queue_delayed_work(hall_workqueue, &ask_work, LOOK);
	kfree(address);
}

static void set_neighbours(const struct in6_addr *address, unsigned int count)
{
	struct hall_neighbours *list = NULL, *old;
	struct hall_neighbour *before;
	unsigned int i;

	if (count)
		list = kzalloc(sizeof(*list), GFP_KERNEL);
	mutex_lock(&mutex);
	old = list_locked();
	for (i = 0; list && i < min_t(unsigned int, count, HALLWAY_NEIGHBOURS_MAX); i++) {
		before = find(old, &address[i]);
		if (before)
			list->at[i] = *before;
		else
			list->at[i].counted = ~0ULL;
		list->at[i].address = address[i];
		list->number = i + 1;
	}
	rcu_assign_pointer(neighbours, list);
	mutex_unlock(&mutex);
	if (old)
		kfree_rcu(old, rcu);
	/* What is wanted is said anew, of the new list. */
	mod_delayed_work(hall_workqueue, &ask_work, 0);
	if (list)
		hall_discovery_handler.neighbours();
}

bool hall_neighbours_count_begin(void)
{
	struct hall_neighbours *list;
	unsigned int i;

	mutex_lock(&mutex);
	list = list_locked();
	for (i = 0; list && i < list->number; i++)
		list->at[i].count = 0;
	if (!list)
		mutex_unlock(&mutex);
	return list;
}

void hall_neighbours_count(const struct in6_addr *address, u64 bytes)
{
	struct hall_neighbour *neighbour = find(list_locked(), address);

	if (neighbour)
		neighbour->count += bytes;
}

void hall_neighbours_count_end(u64 enough)
{
	struct hall_neighbours *list = list_locked();
	struct hall_neighbour *neighbour;
	unsigned int i;

	for (i = 0; i < list->number; i++) {
		neighbour = &list->at[i];
		/* Connections that ended since take their bytes along. */
		if (neighbour->counted != ~0ULL &&
		    neighbour->count >= neighbour->counted + enough)
			meet(neighbour);
		neighbour->counted = neighbour->count;
	}
	mutex_unlock(&mutex);
}

void hall_neighbours_init(void)
{
	hall_transport_handler.neighbours = set_neighbours;
}

void hall_neighbours_uninit(void)
{
	/* The transports are gone: their last list was empty. */
	cancel_delayed_work_sync(&ask_work);
}
