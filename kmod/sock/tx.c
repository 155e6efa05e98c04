// SPDX-License-Identifier: GPL-2.0-only
/*
 * sendmsg().
 *
 * A call runs under lock_sock(), as tcp_sendmsg() does. To wait it releases the
 * lock, and looks at the carrier again afterwards. Native sends are asked not to
 * wait: a writer that has to wait does so here, so that the carrier can change
 * under it.
 *
 * A small call on a ring needs none of that: see send_small(). Nor does a call on a
 * connection without a ring need more than the native send: see send_plain().
 */
#include "calls.h"

#include <linux/uio.h>

#include <hallway/reason.h>

#include "../compat/rps.h"
#include "../obs/counters.h"
#include "carrier.h"
#include "idle.h"
#include "info.h"
#include "lookup.h"
#include "quiet.h"
#include "wake.h"

/* Copies as much as fits into the ring. Bytes, 0 if it is full, -EFAULT, -EPIPE. */
static int write_ring(struct hall_sock *hs, struct msghdr *msg)
{
	struct hall_tx_ring *ring = &hs->tx.ring;
	struct hall_span span;
	size_t copied;
	bool ringing;

	/* A doorbell between the load of tail and its check would look like fraud. */
	spin_lock_bh(&hs->channel.lock);
	span = hall_ring_get_tx_span(ring, 0, min_t(size_t, msg_data_left(msg),
						    ring->size));
	spin_unlock_bh(&hs->channel.lock);
	if (ring->broken) {
		hall_sock_break(hs);
		return -EPIPE;
	}
	if (!span.len)
		return 0;
	/* Not copy_from_iter(): the span is bounded, and lies outside of the heap. */
	copied = _copy_from_iter(span.data, span.len, &msg->msg_iter);
	/* A piece that faults is not sent at all, as in TCP. */
	if (copied < span.len) {
		iov_iter_revert(&msg->msg_iter, copied);
		return -EFAULT;
	}
	if (((ring->head + copied) ^ ring->head) & ring->size)
		hall_count(HALL_RING_WRAPS);
	spin_lock_bh(&hs->channel.lock);
	ringing = hall_ring_publish(ring, copied);
	spin_unlock_bh(&hs->channel.lock);
	if (ringing)
		hall_channel_notify_receiver(&hs->channel);
	hall_info_count_sent(hs, copied);
	return copied;
}

static bool is_sending_over(const struct sock *sk)
{
	return sk->sk_err || (sk->sk_shutdown & SEND_SHUTDOWN);
}

static int write_tcp(struct hall_sock *hs, struct msghdr *msg, bool more)
{
	unsigned int flags = msg->msg_flags;
	int n;

	msg->msg_flags |= MSG_DONTWAIT;
	/* The call returns the bytes that it sent before: no signal then. */
	if (more)
		msg->msg_flags |= MSG_NOSIGNAL;
	n = tcp_sendmsg_locked(hs->sk, msg, msg_data_left(msg));
	msg->msg_flags = flags;
	if (n > 0) {
		hs->tx.bytes_tcp += n;
		hall_count_add(HALL_TX_BYTES_TCP, n);
	}
	return n;
}

/* Before the doorbell is armed: sk_write_space() looks for these. */
static void note_no_space(struct sock *sk, long timeo)
{
	set_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
	/* A program that does not wait may have asked for SIGIO. */
	if (!timeo)
		sk_set_bit(SOCKWQ_ASYNC_NOSPACE, sk);
}

/* Waits for space; both carriers announce it by the same callback. */
static int wait_for_space(struct hall_sock *hs, long *timeo)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = hs->sk;

	if (!*timeo)
		return -EAGAIN;
	if (signal_pending(current))
		return sock_intr_errno(*timeo);
	if (hs->tx.state == HALL_TX_RING)
		hall_count(HALL_TX_SLEEPS);
	add_wait_queue(sk_sleep(sk), &wait);
	hs->tx_waiters++;
	sk->sk_write_pending++;
	/* A change from here on marks the entry as woken. */
	if (!is_sending_over(sk) && !sk_stream_memory_free(sk))
		hall_sock_sleep(hs, &wait, timeo);
	sk->sk_write_pending--;
	hs->tx_waiters--;
	remove_wait_queue(sk_sleep(sk), &wait);
	/* As sk_wait_event(): the rest is not for the socket's next connection. */
	return hall_sock_is_disconnected(hs) ? -EPIPE : 0;
}

static int wait_for_memory(struct hall_sock *hs, long *timeo)
{
	int err;

	hs->tx_waiters++;
	err = sk_stream_wait_memory(hs->sk, timeo);
	hs->tx_waiters--;
	return err;
}

/*
 * Do bytes wait for the next ring? Errors don't, and none comes to a socket that has
 * its native tables back.
 */
static bool awaits_ring(const struct hall_sock *hs)
{
	return hs->tx.replacing && hs->sk->sk_prot == &hs->prot &&
	       !is_sending_over(hs->sk);
}

