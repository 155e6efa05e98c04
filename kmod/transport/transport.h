/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a hypervisor gives: memory that two members share, messages, doorbells,
 * arrivals and departures. A transport knows no sockets; it reports upward
 * through struct hall_transport_handler.
 */
#ifndef HALL_TRANSPORT_H
#define HALL_TRANSPORT_H

#include <linux/in6.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <hallway/message.h>
#include <hallway/region.h>

struct hall_member;
struct hall_transport;

/* Ring memory that this side owns. */
struct hall_memory {
	struct hallway_ring *ring;	/* or the area of one that has grown; NULL: none */
	size_t size;			/* bytes, a ring's header included */
	struct hallway_handle handle;	/* what the peer maps it by */
};

struct hall_member_bytes {
	u64 tx, rx;
	u64 sends;	/* for each round, the channels that sent in it */
};

/* The number of the round: it ends as transports look at what was moved. */
extern u32 hall_send_round;

/* The ring memory of one slice of this guest, for the peers that it is for. */
struct hall_pool {
	size_t size;			/* bytes */
	atomic_long_t used;		/* bytes */
	unsigned long wanted_at;	/* jiffies; when a request was refused last */
};

/* Endpoints with a bit in struct hall_member; those of one word of pending bits. */
#define HALL_BLOCK	64
static_assert(HALLWAY_ENDPOINTS_MAX / HALL_BLOCK <= 64, "a bit for each block");

/*
 * A member as this guest sees it; embedded in the transport's own structure.
 * Reference counted: the transport holds one from arrival until it is drained.
 */
struct hall_member {
	const struct hall_transport *transport;
	refcount_t refs;
	struct list_head list;		/* discovery's list, under its mutex */
	struct list_head addresses;	/* discovery's entries, same mutex */
	bool departed;			/* set once; new channels are refused */
	bool outsourcer;		/* the host says so; set before it arrives */
	bool vouched;			/* cid is the host's word, not its own; the same */
	bool growth;			/* it supports rings that grow: see spec; set once */
	u32 slot;
	u32 generation;
	u32 cid;			/* abi/hallway/tunnel.h; 0: none */
	u8 uuid[16];			/* as it says; to be shown only */
	u8 key[16];			/* of the connection tokens */
	char name[HALLWAY_NAME_SIZE];
	struct hall_member_bytes __percpu *bytes;	/* moved through rings */
	struct hall_pool *pool;		/* where rings towards it come from */
	atomic_long_t held;		/* bytes of that */
	struct xarray endpoints;	/* the channel room's, by number */
	u64 blocks;			/* of HALL_BLOCK endpoints: those in use, and the first */
	atomic_t channels;		/* endpoints in use */
	atomic_t tunnels;		/* of those, the tunnels */
	size_t memory;			/* bytes that it can offer rings in; 0: no bound */
	atomic_long_t charged;		/* bytes of that: hall_member_charge() */
	wait_queue_head_t idle;		/* woken when channels falls to 0 */
};

/* This guest as its peers see it, in one slot. */
struct hall_own {
	const struct hall_transport *transport;
	u32 slot;
	u32 generation;
	u8 uuid[16];
	char name[HALLWAY_NAME_SIZE];
	const struct in6_addr *address;
	unsigned int addresses;
};

struct hall_transport {
	const char *name;
	/* Peers run on other CPUs: a receiver may spin for a short time. */
	bool remote;

	/*
	 * Starts and stops the transport. All handlers below are set before init
	 * and remain set until uninit returns. uninit departs all members and
	 * returns when none is left. init: 0 or a negative error, after which
	 * uninit is not called. Process context.
	 */
	int (*init)(void);
	void (*uninit)(void);

