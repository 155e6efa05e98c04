// SPDX-License-Identifier: GPL-2.0-only
/*
 * The two rings of an outsourced socket: made, mapped, ended, and looked at.
 *
 * Many connections are idle, or carry little at a time. So a ring of a connection is
 * short, and grows once its writer has more than it can hold: see growth in ring/ring.c.
 * With an outsourcer that does not know that, or has not said so yet, it is large from the
 * first.
 */
#include "out.h"

#include "../obs/counters.h"
#include "options.h"

/* Bytes of the ring that the guest writes, once it has grown. */
#define RING_BYTES		(256 << 10)
/* Of a UDP socket: the longest datagram fits, and another. */
#define DATAGRAM_RING_BYTES	(128 << 10)

static int alloc_ring(struct hall_channel *channel, u32 *bytes,
		      struct hall_memory *memory)
{
	if (channel->kind == &hall_out_datagram) {
		*bytes = DATAGRAM_RING_BYTES;
		return hall_memory_alloc(channel->member,
					 HALLWAY_RING_HEADER + *bytes, memory);
	}
	*bytes = READ_ONCE(channel->member->growth) ? HALL_RING_SHORT : RING_BYTES;
	return hall_memory_alloc_ring(channel->member, bytes, memory);
}

int hall_out_offer(struct hall_out *out, const struct sock *sk,
		   const struct hallway_call *call)
{
	struct hall_channel *channel = &out->channel;
	struct hall_memory memory;
	u32 bytes;
	int err;

	/* First: memory is for members that have not departed. */
	if (hall_channel_open(channel))
		return -ENOBUFS;
	err = alloc_ring(channel, &bytes, &memory);
	if (err) {
		if (!out->mapped)
			hall_channel_close(channel);
		return err;
	}
	hall_ring_init_tx(&out->tx, memory.ring, bytes, HALL_OUT_CARRIER);
	hall_ring_set_start(&out->tx, 0);
	if (channel->kind == &hall_out_socket)
		hall_options_init(out, memory.ring, sk);
	spin_lock_bh(&channel->lock);
	out->memory = memory;
	spin_unlock_bh(&channel->lock);
	hall_channel_call(channel, HALL_OUT_CARRIER, call, &out->local,
			  out->local_port, &out->remote, out->remote_port,
			  bytes, &memory.handle);
	return 0;
}

int hall_out_map(struct hall_out *out, const struct hallway_message *offer)
{
	struct hall_channel *channel = &out->channel;
	struct hall_rx_ring rx;

	if (out->mapped || !hall_channel_map_ring(channel, offer, HALL_OUT_CARRIER, &rx))
		return -EPROTO;
	rx.may_grow = channel->kind == &hall_out_socket &&
		      offer->offer.features & HALLWAY_FEATURE_GROWTH;
	memcpy(&out->local, offer->offer.local, sizeof(out->local));
	memcpy(&out->remote, offer->offer.remote, sizeof(out->remote));
	out->local_port = offer->offer.local_port;
	out->remote_port = offer->offer.remote_port;
	WRITE_ONCE(channel->sender, offer->from);
	WRITE_ONCE(channel->receiver, offer->from);
	spin_lock_bh(&channel->lock);
	out->rx = rx;
	out->mapped = true;
	spin_unlock_bh(&channel->lock);
	return 0;
}

bool hall_out_grow(struct hall_out *out, size_t bytes)
{
	struct hall_channel *channel = &out->channel;
	struct hall_memory area;
	u32 size = RING_BYTES, space;

	if (out->area.ring || out->tx.size > HALL_RING_SHORT ||
	    !READ_ONCE(channel->member->growth))
		return false;
	spin_lock_bh(&channel->lock);
	space = hall_ring_count_space(&out->tx);
	spin_unlock_bh(&channel->lock);
	if (space >= bytes || out->tx.broken ||
	    hall_memory_alloc_large(channel->member, 0, &size, &area))
		return false;
	hall_count(HALL_RINGS_GROWN);
	spin_lock_bh(&channel->lock);
	out->area = area;
	hall_ring_grow(&out->tx, (u8 *)area.ring, size, &area.handle);
	spin_unlock_bh(&channel->lock);
	/* Others may have found it full, when memory was short. */
	out->sk->sk_write_space(out->sk);
	return true;
}