/*
 * Sends all of msg, of which `sent` bytes are sent already, or as much as it can. Bytes,
 * or an error if there are none; HALL_NATIVE if the socket was detached before a byte
 * was sent. A call that has sent bytes goes on here, on TCP.
 */
static int send_locked(struct hall_sock *hs, struct msghdr *msg, int sent)
{
	struct sock *sk = hs->sk;
	long timeo = sock_sndtimeo(sk, msg->msg_flags & MSG_DONTWAIT);
	int n;

	do {
		if (hs->detached && hall_sock_may_return(sent))
			return sent ?: HALL_NATIVE;
		if (awaits_ring(hs) && msg_data_left(msg)) {
			n = -EAGAIN;
		} else if (hs->tx.state != HALL_TX_RING) {
			/* TCP would take the error, which is the next call's. */
			if (sent && is_sending_over(sk))
				return sent;
			n = write_tcp(hs, msg, sent);
			if (n < 0 && n != -EAGAIN)
				return sent ?: n;
		} else if (is_sending_over(sk)) {
			n = -EPIPE;
			goto error;
		} else {
			n = write_ring(hs, msg);
			if (n < 0)
				goto error;
		}
		if (n > 0 || (!n && !msg_data_left(msg))) {
			sent += n;
			continue;
		}
		if (hs->tx.state == HALL_TX_RING) {
			hall_count(HALL_RING_FULL);
			if (hall_sock_handler.full(hs))
				continue;
			note_no_space(sk, timeo);
			/* Arms the doorbell; true: there is space now. */
			if (sk_stream_memory_free(sk))
				continue;
		} else if (awaits_ring(hs)) {
			note_no_space(sk, timeo);
		} else if (sk_stream_memory_free(sk)) {
			/* Memory is short, not the socket's limit: TCP knows how. */
			n = wait_for_memory(hs, &timeo);
			if (n < 0)
				goto error;
			continue;
		}
		n = wait_for_space(hs, &timeo);
		if (n < 0)
			goto error;
		/* One long call earns a ring as many short ones do. */
		if (hs->tx.state == HALL_TX_TCP)
			hall_sock_apply_policy(hs, msg_data_left(msg));
	} while (msg_data_left(msg));
	return sent;
error:
	return sent ?: sk_stream_error(sk, msg->msg_flags, n);
}

/*
 * Will TCP refuse this call before it reads a byte, for unknown control data, or
 * for a SYN's data while there is a connection? If not, cookie holds what the
 * control data asks for.
 */
static bool is_refused(struct sock *sk, struct msghdr *msg,
		       struct sockcm_cookie *cookie)
{
	sockcm_init(cookie, sk);
	return (msg->msg_flags & MSG_FASTOPEN) ||
	       (msg->msg_controllen && sock_cmsg_send(sk, msg, cookie));
}

/* Why this message, and the socket from then on, stays on TCP; or 0. */
static u32 find_native_reason(const struct sock *sk, const struct msghdr *msg,
			      const struct sockcm_cookie *cookie)
{
	if (msg->msg_flags & MSG_OOB)
		return HALLWAY_REASON_URGENT;
	if ((msg->msg_flags & MSG_ZEROCOPY) && sock_flag(sk, SOCK_ZEROCOPY))
		return HALLWAY_REASON_ZEROCOPY;
	/* Of this message; for the socket's see hall_sock_needs_packets(). */
	if (msg->msg_controllen && cookie->tsflags)
		return HALLWAY_REASON_TIMESTAMP;
	return 0;
}

static noinline int send_message(struct hall_sock *hs, struct msghdr *msg,
				 size_t size)
{
	struct sock *sk = hs->sk;
	struct sockcm_cookie cookie;
	u32 reason = hall_sock_needs_packets(sk);
	struct hall_call call;
	int ret;

	if (unlikely(reason)) {
		hall_sock_handler.detach_sync(hs, reason);
		return HALL_NATIVE;
	}
	hall_call_begin(hs, &call);
	lock_sock(sk);
	if (unlikely(is_refused(sk, msg, &cookie))) {
		/*
		 * No byte moves, so that the carrier does not matter. But where a connect() did
		 * not wait and was not called again, TCP takes MSG_FASTOPEN for that.
		 */
		if ((msg->msg_flags & MSG_FASTOPEN) && sk->sk_socket &&
		    sk->sk_socket->state != SS_CONNECTED) {
			hs->pinned = hs->reason = HALLWAY_REASON_STATE;
			hall_tx_demote(hs, HALLWAY_REASON_STATE);
		}
		ret = write_tcp(hs, msg, false);
		goto out;
	}
	reason = find_native_reason(sk, msg, &cookie);
	if (unlikely(reason)) {
		hs->pinned = hs->reason = reason;
		hall_tx_demote(hs, reason);
	}
	hall_sock_apply_policy(hs, size);
	ret = send_locked(hs, msg, 0);
out:
	release_sock(sk);
	hall_call_end(hs, &call);
	return ret;
}

/*
 * The short way of a call whose bytes fit into the ring: under slock, with page
 * faults off. channel.lock is not taken: see hall_ring_publish(). Bytes, or 0: the
 * call has to go the long way.
 */
