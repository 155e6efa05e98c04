// SPDX-License-Identifier: GPL-2.0-only
/* Kinds, endpoints and messages of channels: see channel.h. */
#include "channel.h"

#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/slab.h>

#include <hallway/reason.h>
#include <hallway/ring.h>

#include "../obs/counters.h"

static const struct hall_channel_kind *kinds[HALLWAY_KIND_MAX + 1];

void hall_channel_register(const struct hall_channel_kind *kind)
{
	WRITE_ONCE(kinds[kind->number], kind);
}

void hall_channel_unregister(const struct hall_channel_kind *kind)
{
	WRITE_ONCE(kinds[kind->number], NULL);
}

void hall_channel_setup(struct hall_channel *channel,
			const struct hall_channel_kind *kind,
			struct hall_member *member)
{
	channel->kind = kind;
	if (kind->owner)
		__module_get(kind->owner);
	hall_member_get(member);
	channel->member = member;
	spin_lock_init(&channel->lock);
	/* A late look-up may find a channel that is set up again: see hall_sock_tryget(). */
	smp_wmb();
	refcount_set(&channel->refs, 1);
}

void hall_channel_free(struct hall_channel *channel)
{
	const struct hall_channel_kind *kind = channel->kind;
	struct hall_member *member = channel->member;
	struct module *owner = kind->owner;

	kfree(channel->offer);
	kind->release(channel);
	hall_member_put(member);
	if (owner)
		module_put(owner);
}

void hall_channel_raise(struct hall_channel *channel, unsigned int event)
{
	set_bit(event, &channel->events);
	channel->kind->raised(channel);
}

/*
 * Takes the lowest free number. In use is said before the peer learns it: a transport
 * looks at no other block.
 */
static int take_number(struct hall_channel *channel)
{
	struct hall_member *member = channel->member;
	u64 block;
	int err;

	xa_lock_bh(&member->endpoints);
	err = __xa_alloc(&member->endpoints, &channel->endpoint, channel,
			 XA_LIMIT(1, HALLWAY_ENDPOINTS_MAX - 1), GFP_NOIO);
	if (err)
		goto unlock;
	block = 1ull << (channel->endpoint / HALL_BLOCK);
	if (member->blocks & block)
		goto unlock;
	WRITE_ONCE(member->blocks, member->blocks | block);
	/* Under this lock: the next one of the block may be woken at once. */
	if (member->transport->forget)
		member->transport->forget(member, channel->endpoint);
unlock:
	xa_unlock_bh(&member->endpoints);
	return err;
}

static void return_number(struct hall_member *member, u32 endpoint)
{
	unsigned long first = endpoint / HALL_BLOCK * HALL_BLOCK;

	xa_lock_bh(&member->endpoints);
	__xa_erase(&member->endpoints, endpoint);
	/* The first block has the messages. */
	if (first && !xa_find(&member->endpoints, &first, first + HALL_BLOCK - 1,
			      XA_PRESENT))
		WRITE_ONCE(member->blocks,
			   member->blocks & ~(1ull << (endpoint / HALL_BLOCK)));
	xa_unlock_bh(&member->endpoints);
}

void hall_channel_release(struct hall_member *member)
{
	if (atomic_dec_and_test(&member->channels))
		wake_up(&member->idle);
}

bool hall_channel_hold(struct hall_member *member)
{
	atomic_inc(&member->channels);
	/* As in hall_channel_open(): the memory of the member stays until the release. */
	smp_mb();
	if (!READ_ONCE(member->departed))
		return true;
	hall_channel_release(member);
	return false;
}

