// SPDX-License-Identifier: GPL-2.0-only
/*
 * sendmsg() and recvmsg() of an outsourced socket. Each copy is under the mutex, each
 * wait is not, be it spinning.
 */
#include "calls.h"

#include <linux/uio.h>
#include <net/tcp.h>

#include "../obs/counters.h"
#include "../sock/spin.h"
#include "../sock/wake.h"
#include "hook.h"
#include "options.h"

/* A ring is writable for a call that waits while it has this space. */
#define LEAST_SPACE	1

/* Is it too late to send? */
static bool is_closed_for_sending(const struct hall_out *out)
{
	/* Another thread may have given it up, and connected the socket again. */
	return READ_ONCE(out->closed) || READ_ONCE(out->sk->sk_err) || out->ended ||
	       (READ_ONCE(out->sk->sk_shutdown) & SEND_SHUTDOWN);
}

static struct hall_span get_space(struct hall_out *out, size_t max)
{
	struct hall_span span;

	spin_lock_bh(&out->channel.lock);
	span = hall_ring_get_tx_span(&out->tx, 0, min_t(size_t, max, out->tx.size));
	spin_unlock_bh(&out->channel.lock);
	return span;
}

/* Bytes, 0 if the ring is full, -EFAULT, -EPIPE. */
static int write_ring(struct hall_out *out, struct msghdr *msg)
{
	size_t left = msg_data_left(msg), copied;
	/* With less than that left, poll() would wait where a larger ring has space. */
	size_t need = left + HALL_RING_LEAST_SPACE(out->tx.size);
	struct hall_span span;
	bool ringing;

	if (is_closed_for_sending(out) || !out->memory.ring)
		return -EPIPE;
	span = get_space(out, left);
	if (hall_ring_get_known_space(&out->tx) < need && hall_out_grow(out, need))
		span = get_space(out, left);
	if (out->tx.broken) {
		hall_count(HALL_CORRUPT_RINGS);
		hall_out_finish_rx(out, ECONNRESET);
		hall_out_fail(out, ECONNRESET);
		return -EPIPE;
	}
	if (!span.len)
		return 0;
	copied = _copy_from_iter(span.data, span.len, &msg->msg_iter);
	/* A piece that faults is not sent at all, as in TCP. */
	if (copied < span.len) {
		iov_iter_revert(&msg->msg_iter, copied);
		return -EFAULT;
	}
	spin_lock_bh(&out->channel.lock);
	ringing = hall_ring_publish(&out->tx, copied);
	spin_unlock_bh(&out->channel.lock);
	if (ringing)
		hall_channel_notify_receiver(&out->channel);
	hall_count_add(HALL_TX_BYTES_OUTSOURCED, copied);
	WRITE_ONCE(out->tx_bytes, out->tx_bytes + copied);
	return copied;
}

/* True: there is space, or an end of waiting for it. */
static bool arm_space(struct hall_out *out)
{
	bool ready = true;

	spin_lock_bh(&out->channel.lock);
	if (out->memory.ring)
		ready = hall_ring_arm_tail(&out->tx, LEAST_SPACE,
					   HALL_RING_WAKE_SPACE(out->tx.size));
	spin_unlock_bh(&out->channel.lock);
	return ready || is_closed_for_sending(out);
}

static int wait_for_space(struct hall_out *out, long *timeo)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = out->sk;

	/* An edge-triggered poller is woken by the next space, too. */
	if (!*timeo) {
		set_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
		return arm_space(out) ? 0 : -EAGAIN;
	}
	if (signal_pending(current))
		return sock_intr_errno(*timeo);
	add_wait_queue(sk_sleep(sk), &wait);
	set_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
	if (!arm_space(out))
		*timeo = wait_woken(&wait, TASK_INTERRUPTIBLE, *timeo);
	remove_wait_queue(sk_sleep(sk), &wait);
	return 0;
}

