/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pairs: this domain, and one other that it may share memory with.
 *
 * Each of the two grants the other a slice of its own memory, as long as dom0
 * allows the pair and the other has a module. Each maps the other's slice whole, once,
 * when it finds an offer of it, and has the other arrive. The pair has an event channel:
 * the domain with the lower number makes it, and says its port in its offer.
 *
 * An offer of another generation is of another peer in the same place: the one of
 * before departs, its slice is unmapped once no channel to it is left, and only then
 * the new one's is mapped. This domain's own slice stays as it is: mailboxes state
 * the generations of both sides. That an offer is gone means that the peer has left; where
 * its version is gone, too, so is its module, and it is granted nothing any more.
 *
 * A program's call may keep a channel for as long as it likes. The pair becomes a former
 * one then: it waits for that alone, and a new pair with new memory takes its place.
 *
 * No third domain can see the memory of a pair. A peer that breaks the rules ends
 * this pair alone.
 */
#ifndef HALL_XEN_PAIR_H
#define HALL_XEN_PAIR_H

#include <linux/interrupt.h>

#include "../shared/shared.h"
#include "grant.h"
#include "store.h"

enum pair_state {
	PAIR_ALONE,		/* no slice of the peer's is mapped */
	PAIR_JOINED,
	PAIR_LEAVING,		/* until no channel to the peer is left */
};

struct pair {
	struct list_head list;		/* xen_pairs, xen_former or the pairs that have left */
	refcount_t refs;		/* the lists, and each peer */
	domid_t domid;
	bool server;			/* the event channel is ours to make */
	bool listed;			/* dom0 lists it */
	bool found;			/* in the list that is being read */
	bool ended;			/* for good: it is not listed any more */
	bool dead;			/* the domain is gone; another may have its number */
	bool former;			/* another one may have its nodes and its place */
	bool announced;			/* the peer can see that there is a module here */
	int changed;			/* what it offers, as a watch said; xchg() */
	void (*look_soon)(void);
	struct xen_nodes nodes;
	struct xenbus_watch watch;	/* of what the peer offers */
	struct xen_known known;
	enum pair_state state;
	unsigned long joined_at;	/* jiffies */
	unsigned long left_at;		/* jiffies: its streams were detached */
	unsigned long try_at;		/* jiffies; nothing is tried before */
	unsigned int pause;		/* jiffies; until then, as chosen last */
	bool complained;		/* of what was tried last */
	/* Ours. */
	struct xen_granted *granted;	/* NULL: nothing is offered */
	struct hall_own_slice own;	/* open while it is granted */
	u32 generation;
	/* The peer's. */
	struct xen_offer offer;		/* as read last */
	struct xen_mapped *mapped;	/* valid but in PAIR_ALONE */
	u32 occupant;			/* its generation */
	/* The event channel. */
	evtchn_port_t port;		/* 0: none */
	int irq;
	int rung;			/* the interrupt that is to be ended, or 0 */
	struct hall_storm storm;	/* the tasklet's */
	struct tasklet_struct tasklet;
};

/* Serialises everything in this folder but what says otherwise. */
extern struct mutex xen_mutex;
extern struct list_head xen_pairs;
extern struct list_head xen_former;	/* one for each domain at most */
extern struct in6_addr xen_address[HALLWAY_ADDRESSES_MAX];
extern unsigned int xen_addresses;

/*
 * A pair in the list, or NULL if memory is short. look_soon is called when there is
 * something to look at, in any context.
 */
struct pair *hall_xen_pair_create(domid_t own, domid_t domid,
				  void (*look_soon)(void));
/*
 * dom0's list has the pair's number. Is it the domain that has got this domain's slice?
 * If not, the pair ends. False: XenStore gave no answer.
 */
bool hall_xen_pair_check(struct pair *pair);
/*
 * Brings the pair on by what XenStore said last; called now and then, too, for what
 * is to be tried again. True: look again soon. A pair that dom0 no longer lists is
 * ended, and leaves the list. A pair that a program's call keeps from that becomes a former
 * one. *gone is set for both: dom0 may list the domain.
 */
bool hall_xen_pair_advance(struct pair *pair, bool *gone);
/*
 * Frees pairs that have left the list. In the thread that handles watches, or at
 * unload: a watch can't be unregistered while that thread suspends this domain, and
 * that waits for work items.
 */
void hall_xen_pairs_free(void);
/*
 * This domain is about to be suspended: all programs and all work queues stand
 * still already. The peer may go on reading what it was sent. The pair ends, and
 * leaves the list by hall_xen_pair_advance() once the domain goes on. Without the mutex.
 */
void hall_xen_pair_suspend(struct pair *pair);
/* Rings the peer. Any context. */
void hall_xen_pair_ring(struct pair *pair);

/* The functions of struct hall_transport that stand on pairs. */
void hall_xen_ring(struct hall_member *member);
void hall_xen_release(struct hall_member *member);

#endif /* HALL_XEN_PAIR_H */
