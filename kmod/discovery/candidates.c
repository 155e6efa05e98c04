// SPDX-License-Identifier: GPL-2.0-only
/*
 * Candidates: VMs of this host with which this guest shares no memory, and might.
 * Each transport reports a list of its own. When there is traffic with a
 * candidate, its transport is asked for memory to share; once the candidate is a
 * member, it is asked for no longer.
 */
#include "discovery.h"

#include <linux/mutex.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <net/ipv6.h>

/* For that long traffic counts: a candidate may be refused. */
#define WANTED	(10 * HZ)
#define LOOK	HZ

struct candidate {
	struct in6_addr address;
	bool met;
	unsigned long met_at;		/* jiffies */
	/* Bytes of its connections, as counted last and now; ~0: never. */
	u64 counted, count;
};

/* The candidates of one transport. */
struct candidates {
	struct list_head list;		/* RCU */
	struct rcu_head rcu;
	const struct hall_transport *transport;
	unsigned int number;
	struct candidate at[HALLWAY_CANDIDATES_MAX];
};

static DEFINE_MUTEX(mutex);		/* of writers of the lists */
static LIST_HEAD(lists);
static unsigned int changes;		/* of the lists */
static unsigned int counting;		/* changes, when counting began */

static void ask(struct work_struct *work);
static DECLARE_DELAYED_WORK(ask_work, ask);

static struct candidate *find(struct candidates *list,
			      const struct in6_addr *address)
{
	unsigned int i;

	for (i = 0; i < list->number; i++)
		if (ipv6_addr_equal(&list->at[i].address, address))
			return &list->at[i];
	return NULL;
}

static void meet(struct candidate *candidate)
{
	WRITE_ONCE(candidate->met_at, jiffies);
	if (READ_ONCE(candidate->met))
		return;
	WRITE_ONCE(candidate->met, true);
	mod_delayed_work(hall_control_queue, &ask_work, 0);
}

void hall_candidates_meet(const struct in6_addr *address)
{
	struct candidate *candidate;
	struct candidates *list;

	list_for_each_entry_rcu(list, &lists, list) {
		candidate = find(list, address);
		if (candidate)
			meet(candidate);
	}
}

static bool is_wanted(struct candidate *candidate)
{
	if (!READ_ONCE(candidate->met))
		return false;
	if (!hall_members_hold(&candidate->address) &&
	    time_before(jiffies, READ_ONCE(candidate->met_at) + WANTED))
		return true;
	WRITE_ONCE(candidate->met, false);
	return false;
}

/* All that are wanted, to be freed; *count of them. NULL: no memory. */
static struct in6_addr *collect(unsigned int *count)
{
	struct in6_addr *address;
	struct candidates *list;
	unsigned int room = 1, i;

	*count = 0;
	mutex_lock(&mutex);
	list_for_each_entry(list, &lists, list)
		room += list->number;
	/* Departures wait for the mutex, and memory may for a disk behind their peers. */
	address = kmalloc_array(room, sizeof(*address), GFP_NOIO);
	if (address)
		list_for_each_entry(list, &lists, list)
			for (i = 0; i < list->number; i++)
				if (is_wanted(&list->at[i]))
					address[(*count)++] = list->at[i].address;
	mutex_unlock(&mutex);
	return address;
}

static void ask(struct work_struct *work)
{
	unsigned int count;
	struct in6_addr *address = collect(&count);

	/* A transport holds a lock of its own while it reports its candidates. */
	if (address)
		hall_transport_want(address, count);
	if (count || !address)
		queue_delayed_work(hall_control_queue, &ask_work, LOOK);
	kfree(address);
}

static struct candidates *list_of(const struct hall_transport *transport)
{
	struct candidates *list;

	list_for_each_entry(list, &lists, list)
		if (list->transport == transport)
			return list;
	return NULL;
}

static struct candidates *create(const struct hall_transport *transport,
				 const struct in6_addr *address,
				 unsigned int count)
{
	struct candidates *list = kzalloc(sizeof(*list), GFP_KERNEL);
	unsigned int i;

	if (!list)
		return NULL;
	list->transport = transport;
	list->number = min_t(unsigned int, count, HALLWAY_CANDIDATES_MAX);
	for (i = 0; i < list->number; i++) {
		list->at[i].address = address[i];
		list->at[i].counted = ~0ULL;
	}
	return list;
}

/* What is known of a candidate stays known. */
static void take_over(struct candidates *list, struct candidates *old)
{
	struct candidate *before;
	unsigned int i;

	for (i = 0; i < list->number; i++) {
		before = find(old, &list->at[i].address);
		if (before)
			list->at[i] = *before;
	}
}

static void set_candidates(const struct hall_transport *transport,
			   const struct in6_addr *address, unsigned int count)
{
	struct candidates *list = NULL, *old;

	if (count)
		list = create(transport, address, count);
	mutex_lock(&mutex);
	old = list_of(transport);
	changes++;
	if (list && old)
		take_over(list, old);
	if (list)
		list_add_tail_rcu(&list->list, &lists);
	if (old)
		list_del_rcu(&old->list);
	mutex_unlock(&mutex);
	if (old)
		kfree_rcu(old, rcu);
	/* What is wanted of the new list is to be said again. */
	mod_delayed_work(hall_control_queue, &ask_work, 0);
	if (list)
		hall_discovery_handler.candidates();
}

/*
 * Counting takes as long as TCP's tables are large, and a transport that reports its
 * list waits for the mutex with its own one held: so it is not held between begin
 * and end.
 */
bool hall_candidates_count_begin(void)
{
	struct candidates *list;
	unsigned int i;
	bool some;

	mutex_lock(&mutex);
	counting = changes;
	some = !list_empty(&lists);
	list_for_each_entry(list, &lists, list)
		for (i = 0; i < list->number; i++)
			list->at[i].count = 0;
	mutex_unlock(&mutex);
	return some;
}

void hall_candidates_count(const struct in6_addr *address, u64 bytes)
{
	struct candidate *candidate;
	struct candidates *list;

	rcu_read_lock();
	list_for_each_entry_rcu(list, &lists, list) {
		candidate = find(list, address);
		if (candidate)
			candidate->count += bytes;
	}
	rcu_read_unlock();
}

void hall_candidates_count_end(u64 enough)
{
	struct candidate *candidate;
	struct candidates *list;
	unsigned int i;

	mutex_lock(&mutex);
	/* A list that is new has a part of the count. */
	if (counting != changes)
		goto unlock;
	list_for_each_entry(list, &lists, list) {
		for (i = 0; i < list->number; i++) {
			candidate = &list->at[i];
			/* Connections that ended since take their bytes along. */
			if (candidate->counted != ~0ULL &&
			    candidate->count >= candidate->counted + enough)
				meet(candidate);
			candidate->counted = candidate->count;
		}
	}
unlock:
	mutex_unlock(&mutex);
}

void hall_candidates_init(void)
{
	hall_transport_handler.candidates = set_candidates;
}

void hall_candidates_uninit(void)
{
	/* The transports are stopped: their last lists were empty. */
	cancel_delayed_work_sync(&ask_work);
}
