/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Members that share pages. Each member owns a slice: a header, one mailbox for
 * each peer, and the memory of its send rings. It writes its own slice and reads
 * those of its peers. abi/hallway/region.h has the layout.
 *
 * A transport maps the slices, knows which members are present, and rings their
 * doorbells. This part does what is left: messages, ring memory, addresses,
 * heartbeats, arrival and departure. It knows no device, and builds in user
 * space too (tests/ring/transport.c).
 *
 * The transport calls everything here under its mutex (hall_own_slice.mutex) and
 * in process context, but where it says otherwise. The functions of struct
 * hall_transport have the contexts that transport.h names.
 */
#ifndef HALL_SHARED_H
#define HALL_SHARED_H

#include <linux/bitops.h>

#include "../transport.h"

struct gen_pool;
struct mutex;

/* A slice as it is mapped here: this guest's, or a peer's. */
struct hall_slice {
	struct hallway_slice *header;	/* mailboxes and ring memory follow */
	u64 size;			/* bytes, all included */
	u32 generation;			/* of the owner */
	const u32 *occupant;		/* generation of the owner now, shared */
};

/* This guest's slice. */
struct hall_own_slice {
	struct mutex *mutex;		/* the transport's */
	u32 mailboxes;			/* in each slice; at most HALLWAY_SLOTS_MAX */
	struct hall_peer __rcu *peer[HALLWAY_SLOTS_MAX]; /* by own mailbox */
	/* Valid between open and close. */
	struct hall_slice slice;
	struct gen_pool *rings;
	struct hall_pool pool;		/* what is used of rings */
	struct list_head beating;	/* RCU: heartbeat.c's list */
	u32 heartbeat;			/* as written last; heartbeat.c */
	/* Departed peers. */
	spinlock_t lock;		/* of the next three */
	struct list_head departed;	/* those with channels left */
	u32 change;			/* of the region, as acted on last */
	struct hall_member_bytes departed_bytes; /* moved by the others */
	u64 sends;			/* of all members, at the last look */
};

/* A DECLINE that waits for space in the mailbox. */
struct hall_declined {
	u32 carrier;
	u32 reason;
};

struct hall_peer {
	struct hall_member member;
	struct hall_own_slice *own;
	struct hall_slice slice;	/* the peer's */
	u32 address_seq;		/* as taken last; ~0: none */
	unsigned long addresses_at;	/* jiffies; they are not taken before */
	/* Heartbeat, as seen last; see heartbeat.c. */
	u32 heartbeat;
	unsigned int missed;		/* looks that found it unchanged */
	ktime_t looked_at;		/* the last look that counts */
	/* Mailboxes. */
	u32 mailbox;			/* number of out */
	struct hallway_mailbox *out;	/* to the peer, in our slice */
	struct hallway_mailbox *in;	/* from the peer, in the peer's slice */
	u64 untaken;			/* words of out with pending bits, at the last check */
	u32 in_tail;			/* softirq only */
	unsigned int in_word;		/* of pending, to look at next; softirq only */
	unsigned long sweep_at;		/* jiffies; the next look at all words; the same */
	spinlock_t lock;		/* BH; of the next six */
	u32 out_head;
	struct list_head backlog;	/* messages that found the mailbox full */
	unsigned int backlogged;	/* their number */
	struct hall_declined *declined;	/* the same of DECLINE, by endpoint */
	unsigned long declining[BITS_TO_LONGS(HALLWAY_ENDPOINTS_MAX)];
	unsigned int declines;		/* bits in that */
	struct delayed_work retry;	/* of both */
	unsigned long retry_after;	/* jiffies; its work item's own */
	/* Detaching and departure; see peer.c. */
	struct delayed_work detach;
	u32 detach_reason;		/* written under the mutex */
	bool detaching;			/* because it is unresponsive */
	struct list_head list;		/* own->departed */
	bool stopped;			/* under own->lock: its mailboxes are free */
	struct delayed_work drain;
};

