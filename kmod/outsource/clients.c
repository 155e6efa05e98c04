// SPDX-License-Identifier: GPL-2.0-only
/*
 * The other ends that have sent to ports which the host publishes: answers to them go by
 * the host. All others are reached by the NIC, and get their answers from there.
 *
 * A datagram is delivered to any of the sockets that share its port, so the ends are kept
 * for a port. The latest ones are: datagrams from many addresses displace others, whose
 * next datagram brings them back. Which ones depends on a secret.
 */
#include "datagrams.h"

#include <linux/jhash.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <net/ipv6.h>

#define SETS	1024
#define WAYS	4

struct client {
	struct in6_addr address;	/* IPv4 mapped */
	u16 port;			/* host order; 0: there is none */
	u16 local_port;			/* likewise, of ours */
};

struct set {
	struct client client[WAYS];
	u32 next;			/* the one to be replaced, modulo WAYS */
};

static DEFINE_SPINLOCK(lock);		/* BH; the sets */
static struct set *sets;		/* from the first outsourcer to the end */
static u32 secret;

bool hall_clients_init(void)
{
	struct set *fresh;

	if (sets)
		return true;
	fresh = kvcalloc(SETS, sizeof(*fresh), GFP_KERNEL);
	if (!fresh)
		return false;
	get_random_bytes(&secret, sizeof(secret));
	smp_store_release(&sets, fresh);
	return true;
}

void hall_clients_uninit(void)
{
	kvfree(sets);
	sets = NULL;
}

static struct set *find_set(u16 local_port, const struct hall_destination *end)
{
	struct set *all = smp_load_acquire(&sets);
	u32 hash = jhash(&end->address, sizeof(end->address),
			 secret ^ (local_port << 16 | end->port));

	return all ? &all[hash % SETS] : NULL;
}

/* lock */
static bool has_client(const struct set *set, u16 local_port,
		       const struct hall_destination *end)
{
	const struct client *one;

	for (one = set->client; one < set->client + WAYS; one++)
		if (one->port == end->port && one->local_port == local_port &&
		    ipv6_addr_equal(&one->address, &end->address))
			return true;
	return false;
}

void hall_clients_note(u16 local_port, const struct hall_destination *end)
{
	struct set *set = find_set(local_port, end);

	if (!set || !end->port)
		return;
	spin_lock_bh(&lock);
	if (!has_client(set, local_port, end))
		set->client[set->next++ % WAYS] = (struct client){
			.address = end->address,
			.port = end->port,
			.local_port = local_port,
		};
	spin_unlock_bh(&lock);
}

bool hall_clients_have(u16 local_port, const struct hall_destination *end)
{
	struct set *set = find_set(local_port, end);
	bool has;

	if (!set)
		return false;
	spin_lock_bh(&lock);
	has = has_client(set, local_port, end);
	spin_unlock_bh(&lock);
	return has;
}
