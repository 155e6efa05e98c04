// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hostile end of tunnels, in place of hallway_vsock.ko: a member that sends the peer what
 * messages it likes, in any order, and writes what it likes into rings, its own and the peer's.
 *
 *   insmod hostile.ko cid=CID port=PORT seed=SEED
 *
 * Each step picks one of its ends at random, and does one of `acts` with it. Most of what it
 * says is near what the protocol allows: other things go no further than the first check.
 * insmod makes steps until it gets a signal; the module has nothing any more then.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include <hallway/reason.h>
#include <hallway/tunnel.h>

#include "channel/channel.h"
#include "compat/namespace.h"

#define ENDS		24
#define CARRIER		1	/* of each ring of a tunnel */
#define NUMBERS		64	/* most endpoints of the peer are below that */

static unsigned int cid;
module_param(cid, uint, 0);
MODULE_PARM_DESC(cid, "CID of the peer");

static unsigned int port;
module_param(port, uint, 0);
MODULE_PARM_DESC(port, "of the peer's streams; its packets and datagrams are at the next ones");

static unsigned long seed;
module_param(seed, ulong, 0);
MODULE_PARM_DESC(seed, "seed of all that is random");

struct end {
	struct hall_channel channel;
	u32 type;			/* of the tunnel, as we said last */
	bool greeted;			/* a stream of ours has named its service */
	struct hall_memory memory;	/* of our ring; ring is NULL: there is none */
	struct hallway_ring *mapped;	/* the peer's ring, or NULL */
	u32 mapped_size;		/* bytes of that, without its header */
	u32 owed;			/* the endpoint that offered it, until it is named, or 0 */
	struct list_head list;		/* of arrived */
	struct rcu_head rcu;
};

static struct rnd_state rng;
static struct hall_member *peer;
static struct end *ends[ENDS];

/*
 * The peer frees a ring when DONE or DECLINE names its endpoint. In the region of a group we
 * could then write into what it shares with others, but only this end's own tunnels are to
 * suffer. So only rings of its odd endpoints are mapped, and each OFFER of these is named
 * once, when its ring is mapped no more. Even endpoints are named at any time.
 */

/* What the peer has asked for, and no step has taken yet. */
static LIST_HEAD(arrived);
static unsigned int arrivals;
static DEFINE_SPINLOCK(lock);

static u32 below(u32 bound)
{
	return prandom_u32_state(&rng) % bound;
}

static bool one_in(u32 n)
{
	return !below(n);
}

/* A word near the one that is there, or far from it. */
static u64 spoil(u64 word)
{
	u64 any = (u64)prandom_u32_state(&rng) << 32 | prandom_u32_state(&rng);

	switch (below(4)) {
	case 0:
		return word + (1ULL << below(20));
	case 1:
		return word - (1ULL << below(20));
	case 2:
		return word ^ 1ULL << below(64);
	default:
		return any;
	}
}

/* One of the first words of a ring, where indexes and marks are, or of its data. */
static void spoil_ring(struct hallway_ring *ring, u32 size)
{
	u64 *words = (u64 *)ring;
	u32 n = one_in(3) ? (HALLWAY_RING_HEADER + size) / sizeof(*words) : 24;
	u64 *word = words + below(n);

	WRITE_ONCE(*word, spoil(READ_ONCE(*word)));
}

/* The kind */

static struct end *end_of(struct hall_channel *channel)
{
	return container_of(channel, struct end, channel);
}

static void ignore(struct hall_channel *channel)
{
}

static void release(struct hall_channel *channel)
{
	kfree_rcu(end_of(channel), rcu);
}

static struct hall_channel *meet(struct hall_member *member,
				 const struct hallway_message *offer);

static const struct hall_channel_kind kind = {
	.number = HALLWAY_KIND_TUNNEL,
	.owner = THIS_MODULE,
	.offer = meet,
	.raised = ignore,
	.wake = ignore,
	.release = release,
};

static struct end *make_end(struct hall_member *member, gfp_t gfp)
{
	struct end *end = kzalloc(sizeof(*end), gfp);

	if (end)
		hall_channel_setup(&end->channel, &kind, member);
	return end;
}

static struct hall_channel *meet(struct hall_member *member,
				 const struct hallway_message *offer)
{
	struct hall_channel *channel;
	struct end *end;

	if (offer->offer.tunnel.answers) {
		channel = hall_channel_find(member, offer->offer.tunnel.answers);
		if (!channel)
			return NULL;
		/* One in place of another would decline that. */
		if (channel->kind == &kind && !READ_ONCE(channel->offer))
			return channel;
		hall_channel_put(channel);
		return NULL;
	}
	end = member == peer && READ_ONCE(arrivals) < ENDS ? make_end(member, GFP_ATOMIC) : NULL;
	if (!end)
		return NULL;
	/* For the list. */
	hall_channel_tryget(&end->channel);
	spin_lock_bh(&lock);
	list_add_tail(&end->list, &arrived);
	arrivals++;
	spin_unlock_bh(&lock);
	return &end->channel;
}