static noinline int send_small(struct hall_sock *hs, struct sock *sk,
			       struct msghdr *msg, size_t size)
{
	struct hall_tx_ring *ring = &hs->tx.ring;
	bool ringing = false;
	size_t copied;
	u8 *data;
	int ret = 0;

	spin_lock_bh(&sk->sk_lock.slock);
	if (!hall_sock_is_idle(hs, sk) || hs->tx.state != HALL_TX_RING ||
	    (sk->sk_shutdown & SEND_SHUTDOWN))
		goto out;
	data = hall_ring_find_free(ring, size);
	if (!data)
		goto out;
	pagefault_disable();
	copied = _copy_from_iter(data, size, &msg->msg_iter);
	pagefault_enable();
	if (unlikely(copied < size)) {
		iov_iter_revert(&msg->msg_iter, copied);
		goto out;
	}
	ringing = hall_ring_publish(ring, size);
	if (!(ring->head & (ring->size - 1)))
		hall_count(HALL_RING_WRAPS);
	hall_info_count_sent(hs, size);
	/* The doorbell ends in locks of the other end: not under ours. */
	if (ringing)
		refcount_inc(&hs->channel.refs);
	ret = size;
out:
	spin_unlock_bh(&sk->sk_lock.slock);
	if (ringing) {
		hall_channel_notify_receiver(&hs->channel);
		hall_sock_put(hs);
	}
	return ret;
}

/*
 * The short way of a call on a connection without a ring, which earns none by it. Bytes,
 * an error, or 0: the call has to go the long way.
 */
static noinline int send_plain(struct hall_sock *hs, struct sock *sk,
			       struct msghdr *msg, size_t size)
{
	int n;

	/* As in inet_sendmsg(). */
	sock_rps_record_flow(sk);
	spin_lock_bh(&sk->sk_lock.slock);
	if (!hall_sock_is_idle(hs, sk) || hs->tx.state != HALL_TX_TCP ||
	    hs->tx.replacing || hall_sock_may_earn(hs, size)) {
		spin_unlock_bh(&sk->sk_lock.slock);
		return 0;
	}
	refcount_inc(&hs->channel.refs);
	hall_turn_take(sk);
	n = write_tcp(hs, msg, false);
	/* Part of it: the rest has to wait for space. */
	if (unlikely((n > 0 && n < size) ||
		     (n == -EAGAIN && !(msg->msg_flags & MSG_DONTWAIT)))) {
		n = send_locked(hs, msg, max(n, 0));
		/* Its turn may have come in a detached socket. */
		if (n == HALL_NATIVE)
			n = 0;
	}
	release_sock(sk);
	hall_sock_put(hs);
	return n;
}

/* Does the call ask for no more than that bytes are sent? */
static bool is_simple(const struct msghdr *msg, size_t size)
{
	return size && !msg->msg_controllen &&
	       !(msg->msg_flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE));
}

int hall_ops_sendmsg(struct socket *sock, struct msghdr *msg, size_t size)
{
	struct hall_sock *hs = hall_sock_peek(sock->sk);
	int n = 0;

	if (hs && is_simple(msg, size)) {
		if (READ_ONCE(hs->tx.state) == HALL_TX_RING)
			n = size <= HALL_SMALL ? send_small(hs, sock->sk, msg, size) : 0;
		else if (READ_ONCE(hs->tx.state) == HALL_TX_TCP)
			n = send_plain(hs, sock->sk, msg, size);
	}
	return n ?: hall_sock_find_native_ops(sock)->sendmsg(sock, msg, size);
}

int hall_sendmsg(struct sock *sk, struct msghdr *msg, size_t size)
{
	struct hall_sock *hs = hall_sock_get(sk);
	int ret = HALL_NATIVE;

	if (hs) {
		ret = send_message(hs, msg, size);
		hall_sock_put(hs);
	}
	if (ret == HALL_NATIVE)
		return READ_ONCE(sk->sk_prot)->sendmsg(sk, msg, size);
	return ret;
}

#ifdef HALL_HAS_SENDPAGE
static noinline int send_page(struct hall_sock *hs, struct page *page,
			      int offset, size_t size, int flags)
{
	struct bio_vec bvec = {
		.bv_page = page,
		.bv_offset = offset,
		.bv_len = size,
	};
	struct msghdr msg = { .msg_flags = flags & ~MSG_SENDPAGE_NOTLAST };

	if (flags & MSG_SENDPAGE_NOTLAST)
		msg.msg_flags |= MSG_MORE;
	iov_iter_bvec(&msg.msg_iter, ITER_SOURCE, &bvec, 1, size);
	return send_message(hs, &msg, size);
}

int hall_sendpage(struct sock *sk, struct page *page, int offset, size_t size,
		  int flags)
{
	struct hall_sock *hs = hall_sock_get(sk);
	int ret = HALL_NATIVE;

	if (hs) {
		ret = send_page(hs, page, offset, size, flags);
		hall_sock_put(hs);
	}
	if (ret == HALL_NATIVE)
		return READ_ONCE(sk->sk_prot)->sendpage(sk, page, offset, size,
							flags);
	return ret;
}
#endif
