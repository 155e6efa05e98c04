// SPDX-License-Identifier: GPL-2.0-only
/*
 * Steps that change the carrier of a direction. The direction that we send:
 * offer, promote, demote, replace, release. The direction that we receive:
 * accept, truncate, demote, release. Both: break and reset.
 */
#include "carrier.h"

#include <net/inet_sock.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../obs/trace.h"
#include "calls.h"
#include "lock.h"
#include "lookup.h"
#include "requeue.h"
#include "resend.h"
#include "spin.h"
#include "stream.h"
#include "wake.h"

/* How long bytes wait for the ring that replaces one. */
#define REPLACE		(HZ / 10)

/*
 * TCP calls these at each release of the lock, and for each look of a poller: a connection
 * that has had no ring does without. They stay, for TCP loads a pointer twice where it may
 * be NULL; and the hall_sock is no other socket's after this one.
 */
static void take_callbacks(struct hall_sock *hs)
{
	struct proto *prot = &hs->prot;

	/* What the first release is to compare with. */
	hs->signals = sock_flag(hs->sk, SOCK_FASYNC);
	hs->rcvlowat = READ_ONCE(hs->sk->sk_rcvlowat);
	WRITE_ONCE(prot->release_cb, hall_release_cb);
	WRITE_ONCE(prot->sock_is_readable, hall_sock_is_readable);
	WRITE_ONCE(prot->stream_memory_free, hall_stream_memory_free);
}

/* The channel has an endpoint afterwards, or no number is left. lock_sock(). */
static int open_channel(struct hall_sock *hs)
{
	int err;

	/* First: look-ups by its number are RCU's. */
	hs->had_endpoint = true;
	take_callbacks(hs);
	err = hall_channel_open(&hs->channel);
	if (!err)
		hall_sock_note_ring(hs, true);
	return err;
}

int hall_tx_offer(struct hall_sock *hs, const struct hall_tokens *tokens, u32 bytes)
{
	struct hall_channel *channel = &hs->channel;
	struct hall_tx *tx = &hs->tx;
	int err;

	err = open_channel(hs);
	if (err)
		return err;
	err = hall_memory_alloc(channel->member, HALLWAY_RING_HEADER + bytes,
				&tx->memory);
	if (err) {
		hall_sock_close_channel(hs);
		return err;
	}
	tx->tokens = *tokens;
	tx->offered = tx->next;
	tx->next += 2;
	hall_ring_init_tx(&tx->ring, tx->memory.ring, bytes,
			  tx->offered);
	tx->answer_by = jiffies + HALL_ANSWER;
	tx->state = HALL_TX_OFFERED;
	hall_channel_offer(channel, tx->offered, tokens, &hs->local,
			   hs->local_port, &hs->remote, hs->remote_port,
			   &tx->memory);
	return 0;
}

static void wake_writers(struct hall_sock *hs)
{
	if (hs->tx_waiters)
		wake_up_interruptible(sk_sleep(hs->sk));
	hs->sk->sk_write_space(hs->sk);
}

void hall_tx_promote(struct hall_sock *hs)
{
	struct tcp_sock *tp = tcp_sk(hs->sk);
	struct hall_tx *tx = &hs->tx;

	if (tp->snd_una != tp->write_seq)
		hall_count(HALL_SWITCH_IN_TCP);
	if (hs->tx_waiters)
		hall_count(HALL_SWITCH_WRITER);
	spin_lock_bh(&hs->channel.lock);
	hall_ring_set_start(&tx->ring, tp->write_seq);
	tx->state = HALL_TX_RING;
	tx->carrier = tx->offered;
	tx->replacing = false;
	spin_unlock_bh(&hs->channel.lock);
	hall_count(HALL_TX_PROMOTED);
	trace_hallway_promote(&hs->local, hs->local_port, &hs->remote,
			      hs->remote_port, true, tx->ring.size);
	/* A reader blocked on TCP must look at the ring from now on. */
	hall_channel_notify_receiver(&hs->channel);
	/* A writer that waits for space in TCP's queue has it in the ring. */
	wake_writers(hs);
}

void hall_tx_resume(struct hall_sock *hs)
{
	if (!hs->tx.replacing)
		return;
	spin_lock_bh(&hs->channel.lock);
	hs->tx.replacing = false;
	spin_unlock_bh(&hs->channel.lock);
	wake_writers(hs);
}