static struct end *take_arrived(void)
{
	struct end *end;

	spin_lock_bh(&lock);
	end = list_first_entry_or_null(&arrived, struct end, list);
	if (end) {
		list_del(&end->list);
		arrivals--;
	}
	spin_unlock_bh(&lock);
	return end;
}

/* Acts: each is for one end. */

static void offer_ring(struct end *end, u32 answers, u32 type)
{
	u32 size = HALLWAY_RING_MIN << below(5);
	struct hallway_tunnel names = {
		.answers = one_in(8) ? below(NUMBERS) : answers,
		.type = one_in(16) ? prandom_u32_state(&rng) : type,
		.local_port = below(4096),
		.remote_port = port + type - HALLWAY_TUNNEL_STREAM,
	};
	struct hall_memory said;
	struct hall_tx_ring tx;

	end->type = type;
	end->greeted = false;
	if (!end->memory.ring &&
	    hall_memory_alloc(peer, HALLWAY_RING_HEADER + size, &end->memory)) {
		end->memory.ring = NULL;
		return;
	}
	size = end->memory.size - HALLWAY_RING_HEADER;
	memset(end->memory.ring, 0, end->memory.size);
	hall_ring_init_tx(&tx, end->memory.ring, size, CARRIER);
	if (!one_in(16))
		hall_ring_set_start(&tx, 0);
	said = end->memory;
	if (one_in(16))
		said.size = spoil(said.size);
	if (one_in(16))
		said.handle.opaque[below(sizeof(said.handle.opaque))] ^= 1 << below(8);
	hall_channel_tunnel(&end->channel, one_in(16) ? below(4) : CARRIER, &names, &said);
}

static void request(struct end *end)
{
	offer_ring(end, 0, HALLWAY_TUNNEL_STREAM + below(3));
}

static void unmap_ring(struct end *end)
{
	if (end->mapped)
		peer->transport->unmap(peer, end->mapped);
	end->mapped = NULL;
}

/* Unmaps the ring, if there is one. Returns an endpoint that may be named once. */
static u32 take_endpoint(struct end *end)
{
	u32 endpoint = end->owed;

	unmap_ring(end);
	end->owed = 0;
	return endpoint ?: 2 * (1 + below(NUMBERS / 2));
}

static void map_ring(struct end *end, const struct hallway_message *offer)
{
	u32 size = offer->offer.ring_size;

	if (offer->from % 2) {
		end->mapped = peer->transport->map(peer, &offer->offer.handle,
						   HALLWAY_RING_HEADER + (size_t)size);
		end->mapped_size = size;
		end->owed = offer->from;
	}
	WRITE_ONCE(end->channel.sender, offer->from);
	WRITE_ONCE(end->channel.receiver, offer->from);
}

static void answer(struct end *end)
{
	struct hallway_message *offer = hall_channel_take_offer(&end->channel);

	if (!offer)
		return;
	if (end->owed || one_in(4)) {
		hall_channel_decline(peer, offer, below(40));
	} else {
		map_ring(end, offer);
		if (!one_in(8))
			offer_ring(end, offer->from, offer->offer.tunnel.type);
	}
	kfree(offer);
}

static void say(struct end *end)
{
	static const u16 types[] = { HALLWAY_ACCEPT, HALLWAY_DEMOTE, HALLWAY_DONE, HALLWAY_DONE };
	u64 position = end->mapped ? READ_ONCE(end->mapped->head) : 0;
	u16 type = types[below(ARRAY_SIZE(types))];

	if (type == HALLWAY_DONE)
		WRITE_ONCE(end->channel.sender, take_endpoint(end));
	else if (!end->channel.sender || one_in(8))
		WRITE_ONCE(end->channel.sender, 1 + below(NUMBERS));
	hall_channel_send(&end->channel, type, one_in(16) ? below(4) : CARRIER,
			  one_in(2) ? 0 : ECONNRESET, one_in(4) ? spoil(position) : position);
}

static void decline(struct end *end)
{
	struct hallway_message offer = { .from = take_endpoint(end), .carrier = CARRIER };

	hall_channel_decline(peer, &offer, below(40));
}

/* Writes bytes at a position of our ring, and returns the position behind them. */
static u64 put(struct end *end, u64 at, const void *bytes, u32 count)
{
	u32 i, size = end->memory.size - HALLWAY_RING_HEADER;
	const u8 *from = bytes;

	for (i = 0; i < count; i++)
		WRITE_ONCE(end->memory.ring->data[(at + i) & (size - 1)], from ? from[i] : 0);
	return at + count;
}

