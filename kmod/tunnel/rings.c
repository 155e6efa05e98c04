// SPDX-License-Identifier: GPL-2.0-only
/*
 * The two rings of a tunnel: made, mapped, ended, and looked at.
 *
 * Most tunnels of a VM are idle, or carry little at a time. So the ring of a SOCK_STREAM is
 * short, and grows once its writer has more than it can hold: see growth in ring/ring.c. To a
 * peer that does not support that, or has not said so yet, it is as large as its program has
 * it from the first. So is each ring of messages, while there is memory: a program relies on
 * the largest that fits.
 */
#include "tunnel.h"

#include <linux/log2.h>
#include <linux/mm.h>

#include "../obs/counters.h"
#include "loan.h"

int hall_tunnel_open(struct hall_tunnel *tunnel)
{
	int err = hall_channel_open(&tunnel->channel);

	return err && READ_ONCE(tunnel->channel.member->departed) ? -EHOSTUNREACH : err;
}

int hall_tunnel_alloc(struct hall_tunnel *tunnel, u64 bytes, bool grows)
{
	u32 size = roundup_pow_of_two(clamp_t(u64, bytes, HALLWAY_RING_MIN,
					      HALLWAY_RING_MAX));
	struct hall_member *member = tunnel->channel.member;

	if (grows && READ_ONCE(member->growth)) {
		tunnel->most = size;
		size = min(size, HALL_RING_SHORT);
	}
	/* A trunk is there before others of this peer. */
	if ((!tunnel->trunk || hall_memory_alloc(member, HALLWAY_RING_HEADER + size,
						 &tunnel->memory)) &&
	    hall_memory_alloc_ring(member, &size, &tunnel->memory)) {
		tunnel->memory.ring = NULL;
		return -ENOMEM;
	}
	/* A program may see it: it had the bytes of others. */
	if (!grows && !tunnel->trunk)
		memset(tunnel->memory.ring->data, 0, size);
	hall_ring_init_tx(&tunnel->tx, tunnel->memory.ring, size, HALL_TUNNEL_CARRIER);
	hall_ring_set_start(&tunnel->tx, 0);
	/* By our OFFER the reader could take it for one that grows. */
	if (grows && tunnel->most <= size)
		hall_ring_report_short(&tunnel->tx);
	return 0;
}

void hall_tunnel_grow(struct hall_tunnel *tunnel, u32 bytes)
{
	struct hall_tx_ring *tx = &tunnel->tx;
	u32 size = tunnel->most;

	if (tx->size >= size || tunnel->area.ring || hall_ring_count_space(tx) >= bytes ||
	    tx->broken)
		return;
	if (hall_memory_alloc_large(tunnel->channel.member, 0, &size, &tunnel->area)) {
		tunnel->area.ring = NULL;
		if (hall_ring_report_short(tx))
			hall_channel_notify_receiver(&tunnel->channel);
		return;
	}
	hall_count(HALL_RINGS_GROWN);
	hall_ring_grow(tx, (u8 *)tunnel->area.ring, size, &tunnel->area.handle);
	/* Others may have found it full, when memory was short. */
	tunnel->sk->sk_write_space(tunnel->sk);
}

static void uncharge(struct hall_tunnel *tunnel)
{
	hall_member_uncharge(tunnel->channel.member, tunnel->charged);
	tunnel->charged = 0;
}

int hall_tunnel_map(struct hall_tunnel *tunnel, const struct hallway_message *offer, bool grows)
{
	struct hall_channel *channel = &tunnel->channel;
	struct hall_member *member = channel->member;
	struct hall_rx_ring rx;

	if (!hall_channel_map_ring(channel, offer, HALL_TUNNEL_CARRIER, &rx))
		return -EPROTO;
	if (!hall_member_charge(member, HALLWAY_RING_HEADER + rx.size)) {
		member->transport->unmap(member, rx.shared);
		return -EPROTO;
	}
	tunnel->is_blank = offer->offer.features & HALLWAY_FEATURE_BLANK;
	rx.may_grow = grows && offer->offer.features & HALLWAY_FEATURE_GROWTH;
	tunnel->charged = HALLWAY_RING_HEADER + rx.size;
	WRITE_ONCE(channel->sender, offer->from);
	WRITE_ONCE(channel->receiver, offer->from);
	spin_lock_bh(&channel->lock);
	tunnel->rx = rx;
	tunnel->mapped = true;
	spin_unlock_bh(&channel->lock);
	return 0;
}

