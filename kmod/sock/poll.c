// SPDX-License-Identifier: GPL-2.0
/*
 * Readiness. tcp_poll() asks the socket's own sock_is_readable() and
 * stream_memory_free(), without the socket lock; the doorbell ends in
 * sk_data_ready() and sk_write_space(). Saying "not ready" always arms the
 * doorbell, so that level and edge triggered users are told of the change.
 */
#include "sock.h"

#include <linux/poll.h>

#include <hallway/reason.h>

#include "../obs/counters.h"

/*
 * A ring is writable from the first of these on; a writer that found it full
 * is woken at the second, so that it has something to do then.
 */
#define LEAST_SPACE(size)	((size) - HALL_RING_FILLS(size))
#define WAKE_SPACE(size)	((size) / 2)

/*
 * Are the ring's bytes the next ones, save for *n that TCP has for us first? No
 * if it owes us some of those. channel.lock alone: a mark may be here that no
 * reader has looked at yet.
 */
static bool ring_is_next(const struct hall_sock *hs, u32 *n)
{
	const struct hall_rx_ring *ring = &hs->rx.ring;
	u64 start = ring->started ? HALLWAY_MARK_SET | ring->start_seq :
		    READ_ONCE(ring->shared->start);
	u32 copied = READ_ONCE(tcp_sk(hs->sk)->copied_seq);

	if (!(start & HALLWAY_MARK_SET))
		return false;
	*n = before(copied, (u32)start) ? (u32)start - copied : 0;
	return !*n || !after((u32)start, READ_ONCE(tcp_sk(hs->sk)->rcv_nxt));
}

/* What wakes those who sleep in select() and poll(). */
static wait_queue_func_t poll_wakes;

void hall_poll_learn(struct file *file, struct sock *fresh)
{
	struct wait_queue_entry *entry;
	struct poll_wqueues table;

	poll_initwait(&table);
	vfs_poll(file, &table.pt);
	entry = list_first_entry_or_null(&sk_sleep(fresh)->head,
					 struct wait_queue_entry, entry);
	if (entry)
		poll_wakes = entry->func;
	poll_freewait(&table);
}

/*
 * Does anyone wait for edges, as epoll and io_uring may? They want one for all
 * that comes, not only for what comes to an empty ring. unpolled: and does not
 * poll before the next edge? io_uring may not; epoll, which does, leaves the
 * private of its entries alone.
 */
static bool watched(struct sock *sk, bool unpolled)
{
	wait_queue_head_t *queue = sk_sleep(sk);
	struct wait_queue_entry *entry;
	bool wanted = false;
	unsigned long flags;

	if (!waitqueue_active(queue))
		return false;
	spin_lock_irqsave(&queue->lock, flags);
	list_for_each_entry(entry, &queue->head, entry)
		wanted |= entry->func != poll_wakes &&
			  entry->func != woken_wake_function &&
			  entry->func != hall_rx_woken &&
			  (!unpolled || entry->private);
	spin_unlock_irqrestore(&queue->lock, flags);
	return wanted;
}

bool hall_sock_is_readable(struct sock *sk)
{
	struct hall_sock *hs = hall_sock_get(sk);
	bool readable = false, next, waits = false, small = false;
	u32 target, n = 0;

	if (!hs)
		return false;
	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED) {
		target = sock_rcvlowat(sk, 0, INT_MAX);
		small = target > HALL_RING_FILLS(hs->rx.ring.size);
		next = ring_is_next(hs, &n);
		readable = hall_ring_arm_head(&hs->rx.ring, next && target > n ?
							    target - n : 1);
		waits = readable && !ring_is_next(hs, &n);
		readable &= !waits;
		if (readable && watched(sk, false))
			hall_rx_arm_edge(hs);
	}
	spin_unlock_bh(&hs->channel.lock);
	if (waits)
		hall_rx_await_tcp(hs);
	if (small)
		hall_rx_small(hs);
	hall_sock_put(hs);
	return readable;
}

/*
 * Called whenever the lock is let go of, by those too who set what the socket
 * layer keeps for itself. SOCK_FASYNC: from then on each arrival has to ring,
 * whether or not what was there is read. Who wants packets, see
 * hall_sock_packets(), may make no call until one comes; and what is sent from
 * now on is a filter's to judge.
 */
void hall_release_cb(struct sock *sk)
{
	struct hall_sock *hs = container_of(sk->sk_prot, struct hall_sock, prot);
	bool signals = sock_flag(sk, SOCK_FASYNC);
	u32 reason = hall_sock_packets(sk);

	hs->native->release_cb(sk);
	if (unlikely(reason) && !hs->leaving) {
		if (reason == HALLWAY_REASON_FILTERED &&
		    hs->rx.state == HALL_RX_MAPPED)
			hall_rx_cut(hs);
		hall_sock_want_tcp(hs, reason);
	}
	if (likely(signals == hs->signals))
		return;
	hs->signals = signals;
	spin_lock_bh(&hs->channel.lock);
	if (signals && hs->rx.state == HALL_RX_MAPPED)
		hall_rx_arm_edge(hs);
	spin_unlock_bh(&hs->channel.lock);
}

bool hall_stream_memory_free(const struct sock *sk, int wake)
{
	struct hall_sock *hs = hall_sock_get(sk);
	bool on_ring = false, free = false;

	if (hs) {
		spin_lock_bh(&hs->channel.lock);
		on_ring = hs->tx.state == HALL_TX_RING;
		if (on_ring)
			free = hall_ring_arm_tail(&hs->tx.ring,
						  LEAST_SPACE(hs->tx.ring.size),
						  WAKE_SPACE(hs->tx.ring.size));
		spin_unlock_bh(&hs->channel.lock);
		hall_sock_put(hs);
	}
	return on_ring ? free : tcp_stream_memory_free(sk, wake);
}

void hall_sock_wake(struct hall_sock *hs)
{
	struct hall_channel *channel = &hs->channel;
	bool readable = false, writable, look = false;
	struct sock *sk = hs->sk;

	spin_lock_bh(&channel->lock);
	if (hs->rx.state == HALL_RX_MAPPED) {
		hall_ring_rx_heard(&hs->rx.ring);
		readable = hall_ring_used(&hs->rx.ring) || hs->rx.ring.broken;
		/* For those who do not poll, or read, before the next edge. */
		if (watched(sk, true) || sock_flag(sk, SOCK_FASYNC))
			hall_rx_arm_edge(hs);
		/* A mark may have come: the work sees to it. */
		look = READ_ONCE(hs->rx.ring.shared->end);
	}
	writable = hs->tx.state == HALL_TX_RING;
	if (writable)
		hall_ring_tx_heard(&hs->tx.ring);
	spin_unlock_bh(&channel->lock);
	if (unlikely(!hall_owner_native(sk))) {
		hall_owner_wake(hs);
	} else {
		if (readable)
			sk->sk_data_ready(sk);
		if (writable && hall_sock_wants_space(sk))
			sk->sk_write_space(sk);
	}
	if (look)
		hall_channel_raise(channel, HALL_EVENT_LOOK);
}
