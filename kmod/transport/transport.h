/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a hypervisor gives: memory that two members share, messages, a
 * doorbell, and the news of who comes and goes. A transport knows no sockets;
 * it reports upward through struct hall_transport_handler.
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
	struct hallway_ring *ring;	/* NULL: none */
	size_t size;			/* bytes, the ring's header included */
	struct hallway_handle handle;	/* what the peer maps it by */
};

struct hall_member_bytes {
	u64 tx, rx;
};

/* The ring memory of this guest in one region, for all peers there. */
struct hall_pool {
	size_t size;
	atomic_long_t used;
	unsigned long wanted_at;	/* jiffies; when somebody got none last */
};

/*
 * A member of a region, as this guest sees it; embedded in the transport's
 * own structure. Reference counted; arrival holds one until departure.
 */
struct hall_member {
	const struct hall_transport *transport;
	refcount_t refs;
	struct list_head list;		/* discovery's list, under its mutex */
	struct list_head addresses;	/* discovery's entries, same mutex */
	bool departed;			/* set once; new channels are refused */
	u32 slot;
	u32 generation;
	u8 uuid[16];
	u8 key[16];			/* of the connection tokens */
	char name[HALLWAY_NAME_SIZE];
	struct hall_member_bytes __percpu *bytes;	/* moved through rings */
	struct hall_pool *pool;		/* where rings towards it come from */
	atomic_long_t held;		/* bytes of that */
	struct xarray endpoints;	/* the channel room's, by number */
	atomic_t endpoint_high;		/* the highest number ever used */
	atomic_t channels;		/* endpoints in use */
	wait_queue_head_t idle;		/* woken when channels falls to 0 */
};

/* This guest as its peers see it in one region. */
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
	/* The peer runs on another CPU: a receiver may spin a little. */
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
	/* Gives back what map returned. Any context. */
	void (*unmap)(struct hall_member *peer, struct hallway_ring *ring);
	/*
	 * Is the peer's memory still the peer's? Asked after bytes were copied
	 * out of it: a slot that was given to another member may be written to.
	 */
	bool (*intact)(struct hall_member *peer);
	/*
	 * Queues a message, in order; never blocks. One that is lost for want
	 * of memory is counted, and the channel's deadline deals with it.
	 */
	void (*send)(struct hall_member *peer,
		     const struct hallway_message *message);
	/* Wakes the peer's endpoint. Any context with no socket spinlock. */
	void (*notify)(struct hall_member *peer, u32 endpoint);
	/* Tells all peers which addresses are here. Process context. */
	void (*publish)(const struct in6_addr *address, unsigned int count);
	/*
	 * There is traffic with these candidates of all transports, and with no
	 * others: the host may make memory to share with those of this one. NULL
	 * where a transport has no candidates. Process context.
	 */
	void (*want)(const struct in6_addr *address, unsigned int count);
	/*
	 * Calls fn with this guest's own place in each region, until it is not
	 * 0. NULL where the one member is this guest. Process context.
	 */
	int (*own)(int (*fn)(const struct hall_own *own, void *data), void *data);
	/* The last reference is gone. Any context. */
	void (*release)(struct hall_member *peer);
};

/* How a transport speaks upward; the functions of discovery and channel. */
struct hall_transport_handler {
	/* Process context; arrived, then any of the others, then departed. */
	void (*arrived)(struct hall_member *member);
	/* Channels to the member close from here on: see hall_member_settle(). */
	void (*departed)(struct hall_member *member, u32 reason);
	/*
	 * The member is there, and is to be used no longer: it gives no sign of
	 * life, or will depart. Its addresses count no more until they are told
	 * again. Returns when no stream is on its rings.
	 */
	void (*leave)(struct hall_member *member, u32 reason);
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

/* Where all of Hallway's own work runs. */
extern struct workqueue_struct *hall_workqueue;

/* All set before the first transport starts. */
extern struct hall_transport_handler hall_transport_handler;

void hall_pool_init(struct hall_pool *pool, size_t size);
/* 0 or -ENOMEM; after it hall_member_put() ends the member. */
int hall_member_init(struct hall_member *member,
		     const struct hall_transport *transport,
		     struct hall_pool *pool);
/* The sum over all CPUs. */
struct hall_member_bytes hall_member_bytes(const struct hall_member *member);

/* Jiffies for which a member that is left for its silence was silent, at least. */
#define HALL_SILENCE	(17 * HZ / 10)

/*
 * Waits until no channel is left to a member that has departed. That may take as
 * long as a program likes, for it may have a call in a page fault.
 */
void hall_member_settle(struct hall_member *member);

static inline void hall_member_get(struct hall_member *member)
{
	refcount_inc(&member->refs);
}

void hall_member_put(struct hall_member *member);

/*
 * Ring memory for a peer, and back. A peer holds at most so many times what it
 * leaves free: whoever comes next finds some, however little a peer gives back.
 */
#define HALL_POOL_SHARE	8

/* Bytes that the peer may still be given; negative: it holds too many. */
long hall_memory_left(const struct hall_member *peer);
/* Process context. 0, or -ENOMEM: no memory left for this peer. */
int hall_memory_alloc(struct hall_member *peer, size_t size,
		      struct hall_memory *memory);
/* Any context. */
void hall_memory_free(struct hall_member *peer, struct hall_memory *memory);

/*
 * Starts all transports, or none: 0 or a negative error. uninit stops them in
 * reverse order. Process context.
 */
int hall_transports_init(void);
void hall_transports_uninit(void);

/* The places of this guest in the regions of all transports. */
int hall_transport_own(int (*fn)(const struct hall_own *own, void *data),
		       void *data);

/* Asks all transports that have candidates for memory to share with these. */
void hall_transport_want(const struct in6_addr *address, unsigned int count);

/*
 * Means the same machine wherever it is said; so not 127.0.0.1, for one. Others are
 * neither published by remote transports nor taken from their peers.
 */
bool hall_address_travels(const struct in6_addr *address);

/* Publishes over all transports that are remote, or over all that are not. */
void hall_transport_publish(bool remote, const struct in6_addr *address,
			    unsigned int count);

#endif /* HALL_TRANSPORT_H */