int hall_channel_open(struct hall_channel *channel)
{
	struct hall_member *member = channel->member;
	int err;

	if (channel->endpoint)
		return 0;
	if (!hall_channel_hold(member)) {
		hall_channel_raise(channel, HALL_EVENT_DEPARTED);
		return -EUSERS;
	}
	err = take_number(channel);
	if (err) {
		channel->endpoint = 0;
		hall_channel_release(member);
		return -EUSERS;
	}
	refcount_inc(&channel->refs);
	/*
	 * A departure sets departed, then walks the endpoints, and waits until
	 * none is left. Either it finds this endpoint, or departed is seen here
	 * and the channel touches no memory of the member.
	 */
	smp_mb();
	if (READ_ONCE(member->departed)) {
		hall_channel_raise(channel, HALL_EVENT_DEPARTED);
		hall_channel_close(channel);
		return -EUSERS;
	}
	return 0;
}

void hall_channel_close(struct hall_channel *channel)
{
	struct hall_member *member = channel->member;

	if (!channel->endpoint)
		return;
	return_number(member, channel->endpoint);
	channel->endpoint = 0;
	WRITE_ONCE(channel->sender, 0);
	WRITE_ONCE(channel->receiver, 0);
	hall_channel_release(member);
	hall_channel_put(channel);
}

/*
 * The caller may hold no lock that keeps the channel open. Between the close of a member's
 * last channel and the end of the shared memory there is a grace period.
 */
static void notify(struct hall_channel *channel, const u32 *number)
{
	u32 endpoint;

	rcu_read_lock();
	endpoint = READ_ONCE(*number);
	if (endpoint)
		channel->member->transport->notify(channel->member, endpoint);
	rcu_read_unlock();
}

void hall_channel_notify_receiver(struct hall_channel *channel)
{
	notify(channel, &channel->receiver);
}

void hall_channel_notify_sender(struct hall_channel *channel)
{
	notify(channel, &channel->sender);
}

static void send_offer(struct hall_channel *channel, u32 carrier,
		       const struct hallway_message *like,
		       const struct in6_addr *local, u16 local_port,
		       const struct in6_addr *remote, u16 remote_port)
{
	struct hallway_message message = *like;

	message.type = HALLWAY_OFFER;
	message.from = channel->endpoint;
	message.carrier = carrier;
	message.offer.kind = channel->kind->number;
	message.offer.local_port = local_port;
	message.offer.remote_port = remote_port;
	memcpy(message.offer.local, local, sizeof(*local));
	memcpy(message.offer.remote, remote, sizeof(*remote));
	hall_count(HALL_OFFERS);
	channel->member->transport->send(channel->member, &message);
}

void hall_channel_offer(struct hall_channel *channel, u32 carrier,
			const struct hall_tokens *tokens,
			const struct in6_addr *local, u16 local_port,
			const struct in6_addr *remote, u16 remote_port,
			const struct hall_memory *memory)
{
	struct hallway_message message = { .offer = {
		.token = { tokens->own[0], tokens->own[1] },
		.ring_size = memory->size - HALLWAY_RING_HEADER,
		.handle = memory->handle,
	} };

	send_offer(channel, carrier, &message, local, local_port, remote,
		   remote_port);
}

void hall_channel_call(struct hall_channel *channel, u32 carrier,
		       const struct hallway_call *call,
		       const struct in6_addr *local, u16 local_port,
		       const struct in6_addr *remote, u16 remote_port, u32 bytes,
		       const struct hallway_handle *handle)
{
	struct hallway_message message = { .offer = {
		.call = *call,
		.features = HALLWAY_FEATURE_GROWTH,
		.ring_size = bytes,
		.handle = *handle,
	} };

	send_offer(channel, carrier, &message, local, local_port, remote,
		   remote_port);
}

void hall_channel_tunnel(struct hall_channel *channel, u32 carrier,
			 const struct hallway_tunnel *tunnel,
			 const struct hall_memory *memory)
{
	static const struct in6_addr none;
	struct hallway_message message = { .offer = {
		.tunnel = *tunnel,
		.features = HALLWAY_FEATURE_GROWTH | HALLWAY_FEATURE_BLANK,
		.ring_size = memory->size - HALLWAY_RING_HEADER,
		.handle = memory->handle,
	} };

	send_offer(channel, carrier, &message, &none, 0, &none, 0);
}

