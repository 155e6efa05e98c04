// SPDX-License-Identifier: GPL-2.0-only
/*
 * The life of a peer: arrival, addresses, departure.
 *
 * A peer can have itself depart, or be unresponsive, as often as it likes, and each
 * time its sockets have to be detached, which a program's call can delay. So
 * nothing waits for that under the transport's mutex: a work item of the peer's
 * own does (detach). Another one waits until its channels are closed (drain): they
 * may stay in the calls of their programs for as long as the programs like.
 */
#define pr_fmt(fmt) "hallway: " fmt

#include "shared.h"

#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include <hallway/reason.h>

#define DRAIN_RETRY	msecs_to_jiffies(10)
#define ADDRESS_TRIES	100
/* Between two publications that are taken: a peer may change its addresses without end. */
#define ADDRESS_PAUSE	(HZ / 20)

struct hall_peer *hall_peer_at(struct hall_own_slice *own, u32 mailbox)
{
	return rcu_dereference_protected(own->peer[mailbox],
					 lockdep_is_held(own->mutex));
}

static void add_bytes(struct hall_member_bytes *sum, const struct hall_peer *peer)
{
	struct hall_member_bytes bytes = hall_member_count_bytes(&peer->member);

	sum->tx += bytes.tx;
	sum->rx += bytes.rx;
	sum->sends += bytes.sends;
}

static void drain(struct work_struct *work)
{
	struct hall_peer *peer = container_of(to_delayed_work(work),
					      struct hall_peer, drain);
	struct hall_own_slice *own = peer->own;

	if (atomic_read(&peer->member.channels)) {
		queue_delayed_work(hall_control_queue, &peer->drain, DRAIN_RETRY);
		return;
	}
	spin_lock(&own->lock);
	add_bytes(&own->departed_bytes, peer);
	list_del(&peer->list);
	hall_own_slice_report(own);
	spin_unlock(&own->lock);
	hall_member_put(&peer->member);
}

/* No reader finds the peer from now on; some may have found it before. */
static void hide(struct hall_peer *peer)
{
	struct hall_own_slice *own = peer->own;

	if (hall_peer_at(own, peer->mailbox) != peer)
		return;
	spin_lock(&own->lock);
	list_add_tail(&peer->list, &own->departed);
	spin_unlock(&own->lock);
	rcu_assign_pointer(own->peer[peer->mailbox], NULL);
}

static void depart(struct hall_peer *peer, u32 reason)
{
	mutex_lock(peer->own->mutex);
	hide(peer);
	mutex_unlock(peer->own->mutex);
	synchronize_rcu();
	hall_transport_handler.departed(&peer->member, reason);
	hall_mailbox_stop(peer);
	/* The next member in its place has the same mailboxes. */
	spin_lock(&peer->own->lock);
	peer->stopped = true;
	spin_unlock(&peer->own->lock);
	pr_info_ratelimited("%s: member %u (%s) left\n",
			    peer->member.transport->name, peer->member.slot,
			    peer->member.name);
	queue_delayed_work(hall_control_queue, &peer->drain, 0);
}

static void detach(struct work_struct *work)
{
	struct hall_peer *peer = container_of(to_delayed_work(work),
					      struct hall_peer, detach);
	u32 reason = READ_ONCE(peer->detach_reason);

	/* The run before this one may have seen the reason that queued this one. */
	if (peer->stopped) {
		hall_member_put(&peer->member);
		return;
	}
	/* While its answers are still received. */
	if (reason != HALLWAY_REASON_PEER_LEFT)
		hall_transport_handler.detach(&peer->member, reason);
	if (reason != HALLWAY_REASON_UNRESPONSIVE)
		depart(peer, reason);
	WRITE_ONCE(peer->detaching, false);
	hall_member_put(&peer->member);
}

/* A reason that comes while the work item runs has it run again. */
static void queue_detach(struct hall_peer *peer, u32 reason)
{
	WRITE_ONCE(peer->detach_reason, reason);
	WRITE_ONCE(peer->detaching, true);
	hall_member_get(&peer->member);
	if (!queue_delayed_work(hall_depart_queue, &peer->detach, 0))
		hall_member_put(&peer->member);
}

struct hall_peer *hall_peer_create(struct hall_own_slice *own,
				   const struct hall_slice *slice,
				   const struct hall_transport *transport)
{
	struct hall_peer *peer = kzalloc(sizeof(*peer), GFP_KERNEL);

	if (!peer)
		return NULL;
	if (hall_mailbox_create(peer)) {
		kfree(peer);
		return NULL;
	}
	if (hall_member_init(&peer->member, transport, &own->pool)) {
		hall_peer_free(peer);
		return NULL;
	}
	peer->member.generation = slice->generation;
	peer->member.memory = slice->size;
	peer->own = own;
	peer->slice = *slice;
	peer->address_seq = ~0;
	peer->addresses_at = jiffies;
	INIT_DELAYED_WORK(&peer->detach, detach);
	INIT_DELAYED_WORK(&peer->drain, drain);
	return peer;
}

void hall_peer_arrive(struct hall_peer *peer, u32 out, u32 in)
{
	peer->mailbox = out;
	peer->out = hall_mailbox_at(&peer->own->slice, out);
	peer->in = hall_mailbox_at(&peer->slice, in);
	hall_mailbox_init(peer);
	pr_info_ratelimited("%s: member %u (%s) arrived\n",
			    peer->member.transport->name, peer->member.slot,
			    peer->member.name);
	hall_transport_handler.arrived(&peer->member);
	rcu_assign_pointer(peer->own->peer[out], peer);
	/* In place of pending bits that were there before. */
	hall_mailbox_notify(&peer->member, 0);
}