void hall_out_free_tx(struct hall_out *out)
{
	struct hall_memory memory, area;

	spin_lock_bh(&out->channel.lock);
	memory = out->memory;
	area = out->area;
	out->memory.ring = NULL;
	out->area.ring = NULL;
	spin_unlock_bh(&out->channel.lock);
	if (area.ring)
		hall_memory_free(out->channel.member, &area);
	if (memory.ring)
		hall_memory_free(out->channel.member, &memory);
	/* No question is answered any more. */
	wake_up_all(&out->answers);
}

void hall_out_end(struct hall_out *out)
{
	if (out->ended || !out->memory.ring)
		return;
	out->ended = true;
	spin_lock_bh(&out->channel.lock);
	hall_ring_set_end(&out->tx);
	spin_unlock_bh(&out->channel.lock);
}

void hall_out_unmap(struct hall_out *out)
{
	struct hall_member *member = out->channel.member;
	struct hallway_ring *ring = NULL, *area = NULL;

	spin_lock_bh(&out->channel.lock);
	if (out->mapped) {
		ring = out->rx.shared;
		area = (struct hallway_ring *)out->rx.area;
	}
	out->mapped = false;
	spin_unlock_bh(&out->channel.lock);
	if (area)
		member->transport->unmap(member, area);
	if (ring)
		member->transport->unmap(member, ring);
}

/* What is counted can be read then. Mutex. */
static void map_area(struct hall_out *out)
{
	if (out->mapped && smp_load_acquire(&out->rx.grown) && !out->rx.area)
		hall_channel_map_area(&out->channel, &out->rx);
}

void hall_out_finish_rx(struct hall_out *out, u32 reason)
{
	u64 tail = out->rx.tail;

	if (!out->mapped)
		return;
	hall_out_unmap(out);
	hall_channel_send(&out->channel, HALLWAY_DONE, HALL_OUT_CARRIER, reason,
			  tail);
}

void hall_out_close_channel(struct hall_out *out)
{
	if (!out->memory.ring && !out->mapped &&
	    out->channel.kind != &hall_out_listener)
		hall_channel_close(&out->channel);
}

void hall_out_fail(struct hall_out *out, int error)
{
	struct sock *sk = out->sk;

	/* It was not accepted yet. */
	if (!sk)
		return;
	out->failed = true;
	WRITE_ONCE(sk->sk_err, error);
	WRITE_ONCE(sk->sk_shutdown, SHUTDOWN_MASK);
	hall_count(HALL_OUTSOURCE_RESETS);
	sk->sk_state_change(sk);
	sk_error_report(sk);
}

u32 hall_out_count_unread(struct hall_out *out, bool *eof)
{
	enum hall_rx_source source;
	u32 n;

	*eof = false;
	if (out->rest) {
		*eof = out->rest_at == out->rest_len;
		return out->rest_len - out->rest_at;
	}
	if (!out->mapped) {
		*eof = true;
		return 0;
	}
	spin_lock_bh(&out->channel.lock);
	source = hall_ring_find_source(&out->rx, 0, 0, &n);
	spin_unlock_bh(&out->channel.lock);
	map_area(out);
	if (out->rx.broken)
		source = HALL_RX_CORRUPT;
	switch (source) {
	case HALL_RX_RING:
		*eof = out->rx.ended;
		return n;
	case HALL_RX_ENDED:
		*eof = true;
		return 0;
	case HALL_RX_CORRUPT:
		hall_count(HALL_CORRUPT_RINGS);
		hall_out_finish_rx(out, ECONNRESET);
		hall_out_fail(out, ECONNRESET);
		*eof = true;
		return 0;
	default:
		return 0;
	}
}
