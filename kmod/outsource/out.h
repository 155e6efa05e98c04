/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Outsourcing: sockets of this guest that a process of the host executes, the
 * outsourcer (spec/protocol.md, section 7). This file has the object of such a socket.
 *
 * A socket is *watched* from its creation, if that comes after the first outsourcer:
 * sock->ops is a table that all watched sockets share (hook.c). connect() decides
 * (decide.c). A socket that stays native gets the native table back and is a stock
 * socket from then on. An outsourced one gets the other shared table, and a
 * hall_out. A listener stays native and watched, and has a hall_out if its port is
 * published: accept() takes from both queues.
 *
 * The struct sock of an outsourced socket stays as a husk: wait queue, sk_err,
 * sk_shutdown, timeouts, options. Its sk_state remains TCP_CLOSE and it is in no
 * hash, so no timer, no diagnosis and no sockmap of TCP's acts on it.
 *
 * The shared tables are never freed: threads keep a pointer to one for as long as
 * they like (do_accept() does). When the module goes their entries become native's.
 *
 * Locks, outermost first:
 *   mutex         all of a hall_out, unless it says otherwise; no thread waits for
 *                 the host or for bytes while it holds it
 *   channel.lock  the rings' private ends, and whether rings are there: poll(), the
 *                 doorbell and readers that spin run without the mutex
 */
#ifndef HALL_OUT_H
#define HALL_OUT_H

#include <linux/mutex.h>
#include <linux/socket.h>
#include <linux/workqueue.h>
#include <net/sock.h>

#include <hallway/message.h>

#include "../channel/channel.h"
#include "../ring/ring.h"
#include "../sock/turn.h"

struct hall_datagrams;

/* The carrier of a socket's only ring in a direction. */
#define HALL_OUT_CARRIER	1

enum hall_out_state {
	HALL_OUT_CALLING,	/* the OFFER is not answered, or not accepted */
	HALL_OUT_CONNECTED,	/* or listening */
	HALL_OUT_NATIVE,	/* not allowed: the native stack has the socket */
	HALL_OUT_REFUSED,	/* for error, or ended; only the object is left */
};

struct hall_out {
	struct hall_channel channel;	/* holds the reference count */
	struct hlist_node hash;		/* by sk; RCU */
	struct sock *sk;		/* referenced; NULL: not accepted yet */
	struct mutex mutex;
	enum hall_out_state state;	/* acquire and release */
	int error;			/* errno of a listener, or bound socket, that is REFUSED */
	bool closed;			/* by the program, or by unloading */
	bool failed;			/* reset; its program may have read SO_ERROR. Mutex */
	bool awaited;			/* the work item waits for the mutex */
	bool held;			/* the member: see hall_channel_hold() */
	bool chosen;			/* by the program: choice.c */

	/* Set before CONNECTED. IPv4 mapped; ports in host order. */
	struct in6_addr local, remote;
	u16 local_port, remote_port;
	/* What connect() was given, for the native stack. */
	struct sockaddr_storage address;
	int address_len;

	struct hall_tx_ring tx;
	struct hall_memory memory;	/* of tx; channel.lock to free it */
	struct hall_memory area;	/* of tx that has grown; the same */
	bool ended;			/* our end mark is set */
	struct hall_rx_ring rx;
	bool mapped;			/* rx is there; channel.lock to change it */
	u64 tx_bytes, rx_bytes;		/* that programs have sent and received */
	unsigned int spin_credit;	/* see sock/spin.c; no lock */
	u32 asked;			/* number of the last question: options.c */
	wait_queue_head_t answers;	/* sleepers that have asked */
	int passed[HALLWAY_OPTION_MAX + 1];	/* options, as they were passed */
	/* Bytes of a ring after its writer departed: allocated, and charged. */
	u8 *rest;
	u32 rest_len, rest_at;

	/* Of a listener: connections that wait for accept(); under its mutex. */
	struct list_head arrivals;
	unsigned int arrived, backlog;
	bool took_arrival;		/* by the last accept(); no lock */
	atomic_t unaccepted;		/* objects that have it as listener */
	bool pending;			/* not asked for yet: see publish.c */
	unsigned int policy;		/* of the host, when it was asked for */
	struct list_head arrival;	/* the place there of one that waits */
	struct hall_out *listener;	/* of one that is not accepted yet; referenced */