	/* Process context. 0 or -ENOMEM. Called by hall_memory_alloc() alone. */
	int (*alloc)(struct hall_member *peer, size_t size,
		     struct hall_memory *memory);
	/* Any context. Called by hall_memory_free() alone. */
	void (*free)(struct hall_member *peer, struct hall_memory *memory);
	/*
	 * The peer's memory of that handle, or NULL if the handle does not name
	 * size bytes of the peer's own. Any context.
	 */
	struct hallway_ring *(*map)(struct hall_member *peer,
				    const struct hallway_handle *handle,
				    size_t size);
	/* Undoes map. Any context. */
	void (*unmap)(struct hall_member *peer, struct hallway_ring *ring);
	/*
	 * Does the peer's memory still belong to it? Bytes that were copied
	 * from it are good if so: afterwards another member may write it. Any
	 * context.
	 */
	bool (*intact)(struct hall_member *peer);
	/*
	 * The frame number of a page of shared memory, the peer's or our own, where it
	 * is mapped here: programs may map it. Frames of one ring follow each other. NULL:
	 * they may not. Any context.
	 */
	unsigned long (*find_pfn)(struct hall_member *peer, const void *page);
	/*
	 * May the peer reach this port of this guest by a tunnel? The host says
	 * so, where no other member can. NULL: any port. Any context.
	 */
	bool (*admits)(struct hall_member *peer, u32 port);
	/*
	 * Queues a message, in order, but for DECLINE, which may come earlier or
	 * later than others; never blocks. DECLINE needs no memory, and the last
	 * one for an endpoint is never lost. Another message that is lost for lack
	 * of memory is counted: its ring waits until the peer departs. Any context
	 * with no socket spinlock.
	 */
	void (*send)(struct hall_member *peer,
		     const struct hallway_message *message);
	/* Wakes the peer's endpoint. Any context with no socket spinlock. */
	void (*notify)(struct hall_member *peer, u32 endpoint);
	/*
	 * The endpoint is the first one of its block in use: forgets the peer's late calls of
	 * notify for others of that block. NULL where notify leaves nothing behind. Any context.
	 */
	void (*forget)(struct hall_member *peer, u32 endpoint);
	/*
	 * Rings the peer's doorbell, for shared/; NULL where notify needs none. Any
	 * context with no socket spinlock.
	 */
	void (*ring)(struct hall_member *peer);
	/*
	 * Publishes this guest's addresses to all peers; count is at most
	 * HALLWAY_ADDRESSES_MAX. Process context.
	 */
	void (*publish)(const struct in6_addr *address, unsigned int count);
	/*
	 * There is traffic with these candidates of all transports, and with no
	 * others: the host may make memory to share with those of this one. NULL
	 * where a transport has no candidates. Process context.
	 */
	void (*want)(const struct in6_addr *address, unsigned int count);
	/*
	 * Calls fn for each slot that this guest has, until it returns other than
	 * 0; returns that, or -EINTR. NULL where this guest is the only member.
	 * Process context.
	 */
	int (*own)(int (*fn)(const struct hall_own *own, void *data), void *data);
	/* Frees the member: the last reference is put. Any context. */
	void (*release)(struct hall_member *peer);
};

/* What a transport reports; the functions of discovery and channel. */
struct hall_transport_handler {
	/* Process context; arrived, then any of the others, then departed. */
	void (*arrived)(struct hall_member *member);
	/*
	 * Channels to the member close from now on: see hall_member_drain(). With
	 * HALLWAY_REASON_SUSPENDED a second time if some are left as this guest is
	 * suspended.
	 */
	void (*departed)(struct hall_member *member, u32 reason);
	/*
	 * The member is present, but unresponsive or about to depart. Returns
	 * when no stream is on its rings, or after some seconds. Its addresses do
	 * not count until they are reported again.
	 */
	void (*detach)(struct hall_member *member, u32 reason);
	void (*addresses)(struct hall_member *member,
			  const struct in6_addr *address, unsigned int count);
	/*
	 * The addresses of the transport's candidates: VMs with which it shares
	 * no memory, and might. The list takes the place of the transport's
	 * previous one. Process context.
	 */
	void (*candidates)(const struct hall_transport *transport,
			   const struct in6_addr *address, unsigned int count);
	/* Softirq or process context; neither sleeps. */
	void (*message)(struct hall_member *member,
			const struct hallway_message *message);
	void (*wake)(struct hall_member *member, u32 endpoint);
};

/*
 * The queues. Nothing may wait in one for a work item of the same queue.
 *   hall_workqueue     the sockets' work items: one for each, so there may be many
 *   hall_control_queue what concerns members: it waits for no socket, no peer and
 *                      no program
 *   hall_depart_queue  waits until a member's sockets are detached, for seconds
 */
extern struct workqueue_struct *hall_workqueue;
extern struct workqueue_struct *hall_control_queue;
extern struct workqueue_struct *hall_depart_queue;

/* Of this VM; set before the first transport starts. */
extern u8 hall_uuid[16];
/*
 * Its CID in AF_VSOCK: that of its UUID, or the one that hallwayd gave it at the last join.
 * READ_ONCE().
 */