/* A message of a service, such as tests have; what is before it says how long it is, mostly. */
static void write(struct end *end)
{
	static const char service[16] = "echo            ";
	u32 n = end->greeted ? 1 + below(300) : sizeof(service);
	u32 length = one_in(8) ? spoil(n) : n;
	const struct hallway_frame frame = { .length = length, .flags = below(4) };
	const struct hallway_letter letter = {
		.length = length, .local_port = below(4096), .remote_port = port + 2,
	};
	struct hallway_ring *ring = end->memory.ring;
	const void *header = NULL;
	u32 size = 0, align = 1;
	u64 head, at;

	if (!ring)
		return;
	if (end->type == HALLWAY_TUNNEL_SEQPACKET) {
		header = &frame;
		size = sizeof(frame);
		align = HALLWAY_FRAME_ALIGN;
	} else if (end->type == HALLWAY_TUNNEL_DGRAM) {
		header = &letter;
		size = sizeof(letter);
		align = HALLWAY_LETTER_ALIGN;
	}
	head = READ_ONCE(ring->head);
	at = put(end, head, header, size);
	at = put(end, at, end->greeted ? NULL : service, n);
	at = put(end, at, NULL, -(at - head) & (align - 1));
	end->greeted = true;
	smp_store_release(&ring->head, at);
	hall_channel_notify_receiver(&end->channel);
}

/* The bytes from head on are said to lie in the ring of any end. */
static void grow(struct end *end)
{
	struct end *other = ends[below(ENDS)];
	struct hallway_ring *ring = end->memory.ring;

	if (!ring || !other || !other->memory.ring)
		return;
	ring->area = other->memory.handle;
	ring->area_size = one_in(4) ? spoil(other->memory.size) : other->memory.size;
	smp_store_release(&ring->grown, HALLWAY_MARK_SET |
			  (READ_ONCE(ring->head) & HALLWAY_MARK_POSITION));
}

static void spoil_own(struct end *end)
{
	if (end->memory.ring)
		spoil_ring(end->memory.ring, end->memory.size - HALLWAY_RING_HEADER);
}

static void spoil_peers(struct end *end)
{
	if (end->mapped)
		spoil_ring(end->mapped, end->mapped_size);
}

/* Reads all there is. */
static void read(struct end *end)
{
	if (end->mapped)
		WRITE_ONCE(end->mapped->tail, READ_ONCE(end->mapped->head));
}

static void finish(struct end *end)
{
	static const u64 marks[] = {
		HALLWAY_MARK_SET, HALLWAY_MARK_SET | HALLWAY_MARK_RESET, HALLWAY_MARK_TRUNCATED,
	};
	struct hallway_ring *ring = one_in(4) ? end->mapped : end->memory.ring;

	if (ring)
		WRITE_ONCE(ring->end, marks[below(ARRAY_SIZE(marks))]);
}

static void ring(struct end *end)
{
	hall_channel_notify_receiver(&end->channel);
}

/* The peer may read it yet, and finds the next ring of ours there. */
static void withdraw(struct end *end)
{
	if (end->memory.ring)
		hall_memory_free(peer, &end->memory);
	end->memory.ring = NULL;
}

/* Its number is another end's soon. The peer may hear nothing of it. */
static void forget(struct end *end)
{
	if (end->owed && !one_in(4))
		decline(end);
	withdraw(end);
	unmap_ring(end);
	hall_channel_close(&end->channel);
	hall_channel_put(&end->channel);
}

static void (*const acts[])(struct end *end) = {
	request, answer, answer, say, decline, write, write, write, write, write,
	spoil_own, spoil_peers, read, read, read, finish, grow, ring, ring, withdraw,
};

static struct end *begin(void)
{
	struct end *asked = take_arrived();
	struct end *end = asked ?: make_end(peer, GFP_KERNEL);

	if (!end)
		return NULL;
	if (hall_channel_open(&end->channel)) {
		hall_channel_put(&end->channel);
		return NULL;
	}
	if (asked && !one_in(4))
		answer(end);
	else if (one_in(2))
		request(end);
	return end;
}

static void step(void)
{
	struct end **end = &ends[below(ENDS)];

	if (!*end) {
		*end = begin();
	} else if (one_in(24)) {
		forget(*end);
		*end = NULL;
	} else {
		acts[below(ARRAY_SIZE(acts))](*end);
	}
}

static int __init hostile_init(void)
{
	struct end *end;
	unsigned int i;

	peer = hall_members_get_by_cid(cid);
	if (!peer) {
		pr_err("hostile: no member has CID %u\n", cid);
		return -EHOSTUNREACH;
	}
	prandom_seed_state(&rng, seed);
	hall_channel_register(&kind);
	while (!signal_pending(current) && !READ_ONCE(peer->departed)) {
		step();
		/* The peer's programs are to do something in between, too. */
		if (one_in(2))
			usleep_range(200, 2000);
	}
	hall_channel_unregister(&kind);
	synchronize_rcu();
	while ((end = take_arrived()))
		hall_channel_put(&end->channel);
	for (i = 0; i < ENDS; i++)
		if (ends[i])
			forget(ends[i]);
	hall_member_put(peer);
	return 0;
}
module_init(hostile_init);

static void __exit hostile_exit(void)
{
}
module_exit(hostile_exit);

MODULE_DESCRIPTION("A hostile end of tunnels, for tests");
MODULE_LICENSE("GPL");
HALL_IMPORT;
