// SPDX-License-Identifier: GPL-2.0-only
/*
 * Readiness. poll() runs without the mutex. The answer "not ready" always arms the
 * doorbell, so that level and edge triggered pollers are woken by the change.
 */
#include "calls.h"

#include <linux/poll.h>
#include <net/tcp.h>

#include "../sock/wake.h"
#include "hook.h"
#include "listeners.h"

/* channel.lock */
static bool is_readable(struct hall_out *out, u32 target, bool *eof)
{
	struct hall_rx_ring *rx = &out->rx;
	u32 rest;

	*eof = false;
	if (out->mapped) {
		*eof = READ_ONCE(rx->shared->end);
		target = min(target, hall_ring_find_most(rx));
		/* For the next byte, as each reader does: the ring has one event. */
		if (!*eof && !hall_ring_arm_next(rx, target))
			return false;
		if (hall_sock_wants_edges(out->sk, false))
			hall_ring_arm_edge(rx);
		return true;
	}
	rest = READ_ONCE(out->rest_len) - READ_ONCE(out->rest_at);
	*eof = !rest;
	return true;
}

static __poll_t poll_stream(struct hall_out *out, struct socket *sock)
{
	struct sock *sk = sock->sk;
	int target = sock_rcvlowat(sk, 0, INT_MAX);
	u8 shutdown = READ_ONCE(sk->sk_shutdown);
	bool readable, filled, writable = true, eof;
	__poll_t mask = 0;

	spin_lock_bh(&out->channel.lock);
	readable = is_readable(out, target, &eof);
	filled = !readable && hall_ring_should_wake_writer(&out->rx);
	if (out->memory.ring && !(shutdown & SEND_SHUTDOWN)) {
		/* Before it is armed: its wake-up looks for this. */
		set_bit(SOCK_NOSPACE, &sock->flags);
		writable = hall_ring_arm_tail(&out->tx, HALL_RING_LEAST_SPACE(out->tx.size),
					      HALL_RING_WAKE_SPACE(out->tx.size));
	}
	spin_unlock_bh(&out->channel.lock);
	if (unlikely(filled))
		hall_channel_notify_sender(&out->channel);
	if (eof)
		shutdown |= RCV_SHUTDOWN;
	if (shutdown == SHUTDOWN_MASK)
		mask |= EPOLLHUP;
	if (shutdown & RCV_SHUTDOWN)
		mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
	if (readable)
		mask |= EPOLLIN | EPOLLRDNORM;
	if (writable)
		mask |= EPOLLOUT | EPOLLWRNORM;
	return mask;
}

static __poll_t poll_socket(struct hall_out *out, struct file *file,
			    struct socket *sock, poll_table *wait)
{
	__poll_t mask;

	sock_poll_wait(file, sock, wait);
	switch (hall_out_state(out)) {
	case HALL_OUT_CALLING:
		return 0;
	case HALL_OUT_CONNECTED:
		mask = poll_stream(out, sock);
		break;
	default:
		/* Another thread is about to take it out of the hash. */
		return hall_tables_of(sock->sk)->native->poll(file, sock, NULL);
	}
	/* An error may be set while we look. */
	smp_rmb();
	if (READ_ONCE(sock->sk->sk_err))
		mask |= EPOLLERR;
	return mask;
}

static __poll_t poll_listener(struct hall_out *out, struct file *file,
			      struct socket *sock, poll_table *wait)
{
	__poll_t mask;

	hall_listener_note_call(out);
	mask = hall_tables_of(sock->sk)->native->poll(file, sock, wait);
	if (!list_empty_careful(&out->arrivals))
		mask |= EPOLLIN | EPOLLRDNORM;
	return mask;
}

static noinline __poll_t poll_out(struct file *file, struct socket *sock,
				  poll_table *wait)
{
	struct hall_out *out = hall_out_get(sock->sk);
	__poll_t mask;

	if (!out)
		return HALL_NATIVE_POLL;
	mask = out->channel.kind == &hall_out_listener ?
		       poll_listener(out, file, sock, wait) :
		       poll_socket(out, file, sock, wait);
	hall_out_put(out);
	return mask;
}

__poll_t hall_out_poll(struct file *file, struct socket *sock,
		       struct poll_table_struct *wait)
{
	__poll_t mask = poll_out(file, sock, wait);

	if (mask != HALL_NATIVE_POLL)
		return mask;
	return hall_tables_of(sock->sk)->native->poll(file, sock, wait);
}

/* The doorbell rang. Softirq, RCU. */
void hall_out_wake(struct hall_out *out)
{
	struct sock *sk = READ_ONCE(out->sk);
	bool ended;

	if (!sk || hall_out_state(out) != HALL_OUT_CONNECTED)
		return;
	wake_up_all(&out->answers);
	spin_lock_bh(&out->channel.lock);
	ended = out->mapped && READ_ONCE(out->rx.shared->end);
	/* For waiters that neither poll nor read before the next edge. */
	if (out->mapped &&
	    (hall_sock_wants_edges(sk, true) || sock_flag(sk, SOCK_FASYNC)))
		hall_ring_arm_edge(&out->rx);
	spin_unlock_bh(&out->channel.lock);
	/* Every sleeper: one may wait for EPOLLRDHUP alone. */
	if (ended)
		sk->sk_state_change(sk);
	sk->sk_data_ready(sk);
	sk->sk_write_space(sk);
}