bool hall_tunnel_finish_tx(struct hall_tunnel *tunnel, u32 *reason)
{
	struct hall_answer done;
	u32 lost;

	spin_lock_bh(&tunnel->channel.lock);
	done = tunnel->channel.done;
	spin_unlock_bh(&tunnel->channel.lock);
	if (!tunnel->memory.ring || done.carrier != HALL_TUNNEL_CARRIER)
		return false;
	*reason = done.reason;
	if (!hall_ring_finish(&tunnel->tx, done.position, &lost)) {
		hall_count(HALL_CORRUPT_RINGS);
		*reason = ECONNRESET;
	}
	hall_count_add(HALL_TX_BYTES_UNREAD, lost);
	return true;
}

void hall_tunnel_free_tx(struct hall_tunnel *tunnel)
{
	hall_loan_end_tx(tunnel);
	if (tunnel->area.ring)
		hall_memory_free(tunnel->channel.member, &tunnel->area);
	if (tunnel->memory.ring)
		hall_memory_free(tunnel->channel.member, &tunnel->memory);
	tunnel->area.ring = NULL;
	tunnel->memory.ring = NULL;
}

void hall_tunnel_unmap(struct hall_tunnel *tunnel)
{
	struct hall_member *member = tunnel->channel.member;
	struct hallway_ring *ring = tunnel->rx.shared;
	struct hallway_ring *area = (struct hallway_ring *)tunnel->rx.area;

	if (!tunnel->mapped)
		return;
	hall_loan_end_rx(tunnel);
	spin_lock_bh(&tunnel->channel.lock);
	tunnel->mapped = false;
	spin_unlock_bh(&tunnel->channel.lock);
	if (area)
		member->transport->unmap(member, area);
	member->transport->unmap(member, ring);
	if (!tunnel->rest)
		uncharge(tunnel);
}

void hall_tunnel_end(struct hall_tunnel *tunnel)
{
	if (tunnel->ended || !tunnel->memory.ring)
		return;
	tunnel->ended = true;
	hall_ring_set_end(&tunnel->tx);
}

void hall_tunnel_truncate_rx(struct hall_tunnel *tunnel)
{
	struct hall_member *member = tunnel->channel.member;

	/* The memory of a peer that departs may be another's in a moment. */
	if (!tunnel->mapped || member->cid == HALLWAY_CID_HOST ||
	    READ_ONCE(member->departed) || !member->transport->intact(member))
		return;
	spin_lock_bh(&tunnel->channel.lock);
	hall_ring_truncate_unread(&tunnel->rx);
	spin_unlock_bh(&tunnel->channel.lock);
}

/* Of the tunnel's socket, or the last reference. */
static void free_rest(struct hall_tunnel *tunnel)
{
	if (!tunnel->rest)
		return;
	kvfree(tunnel->rest);
	tunnel->rest = NULL;
	hall_copied_uncharge(HALLWAY_RING_HEADER + tunnel->rx.size);
	uncharge(tunnel);
}

void hall_tunnel_finish_rx(struct hall_tunnel *tunnel, u32 reason)
{
	free_rest(tunnel);
	if (!tunnel->mapped)
		return;
	hall_tunnel_unmap(tunnel);
	hall_channel_send(&tunnel->channel, HALLWAY_DONE, HALL_TUNNEL_CARRIER, reason,
			  tunnel->rx.tail);
}