extern u32 hall_cid;
/* 0; or -EINVAL: the parameter is no UUID. */
int hall_uuid_find(void);

/* All set before the first transport starts. */
extern struct hall_transport_handler hall_transport_handler;

/* size: bytes; less if the parameter memory_bytes says so. */
void hall_pool_init(struct hall_pool *pool, size_t size);
/* 0 or -ENOMEM. After 0 the member has one reference. Process context. */
int hall_member_init(struct hall_member *member,
		     const struct hall_transport *transport,
		     struct hall_pool *pool);
/* to: HALLWAY_NAME_SIZE. The name is logged, and a peer may have written it. */
void hall_member_copy_name(char *to, const char *from);
/* Begins a round, after all slices were looked at. Under the transport's mutex. */
void hall_send_round_next(void);
/* The sum over all CPUs. */
struct hall_member_bytes
hall_member_count_bytes(const struct hall_member *member);

/* Jiffies without a heartbeat, at least, after which a member is unresponsive. */
#define HALL_UNRESPONSIVE	(17 * HZ / 10)

/*
 * Waits until no channel to a departed member is left. That takes as long as a
 * program likes: its call may be in a page fault. Process context.
 */
void hall_member_drain(struct hall_member *member);

static inline void hall_member_get(struct hall_member *member)
{
	refcount_inc(&member->refs);
}

/* Any context. */
void hall_member_put(struct hall_member *member);

/*
 * Counts bytes of the member's memory that are mapped, or copied, for a tunnel or an
 * outsourced socket. False: there are more than the member has. Rings of an honest peer do
 * not overlap; one that offers the same memory again and again could have us copy all of
 * it for each socket as it departs. Any context.
 */
bool hall_member_charge(struct hall_member *member, size_t bytes);
void hall_member_uncharge(struct hall_member *member, size_t bytes);
/*
 * Counts those that are copied besides, of all members: one that departs and comes back
 * again and again has no more memory by it. False: there are too many. Any context.
 */
bool hall_copied_charge(size_t bytes);
void hall_copied_uncharge(size_t bytes);

/* May the member reach this port by a tunnel? Any context. */
static inline bool hall_member_may_reach(struct hall_member *member, u32 port)
{
	const struct hall_transport *transport = member->transport;

	return !transport->admits || transport->admits(member, port);
}

/*
 * The quota of a peer: it holds at most this many times what it leaves free. So
 * another peer finds some memory, even if this one never frees any.
 */
#define HALL_POOL_SHARE	8

/* Bytes left of the peer's quota; negative: it holds more than that. */
long hall_memory_count_left(const struct hall_member *peer);
/* 0, or -ENOMEM: the quota or the memory is used up. Process context. */
int hall_memory_alloc(struct hall_member *peer, size_t size,
		      struct hall_memory *memory);
/* Bytes of a ring where memory is short. */
#define HALL_RING_SHORT		(16u << 10)
/*
 * The same for *bytes of data at most, a power of two, with `header` bytes before them;
 * *bytes becomes the size, which is above HALL_RING_SHORT, or that with -ENOMEM. For rings
 * that keep it for life: large ones leave half of the quota for smaller ones, so that there
 * is a ring for many.
 */
int hall_memory_alloc_large(struct hall_member *peer, size_t header, u32 *bytes,
			    struct hall_memory *memory);
/* The same for a ring, which may be short. */
int hall_memory_alloc_ring(struct hall_member *peer, u32 *bytes,
			   struct hall_memory *memory);
/* Any context. */
void hall_memory_free(struct hall_member *peer, struct hall_memory *memory);

/*
 * Starts all transports, or none: 0 or a negative error. uninit stops them in
 * reverse order. Process context.
 */
int hall_transports_init(void);
void hall_transports_uninit(void);

/* Calls fn for each slot that this guest has: see own in struct hall_transport. */
int hall_transport_own(int (*fn)(const struct hall_own *own, void *data),
		       void *data);

/* Asks all transports that have candidates for memory to share with these. */
void hall_transport_want(const struct in6_addr *address, unsigned int count);

/*
 * Does the address name the same machine everywhere? 127.0.0.1 does not. Remote
 * transports neither publish other addresses nor take them from peers.
 */
bool hall_address_travels(const struct in6_addr *address);

/* Publishes over all transports that are remote, or over all that are not. */
void hall_transport_publish(bool remote, const struct in6_addr *address,
			    unsigned int count);

#endif /* HALL_TRANSPORT_H */
