// SPDX-License-Identifier: GPL-2.0-only
/*
 * Readiness. The core is on the wait queue when it asks, and sleeps if the answer is
 * no: that answer always arms the doorbell.
 *
 * A read spins before that. The core does not say whether the call may wait: one that
 * may not, by its flags and not by those of the file, spins as well, which soon ends
 * where it does not pay. poll() does not spin: it may have other files to look at.
 */
#include "tunnel.h"

#include <linux/file.h>
#include <linux/net.h>

#include "../obs/counters.h"
#include "../sock/spin.h"
#include "../sock/wake.h"

/* Of one poll(), while bytes arrive that are too few for it. */
#define LOOKS_MAX	16

/*
 * May something be written to the peer's memory? Without a channel there may be none, and
 * that of a peer that departs may be another's in a moment. lock_sock()
 */
static bool may_arm(const struct hall_tunnel *tunnel)
{
	struct hall_member *member = tunnel->channel.member;

	return tunnel->mapped && !READ_ONCE(member->departed) &&
	       member->transport->intact(member);
}

/*
 * For the byte after those that the caller has seen, as each waiter does: the ring has
 * one event. Bytes that came since then rang no doorbell. True: look again.
 */
static bool arm_bytes(struct hall_tunnel *tunnel, u32 seen)
{
	bool ready;

	if (!may_arm(tunnel))
		return false;
	spin_lock_bh(&tunnel->channel.lock);
	ready = hall_ring_arm_head(&tunnel->rx, seen + 1) ||
		READ_ONCE(tunnel->rx.shared->end);
	spin_unlock_bh(&tunnel->channel.lock);
	return ready;
}

/* What the peer writes: another look says whether that is right. */
static bool has_news(void *reader)
{
	const struct hall_rx_ring *rx = &((struct hall_tunnel *)reader)->rx;

	return READ_ONCE(rx->shared->head) != rx->head || READ_ONCE(rx->shared->end);
}

static void spin_for_bytes(struct hall_tunnel *tunnel, struct sock *sk)
{
	const struct file *file = sk->sk_socket->file;

	if (tunnel->mapped && tunnel->channel.member->transport->remote &&
	    !(file && file->f_flags & O_NONBLOCK))
		hall_sock_spin(sk, &tunnel->spin_credit, has_news, tunnel);
}

/* Bytes to read; if there are none, the next one, or the end, wakes. */
static u32 find_bytes(struct vsock_sock *vsk)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 n = hall_tunnel_count_unread(tunnel, sk_vsock(vsk));

	if (!n && arm_bytes(tunnel, 0))
		n = hall_tunnel_count_unread(tunnel, sk_vsock(vsk));
	return n;
}

/* The same for a read: the doorbell is not armed while it spins. */
static u32 await_bytes(struct vsock_sock *vsk)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 n = hall_tunnel_count_unread(tunnel, sk_vsock(vsk));

	if (!n)
		spin_for_bytes(tunnel, sk_vsock(vsk));
	return n ?: find_bytes(vsk);
}

/*
 * The core asks these again for a thread that has slept. The tunnel may have been reset
 * meanwhile, and another thread's connect() have taken it away.
 */
s64 hall_tunnel_stream_has_data(struct vsock_sock *vsk)
{
	struct sock *sk = sk_vsock(vsk);
	u32 n;

	if (!hall_tunnel_of(vsk))
		return 0;
	n = await_bytes(vsk);
	/* That of a listener would be about the connections that it has yet to accept. */
	if (!n && sk->sk_state != TCP_LISTEN &&
	    hall_tunnel_is_reset(hall_tunnel_of(vsk), sk))
		sk->sk_err = ECONNRESET;
	return n;
}

u32 hall_tunnel_packet_has_data(struct vsock_sock *vsk)
{
	if (!hall_tunnel_of(vsk))
		return 0;
	return await_bytes(vsk) ||
	       hall_tunnel_is_reset(hall_tunnel_of(vsk), sk_vsock(vsk));
}

/*
 * For waiters that want an edge for each arrival: see hall_sock_wants_edges(). The
 * tunnel has a socket and the peer's ring, or what is left of it. channel.lock
 */
static void arm_edge(struct hall_tunnel *tunnel, bool unpolled)
{
	struct sock *sk = tunnel->sk;

	/* No program has accepted it yet. */
	if (!rcu_access_pointer(sk->sk_wq))
		return;
	if (hall_sock_wants_edges(sk, unpolled) || sock_flag(sk, SOCK_FASYNC))
		hall_ring_arm_edge(&tunnel->rx);
}