void hall_channel_accept(struct hall_channel *channel, u32 carrier,
			 const struct hall_tokens *tokens)
{
	struct hallway_message message = {
		.type = HALLWAY_ACCEPT,
		.from = channel->endpoint,
		.to = channel->sender,
		.carrier = carrier,
		.other = { .token = { tokens->own[0], tokens->own[1] } },
	};

	channel->member->transport->send(channel->member, &message);
}

void hall_channel_send(struct hall_channel *channel, u16 type, u32 carrier,
		       u32 reason, u64 position)
{
	struct hallway_message message = {
		.type = type,
		.from = channel->endpoint,
		.to = channel->sender,
		.carrier = carrier,
		.other = { .position = position, .reason = reason },
	};

	channel->member->transport->send(channel->member, &message);
}

void hall_channel_decline(struct hall_member *member,
			  const struct hallway_message *offer, u32 reason)
{
	struct hallway_message message = {
		.type = HALLWAY_DECLINE,
		.to = offer->from,
		.carrier = offer->carrier,
		.other = { .reason = reason },
	};

	hall_count(HALL_DECLINES);
	member->transport->send(member, &message);
}

/* Messages and doorbells of the peer */

static const struct hall_channel_kind *find_kind(u16 number)
{
	if (number > HALLWAY_KIND_MAX)
		return NULL;
	return READ_ONCE(kinds[array_index_nospec(number, HALLWAY_KIND_MAX + 1)]);
}

/*
 * Each OFFER gets an answer, or its ring is never freed: one that is replaced is
 * declined, unless it is the same one again.
 *
 * Returns 0, or the reason to decline the OFFER.
 */
static u32 keep_offer(struct hall_channel *channel,
		      const struct hallway_message *message)
{
	struct hallway_message *copy, *old;

	copy = kmemdup(message, sizeof(*message), GFP_ATOMIC);
	if (!copy)
		return HALLWAY_REASON_NO_MEMORY;
	spin_lock_bh(&channel->lock);
	old = channel->offer;
	channel->offer = copy;
	spin_unlock_bh(&channel->lock);
	if (old && (old->from != message->from ||
		    old->carrier != message->carrier))
		hall_channel_decline(channel->member, old, HALLWAY_REASON_BUSY);
	kfree(old);
	hall_channel_raise(channel, HALL_EVENT_OFFER);
	return 0;
}

bool hall_channel_pass_offer(struct hall_channel *channel,
			     const struct hallway_message *offer)
{
	return !keep_offer(channel, offer);
}

struct hallway_message *hall_channel_take_offer(struct hall_channel *channel)
{
	struct hallway_message *offer;

	spin_lock_bh(&channel->lock);
	offer = channel->offer;
	channel->offer = NULL;
	spin_unlock_bh(&channel->lock);
	return offer;
}

/*
 * An OFFER is for the connection that it names, and not for an endpoint: the
 * number may be of an earlier life of the socket.
 */
static void receive_offer(struct hall_member *member,
			  const struct hallway_message *message)
{
	const struct hall_channel_kind *kind;
	struct hall_channel *channel;
	u32 reason;

	if (message->offer.features & HALLWAY_FEATURE_GROWTH)
		WRITE_ONCE(member->growth, true);
	rcu_read_lock();
	kind = find_kind(message->offer.kind);
	/* A module that is being unloaded gets no more channels. */
	if (kind && !try_module_get(kind->owner))
		kind = NULL;
	channel = kind ? kind->offer(member, message) : NULL;
	/* Each channel has a reference of its own. */
	if (kind)
		module_put(kind->owner);
	rcu_read_unlock();
	if (!kind) {
		hall_channel_decline(member, message, HALLWAY_REASON_KIND);
		return;
	}
	if (!channel) {
		hall_channel_decline(member, message, HALLWAY_REASON_NO_MATCH);
		return;
	}
	reason = keep_offer(channel, message);
	if (reason)
		hall_channel_decline(member, message, reason);
	hall_channel_put(channel);
}

