// SPDX-License-Identifier: GPL-2.0-only
/* Pairs: see pair.h. */
#define pr_fmt(fmt) "hallway: xen: " fmt

#include "pair.h"

#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/random.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include <xen/events.h>
#include <asm/xen/hypercall.h>

#include <hallway/reason.h>
#include <hallway/tunnel.h>

#include "../../obs/counters.h"
#include "../transports.h"

static unsigned int xen_slice = 4096;
module_param(xen_slice, uint, 0444);
MODULE_PARM_DESC(xen_slice, "KiB of memory that each other domain of Xen is granted (default: 4096)");

/* Pages of a slice: with some ring memory, and not without bound. */
#define PAGES_MIN	16
#define PAGES_MAX	16384

/*
 * Between two tries, and after a peer left: twice as long each time, since a peer may
 * come and go without end. One that stays for longer than that is new again.
 */
#define PAUSE_MIN	(HZ / 5)
#define PAUSE_MAX	(16 * PAUSE_MIN)
/* A program's call may keep a channel that long before another pair takes the place. */
#define PATIENCE	HZ

DEFINE_MUTEX(xen_mutex);
LIST_HEAD(xen_pairs);
LIST_HEAD(xen_former);
struct in6_addr xen_address[HALLWAY_ADDRESSES_MAX];
unsigned int xen_addresses;

/* Pairs that have left the list; their watches are registered yet. */
static DEFINE_SPINLOCK(gone_lock);
static LIST_HEAD(gone_pairs);

static struct pair *pair_of(struct hall_member *member)
{
	return container_of(hall_peer_of(member)->own, struct pair, own);
}

static void put(struct pair *pair)
{
	if (refcount_dec_and_test(&pair->refs))
		kfree(pair);
}

void hall_xen_release(struct hall_member *member)
{
	struct pair *pair = pair_of(member);

	hall_peer_free(hall_peer_of(member));
	put(pair);
}

/* The event channel */

void hall_xen_pair_ring(struct pair *pair)
{
	evtchn_port_t port = READ_ONCE(pair->port);

	if (port)
		notify_remote_via_evtchn(port);
}

void hall_xen_ring(struct hall_member *member)
{
	hall_xen_pair_ring(pair_of(member));
}

/* The channel stays masked until the mailbox was looked at. */
static irqreturn_t rung(int irq, void *data)
{
	struct pair *pair = data;

	hall_count(HALL_DOORBELLS_RECEIVED);
	WRITE_ONCE(pair->rung, irq);
	tasklet_schedule(&pair->tasklet);
	return IRQ_HANDLED;
}

static void look(struct tasklet_struct *tasklet)
{
	struct pair *pair = from_tasklet(pair, tasklet, tasklet);
	int irq = xchg(&pair->rung, 0);
	unsigned int found;

	rcu_read_lock();
	found = hall_peers_look(&pair->own);
	rcu_read_unlock();
	/* From the second in a row that is flagged on, the kernel waits for a jiffy. */
	if (irq)
		xen_irq_lateeoi(irq, hall_storm_count(&pair->storm) ?
					     XEN_EOI_FLAG_SPURIOUS : 0);
	/* The rest in another run: programs get the CPU between the two. */
	if (found & HALL_LOOK_MORE)
		tasklet_schedule(&pair->tasklet);
	/* There may be addresses, too. */
	if (found & HALL_LOOK_MESSAGES)
		pair->look_soon();
}

/* Is the port that of a channel to the peer? */
static bool leads_to_peer(const struct pair *pair, evtchn_port_t port)
{
	struct evtchn_status status = { .dom = DOMID_SELF, .port = port };

	if (HYPERVISOR_event_channel_op(EVTCHNOP_status, &status))
		return false;
	if (status.status == EVTCHNSTAT_unbound)
		return status.u.unbound.dom == pair->domid;
	return status.status == EVTCHNSTAT_interdomain &&
	       status.u.interdomain.dom == pair->domid;
}

static int listen(struct pair *pair, evtchn_port_t port)
{
	struct evtchn_close close = { .port = port };
	int irq = bind_evtchn_to_irqhandler_lateeoi(port, rung, 0, "hallway",
						    pair);

	if (irq < 0) {
		/*
		 * Where request_irq() failed, the kernel has closed the channel,
		 * and another driver may have got the port since.
		 */
		if (leads_to_peer(pair, port))
			HYPERVISOR_event_channel_op(EVTCHNOP_close, &close);
		return irq;
	}
	pair->irq = irq;
	WRITE_ONCE(pair->port, port);
	return 0;
}