void hall_tx_demote(struct hall_sock *hs, u32 reason)
{
	struct hall_tx *tx = &hs->tx;
	u32 left;

	hall_tx_resume(hs);
	if (tx->state != HALL_TX_RING)
		return;
	if (hall_tx_count_unread(hs))
		hall_count(HALL_SWITCH_IN_RING);
	if (hs->tx_waiters)
		hall_count(HALL_SWITCH_WRITER);
	spin_lock_bh(&hs->channel.lock);
	left = hall_ring_set_end(&tx->ring);
	tx->state = HALL_TX_ENDED;
	tx->carrier = tx->offered + 1;
	spin_unlock_bh(&hs->channel.lock);
	hall_count(HALL_TX_DEMOTED);
	/* The receiver's reasons come here, too; the end of a ring has none for it. */
	hall_count_demotion(reason);
	trace_hallway_demote(&hs->local, hs->local_port, &hs->remote,
			     hs->remote_port, true, reason, tx->ring.head);
	if (tx->ring.broken) {
		hall_sock_break(hs);
	} else if (left) {
		hs->reason = HALLWAY_REASON_TIMEOUT;
		tx->lost = !hall_tx_resend(hs, left);
	}
	if (tx->lost)
		hall_channel_raise(&hs->channel, HALL_EVENT_BROKEN);
	hall_channel_notify_receiver(&hs->channel);
	hs->sk->sk_write_space(hs->sk);
}

void hall_tx_replace(struct hall_sock *hs)
{
	hall_tx_demote(hs, HALLWAY_REASON_NONE);
	spin_lock_bh(&hs->channel.lock);
	hs->tx.replacing = hs->tx.state == HALL_TX_ENDED;
	spin_unlock_bh(&hs->channel.lock);
	hs->tx.replace_by = jiffies + REPLACE;
	/* Should the peer not answer, the work item has the bytes go over TCP. */
	hall_sock_queue_work(hs, REPLACE);
}

void hall_tx_release(struct hall_sock *hs)
{
	struct hall_channel *channel = &hs->channel;
	struct hall_tx *tx = &hs->tx;
	struct hall_memory memory;

	hall_count_add(HALL_TX_BYTES_UNREAD, hall_tx_count_unread(hs));
	spin_lock_bh(&channel->lock);
	memory = tx->memory;
	tx->memory.ring = NULL;
	tx->bytes_before = tx->bytes_ring;
	if (tx->state == HALL_TX_RING)
		tx->carrier = tx->offered + 1;
	tx->state = HALL_TX_TCP;
	spin_unlock_bh(&channel->lock);
	if (memory.ring)
		hall_memory_free(channel->member, &memory);
}

u32 hall_rx_accept(struct hall_sock *hs, const struct hallway_message *offer)
{
	struct hall_channel *channel = &hs->channel;
	u32 size = offer->offer.ring_size;
	struct hallway_ring *shared;
	struct hall_rx_ring ring;

	if (!hall_ring_is_valid_size(size) || !(offer->carrier & 1))
		return HALLWAY_REASON_CORRUPT;
	if (READ_ONCE(hs->sk->sk_rcvlowat) > HALL_RING_FILLS(size))
		return HALLWAY_REASON_SMALL;
	if (open_channel(hs))
		return HALLWAY_REASON_NO_ENDPOINT;
	shared = channel->member->transport->map(channel->member,
						 &offer->offer.handle,
						 HALLWAY_RING_HEADER + size);
	if (!shared)
		return HALLWAY_REASON_CORRUPT;
	if (!hall_ring_init_rx(&ring, shared, size, offer->carrier)) {
		channel->member->transport->unmap(channel->member, shared);
		return HALLWAY_REASON_CORRUPT;
	}
	/* A fresh ring rings for its first byte, which a reader on TCP may sleep for. */
	ring.armed = true;
	spin_lock_bh(&channel->lock);
	channel->sender = offer->from;
	hs->rx.ring = ring;
	hs->rx.state = HALL_RX_MAPPED;
	hs->rx.carrier = offer->carrier;
	hs->rx.end_requested = false;
	hs->spin_credit = HALL_SPIN_CREDIT;
	spin_unlock_bh(&channel->lock);
	return 0;
}

void hall_rx_truncate(struct hall_sock *hs)
{
	struct hall_rx_ring *ring = &hs->rx.ring;
	u32 n;

	hall_rx_find_source(hs, &n);
	if (ring->ended)
		return;
	spin_lock_bh(&hs->channel.lock);
	if (ring->started && !hall_rx_lacks_tcp(hs))
		hall_ring_truncate(ring);
	else
		hall_ring_truncate_unread(ring);
	spin_unlock_bh(&hs->channel.lock);
	if (ring->ended)
		hall_count(HALL_RX_TRUNCATIONS);
}