void hall_tunnel_consume(struct hall_tunnel *tunnel, u32 n, u32 payload)
{
	struct hall_channel *channel = &tunnel->channel;
	bool ringing;

	spin_lock_bh(&channel->lock);
	ringing = hall_ring_consume(&tunnel->rx, n);
	/* Waiters for edges take each arrival for one, also in a ring with bytes. */
	arm_edge(tunnel, false);
	spin_unlock_bh(&channel->lock);
	if (ringing)
		hall_channel_notify_sender(channel);
	hall_count_add(HALL_RX_BYTES_TUNNEL, payload);
	this_cpu_add(channel->member->bytes->rx, payload);
}

/* Bytes that can be unread at a time. */
static u32 find_most(struct hall_tunnel *tunnel)
{
	u32 most = tunnel->rx.size;

	spin_lock_bh(&tunnel->channel.lock);
	if (tunnel->mapped)
		most = hall_ring_find_most(&tunnel->rx);
	spin_unlock_bh(&tunnel->channel.lock);
	return most;
}

int hall_tunnel_poll_in(struct vsock_sock *vsk, size_t target, bool *ready)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	struct sock *sk = sk_vsock(vsk);
	u32 n = find_bytes(vsk);
	unsigned int looks;
	bool filled;

	if (hall_tunnel_is_reset(tunnel, sk)) {
		sk->sk_err = ECONNRESET;
		*ready = true;
		return 0;
	}
	if (sk->sk_type == SOCK_SEQPACKET)
		target = 1;
	/* The writer may poll, and less space is none for it. */
	if (target > 1)
		target = min_t(size_t, target, HALL_RING_FILLS(find_most(tunnel)));
	*ready = n && (n >= target || tunnel->fin || tunnel->failed);
	/* A writer that is that quick is as good as one that has written all. */
	for (looks = 0; n && !*ready && arm_bytes(tunnel, n); looks++) {
		n = hall_tunnel_count_unread(tunnel, sk);
		*ready = n >= target || tunnel->fin || tunnel->failed || looks == LOOKS_MAX;
	}
	spin_lock_bh(&tunnel->channel.lock);
	/* The next arrival is an edge, whether the program reads this one or not. */
	if (*ready && may_arm(tunnel))
		arm_edge(tunnel, false);
	filled = !*ready && tunnel->mapped &&
		 hall_ring_should_wake_writer(&tunnel->rx);
	spin_unlock_bh(&tunnel->channel.lock);
	if (unlikely(filled))
		hall_channel_notify_sender(&tunnel->channel);
	return 0;
}

/* Is there space, after the ring has grown if need be? If not, the doorbell is armed. */
static bool await_space(struct hall_tunnel *tunnel, u32 least)
{
	u32 want;

	hall_tunnel_grow(tunnel, least);
	want = max(least, HALL_RING_WAKE_SPACE(tunnel->tx.size));
	return hall_ring_arm_tail(&tunnel->tx, least, want);
}

s64 hall_tunnel_has_space(struct vsock_sock *vsk)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 least;

	/* The core looks at peer_shutdown. */
	if (!tunnel || !tunnel->memory.ring)
		return 0;
	least = max(tunnel->need, 1u);
	/* DONE is on its way: hall_tunnel_find_space() says so. */
	if (hall_ring_is_truncated(&tunnel->tx))
		return least;
	return await_space(tunnel, least);
}

ssize_t hall_tunnel_count_unsent(struct vsock_sock *vsk)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);

	if (!tunnel || !tunnel->memory.ring)
		return 0;
	return hall_ring_count_unread(&tunnel->tx);
}

int hall_tunnel_poll_out(struct vsock_sock *vsk, size_t target, bool *space)
{
	struct hall_tunnel *tunnel = hall_tunnel_of(vsk);
	u32 least;

	/* It fails at once. */
	*space = true;
	if (!tunnel->memory.ring || (vsk->peer_shutdown & RCV_SHUTDOWN))
		return 0;
	least = max(tunnel->need, HALL_RING_LEAST_SPACE(tunnel->tx.size));
	*space = await_space(tunnel, least);
	return 0;
}

void hall_tunnel_wake(struct hall_channel *channel)
{
	struct hall_tunnel *tunnel =
		container_of(channel, struct hall_tunnel, channel);
	bool ended = false;
	struct sock *sk;

	if (tunnel->trunk) {
		hall_trunk_wake(tunnel);
		return;
	}
	/* The lock keeps the socket: hall_tunnel_detach(). */
	spin_lock_bh(&channel->lock);
	sk = tunnel->sk;
	if (sk && tunnel->mapped) {
		ended = READ_ONCE(tunnel->rx.shared->end) && !tunnel->fin_reported;
		/* For waiters that neither poll nor read before the next edge. */
		arm_edge(tunnel, true);
	}
	if (sk) {
		sk->sk_data_ready(sk);
		sk->sk_write_space(sk);
	}
	spin_unlock_bh(&channel->lock);
	/* A poller may wait for EPOLLRDHUP alone, and nothing else look at the mark. */
	if (ended)
		hall_channel_raise(channel, HALL_EVENT_FINISH);
}