static int make_channel(struct pair *pair)
{
	struct evtchn_alloc_unbound alloc = {
		.dom = DOMID_SELF,
		.remote_dom = pair->domid,
	};
	int err = HYPERVISOR_event_channel_op(EVTCHNOP_alloc_unbound, &alloc);

	return err ?: listen(pair, alloc.port);
}

static int bind_channel(struct pair *pair)
{
	struct evtchn_bind_interdomain bind = {
		.remote_dom = pair->domid,
		.remote_port = pair->offer.port,
	};
	int err = HYPERVISOR_event_channel_op(EVTCHNOP_bind_interdomain, &bind);

	return err ?: listen(pair, bind.local_port);
}

/* Nothing rings the peer any more. */
static void close_channel(struct pair *pair)
{
	int irq = pair->irq;

	if (!pair->port)
		return;
	WRITE_ONCE(pair->port, 0);
	pair->irq = 0;
	disable_irq(irq);
	tasklet_kill(&pair->tasklet);
	unbind_from_irqhandler(irq, pair);
}

/* What this domain offers */

static int open_slice(struct pair *pair)
{
	struct hall_slice slice = {
		.header = pair->granted->at,
		.size = (u64)pair->granted->pages << PAGE_SHIFT,
		.generation = pair->generation,
		.occupant = &pair->generation,
	};

	return hall_own_slice_open(&pair->own, &slice, xen_address,
				   xen_addresses);
}

static int make_offer(struct pair *pair)
{
	struct xen_granted *granted =
		hall_xen_grant(pair->domid,
			       clamp(xen_slice >> (PAGE_SHIFT - 10),
				     PAGES_MIN, PAGES_MAX));
	struct xen_offer offer;
	int err;

	if (IS_ERR(granted))
		return PTR_ERR(granted);
	pair->granted = granted;
	pair->generation = get_random_u32() | 1;
	err = open_slice(pair);
	if (err)
		goto grant;
	if (pair->server) {
		err = make_channel(pair);
		if (err)
			goto slice;
	}
	offer = (struct xen_offer){
		.generation = pair->generation,
		.gref = granted->first,
		.pages = granted->pages,
		.port = pair->port,
	};
	err = hall_xen_write_offer(&pair->nodes, &offer);
	if (!err)
		return 0;
	close_channel(pair);
slice:
	hall_own_slice_close(&pair->own);
grant:
	pair->granted = NULL;
	hall_xen_end_grant(granted);
	return err;
}

static void withdraw(struct pair *pair)
{
	if (!pair->granted)
		return;
	if (!pair->former)
		hall_xen_remove_offer(&pair->nodes);
	close_channel(pair);
	hall_own_slice_close(&pair->own);
	hall_xen_end_grant(pair->granted);
	pair->granted = NULL;
}

/* The peer */

static int add_peer(struct pair *pair, const struct hall_slice *slice)
{
	struct hall_peer *peer = hall_peer_create(&pair->own, slice,
						  &hall_xen_transport);

	if (!peer)
		return -ENOMEM;
	refcount_inc(&pair->refs);
	peer->member.slot = pair->domid;
	peer->member.vouched = true;
	peer->member.cid = hallway_cid(pair->known.uuid);
	memcpy(peer->member.uuid, pair->known.uuid, sizeof(peer->member.uuid));
	memcpy(peer->member.key, pair->known.key, sizeof(peer->member.key));
	strscpy(peer->member.name, pair->known.name, sizeof(peer->member.name));
	hall_peer_arrive(peer, 0, 0);
	/* The peer may have sent before it arrived here. */
	tasklet_schedule(&pair->tasklet);
	hall_xen_pair_ring(pair);
	return 0;
}

static int map_slice(struct pair *pair)
{
	const struct xen_offer *offer = &pair->offer;
	struct hall_slice slice = {
		.size = (u64)offer->pages << PAGE_SHIFT,
		.generation = offer->generation,
		.occupant = &pair->occupant,
	};
	struct xen_mapped *mapped;
	int err = 0;

	if (offer->major != HALLWAY_MAJOR)
		return -EPROTONOSUPPORT;
	if (offer->pages < PAGES_MIN || offer->pages > PAGES_MAX)
		return -EINVAL;
	mapped = hall_xen_map(pair->domid, offer->gref, offer->pages,
			      pair->granted->pages);
	if (IS_ERR(mapped))
		return PTR_ERR(mapped);
	pair->occupant = offer->generation;
	pair->mapped = mapped;
	slice.header = mapped->at;
	if (!hall_slice_is_formatted(&slice))
		err = -EPROTO;
	if (!err && !pair->server)
		err = bind_channel(pair);
	if (!err)
		err = add_peer(pair, &slice);
	if (!err)
		return 0;
	if (!pair->server)
		close_channel(pair);
	pair->mapped = NULL;
	hall_xen_unmap(mapped);
	return err;
}