/* n unread bytes into memory of our own, or NULL. */
static struct hallway_ring *copy_unread(struct hall_tunnel *tunnel, u32 n, u32 size)
{
	struct hall_member *member = tunnel->channel.member;
	struct hall_rx_ring *rx = &tunnel->rx;
	struct hallway_ring *rest;
	struct hall_span span;
	u32 at, to;

	if (!hall_copied_charge(HALLWAY_RING_HEADER + size))
		return NULL;
	rest = kvzalloc(HALLWAY_RING_HEADER + size, GFP_KERNEL);
	if (!rest)
		goto uncharge;
	for (at = 0; at < n; at += span.len) {
		span = hall_ring_get_rx_span(rx, at, n - at);
		to = (rx->tail + at) & (size - 1);
		span.len = min(span.len, size - to);
		memcpy(rest->data + to, span.data, span.len);
	}
	/* Another member may have written there meanwhile. */
	if (member->transport->intact(member))
		return rest;
	kvfree(rest);
uncharge:
	hall_copied_uncharge(HALLWAY_RING_HEADER + size);
	return NULL;
}

void hall_tunnel_copy_rest(struct hall_tunnel *tunnel, struct sock *sk)
{
	u32 n = hall_tunnel_count_unread(tunnel, sk), size;
	struct hall_rx_ring *rx = &tunnel->rx;
	struct hallway_ring *rest;

	if (!tunnel->mapped || !n)
		return;
	size = roundup_pow_of_two(max_t(u32, n, HALLWAY_FRAME_ALIGN));
	rest = copy_unread(tunnel, n, size);
	tunnel->rest = rest;
	hall_tunnel_unmap(tunnel);
	if (!rest) {
		/* Bytes are missing before the peer's end mark: it does not count. */
		tunnel->fin = false;
		return;
	}
	/* A ring of ours, that ends where it is filled. */
	rx->shared = rest;
	rx->data = rest->data;
	rx->data_size = rx->size = size;
	rx->may_grow = rx->grown = false;
	rx->ended = true;
}

void hall_tunnel_close_channel(struct hall_tunnel *tunnel)
{
	if (!tunnel->memory.ring && !tunnel->mapped)
		hall_channel_close(&tunnel->channel);
}

static void report_reset(struct sock *sk)
{
	sk->sk_err = ECONNRESET;
	sk_error_report(sk);
}

/* The peer's ring is read to its end, and DONE is sent: the own ring has to say it. */
static void end_by_reset(struct hall_tunnel *tunnel)
{
	if (tunnel->ended || !tunnel->memory.ring)
		return;
	tunnel->ended = true;
	hall_ring_set_reset(&tunnel->tx);
	hall_channel_notify_receiver(&tunnel->channel);
}

void hall_tunnel_reset(struct hall_tunnel *tunnel, struct sock *sk)
{
	tunnel->fin = false;
	if (!tunnel->mapped)
		end_by_reset(tunnel);
	hall_tunnel_finish_rx(tunnel, ECONNRESET);
	hall_tunnel_fail(tunnel, sk);
}

void hall_tunnel_corrupt(struct hall_tunnel *tunnel, struct sock *sk)
{
	hall_count(HALL_CORRUPT_RINGS);
	hall_tunnel_reset(tunnel, sk);
}

void hall_tunnel_publish(struct hall_tunnel *tunnel, u32 n, u32 payload)
{
	if (hall_ring_publish(&tunnel->tx, n))
		hall_channel_notify_receiver(&tunnel->channel);
	hall_count_add(HALL_TX_BYTES_TUNNEL, payload);
	hall_channel_count_sent(&tunnel->channel, payload);
}

bool hall_tunnel_is_intact(struct hall_tunnel *tunnel, struct sock *sk)
{
	struct hall_member *member = tunnel->channel.member;

	if (!tunnel->mapped || member->transport->intact(member))
		return true;
	/* The peer is gone: no rule is broken. */
	hall_tunnel_reset(tunnel, sk);
	return false;
}