int hall_rx_demote_now(struct hall_sock *hs, u32 reason)
{
	struct hall_rx *rx = &hs->rx;
	int err;

	if (rx->state != HALL_RX_MAPPED)
		return 0;
	hall_rx_truncate(hs);
	err = hall_rx_requeue(hs, GFP_ATOMIC | __GFP_NOWARN);
	if (err == -EPROTO)
		hall_sock_break(hs);
	if (err)
		return err;
	hall_channel_send(&hs->channel, HALLWAY_DEMOTE, rx->carrier, reason, 0);
	hall_rx_release(hs, reason);
	return 0;
}

void hall_rx_release(struct hall_sock *hs, u32 reason)
{
	struct hall_channel *channel = &hs->channel;
	struct hall_rx *rx = &hs->rx;

	if (rx->state != HALL_RX_MAPPED)
		return;
	spin_lock_bh(&channel->lock);
	rx->state = HALL_RX_NATIVE;
	rx->bytes_before = rx->bytes_ring;
	spin_unlock_bh(&channel->lock);
	channel->member->transport->unmap(channel->member, rx->ring.shared);
	hall_channel_send(channel, HALLWAY_DONE, rx->carrier, reason,
			  rx->ring.tail);
	rx->carrier++;
	hall_sock_close_channel(hs);
	if (!rx->ring.started)
		return;
	hall_count(HALL_RX_DEMOTED);
	trace_hallway_demote(&hs->local, hs->local_port, &hs->remote,
			     hs->remote_port, false, reason, rx->ring.tail);
	if (atomic_read(&hs->rx_waiters))
		hall_count(HALL_SWITCH_READER);
}

void hall_rx_discard_queue(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);

	__skb_queue_purge(&sk->sk_receive_queue);
	WRITE_ONCE(tp->copied_seq, tp->rcv_nxt);
	WRITE_ONCE(tp->urg_data, 0);
}

void hall_sock_close_channel(struct hall_sock *hs)
{
	if (!hs->tx.memory.ring && hs->rx.state == HALL_RX_NATIVE) {
		hall_sock_note_ring(hs, false);
		hall_channel_close(&hs->channel);
	}
}

void hall_sock_break(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;

	if (hs->pinned == HALLWAY_REASON_CORRUPT)
		return;
	hs->pinned = HALLWAY_REASON_CORRUPT;
	hs->reason = HALLWAY_REASON_CORRUPT;
	hall_count(HALL_CORRUPT_RINGS);
	hall_tx_demote(hs, HALLWAY_REASON_CORRUPT);
	hall_rx_release(hs, HALLWAY_REASON_CORRUPT);
	if (hall_sock_is_disconnected(hs))
		return;
	hall_rx_discard_queue(sk);
	sk->sk_err = ECONNRESET;
	hall_channel_raise(&hs->channel, HALL_EVENT_BROKEN);
}

/*
 * tcp_abort() waits for the socket's lock, which a thread in a page fault may hold
 * without limit. So a reset that finds the lock taken ends, and the work item queues
 * it again. A thread may still come between that look and tcp_abort(). So resets
 * have a queue of their own, too: not even many of those hold up other work.
 */
static struct workqueue_struct *resets;

#define RESETS	512	/* at once; kernels have other defaults each */

int hall_reset_init(void)
{
	resets = alloc_workqueue("hallway_reset", WQ_UNBOUND | WQ_MEM_RECLAIM,
				 RESETS);
	return resets ? 0 : -ENOMEM;
}

void hall_reset_uninit(void)
{
	destroy_workqueue(resets);
}

void hall_sock_reset(struct hall_sock *hs, int err)
{
	WRITE_ONCE(hs->reset_error, err);
	/* The queued work holds a reference. */
	refcount_inc(&hs->channel.refs);
	if (!queue_work(resets, &hs->reset))
		hall_channel_put(&hs->channel);
}

static void reset(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;

	/*
	 * A socket that its program has closed is TCP's alone. After an RST the
	 * program has its error already.
	 */
	if (hall_sock_is_disconnected(hs) || sock_flag(sk, SOCK_DEAD) ||
	    inet_sk_state_load(sk) == TCP_CLOSE)
		return;
	hall_count(HALL_RESETS);
	tcp_abort(sk, READ_ONCE(hs->reset_error));
}

void hall_sock_run_reset(struct work_struct *work)
{
	struct hall_sock *hs = container_of(work, struct hall_sock, reset);

	if (!hall_sock_is_taken(hs)) {
		reset(hs);
		WRITE_ONCE(hs->reset_error, 0);
	}
	hall_channel_put(&hs->channel);
}