	struct hall_datagrams *datagrams;	/* of a UDP socket; allocated */

	struct work_struct work;
	struct hall_turn turn;		/* of the work item, at the lock of the socket */
	struct rcu_head rcu;
};

static inline struct hall_out *hall_out_of(struct hall_channel *channel)
{
	return container_of(channel, struct hall_out, channel);
}

static inline enum hall_out_state hall_out_state(const struct hall_out *out)
{
	return smp_load_acquire(&out->state);
}

/* Events besides those of hall_channel_event. The listener has closed. */
#define HALL_EVENT_ABANDONED	HALL_EVENT_KIND
/* Of a listener: a call has come through our table. */
#define HALL_EVENT_CALLED	(HALL_EVENT_KIND + 1)
/* Of a UDP socket: there are more records; the ring is corrupt. */
#define HALL_EVENT_RECORDS	(HALL_EVENT_KIND + 2)
#define HALL_EVENT_CORRUPT	(HALL_EVENT_KIND + 3)
/* It may be idle. */
#define HALL_EVENT_IDLE		(HALL_EVENT_KIND + 4)

/* life.c */

extern const struct hall_channel_kind hall_out_socket, hall_out_listener,
				      hall_out_datagram;

/* events.c: under the mutex. Set before the first transport starts. */
extern void (*hall_out_run_events)(struct hall_out *out, unsigned long events);
void hall_out_init(void);
/* Of both kinds. */
void hall_out_queue_work(struct hall_channel *channel);
void hall_out_release_channel(struct hall_channel *channel);

/* NULL: no memory. The caller has the one reference. */
struct hall_out *hall_out_new(const struct hall_channel_kind *kind,
			      struct hall_member *member, gfp_t gfp);
/* Finds the socket's, with a reference, or NULL. Any context. */
struct hall_out *hall_out_get(const struct sock *sk);
/* The same, if it is a connection of TCP: another thread may have begun to listen. */
struct hall_out *hall_out_get_connection(const struct sock *sk);
void hall_out_put(struct hall_out *out);
/* It is accepted, or gone: it counts at its listener no more. Mutex, or the last reference. */
void hall_out_leave_listener(struct hall_out *out);
/* The copy of the peer's ring is freed, if there is one. Mutex, or the last reference. */
void hall_out_free_rest(struct hall_out *out);
/* The hash holds a reference from publish to unpublish, which may come twice. */
void hall_out_publish(struct hall_out *out, struct sock *sk);
void hall_out_unpublish(struct hall_out *out);
/* Each in the hash, with a reference. Process context, no lock. */
void hall_out_walk(void (*fn)(struct hall_out *out, void *data), void *data);
/* A published one with a reference, or NULL if there is none. */
struct hall_out *hall_out_get_any(void);
/* Wakes each thread that waits for the socket, in whatever way. Any context. */
void hall_out_wake_all(struct sock *sk);
/* Around calls that may sleep in the native stack with our frames on their stack. */
void hall_out_enter(void);
void hall_out_leave(void);
/* Of objects, and of such calls. */
unsigned int hall_out_count(void);
/* Unlocks the mutex in a call. */
void hall_out_unlock(struct hall_out *out);

/* rings.c: the rings' memory and marks. Under the mutex, process context. */
int hall_out_offer(struct hall_out *out, const struct sock *sk,
		   const struct hallway_call *call);
int hall_out_map(struct hall_out *out, const struct hallway_message *offer);
/* Makes the ring larger if it has not space for these bytes. False: it stays as it is. */
bool hall_out_grow(struct hall_out *out, size_t bytes);
void hall_out_free_tx(struct hall_out *out);
void hall_out_unmap(struct hall_out *out);
/* Sets the end mark: FIN. The caller rings. */
void hall_out_end(struct hall_out *out);
/* Says that we read no more; reason: errno, or 0. */
void hall_out_finish_rx(struct hall_out *out, u32 reason);
/* Frees the endpoint number once the peer uses it no more. */
void hall_out_close_channel(struct hall_out *out);

/*
 * Bytes to read. *eof: none will follow them. Under the mutex; a corrupt ring fails
 * the socket.
 */
u32 hall_out_count_unread(struct hall_out *out, bool *eof);
/* The socket fails: its program gets the errno once it has read what is there. */
void hall_out_fail(struct hall_out *out, int error);

#endif /* HALL_OUT_H */