int hall_tunnel_find_space(struct hall_tunnel *tunnel, struct sock *sk, u32 bytes, u32 *space)
{
	if (!tunnel->memory.ring || hall_ring_is_truncated(&tunnel->tx))
		return -EPIPE;
	hall_tunnel_grow(tunnel, bytes);
	*space = hall_ring_count_space(&tunnel->tx);
	if (!tunnel->tx.broken)
		return 0;
	hall_tunnel_corrupt(tunnel, sk);
	return -ECONNRESET;
}

/* Of a ring that has grown: what is counted can be read then. False: there is none. */
static bool map_area(struct hall_tunnel *tunnel)
{
	struct hall_rx_ring *rx = &tunnel->rx;

	if (!tunnel->mapped || !smp_load_acquire(&rx->grown) || rx->area)
		return true;
	if (!hall_member_charge(tunnel->channel.member, rx->size))
		return false;
	tunnel->charged += rx->size;
	hall_channel_map_area(&tunnel->channel, rx);
	return rx->area;
}

static enum hall_rx_source find_source(struct hall_tunnel *tunnel, u32 *n)
{
	struct hall_member *member = tunnel->channel.member;
	enum hall_rx_source source;

	spin_lock_bh(&tunnel->channel.lock);
	source = hall_ring_find_source(&tunnel->rx, 0, 0, n);
	spin_unlock_bh(&tunnel->channel.lock);
	/*
	 * What we have copied ends where the peer has departed. Its memory may be another's
	 * then: a mark that was seen before still counts, one that is seen there does not.
	 */
	if (tunnel->rx.ended && tunnel->mapped && member->transport->intact(member))
		tunnel->fin = !tunnel->rx.reset;
	return source;
}

u32 hall_tunnel_count_unread(struct hall_tunnel *tunnel, struct sock *sk)
{
	enum hall_rx_source source;
	u32 n;

	if (!tunnel->mapped && !tunnel->rest)
		return 0;
	source = find_source(tunnel, &n);
	if (source == HALL_RX_CORRUPT || !map_area(tunnel)) {
		hall_tunnel_corrupt(tunnel, sk);
		return 0;
	}
	if (tunnel->rx.reset) {
		/* That wakes all waiters: no doorbell has to look at the mark. */
		tunnel->fin_reported = true;
		hall_tunnel_fail(tunnel, sk);
	}
	if (tunnel->fin && sk) {
		vsock_sk(sk)->peer_shutdown |= SEND_SHUTDOWN;
		/*
		 * Here the mark may be found by a read, or by a poll() that has looked at
		 * peer_shutdown before. The doorbell finds it no more once the ring is gone.
		 */
		if (!tunnel->fin_reported)
			hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
		tunnel->fin_reported = true;
	}
	if (source == HALL_RX_RING)
		return n;
	/* Nothing will follow. */
	if (source == HALL_RX_ENDED || tunnel->failed)
		hall_tunnel_finish_rx(tunnel, 0);
	return 0;
}

bool hall_tunnel_is_reset(struct hall_tunnel *tunnel, struct sock *sk)
{
	return tunnel->failed && !hall_tunnel_count_unread(tunnel, sk) && !tunnel->fin;
}

void hall_tunnel_fail(struct hall_tunnel *tunnel, struct sock *sk)
{
	if (tunnel->failed)
		return;
	tunnel->failed = true;
	if (!sk)
		return;
	hall_count(HALL_TUNNEL_RESETS);
	/* A read finds the reset before it finds this: hall_tunnel_is_reset(). */
	vsock_sk(sk)->peer_shutdown |= SHUTDOWN_MASK;
	/* Else the reader would get it before what it has received. */
	if (hall_tunnel_is_reset(tunnel, sk))
		report_reset(sk);
	sk->sk_state_change(sk);
	sk->sk_write_space(sk);
}