static inline struct hall_peer *hall_peer_of(struct hall_member *member)
{
	return container_of(member, struct hall_peer, member);
}

/* Bytes of a slice before its ring memory. */
static inline u64 hall_slice_overhead(u32 mailboxes)
{
	return sizeof(struct hallway_slice) +
	       (u64)mailboxes * sizeof(struct hallway_mailbox);
}

/* Has its owner written all of the header? Any context. */
static inline bool hall_slice_is_formatted(const struct hall_slice *slice)
{
	return virt_load_acquire(&slice->header->magic) == HALLWAY_SLICE_MAGIC &&
	       READ_ONCE(slice->header->generation) == slice->generation;
}

/*
 * Is the slice still its owner's? Any context. Another member may get it at any
 * moment: what was read from it is good if this is true afterwards.
 */
static inline bool hall_slice_is_owned(const struct hall_slice *slice)
{
	return READ_ONCE(*slice->occupant) == slice->generation;
}

/* slice.c */

/* Once, before all else: mailboxes is at least 1 and at most HALLWAY_SLOTS_MAX. */
void hall_own_slice_init(struct hall_own_slice *own, u32 mailboxes,
			 struct mutex *mutex);
/*
 * Formats the slice, publishes the addresses, starts the heartbeat. slice->size
 * is larger than hall_slice_overhead() and a multiple of 4096, as is the header's
 * address. 0 or -ENOMEM.
 */
int hall_own_slice_open(struct hall_own_slice *own,
			const struct hall_slice *slice,
			const struct in6_addr *address, unsigned int count);
/*
 * Stops the heartbeat and invalidates the slice. All peers have departed and are
 * drained: hall_peers_are_gone().
 */
void hall_own_slice_close(struct hall_own_slice *own);
/*
 * The members are as the region's table was at this change. The host is informed once
 * departed ones are drained. Under the mutex.
 */
void hall_own_slice_settle(struct hall_own_slice *own, u32 change);
/* The same for the last change, under own->lock: a departed peer is drained. */
void hall_own_slice_report(struct hall_own_slice *own);
/* Rings nobody. count is at most HALLWAY_ADDRESSES_MAX. */
void hall_own_slice_publish(struct hall_own_slice *own,
			    const struct in6_addr *address, unsigned int count);

/* memory.c: functions of struct hall_transport. */

int hall_slice_alloc(struct hall_member *member, size_t size,
		     struct hall_memory *memory);
void hall_slice_free(struct hall_member *member, struct hall_memory *memory);
struct hallway_ring *hall_slice_map(struct hall_member *member,
				    const struct hallway_handle *handle,
				    size_t size);
void hall_slice_unmap(struct hall_member *member, struct hallway_ring *ring);
bool hall_slice_is_intact(struct hall_member *member);

/* mailbox.c */

struct hallway_mailbox *hall_mailbox_at(const struct hall_slice *slice,
					u32 number);
/*
 * Sets the endpoint's pending bit: it has something to look at. True: the doorbell
 * is to be rung afterwards. False: the word had bits that its reader has not taken,
 * and takes together with this one; or there is no such endpoint. Any context, with
 * preemption off until the doorbell has rung.
 */
bool hall_mailbox_mark(struct hallway_mailbox *mailbox, u32 endpoint);
/* For struct hall_transport. All but forget() ring by the transport's ring(). */
void hall_mailbox_notify(struct hall_member *member, u32 endpoint);
void hall_mailbox_forget(struct hall_member *member, u32 endpoint);
void hall_mailbox_send(struct hall_member *member,
		       const struct hallway_message *message);
/*
 * Rings again where the peer has not taken pending bits since the last check: a doorbell
 * may be lost, and other members can set bits, so that no bit of ours rings.
 */