static void put_off(struct pair *pair)
{
	pair->pause = clamp(2 * pair->pause, PAUSE_MIN, PAUSE_MAX);
	pair->try_at = jiffies + pair->pause;
}

/* What does not work is tried again, and said once. */
static void complain(struct pair *pair, const char *what, int err)
{
	put_off(pair);
	if (pair->complained)
		return;
	pair->complained = true;
	pr_warn_ratelimited("can't %s domain %u (%s): error %d; connections to it stay on TCP\n",
			    what, pair->domid, pair->known.name, err);
}

static struct pair *find_former(domid_t domid)
{
	struct pair *pair;

	list_for_each_entry(pair, &xen_former, list)
		if (pair->domid == domid)
			return pair;
	return NULL;
}

static void join(struct pair *pair)
{
	struct pair *former = find_former(pair->domid);
	int err = 0;

	if (time_before(jiffies, pair->try_at))
		return;
	/*
	 * The peer has the slice of before, and uses its memory for new rings: a call that
	 * reads a former ring would find their bytes.
	 */
	if (former && former->occupant && former->occupant == pair->offer.generation)
		return;
	if (!pair->granted) {
		if (!pair->offer.possible) {
			/* It is read again at the next look. */
			WRITE_ONCE(pair->changed, true);
			pair->announced = false;
			return;
		}
		/* Without a module it needs no memory: it may never have one. */
		if (pair->announced && !pair->offer.major)
			return;
		/* dom0 writes the rest in a moment: its watch follows. */
		if (hall_xen_read_known(&pair->nodes, &pair->known))
			return;
		if (!pair->announced)
			err = hall_xen_announce(&pair->nodes);
		pair->announced = !err;
		if (!err && !pair->offer.major)
			return;
		if (!err)
			err = make_offer(pair);
		/* A peer that unmaps the slice of before does so soon. */
		if (err == -EBUSY && pair->pause < PAUSE_MAX)
			put_off(pair);
		else if (err)
			complain(pair, "offer memory to", err);
	}
	if (err || !pair->offer.generation)
		return;
	err = map_slice(pair);
	if (err) {
		complain(pair, err == -EPROTONOSUPPORT ? "understand the version of" :
							 "share the memory of", err);
		return;
	}
	pair->complained = false;
	pair->joined_at = jiffies;
	pair->state = PAIR_JOINED;
}

/*
 * A domain that lives and is here no longer may go on elsewhere, as may its
 * connections. What it has written can be read until it is unmapped.
 */
static u32 find_reason(const struct pair *pair)
{
	return pair->offer.possible && !pair->dead ? HALLWAY_REASON_REGION_GONE :
						     HALLWAY_REASON_PEER_LEFT;
}

/*
 * The domain is gone. Calls of programs may keep the pair for as long as they like, and a
 * domain that gets the number shall not map what was for its predecessor.
 */
static void bury(struct pair *pair)
{
	if (pair->dead)
		return;
	pair->dead = true;
	pair->ended = true;
	pair->listed = false;
	if (!pair->former)
		hall_xen_remove_offer(&pair->nodes);
}

static void leave_peer(struct pair *pair)
{
	hall_xen_unmap(pair->mapped);
	pair->mapped = NULL;
	if (!pair->server)
		close_channel(pair);
	if (time_after(jiffies, pair->joined_at + PAUSE_MAX))
		pair->pause = 0;
	put_off(pair);
	pair->state = PAIR_ALONE;
}

static void begin_leaving(struct pair *pair)
{
	pair->left_at = jiffies;
	pair->state = PAIR_LEAVING;
}

/* One for each domain: a former pair keeps two slices. */
static bool may_become_former(struct pair *pair)
{
	if (pair->state != PAIR_LEAVING || pair->former)
		return false;
	/* The time counts once its streams have been detached. */
	if (hall_peer_at(&pair->own, 0) || hall_peer_lingers(&pair->own, 0))
		pair->left_at = jiffies;
	return time_after(jiffies, pair->left_at + PATIENCE) && !find_former(pair->domid);
}

/* What it shares stays as it is. */
static void become_former(struct pair *pair)
{
	pair->ended = true;
	pair->former = true;
	pair->listed = false;
	hall_xen_remove_offer(&pair->nodes);
	close_channel(pair);
	list_move_tail(&pair->list, &xen_former);
}

/*
 * Has another pair the same nodes, or will it in a moment? One that has ended comes back if
 * dom0 lists it, as after a suspension.
 */
