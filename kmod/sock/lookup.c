// SPDX-License-Identifier: GPL-2.0-only
/* Finding a hall_sock: by its socket, by addresses, or all of them. */
#include "lookup.h"

#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <net/ipv6.h>

#include "calls.h"

static DEFINE_SPINLOCK(lock);		/* BH; the ones below */
static DEFINE_HASHTABLE(by_address, 12);
static LIST_HEAD(all);
static LIST_HEAD(ringed);		/* of those, the ones with an endpoint */
static unsigned int attached;		/* entries of all */
static u32 hash_key;			/* set once */

void hall_lookup_init(void)
{
	hash_key = get_random_u32();
}

struct hall_sock *hall_sock_get(const struct sock *sk)
{
	struct hall_sock *hs = NULL;
	struct proto *prot;

	/* A hall_sock is freed after a grace period of tasks: prot stays. */
	rcu_read_lock();
	prot = READ_ONCE(sk->sk_prot);
	if (prot->close == hall_close) {
		hs = container_of(prot, struct hall_sock, prot);
		if (!hall_channel_tryget(&hs->channel))
			hs = NULL;
	}
	rcu_read_unlock();
	return hs;
}

void hall_sock_put(struct hall_sock *hs)
{
	hall_channel_put(&hs->channel);
}

void hall_sock_read_remote(const struct sock *sk, struct in6_addr *address)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		*address = sk->sk_v6_daddr;
		return;
	}
#endif
	ipv6_addr_set_v4mapped(sk->sk_daddr, address);
}

/* Keyed: users and peers choose addresses and ports. */
static u32 hash_addresses(const struct in6_addr *local, u16 local_port,
			  const struct in6_addr *remote, u16 remote_port)
{
	return jhash2((__force const u32 *)local->s6_addr32, 4,
		      jhash2((__force const u32 *)remote->s6_addr32, 4,
			     hash_key ^ ((u32)local_port << 16 | remote_port)));
}

void hall_sock_publish(struct hall_sock *hs)
{
	spin_lock_bh(&lock);
	list_add_tail(&hs->list, &all);
	attached++;
	hash_add_rcu(by_address, &hs->hash,
		     hash_addresses(&hs->local, hs->local_port, &hs->remote,
				    hs->remote_port));
	spin_unlock_bh(&lock);
}

void hall_sock_unpublish(struct hall_sock *hs)
{
	spin_lock_bh(&lock);
	list_del_init(&hs->list);
	list_del_init(&hs->ringed);
	attached--;
	hash_del_rcu(&hs->hash);
	spin_unlock_bh(&lock);
}

void hall_sock_note_ring(struct hall_sock *hs, bool has)
{
	spin_lock_bh(&lock);
	if (!has)
		list_del_init(&hs->ringed);
	else if (!list_empty(&hs->list) && list_empty(&hs->ringed))
		list_add_tail(&hs->ringed, &ringed);
	spin_unlock_bh(&lock);
}

/* The next one of the sockets that an OFFER may be for; after: NULL, or the last one. */
static struct hall_channel *find_offered(struct hall_member *member,
					 const struct hallway_message *offer,
					 const struct hall_sock *after)
{
	struct in6_addr local, remote;
	struct hall_sock *hs;
	u32 hash;

	memcpy(&local, offer->offer.remote, sizeof(local));
	memcpy(&remote, offer->offer.local, sizeof(remote));
	hash = hash_addresses(&local, offer->offer.remote_port, &remote,
			      offer->offer.local_port);
	rcu_read_lock();
	hash_for_each_possible_rcu(by_address, hs, hash, hash) {
		if (after) {
			after = hs == after ? NULL : after;
			continue;
		}
		if (hs->channel.member == member &&
		    hs->local_port == offer->offer.remote_port &&
		    hs->remote_port == offer->offer.local_port &&
		    ipv6_addr_equal(&hs->local, &local) &&
		    ipv6_addr_equal(&hs->remote, &remote) &&
		    hall_channel_tryget(&hs->channel)) {
			rcu_read_unlock();
			return &hs->channel;
		}
	}
	rcu_read_unlock();
	return NULL;
}

struct hall_channel *
hall_sock_find_offered(struct hall_member *member,
		       const struct hallway_message *offer)
{
	return find_offered(member, offer, NULL);
}

struct hall_channel *
hall_sock_find_next_offered(const struct hall_sock *hs,
			    const struct hallway_message *offer)
{
	return find_offered(hs->channel.member, offer, hs);
}

struct snapshot {
	unsigned int room, n;
	struct hall_sock **sock;
};

/* Before lock is taken. */
static void make_room(struct snapshot *snapshot)
{
	/* A departed peer may have a disk behind it for which memory waits. */
	unsigned int noio = memalloc_noio_save();

	snapshot->room = READ_ONCE(attached) + 64;
	snapshot->n = 0;
	/* Without it `hallway off` would detach nothing. */
	snapshot->sock = kvmalloc_array(snapshot->room, sizeof(*snapshot->sock),
					GFP_KERNEL | __GFP_NOFAIL);
	memalloc_noio_restore(noio);
}

static void add(struct snapshot *snapshot, struct hall_sock *hs)
{
	if (snapshot->n < snapshot->room && hall_channel_tryget(&hs->channel))
		snapshot->sock[snapshot->n++] = hs;
}

static void call_each(struct snapshot *snapshot,
		      void (*fn)(struct hall_sock *hs, void *data), void *data)
{
	unsigned int i;

	for (i = 0; i < snapshot->n; i++) {
		fn(snapshot->sock[i], data);
		hall_sock_put(snapshot->sock[i]);
	}
	kvfree(snapshot->sock);
}

void hall_sock_walk(void (*fn)(struct hall_sock *hs, void *data), void *data)
{
	struct snapshot snapshot;
	struct hall_sock *hs;

	make_room(&snapshot);
	spin_lock_bh(&lock);
	list_for_each_entry(hs, &all, list)
		add(&snapshot, hs);
	spin_unlock_bh(&lock);
	call_each(&snapshot, fn, data);
}

void hall_sock_walk_rings(void (*fn)(struct hall_sock *hs, void *data), void *data)
{
	struct snapshot snapshot;
	struct hall_sock *hs;

	/* A socket that comes meanwhile is walked at the next time. */
	if (list_empty_careful(&ringed))
		return;
	make_room(&snapshot);
	spin_lock_bh(&lock);
	list_for_each_entry(hs, &ringed, ringed)
		add(&snapshot, hs);
	spin_unlock_bh(&lock);
	call_each(&snapshot, fn, data);
}
