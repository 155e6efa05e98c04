// SPDX-License-Identifier: GPL-2.0-only
/* What the peer says: requests, answers, refusals, ends, and its departure. */
#include "tunnel.h"

#include <linux/slab.h>

#include <hallway/reason.h>

#include "../obs/counters.h"

struct hall_channel *hall_tunnel_meet(struct hall_member *member,
				      const struct hallway_message *offer)
{
	struct hall_channel *channel;
	struct hall_tunnel *tunnel;

	if (offer->offer.tunnel.answers) {
		channel = hall_channel_find(member, offer->offer.tunnel.answers);
		if (channel && channel->kind != &hall_tunnel_kind) {
			hall_channel_put(channel);
			channel = NULL;
		}
		return channel;
	}
	/* A tunnel would pin the module. */
	if (!READ_ONCE(hall_tunnels_enabled))
		return NULL;
	/* It may claim to be another VM. */
	if (!hall_member_has_cid(member))
		return NULL;
	tunnel = hall_tunnel_new(member, GFP_ATOMIC);
	if (IS_ERR(tunnel))
		return NULL;
	/* It has no endpoint before it is served. */
	tunnel->held = hall_channel_hold(member);
	if (!tunnel->held) {
		hall_channel_put(&tunnel->channel);
		return NULL;
	}
	return &tunnel->channel;
}

static void put_back_offer(struct hall_tunnel *tunnel, struct hallway_message *offer)
{
	spin_lock_bh(&tunnel->channel.lock);
	tunnel->channel.offer = offer;
	spin_unlock_bh(&tunnel->channel.lock);
}

static void on_request(struct hall_tunnel *tunnel)
{
	struct hallway_message *offer = hall_channel_take_offer(&tunnel->channel);

	if (offer->offer.tunnel.type == HALLWAY_TUNNEL_DGRAM) {
		hall_trunk_serve(tunnel, offer);
	} else if (!hall_tunnel_serve(tunnel, offer)) {
		/* Till then it has no number by which another one could come. */
		put_back_offer(tunnel, offer);
		return;
	}
	/* From here on the endpoint's number keeps the member's memory. */
	hall_channel_release(tunnel->channel.member);
	tunnel->held = false;
	kfree(offer);
}

static void on_answer(struct hall_tunnel *tunnel, struct sock *sk)
{
	struct hallway_message *offer = hall_channel_take_offer(&tunnel->channel);

	if (offer)
		hall_tunnel_take_answer(tunnel, sk, offer);
	kfree(offer);
}

/* Nothing answers a trunk's. */
static void decline_offer(struct hall_tunnel *tunnel)
{
	struct hallway_message *offer = hall_channel_take_offer(&tunnel->channel);

	if (offer)
		hall_channel_decline(tunnel->channel.member, offer,
				     HALLWAY_REASON_STATE);
	kfree(offer);
}

/* Our ring was not taken, or is not any more. */
static void on_decline(struct hall_tunnel *tunnel, struct sock *sk)
{
	if (tunnel->state == HALL_TUNNEL_CALLING) {
		hall_tunnel_take_refusal(tunnel, sk);
	} else if (tunnel->state == HALL_TUNNEL_CONNECTED) {
		hall_tunnel_free_tx(tunnel);
		hall_tunnel_finish_rx(tunnel, ECONNRESET);
		hall_tunnel_fail(tunnel, sk);
	}
}

static void on_done(struct hall_tunnel *tunnel, struct sock *sk)
{
	u32 reason;

	if (!hall_tunnel_finish_tx(tunnel, &reason))
		return;
	if (tunnel->state == HALL_TUNNEL_CALLING) {
		hall_tunnel_take_refusal(tunnel, sk);
		return;
	}
	hall_tunnel_free_tx(tunnel);
	if (reason)
		hall_tunnel_fail(tunnel, sk);
	if (!sk)
		return;
	vsock_sk(sk)->peer_shutdown |= RCV_SHUTDOWN;
	sk->sk_state_change(sk);
	sk->sk_write_space(sk);
}

static void on_finish(struct hall_tunnel *tunnel, struct sock *sk)
{
	hall_tunnel_count_unread(tunnel, sk);
	if (sk)
		sk->sk_state_change(sk);
}

static void on_departed(struct hall_tunnel *tunnel, struct sock *sk)
{
	if (tunnel->state == HALL_TUNNEL_CALLING) {
		hall_tunnel_take_refusal(tunnel, sk);
	} else if (tunnel->state == HALL_TUNNEL_CONNECTED) {
		hall_tunnel_copy_rest(tunnel, sk);
		hall_tunnel_unmap(tunnel);
		hall_tunnel_free_tx(tunnel);
		hall_tunnel_fail(tunnel, sk);
	}
	hall_channel_close(&tunnel->channel);
}

static void on_reset(struct hall_tunnel *tunnel, struct sock *sk)
{
	if (tunnel->state == HALL_TUNNEL_CALLING && sk) {
		/* An answer that comes yet is declined. */
		hall_tunnel_report_refused(sk);
	} else if (tunnel->state == HALL_TUNNEL_CONNECTED) {
		hall_tunnel_truncate_rx(tunnel);
		hall_tunnel_reset(tunnel, sk);
	}
}

static void run_events(struct hall_tunnel *tunnel, struct sock *sk,
		       unsigned long events)
{
	/* Its number is new, and its socket a program's: other events come by themselves. */
	if (tunnel->state == HALL_TUNNEL_REQUESTED) {
		on_request(tunnel);
		return;
	}
	if (tunnel->trunk) {
		if (events & BIT(HALL_EVENT_OFFER))
			decline_offer(tunnel);
		hall_trunk_run_events(tunnel, events);
		return;
	}
	if (events & BIT(HALL_EVENT_OFFER))
		on_answer(tunnel, sk);
	if (events & BIT(HALL_EVENT_DECLINE))
		on_decline(tunnel, sk);
	if (events & BIT(HALL_EVENT_FINISH))
		on_finish(tunnel, sk);
	if (events & BIT(HALL_EVENT_DONE))
		on_done(tunnel, sk);
	if (events & BIT(HALL_EVENT_RESET))
		on_reset(tunnel, sk);
	if (events & BIT(HALL_EVENT_DEPARTED))
		on_departed(tunnel, sk);
	hall_tunnel_close_channel(tunnel);
	/* Else a socket that was refused would count as a tunnel until it is closed. */
	if (tunnel->state == HALL_TUNNEL_ENDED && sk)
		hall_tunnel_detach(tunnel, vsock_sk(sk));
}

void hall_tunnel_events_init(void)
{
	hall_tunnel_run_events = run_events;
}