void hall_peer_depart(struct hall_peer *peer, u32 reason)
{
	if (reason == HALLWAY_REASON_PEER_LEFT)
		hide(peer);
	queue_detach(peer, reason);
}

void hall_peers_abandon(struct hall_own_slice *own)
{
	struct hall_peer *peer;
	u32 i;

	mutex_lock(own->mutex);
	for (i = 0; i < own->mailboxes; i++) {
		peer = hall_peer_at(own, i);
		if (peer)
			hide(peer);
	}
	mutex_unlock(own->mutex);
	/*
	 * Also peers that a pending work item, of their own or of a socket, is to drain.
	 * Nothing else changes the list meanwhile.
	 */
	list_for_each_entry(peer, &own->departed, list)
		depart(peer, HALLWAY_REASON_SUSPENDED);
}

bool hall_peer_lingers(struct hall_own_slice *own, u32 mailbox)
{
	struct hall_peer *peer;
	bool lingers = false;

	spin_lock(&own->lock);
	list_for_each_entry(peer, &own->departed, list)
		lingers |= peer->mailbox == mailbox && !peer->stopped;
	spin_unlock(&own->lock);
	return lingers;
}

void hall_peer_free(struct hall_peer *peer)
{
	hall_mailbox_free(peer);
	kfree(peer);
}

/* True: a copy that is whole, of *count addresses. */
static bool copy_addresses(struct hall_peer *peer, struct in6_addr *address,
			   u32 *count)
{
	struct hallway_slice *header = peer->slice.header;
	unsigned int try;
	u32 seq, n;

	for (try = 0; try < ADDRESS_TRIES; try++, cpu_relax()) {
		seq = virt_load_acquire(&header->address_seq);
		n = READ_ONCE(header->address_count);
		if ((seq & 1) || n > HALLWAY_ADDRESSES_MAX)
			continue;
		memcpy(address, header->address, n * sizeof(*address));
		virt_rmb();
		if (READ_ONCE(header->address_seq) != seq)
			continue;
		peer->address_seq = seq;
		*count = n;
		return true;
	}
	return false;
}

static void read_addresses(struct hall_peer *peer)
{
	struct in6_addr *address;
	u32 count, taken = 0, i;

	if (virt_load_acquire(&peer->slice.header->address_seq) ==
	    peer->address_seq)
		return;
	if (time_before(jiffies, peer->addresses_at))
		return;
	address = kmalloc_array(HALLWAY_ADDRESSES_MAX, sizeof(*address),
				GFP_KERNEL);
	if (!address)
		return;
	peer->addresses_at = jiffies + ADDRESS_PAUSE;
	if (copy_addresses(peer, address, &count)) {
		for (i = 0; i < count; i++)
			if (hall_address_travels(&address[i]))
				address[taken++] = address[i];
		hall_transport_handler.addresses(&peer->member, address, taken);
	}
	kfree(address);
}

void hall_peers_depart(struct hall_own_slice *own, u32 reason)
{
	struct hall_peer *peer;
	u32 i;

	for (i = 0; i < own->mailboxes; i++) {
		peer = hall_peer_at(own, i);
		if (peer)
			hall_peer_depart(peer, reason);
	}
}

bool hall_peers_are_gone(struct hall_own_slice *own)
{
	bool gone;
	u32 i;

	for (i = 0; i < own->mailboxes; i++)
		if (hall_peer_at(own, i))
			return false;
	spin_lock(&own->lock);
	gone = list_empty(&own->departed);
	spin_unlock(&own->lock);
	return gone;
}

void hall_peers_read_addresses(struct hall_own_slice *own)
{
	struct hall_peer *peer;
	u32 i;

	for (i = 0; i < own->mailboxes; i++) {
		peer = hall_peer_at(own, i);
		if (peer && hall_peer_responds(peer))
			read_addresses(peer);
	}
}

void hall_peers_listen(struct hall_own_slice *own)
{
	struct hallway_slice *header = own->slice.header;
	struct hall_member_bytes sum;
	struct hall_peer *peer;
	u32 i, channels = 0;

	spin_lock(&own->lock);
	sum = own->departed_bytes;
	list_for_each_entry(peer, &own->departed, list) {
		add_bytes(&sum, peer);
		channels += atomic_read(&peer->member.channels);
	}
	spin_unlock(&own->lock);
	for (i = 0; i < own->mailboxes; i++) {
		peer = hall_peer_at(own, i);
		if (!peer)
			continue;
		if (hall_peer_listen(peer))
			queue_detach(peer, HALLWAY_REASON_UNRESPONSIVE);
		hall_mailbox_check(peer);
		add_bytes(&sum, peer);
		channels += atomic_read(&peer->member.channels);
	}
	WRITE_ONCE(header->tx_bytes, sum.tx);
	WRITE_ONCE(header->rx_bytes, sum.rx);
	WRITE_ONCE(header->channels, channels);
	WRITE_ONCE(header->senders, sum.sends - own->sends);
	own->sends = sum.sends;
}

unsigned int hall_peers_look(struct hall_own_slice *own)
{
	struct hall_peer *peer;
	unsigned int found = 0;
	u32 i;

	for (i = 0; i < own->mailboxes; i++) {
		peer = rcu_dereference(own->peer[i]);
		if (peer)
			found |= hall_mailbox_look(peer);
	}
	return found;
}