void hall_mailbox_check(struct hall_peer *peer);
/* What hall_mailbox_look() found. */
#define HALL_LOOK_MESSAGES	1	/* messages, so there may be addresses too */
#define HALL_LOOK_MORE		2	/* there may be more: look again soon */
/*
 * Takes the peer's pending bits for this guest, and hands them up: a limited part
 * at a time, since other peers wait for the same CPU. Softirq.
 */
unsigned int hall_mailbox_look(struct hall_peer *peer);
/* What the functions below need. 0 or -ENOMEM. */
int hall_mailbox_create(struct hall_peer *peer);
/* Before arrival: empties the mailboxes of both directions. */
void hall_mailbox_init(struct hall_peer *peer);
/* After departure: no message is written any more. */
void hall_mailbox_stop(struct hall_peer *peer);
/* After the last reference. Any context. */
void hall_mailbox_free(struct hall_peer *peer);

/* heartbeat.c */

/* Jiffies between two calls of hall_peers_listen(): a little less than a beat. */
#define HALL_LISTEN	(9 * HZ / 20)

int hall_heartbeat_init(void);
void hall_heartbeat_uninit(void);
void hall_heartbeat_start(struct hall_own_slice *own);
void hall_heartbeat_stop(struct hall_own_slice *own);
/*
 * Looks at the peer's heartbeat. True: it has just become unresponsive, and its
 * streams are to be demoted.
 */
bool hall_peer_listen(struct hall_peer *peer);
/* Was the peer responsive at the last look? */
bool hall_peer_responds(const struct hall_peer *peer);

/* storm.c */

/* Doorbells of one interrupt. */
struct hall_storm {
	unsigned long jiffy;
	unsigned int doorbells;		/* in that */
};

/*
 * Counts a doorbell. Returns 0, or 1, 2 and so on where its interrupt is to be masked
 * until the next jiffy. Any context, but not twice at a time for one interrupt.
 */
unsigned int hall_storm_count(struct hall_storm *counted);

/* peer.c */

/* A peer with that slice, or NULL. The transport fills in member, then calls arrive. */
struct hall_peer *hall_peer_create(struct hall_own_slice *own,
				   const struct hall_slice *slice,
				   const struct hall_transport *transport);
/*
 * Messages to the peer are in the mailbox of that number in our slice, messages to
 * us in the other number of the peer's slice. Both are below own->mailboxes.
 */
void hall_peer_arrive(struct hall_peer *peer, u32 out, u32 in);
/*
 * Begins a departure, and does not wait for it. A peer that has left is not in
 * own->peer afterwards; for other reasons it stays there while its streams are
 * demoted. Its reference is put once it is drained.
 */
void hall_peer_depart(struct hall_peer *peer, u32 reason);
/*
 * This guest is about to be suspended: all programs and all work queues stand
 * still already. Has all peers depart, and no stream uses their memory afterwards.
 * Without the mutex.
 */
void hall_peers_abandon(struct hall_own_slice *own);
/* Are the mailboxes of that number still a departed peer's? */
bool hall_peer_lingers(struct hall_own_slice *own, u32 mailbox);
/* Ends release() of struct hall_transport. Any context. */
void hall_peer_free(struct hall_peer *peer);

/* The peer that arrived with that mailbox, or NULL. */
struct hall_peer *hall_peer_at(struct hall_own_slice *own, u32 mailbox);
void hall_peers_depart(struct hall_own_slice *own, u32 reason);
/*
 * Have all departed, and is no channel to them left? That takes as long as a
 * program likes: its call may be in a page fault.
 */
bool hall_peers_are_gone(struct hall_own_slice *own);
/* Hands up the addresses of peers that have published others. */
void hall_peers_read_addresses(struct hall_own_slice *own);
/* Listens to all peers, and tells the host what was moved. */
void hall_peers_listen(struct hall_own_slice *own);
/* hall_mailbox_look() at all peers. Softirq, under rcu_read_lock(). */
unsigned int hall_peers_look(struct hall_own_slice *own);

#endif /* HALL_SHARED_H */
