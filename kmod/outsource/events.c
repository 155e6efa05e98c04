// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the outsourcer says: OFFERs that answer ours or bring connections, refusals,
 * ends, and its departure.
 */
#include "out.h"

#include <linux/mm.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "calls.h"
#include "datagrams.h"
#include "listeners.h"

/* The last one that programs know. */
#define ERRNO_MAX	EHWPOISON

static bool is_datagram(const struct hall_out *out)
{
	return out->channel.kind == &hall_out_datagram;
}

/* Has a program a connection by it? */
static bool is_live(const struct hall_out *out)
{
	return out->state == HALL_OUT_CONNECTED && !out->closed;
}

static void on_done(struct hall_out *out)
{
	struct hall_answer done;
	u32 lost = 0;
	bool good;

	spin_lock_bh(&out->channel.lock);
	done = out->channel.done;
	good = out->memory.ring && done.carrier == HALL_OUT_CARRIER;
	if (good && !hall_ring_finish(&out->tx, done.position, &lost))
		done.reason = ECONNRESET;
	spin_unlock_bh(&out->channel.lock);
	if (!good)
		return;
	hall_out_free_tx(out);
	if (is_datagram(out)) {
		hall_datagram_finish(out);
		return;
	}
	if (!done.reason && (lost || !out->ended))
		done.reason = ECONNRESET;
	if (done.reason > ERRNO_MAX)
		done.reason = ECONNRESET;
	if (out->state == HALL_OUT_CALLING && !out->listener)
		hall_out_take_refusal(out, ECONNABORTED);
	else if (done.reason && is_live(out))
		hall_out_fail(out, done.reason);
}

/* The bytes that are in the ring are read later; its memory may go now. */
static void copy_rest(struct hall_out *out)
{
	struct hall_member *member = out->channel.member;
	struct hall_span span;
	u32 n, at;
	bool eof;

	n = hall_out_count_unread(out, &eof);
	if (!out->mapped || out->closed || !n || !hall_member_charge(member, n))
		return;
	if (!hall_copied_charge(n)) {
		hall_member_uncharge(member, n);
		return;
	}
	out->rest = kvmalloc(n, GFP_KERNEL);
	out->rest_len = n;
	for (at = 0; out->rest && at < n; at += span.len) {
		span = hall_ring_get_rx_span(&out->rx, at, n - at);
		memcpy(out->rest + at, span.data, span.len);
	}
	/* Another member may have written there meanwhile. */
	if (!out->rest || !member->transport->intact(member))
		hall_out_free_rest(out);
}

/* The outsourcer has a socket. */
static void on_socket(struct hall_out *out, const struct hallway_message *offer)
{
	if (out->state != HALL_OUT_CALLING || hall_out_map(out, offer)) {
		hall_channel_decline(out->channel.member, offer,
				     HALLWAY_REASON_STATE);
		hall_datagram_close(out, ECONNRESET);
		return;
	}
	smp_store_release(&out->state, HALL_OUT_CONNECTED);
	/* Till now no doorbell could ring. */
	hall_channel_notify_receiver(&out->channel);
	/* Threads in bind(). */
	hall_out_wake_all(out->sk);
	hall_datagram_deliver(out);
}

static bool is_listener(const struct hall_out *out)
{
	return out->channel.kind == &hall_out_listener;
}

static void on_departed(struct hall_out *out)
{
	/*
	 * The next outsourcer may be there already, and this object was in the way then,
	 * also if it has been closed since.
	 */
	if (is_listener(out)) {
		hall_listener_end(out, EACCES);
		hall_publish_listeners();
		return;
	}
	if (!is_datagram(out))
		copy_rest(out);
	hall_out_unmap(out);
	hall_out_free_tx(out);
	if (is_datagram(out) && out->state == HALL_OUT_CALLING)
		hall_datagram_refuse(out, EACCES);
	else if (is_datagram(out))
		hall_datagram_close(out, 0);
	else if (out->state == HALL_OUT_CALLING)
		hall_out_take_refusal(out, ENETUNREACH);
	else if (is_live(out))
		hall_out_fail(out, ECONNRESET);
	if (is_datagram(out) && out->datagrams->published)
		hall_publish_listeners();
	hall_channel_close(&out->channel);
}

static void on_offer(struct hall_out *out)
{
	struct hallway_message *offer = hall_channel_take_offer(&out->channel);

	if (!offer)
		return;
	if (is_datagram(out))
		on_socket(out, offer);
	else if (out->listener && !out->sk)
		hall_listener_take(out, offer);
	else
		hall_out_take_answer(out, offer);
	kfree(offer);
}

static void on_accept(struct hall_out *out)
{
	struct hall_channel *channel = &out->channel;

	if (!is_listener(out) || out->state != HALL_OUT_CALLING)
		return;
	WRITE_ONCE(channel->sender, channel->accept.from);
	smp_store_release(&out->state, HALL_OUT_CONNECTED);
	/* The program has closed it meanwhile. */
	if (out->closed) {
		hall_channel_send(channel, HALLWAY_DONE, HALL_OUT_CARRIER, 0, 0);
	} else if (out->sk->sk_state != TCP_LISTEN) {
		hall_listener_close(out);
	} else {
		hall_count(HALL_OUTSOURCE_LISTENERS);
		hall_out_wake_all(out->sk);
	}
}