static void keep_answer(struct hall_channel *channel, struct hall_answer *answer,
			const struct hallway_message *message,
			enum hall_channel_event event)
{
	spin_lock_bh(&channel->lock);
	answer->from = message->from;
	answer->carrier = message->carrier;
	answer->reason = message->other.reason;
	answer->position = message->other.position;
	memcpy(answer->token, message->other.token, sizeof(answer->token));
	spin_unlock_bh(&channel->lock);
	hall_channel_raise(channel, event);
}

struct hall_channel *hall_channel_find(struct hall_member *member, u32 endpoint)
{
	struct hall_channel *channel;

	rcu_read_lock();
	channel = xa_load(&member->endpoints, endpoint);
	if (channel && !hall_channel_tryget(channel))
		channel = NULL;
	rcu_read_unlock();
	return channel;
}

/* Endpoint 0 is for OFFER and DECLINE alone: section 5 of the protocol. */
static bool is_well_addressed(const struct hallway_message *message)
{
	if (message->from >= HALLWAY_ENDPOINTS_MAX)
		return false;
	switch (message->type) {
	case HALLWAY_OFFER:
		return message->from && !message->to;
	case HALLWAY_DECLINE:
		/* An end that declines may have no number for the connection. */
		return message->to;
	default:
		return message->from && message->to;
	}
}

static void receive_message(struct hall_member *member,
			    const struct hallway_message *message)
{
	struct hall_channel *channel;

	if (!is_well_addressed(message)) {
		hall_count(HALL_CORRUPT_MESSAGES);
		return;
	}
	if (message->type == HALLWAY_OFFER) {
		receive_offer(member, message);
		return;
	}
	channel = hall_channel_find(member, message->to);
	/* The channel may have been closed while the message was on its way. */
	if (!channel)
		return;
	switch (message->type) {
	case HALLWAY_ACCEPT:
		keep_answer(channel, &channel->accept, message, HALL_EVENT_ACCEPT);
		break;
	case HALLWAY_DECLINE:
		hall_count(HALL_OFFERS_DECLINED);
		keep_answer(channel, &channel->decline, message, HALL_EVENT_DECLINE);
		break;
	case HALLWAY_DEMOTE:
		keep_answer(channel, &channel->demote, message, HALL_EVENT_DEMOTE);
		break;
	case HALLWAY_DONE:
		keep_answer(channel, &channel->done, message, HALL_EVENT_DONE);
		break;
	default:
		hall_count(HALL_CORRUPT_MESSAGES);
	}
	hall_channel_put(channel);
}

static void ring_endpoint(struct hall_member *member, u32 endpoint)
{
	struct hall_channel *channel;

	rcu_read_lock();
	channel = hall_channel_find(member, endpoint);
	if (channel) {
		channel->kind->wake(channel);
		hall_channel_put(channel);
	}
	rcu_read_unlock();
}

void hall_channel_drain(struct hall_member *member, unsigned long patience)
{
	wait_event_timeout(member->idle, !atomic_read(&member->channels),
			   patience);
}

void hall_channel_raise_all(struct hall_member *member, const struct hall_channel_kind *kind,
			    unsigned int event)
{
	struct hall_channel *channel;
	unsigned long endpoint;

	xa_lock_bh(&member->endpoints);
	xa_for_each(&member->endpoints, endpoint, channel)
		if (!kind || channel->kind == kind)
			hall_channel_raise(channel, event);
	xa_unlock_bh(&member->endpoints);
}

void hall_channel_init(void)
{
	hall_transport_handler.message = receive_message;
	hall_transport_handler.wake = ring_endpoint;
}
