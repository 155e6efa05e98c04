// SPDX-License-Identifier: GPL-2.0-only
/* Finding a hall_sock: by its socket, by addresses, or all of them. */
#include "lookup.h"

#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <net/ipv6.h>

#include "idle.h"

static DEFINE_SPINLOCK(lock);		/* BH; the ones below */
static DEFINE_HASHTABLE(by_address, 12); /* all attached ones */
static LIST_HEAD(ringed);		/* of those, the ones with an endpoint */
static unsigned int attached;		/* entries of by_address */
static u32 hash_key;			/* set once */

void hall_lookup_init(void)
{
	hash_key = get_random_u32();
}

struct hall_sock *hall_sock_get(const struct sock *sk)
{
	struct hall_sock *hs = hall_sock_peek(sk);

	return hs && hall_sock_tryget(hs, sk) ? hs : NULL;
}

void hall_sock_read_remote(const struct sock *sk, struct in6_addr *address)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		*address = sk->sk_v6_daddr;
		return;
	}
#endif
	ipv6_addr_set_v4mapped(READ_ONCE(sk->sk_daddr), address);
}

void hall_sock_read_local(const struct sock *sk, struct in6_addr *address)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		*address = sk->sk_v6_rcv_saddr;
		return;
	}
#endif
	ipv6_addr_set_v4mapped(READ_ONCE(sk->sk_rcv_saddr), address);
}

/* Keyed: users and peers choose addresses and ports. */
static u32 hash_addresses(const struct in6_addr *local, u16 local_port,
			  const struct in6_addr *remote, u16 remote_port)
{
	u32 ports = (u32)local_port << 16 | remote_port;

	/* The other words of IPv4's addresses are the same in all of them. */
	if (ipv6_addr_v4mapped(local) && ipv6_addr_v4mapped(remote))
		return jhash_3words((__force u32)local->s6_addr32[3],
				    (__force u32)remote->s6_addr32[3], ports, hash_key);
	return jhash2((__force const u32 *)local->s6_addr32, 4,
		      jhash2((__force const u32 *)remote->s6_addr32, 4, hash_key ^ ports));
}

void hall_sock_publish(struct hall_sock *hs)
{
	u32 hash = hash_addresses(&hs->local, hs->local_port, &hs->remote,
				  hs->remote_port);

	spin_lock_bh(&lock);
	attached++;
	hash_add(by_address, &hs->hash, hash);
	spin_unlock_bh(&lock);
}

void hall_sock_unpublish(struct hall_sock *hs)
{
	spin_lock_bh(&lock);
	/* Most never had a ring. */
	if (!list_empty(&hs->ringed))
		list_del_init(&hs->ringed);
	attached--;
	hash_del(&hs->hash);
	spin_unlock_bh(&lock);
}

void hall_sock_note_ring(struct hall_sock *hs, bool has)
{
	spin_lock_bh(&lock);
	if (!has)
		list_del_init(&hs->ringed);
	else if (hash_hashed(&hs->hash) && list_empty(&hs->ringed))
		list_add_tail(&hs->ringed, &ringed);
	spin_unlock_bh(&lock);
}

/* The next one of the sockets that an OFFER may be for; after: NULL, or the last one. */
static struct hall_channel *find_offered(struct hall_member *member,
					 const struct hallway_message *offer,
					 const struct hall_sock *after)
{
	struct hall_channel *found = NULL;
	struct in6_addr local, remote;
	struct hall_sock *hs;
	u32 hash;

	memcpy(&local, offer->offer.remote, sizeof(local));
	memcpy(&remote, offer->offer.local, sizeof(remote));
	hash = hash_addresses(&local, offer->offer.remote_port, &remote,
			      offer->offer.local_port);
	spin_lock_bh(&lock);
	hash_for_each_possible(by_address, hs, hash, hash) {
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
			found = &hs->channel;
			break;
		}
	}
	spin_unlock_bh(&lock);
	return found;
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

	snapshot->room = READ_ONCE(attached);
	snapshot->room += snapshot->room / 8 + 64;
	snapshot->n = 0;
	/* Without it `hallway off` would detach nothing. */
	snapshot->sock = kvmalloc_array(snapshot->room, sizeof(*snapshot->sock),
					GFP_KERNEL | __GFP_NOFAIL);
	memalloc_noio_restore(noio);
}

/* Takes lock; there is room for all that are attached then. */
static void begin_walk(struct snapshot *snapshot) __acquires(&lock)
{
	for (;;) {
		make_room(snapshot);
		spin_lock_bh(&lock);
		if (attached <= snapshot->room)
			return;
		/* Many have come meanwhile. */
		spin_unlock_bh(&lock);
		kvfree(snapshot->sock);
	}
}

static void add(struct snapshot *snapshot, struct hall_sock *hs)
{
	if (hall_channel_tryget(&hs->channel))
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
	unsigned int bucket;

	begin_walk(&snapshot);
	hash_for_each(by_address, bucket, hs, hash)
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
	begin_walk(&snapshot);
	list_for_each_entry(hs, &ringed, ringed)
		add(&snapshot, hs);
	spin_unlock_bh(&lock);
	call_each(&snapshot, fn, data);
}
