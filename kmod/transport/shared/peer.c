// SPDX-License-Identifier: GPL-2.0
/*
 * The life of a peer: arrival, addresses, departure. A departed peer's sockets
 * may stay in the calls of their programs for as long as the programs like. A
 * work item of the peer's own waits for them, so that nothing else has to.
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

struct hall_peer *hall_peer_at(struct hall_own_slice *own, u32 mailbox)
{
	return rcu_dereference_protected(own->peer[mailbox],
					 lockdep_is_held(own->mutex));
}

static void add_bytes(struct hall_member_bytes *sum, const struct hall_peer *peer)
{
	struct hall_member_bytes bytes = hall_member_bytes(&peer->member);

	sum->tx += bytes.tx;
	sum->rx += bytes.rx;
}

static void drain(struct work_struct *work)
{
	struct hall_peer *peer = container_of(to_delayed_work(work),
					      struct hall_peer, drain);
	struct hall_own_slice *own = peer->own;

	/* Not slept for: the work that ends the channels is in this queue too. */
	if (atomic_read(&peer->member.channels)) {
		queue_delayed_work(hall_workqueue, &peer->drain, DRAIN_RETRY);
		return;
	}
	spin_lock(&own->lock);
	add_bytes(&own->departed_bytes, peer);
	list_del(&peer->list);
	spin_unlock(&own->lock);
	wake_up(&own->drained);
	hall_member_put(&peer->member);
}

struct hall_peer *hall_peer_create(struct hall_own_slice *own,
				   const struct hall_slice *slice,
				   const struct hall_transport *transport)
{
	struct hall_peer *peer = kzalloc(sizeof(*peer), GFP_KERNEL);

	if (!peer)
		return NULL;
	if (hall_member_init(&peer->member, transport, &own->pool)) {
		kfree(peer);
		return NULL;
	}
	peer->member.generation = slice->generation;
	peer->own = own;
	peer->slice = *slice;
	peer->address_seq = ~0;
	INIT_DELAYED_WORK(&peer->drain, drain);
	return peer;
}

void hall_peer_arrive(struct hall_peer *peer, u32 out, u32 in)
{
	peer->mailbox = out;
	peer->out = hall_mailbox_at(&peer->own->slice, out);
	peer->in = hall_mailbox_at(&peer->slice, in);
	hall_mailbox_init(peer);
	pr_info("%s: member %u (%s) arrived\n", peer->member.transport->name,
		peer->member.slot, peer->member.name);
	hall_transport_handler.arrived(&peer->member);
	rcu_assign_pointer(peer->own->peer[out], peer);
}

void hall_peer_depart(struct hall_peer *peer, u32 reason)
{
	struct hall_own_slice *own = peer->own;

	/* While its answers are still received. */
	if (reason != HALLWAY_REASON_PEER_LEFT)
		hall_transport_handler.detach(&peer->member, reason);
	spin_lock(&own->lock);
	list_add_tail(&peer->list, &own->departed);
	spin_unlock(&own->lock);
	rcu_assign_pointer(own->peer[peer->mailbox], NULL);
	synchronize_rcu();
	hall_transport_handler.departed(&peer->member, reason);
	/* The next member in its place has the same mailboxes. */
	hall_mailbox_stop(peer);
	pr_info("%s: member %u (%s) left\n", peer->member.transport->name,
		peer->member.slot, peer->member.name);
	queue_delayed_work(hall_workqueue, &peer->drain, 0);
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
	address = kmalloc_array(HALLWAY_ADDRESSES_MAX, sizeof(*address),
				GFP_KERNEL);
	if (!address)
		return;
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
		hall_peer_listen(peer);
		add_bytes(&sum, peer);
		channels += atomic_read(&peer->member.channels);
	}
	WRITE_ONCE(header->tx_bytes, sum.tx);
	WRITE_ONCE(header->rx_bytes, sum.rx);
	WRITE_ONCE(header->channels, channels);
}

bool hall_peers_look(struct hall_own_slice *own)
{
	struct hall_peer *peer;
	bool messages = false;
	u32 i;

	for (i = 0; i < own->mailboxes; i++) {
		peer = rcu_dereference(own->peer[i]);
		if (peer)
			messages |= hall_mailbox_look(peer);
	}
	return messages;
}