static int send_all(struct hall_out *out, struct msghdr *msg)
{
	struct sock *sk = out->sk;
	long timeo = sock_sndtimeo(sk, msg->msg_flags & MSG_DONTWAIT);
	int sent = 0, n;

	/* As in TCP, a call without bytes fails as well. */
	if (is_closed_for_sending(out))
		return sk_stream_error(sk, msg->msg_flags, -EPIPE);
	while (msg_data_left(msg)) {
		mutex_lock(&out->mutex);
		n = write_ring(out, msg);
		hall_out_unlock(out);
		if (!n)
			n = wait_for_space(out, &timeo);
		if (n < 0)
			return sent ?: sk_stream_error(sk, msg->msg_flags, n);
		sent += n;
	}
	return sent;
}

/* A call that comes while connect() waits for its answer waits with it. */
static int wait_for_connection(struct hall_out *out, long timeo)
{
	int err = hall_out_await_answer(out, timeo);

	return err == -EINPROGRESS ? -EAGAIN : err;
}

/* What a connected socket of TCP refuses, and what the rings have not. 0: nothing. */
static int check_message(struct sock *sk, struct msghdr *msg)
{
	struct sockcm_cookie cookie;

	if (msg->msg_flags & MSG_FASTOPEN)
		return READ_ONCE(sock_net(sk)->ipv4.sysctl_tcp_fastopen) &
				       TFO_CLIENT_ENABLE ?
			       -EISCONN : -EOPNOTSUPP;
	sockcm_init(&cookie, sk);
	if (msg->msg_controllen && sock_cmsg_send(sk, msg, &cookie))
		return -EINVAL;
	/* The rings have no urgent data, and bytes are always copied. */
	if (msg->msg_flags & MSG_OOB)
		return -EOPNOTSUPP;
	if ((msg->msg_flags & MSG_ZEROCOPY) && sock_flag(sk, SOCK_ZEROCOPY))
		return -ENOBUFS;
	return 0;
}

static noinline int send_message(struct socket *sock, struct msghdr *msg)
{
	struct hall_out *out = hall_out_get_connection(sock->sk);
	struct sock *sk = sock->sk;
	int ret;

	if (!out)
		return HALL_NATIVE;
	ret = wait_for_connection(out, sock_sndtimeo(sk, msg->msg_flags &
							 MSG_DONTWAIT));
	if (!ret && hall_out_state(out) == HALL_OUT_CONNECTED) {
		hall_options_note(out);
		ret = check_message(sk, msg) ?: send_all(out, msg);
	} else if (!ret) {
		ret = HALL_NATIVE;
	}
	hall_out_put(out);
	return ret;
}

int hall_out_sendmsg(struct socket *sock, struct msghdr *msg, size_t size)
{
	int ret = send_message(sock, msg);

	if (ret != HALL_NATIVE)
		return ret;
	return hall_tables_of(sock->sk)->native->sendmsg(sock, msg, size);
}

/* A run of unread bytes, offset bytes ahead; n are there. */
static struct hall_span get_span(struct hall_out *out, u32 offset, u32 n)
{
	if (out->rest)
		return (struct hall_span){ out->rest + out->rest_at + offset,
					   n - offset };
	return hall_ring_get_rx_span(&out->rx, offset, n - offset);
}

static void consume(struct hall_out *out, u32 n)
{
	bool ringing;

	if (out->rest) {
		WRITE_ONCE(out->rest_at, out->rest_at + n);
		if (out->rest_at == out->rest_len)
			hall_out_free_rest(out);
		return;
	}
	spin_lock_bh(&out->channel.lock);
	ringing = hall_ring_consume(&out->rx, n);
	spin_unlock_bh(&out->channel.lock);
	if (ringing)
		hall_channel_notify_sender(&out->channel);
}