static void on_decline(struct hall_out *out)
{
	u64 error;

	spin_lock_bh(&out->channel.lock);
	error = out->channel.decline.position;
	spin_unlock_bh(&out->channel.lock);
	if (!error || error > ERRNO_MAX)
		error = EACCES;
	if (is_listener(out)) {
		hall_listener_end(out, error);
		return;
	}
	if (is_datagram(out)) {
		/* It reads our ring: only DONE frees that. */
		if (out->state != HALL_OUT_CALLING)
			return;
		if (hall_datagram_take_refusal(out))
			hall_datagram_refuse(out, error);
		else
			set_bit(HALL_EVENT_DECLINE, &out->channel.events);
		return;
	}
	hall_out_free_tx(out);
	/* Its answer to accept() came too late. */
	if (out->state == HALL_OUT_CONNECTED) {
		if (is_live(out))
			hall_out_fail(out, ECONNRESET);
		hall_out_unmap(out);
		return;
	}
	if (error == EACCES && out->state == HALL_OUT_CALLING)
		hall_count_native(HALLWAY_REASON_REFUSED);
	hall_out_take_refusal(out, error);
}

/* The OFFER of the outsourcer's ring answers a connect(), or is a connection's. */
static struct hall_channel *meet_offer(struct hall_member *member,
				       const struct hallway_message *offer)
{
	struct hall_channel *channel;

	if (!member->outsourcer)
		return NULL;
	if (!offer->offer.call.answers)
		return offer->offer.kind == HALLWAY_KIND_SOCKET ?
			       hall_listener_meet(member, offer) : NULL;
	channel = hall_channel_find(member, offer->offer.call.answers);
	if (channel && channel->kind->number != offer->offer.kind) {
		hall_channel_put(channel);
		return NULL;
	}
	return channel;
}

/*
 * The outsourcer offers no listener, but asks by an OFFER for those of this guest. A
 * DECLINE is the answer, and the listeners that follow.
 */
static struct hall_channel *meet_question(struct hall_member *member,
					  const struct hallway_message *offer)
{
	if (member->outsourcer)
		hall_publish_by_policy();
	return NULL;
}

static void wake_channel(struct hall_channel *channel)
{
	hall_out_wake(hall_out_of(channel));
}

const struct hall_channel_kind hall_out_socket = {
	.number = HALLWAY_KIND_SOCKET,
	.offer = meet_offer,
	.raised = hall_out_queue_work,
	.wake = wake_channel,
	.release = hall_out_release_channel,
};

static void wake_datagram(struct hall_channel *channel)
{
	hall_datagram_wake(hall_out_of(channel));
}

const struct hall_channel_kind hall_out_datagram = {
	.number = HALLWAY_KIND_DATAGRAM,
	.offer = meet_offer,
	.raised = hall_out_queue_work,
	.wake = wake_datagram,
	.release = hall_out_release_channel,
};

const struct hall_channel_kind hall_out_listener = {
	.number = HALLWAY_KIND_LISTENER,
	.offer = meet_question,
	.raised = hall_out_queue_work,
	.wake = wake_channel,
	.release = hall_out_release_channel,
};

/* A UDP socket: its program has closed it, or its port is withdrawn. */
static void on_abandoned(struct hall_out *out)
{
	hall_datagram_close(out, 0);
	/* It may be in scope again, and this object was in the way. */
	if (out->datagrams->published)
		hall_publish_listeners();
}

static void take_events(struct hall_out *out, unsigned long events)
{
	if (events & BIT(HALL_EVENT_OFFER))
		on_offer(out);
	if (events & BIT(HALL_EVENT_ACCEPT))
		on_accept(out);
	if (events & BIT(HALL_EVENT_DECLINE))
		on_decline(out);
	if (events & BIT(HALL_EVENT_DONE)) {
		if (is_listener(out)) {
			/* The outsourcer waits for ours, too. */
			hall_listener_close(out);
			hall_listener_end(out, EACCES);
		} else {
			on_done(out);
		}
	}
	if ((events & BIT(HALL_EVENT_ABANDONED)) && is_datagram(out))
		on_abandoned(out);
	else if (events & BIT(HALL_EVENT_ABANDONED))
		hall_listener_drop(out);
	if (events & BIT(HALL_EVENT_CALLED))
		hall_listener_ask(out);
	if (events & BIT(HALL_EVENT_RECORDS))
		hall_datagram_deliver(out);
	if (events & BIT(HALL_EVENT_CORRUPT)) {
		hall_count(HALL_CORRUPT_RINGS);
		hall_datagram_close(out, ECONNRESET);
	}
	/* A datagram may have come after the event. */
	if ((events & BIT(HALL_EVENT_IDLE)) && hall_out_is_idle(out))
		hall_datagram_close(out, 0);
	if (events & BIT(HALL_EVENT_DEPARTED))
		on_departed(out);
	hall_out_close_channel(out);
}

void hall_out_init(void)
{
	hall_out_run_events = take_events;
	hall_channel_register(&hall_out_socket);
	hall_channel_register(&hall_out_listener);
	hall_channel_register(&hall_out_datagram);
}