static bool is_followed(const struct pair *pair)
{
	const struct pair *other;

	if (!pair->former)
		return pair->ended;
	list_for_each_entry(other, &xen_pairs, list)
		if (other->domid == pair->domid)
			return true;
	return false;
}

void hall_xen_pair_suspend(struct pair *pair)
{
	pair->ended = true;
	pair->listed = false;
	hall_peers_abandon(&pair->own);
	/* What reads the peer's slice later finds zeros there, and takes none for bytes. */
	WRITE_ONCE(pair->occupant, 0);
	hall_xen_remove_offer(&pair->nodes);
	if (pair->mapped)
		hall_xen_unmap_pages(pair->mapped);
	close_channel(pair);
	if (pair->state == PAIR_JOINED)
		begin_leaving(pair);
}

bool hall_xen_pair_advance(struct pair *pair, bool *gone)
{
	if (pair->granted && pair->state != PAIR_ALONE && !pair->offer.possible)
		bury(pair);
	/* XenStore shows the end of a domain before Xen has taken its mappings back. */
	if (pair->granted && pair->dead)
		hall_xen_revoke_grant(pair->granted);
	if (pair->state == PAIR_JOINED &&
	    (!pair->listed || pair->offer.generation != pair->occupant)) {
		hall_peers_depart(&pair->own, find_reason(pair));
		begin_leaving(pair);
	}
	if (pair->state == PAIR_LEAVING && hall_peers_are_gone(&pair->own))
		leave_peer(pair);
	if (may_become_former(pair)) {
		become_former(pair);
		*gone = true;
	}
	/* Its module or domain is gone; dom0's daemon may not be there to unlist that. */
	if (pair->state == PAIR_ALONE && !pair->offer.major && pair->granted) {
		withdraw(pair);
		/* It can come and go as often as it likes. */
		put_off(pair);
	}
	if (pair->state == PAIR_ALONE && pair->listed)
		join(pair);
	if (pair->state == PAIR_ALONE && !pair->listed) {
		withdraw(pair);
		if (!is_followed(pair))
			hall_xen_leave(&pair->nodes);
		spin_lock(&gone_lock);
		list_move_tail(&pair->list, &gone_pairs);
		spin_unlock(&gone_lock);
		*gone = true;
		return false;
	}
	return pair->state == PAIR_LEAVING;
}

bool hall_xen_pair_check(struct pair *pair)
{
	u8 key[sizeof(pair->known.key)];
	int err;

	if (!pair->granted)
		return true;
	err = hall_xen_read_key(&pair->nodes, key);
	if (err && err != -ENOENT)
		return false;
	/* What the one before has left in the slice is not for its successor. */
	if (err)
		pair->ended = true;
	else if (memcmp(key, pair->known.key, sizeof(key)))
		bury(pair);
	return true;
}

static struct pair *take_gone(void)
{
	struct pair *pair;

	spin_lock(&gone_lock);
	pair = list_first_entry_or_null(&gone_pairs, struct pair, list);
	if (pair)
		list_del(&pair->list);
	spin_unlock(&gone_lock);
	return pair;
}

void hall_xen_pairs_free(void)
{
	struct pair *pair;

	while ((pair = take_gone())) {
		unregister_xenbus_watch(&pair->watch);
		put(pair);
	}
}

static void note_change(struct xenbus_watch *watch, const char *path,
			const char *token)
{
	struct pair *pair = container_of(watch, struct pair, watch);

	WRITE_ONCE(pair->changed, true);
	pair->look_soon();
	/* This pair, too: a former one would stay until dom0 has another event. */
	hall_xen_pairs_free();
}

struct pair *hall_xen_pair_create(domid_t own, domid_t domid,
				  void (*look_soon)(void))
{
	struct pair *pair = kzalloc(sizeof(*pair), GFP_KERNEL);

	if (!pair)
		return NULL;
	refcount_set(&pair->refs, 1);
	pair->domid = domid;
	pair->server = own < domid;
	pair->try_at = jiffies;
	pair->look_soon = look_soon;
	hall_xen_name_nodes(&pair->nodes, own, domid);
	hall_own_slice_init(&pair->own, 1, &xen_mutex);
	tasklet_setup(&pair->tasklet, look);
	pair->watch.node = pair->nodes.from;
	pair->watch.will_handle = hall_xen_takes_event;
	pair->watch.callback = note_change;
	if (register_xenbus_watch(&pair->watch)) {
		kfree(pair);
		return NULL;
	}
	list_add_tail(&pair->list, &xen_pairs);
	return pair;
}