/* Copies up to len bytes. Bytes, 0 at the end, -EAGAIN, or an error. */
static int read_ring(struct hall_out *out, struct msghdr *msg, size_t len,
		     int flags, u32 skip, int got)
{
	struct sock *sk = out->sk;
	struct hall_span span;
	size_t copied, done = 0;
	bool eof;
	u32 n = hall_out_count_unread(out, &eof);

	if (n <= skip) {
		/* A call that has bytes leaves the error to the next one. */
		if (READ_ONCE(sk->sk_err))
			return got ? 0 : sock_error(sk);
		return eof || (READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN) ?
			       0 : -EAGAIN;
	}
	len = min_t(size_t, len, n - skip);
	if (!len)
		return 0;
	while (done < len) {
		span = get_span(out, skip + done, skip + len);
		copied = span.len;
		if (!(flags & MSG_TRUNC))
			copied = _copy_to_iter(span.data, span.len,
					       &msg->msg_iter);
		/* A piece that faults stays unread, as in TCP. */
		if (copied < span.len) {
			iov_iter_revert(&msg->msg_iter, copied);
			break;
		}
		done += copied;
	}
	if (flags & MSG_PEEK) {
		sk_peek_offset_fwd(sk, done);
	} else if (done) {
		sk_peek_offset_bwd(sk, done);
		consume(out, done);
		hall_count_add(HALL_RX_BYTES_OUTSOURCED, done);
		WRITE_ONCE(out->rx_bytes, out->rx_bytes + done);
	}
	return done ?: -EFAULT;
}

/*
 * True: more than `seen` bytes are there, or an end. No sleeper asks for a later
 * position than the next byte's: the ring has one event for all of them.
 */
static bool arm_bytes(struct hall_out *out, u32 seen)
{
	bool ready = true, filled = false;
	u32 used;

	spin_lock_bh(&out->channel.lock);
	if (out->mapped) {
		used = hall_ring_count_used(&out->rx);
		ready = used > seen || READ_ONCE(out->rx.shared->end) ||
			hall_ring_arm_head(&out->rx, used + 1);
		filled = !ready && hall_ring_should_wake_writer(&out->rx);
	}
	spin_unlock_bh(&out->channel.lock);
	if (unlikely(filled))
		hall_channel_notify_sender(&out->channel);
	return ready || READ_ONCE(out->sk->sk_err) ||
	       (READ_ONCE(out->sk->sk_shutdown) & RCV_SHUTDOWN);
}

/* The look of a spinning reader, which needs no doorbell. */
static bool look_for_bytes(void *reader)
{
	struct hall_out *out = reader;
	bool news = true;

	if (READ_ONCE(out->sk->sk_err) ||
	    READ_ONCE(out->sk->sk_shutdown) & RCV_SHUTDOWN)
		return true;
	spin_lock_bh(&out->channel.lock);
	if (out->mapped) {
		news = hall_ring_count_used(&out->rx) || out->rx.broken ||
		       READ_ONCE(out->rx.shared->end);
		/*
		 * The last read left the doorbell armed, for signals that a program may
		 * ask for. A waiter that has armed it was queued before it took the lock.
		 */
		if (!news && out->rx.armed && !hall_sock_may_want_edges(out->sk))
			hall_ring_mute_rx(&out->rx);
	}
	spin_unlock_bh(&out->channel.lock);
	return news;
}

/* Without the mutex: another thread's send does not wait for it. */
static bool spin_for_bytes(struct hall_out *out)
{
	return out->channel.member->transport->remote &&
	       hall_sock_spin(out->sk, &out->spin_credit, look_for_bytes, out);
}

static int wait_for_bytes(struct hall_out *out, long *timeo, u32 seen)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = out->sk;

	if (!*timeo)
		return -EAGAIN;
	if (signal_pending(current))
		return sock_intr_errno(*timeo);
	add_wait_queue(sk_sleep(sk), &wait);
	if (!arm_bytes(out, seen))
		*timeo = wait_woken(&wait, TASK_INTERRUPTIBLE, *timeo);
	remove_wait_queue(sk_sleep(sk), &wait);
	return 0;
}

/*
 * After a read: the next byte makes an edge, as in TCP. Pollers take a short read for
 * "drained". A program that waits for edges, or gets signals, may also leave bytes.
 */
static void rearm_edges(struct hall_out *out, u32 seen)
{
	struct sock *sk = out->sk;

	if (arm_bytes(out, seen) && (hall_sock_wants_edges(sk, false) ||
				     sock_flag(sk, SOCK_FASYNC))) {
		spin_lock_bh(&out->channel.lock);
		if (out->mapped)
			hall_ring_arm_edge(&out->rx);
		spin_unlock_bh(&out->channel.lock);
	}
}

static int receive_all(struct hall_out *out, struct msghdr *msg, size_t len,
		       int flags)
{
	struct sock *sk = out->sk;
	long timeo = sock_rcvtimeo(sk, flags & MSG_DONTWAIT);
	int target = sock_rcvlowat(sk, flags & MSG_WAITALL, len);
	u32 skip = flags & MSG_PEEK ? max(sk_peek_offset(sk, flags), 0) : 0;
	int got = 0, n, err;

	do {
		mutex_lock(&out->mutex);
		n = read_ring(out, msg, len - got, flags, skip, got);
		hall_out_unlock(out);
		if (n > 0) {
			got += n;
			if (flags & MSG_PEEK)
				skip += n;
			continue;
		}
		if (n != -EAGAIN)
			return got ?: n;
		if (timeo && got < target && !skip && spin_for_bytes(out))
			continue;
		/* For edge-triggered pollers too, which wait for the next byte. */
		if (arm_bytes(out, skip))
			continue;
		if (got >= target)
			return got;
		err = wait_for_bytes(out, &timeo, skip);
		if (err)
			return got ?: err;
	} while (got < len || !len);
	rearm_edges(out, skip);
	return got;
}

/* Bytes that a program can still read; 1 if there is only the end, as TCP has it. */
static int count_inq(struct hall_out *out)
{
	bool eof;
	int n;

	mutex_lock(&out->mutex);
	n = hall_out_count_unread(out, &eof);
	hall_out_unlock(out);
	return n || !eof ? n : 1;
}

/* For io_uring, and TCP_INQ. */
static void pass_inq(struct hall_out *out, struct msghdr *msg)
{
	bool inq = tcp_sk(out->sk)->recvmsg_inq;

	if (!inq && !msg->msg_get_inq)
		return;
	msg->msg_inq = count_inq(out);
	if (inq)
		put_cmsg(msg, SOL_TCP, TCP_CM_INQ, sizeof(msg->msg_inq),
			 &msg->msg_inq);
}

static noinline int receive(struct socket *sock, struct msghdr *msg, size_t size,
			    int flags)
{
	struct hall_out *out = hall_out_get_connection(sock->sk);
	int ret;

	if (!out)
		return HALL_NATIVE;
	ret = wait_for_connection(out, sock_rcvtimeo(sock->sk,
						     flags & MSG_DONTWAIT));
	if (!ret && hall_out_state(out) == HALL_OUT_CONNECTED) {
		hall_options_note(out);
		if (flags & MSG_OOB)
			ret = -EINVAL;
		else if (flags & MSG_ERRQUEUE)
			ret = -EAGAIN;
		else
			ret = receive_all(out, msg, size, flags);
		if (ret >= 0)
			pass_inq(out, msg);
	} else if (!ret) {
		ret = HALL_NATIVE;
	}
	hall_out_put(out);
	return ret;
}

int hall_out_recvmsg(struct socket *sock, struct msghdr *msg, size_t size,
		     int flags)
{
	int ret = receive(sock, msg, size, flags);

	if (ret != HALL_NATIVE)
		return ret;
	return hall_tables_of(sock->sk)->native->recvmsg(sock, msg, size, flags);
}
