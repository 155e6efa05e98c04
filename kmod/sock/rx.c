// SPDX-License-Identifier: GPL-2.0-only
/*
 * recvmsg().
 *
 * Native reads are asked not to wait. Once a ring is accepted they have a limit:
 * the bytes that had arrived before the marks were loaded. A reader that has to
 * wait does so here, for both carriers at once.
 *
 * A small call on a ring needs none of that: see receive_small(). Nor does a call on a
 * connection without a ring need more than the native read: see receive_plain(). One
 * that waits may sleep without lock_sock(), too: see wait_small().
 *
 * Where the peer has a CPU of its own, a reader spins before it sleeps: see spin.c.
 */
#include "calls.h"

#include <linux/uio.h>
#include <net/busy_poll.h>

#include <hallway/reason.h>

#include "../compat/rps.h"
#include "../obs/counters.h"
#include "callbacks.h"
#include "carrier.h"
#include "idle.h"
#include "info.h"
#include "lock.h"
#include "lookup.h"
#include "quiet.h"
#include "requeue.h"
#include "spin.h"
#include "stream.h"
#include "wake.h"

/* Bytes that a read takes before it gives the writer their space. */
#define CONSUME_STEP	(64u << 10)

/* Readiness */

/* Can no further byte come? */
static bool is_over(const struct sock *sk)
{
	return sk->sk_err || (sk->sk_shutdown & RCV_SHUTDOWN) ||
	       sk->sk_state == TCP_CLOSE;
}

/*
 * Bytes of TCP that a reader has not seen, of n that are there, if it has seen the
 * first ones without taking them. Urgent data out of the stream is none of them.
 */
static u32 count_unseen(const struct sock *sk, u32 n, u32 seen)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 urgent = tp->urg_seq - tp->copied_seq;

	if (tp->urg_data && !sock_flag(sk, SOCK_URGINLINE) &&
	    urgent < n && urgent <= seen)
		n--;
	return n > seen ? n - seen : 0;
}

/*
 * Is there news for a reader that has seen `seen` bytes without taking them? If
 * not, arms the doorbell for `more` bytes beyond those.
 */
static bool arm_unless_ready(struct hall_sock *hs, u32 seen, u32 more)
{
	struct tcp_sock *tp = tcp_sk(hs->sk);
	struct sock *sk = hs->sk;
	bool come, filled;
	u32 n, used;

	if (is_over(sk))
		return true;
	if (hs->rx.state == HALL_RX_NATIVE)
		return count_unseen(sk, tp->rcv_nxt - tp->copied_seq, seen);
	switch (hall_rx_find_source(hs, &n)) {
	case HALL_RX_TCP:
		if (count_unseen(sk, n, seen))
			return true;
		break;
	case HALL_RX_RING:
	case HALL_RX_EMPTY:
		n = 0;
		break;
	default:
		return true;
	}
	/* Ring bytes behind missing TCP bytes are no reason to wake. */
	if (hs->rx.ring.started &&
	    before(tp->copied_seq + n, hs->rx.ring.start_seq)) {
		hall_rx_await_tcp(hs);
		return false;
	}
	/* How many come over TCP is unknown before the start mark: 1 is enough. */
	more = hs->rx.ring.started ? min(more, hs->rx.ring.size / 2) : 1;
	if (seen - n + more > HALL_RING_FILLS(hs->rx.ring.size))
		hall_rx_report_small(hs);
	spin_lock_bh(&hs->channel.lock);
	used = hall_ring_count_used(&hs->rx.ring);
	/* Another thread may have taken what this one has seen. */
	come = used > seen - n ||
	       hall_ring_arm_head(&hs->rx.ring, min(seen - n, used) + more);
	filled = !come && hall_ring_should_wake_writer(&hs->rx.ring);
	spin_unlock_bh(&hs->channel.lock);
	if (unlikely(filled))
		hall_channel_notify_sender(&hs->channel);
	return come;
}

static bool has_news(void *reader)
{
	u32 n;

	return hall_rx_find_source(reader, &n) != HALL_RX_EMPTY;
}

static bool spin_for_bytes(struct hall_sock *hs)
{
	return hs->rx.state == HALL_RX_MAPPED && hs->rx.ring.started &&
	       hs->channel.member->transport->remote &&
	       hall_sock_spin(hs->sk, &hs->spin_credit, has_news, hs);
}

/* True: it has slept. False: there was news already. */
static bool wait_for_bytes(struct hall_sock *hs, long *timeo, int copied,
			   u32 seen, u32 more)
{
	DEFINE_WAIT_FUNC(entry, hall_rx_wake_function);
	struct sock *sk = hs->sk;
	bool slept = false;

	lock_sock(sk);
	/* Spinning comes first: once the doorbell is armed, it will ring. */
	if (seen || !spin_for_bytes(hs)) {
		add_wait_queue(sk_sleep(sk), &entry);
		sk_set_bit(SOCKWQ_ASYNC_WAITDATA, sk);
		atomic_inc(&hs->rx_waiters);
		/* A change from here on marks the entry as woken. */
		if (!arm_unless_ready(hs, seen, more) &&
		    !(hs->detached && hall_sock_may_return(copied))) {
			if (hs->rx.state == HALL_RX_MAPPED)
				hall_count(HALL_RX_SLEEPS);
			hall_sock_sleep(hs, &entry, timeo);
			slept = true;
		}
		atomic_dec(&hs->rx_waiters);
		sk_clear_bit(SOCKWQ_ASYNC_WAITDATA, sk);
		remove_wait_queue(sk_sleep(sk), &entry);
	}
	release_sock(sk);
	return slept;
}

/* Reading */

static int read_tcp(struct hall_sock *hs, struct sock *sk, struct msghdr *msg,
		    size_t len, int flags HALL_RECVMSG_LAST)
{
	int n = hs->native->recvmsg(sk, msg, len,
				    flags | MSG_DONTWAIT HALL_RECVMSG_PASS);

	if (n > 0 && !(flags & MSG_PEEK)) {
		atomic64_add(n, &hs->rx.bytes_tcp);
		hall_count_add(HALL_RX_BYTES_TCP, n);
	}
	return n;
}

/*
 * The same in a call that has bytes: an error is for the next call, as in TCP. Another
 * thread's plain read may have taken the bytes that were there.
 */
static int read_more_tcp(struct hall_sock *hs, struct sock *sk, struct msghdr *msg,
			 size_t len, int flags HALL_RECVMSG_LAST)
{
	int n = read_tcp(hs, sk, msg, len, flags HALL_RECVMSG_PASS);

	if (unlikely(n < 0 && n != -EAGAIN && n != -EFAULT && n != -ENOTCONN)) {
		lock_sock(sk);
		if (!sk->sk_err)
			WRITE_ONCE(sk->sk_err, -n);
		release_sock(sk);
	}
	return n;
}

/*
 * Reads from the ring, whose bytes are the next ones. lock_sock(). ahead: bytes
 * to skip, in a call that peeks.
 */
static int read_ring(struct hall_sock *hs, struct msghdr *msg, size_t len,
		     int flags, u32 ahead)
{
	struct hall_span span;
	u32 copied;
	int n = 0;

	while (n < len) {
		span = hall_ring_get_rx_span(&hs->rx.ring, ahead,
					     min_t(size_t, len - n, CONSUME_STEP));
		if (!span.len)
			break;
		copied = flags & MSG_TRUNC ? span.len :
			 _copy_to_iter(span.data, span.len, &msg->msg_iter);
		if (!hall_rx_is_intact(hs)) {
			hall_sock_break(hs);
			return n ?: -ECONNRESET;
		}
		/* A piece that faults is not consumed, as in TCP. */
		if (copied < span.len) {
			iov_iter_revert(&msg->msg_iter, copied);
			n = n ?: -EFAULT;
			break;
		}
		n += copied;
		if (flags & MSG_PEEK)
			ahead += copied;
		else
			hall_rx_consume(hs, copied);
	}
	if (n > 0)
		sk_peek_offset_bwd(hs->sk, flags & MSG_PEEK ? -n : n);
	return n;
}

/* True: bytes have come. channel.lock. */
static bool arm_edges(struct hall_sock *hs, bool drained)
{
	bool more;

	if (hs->rx.state != HALL_RX_MAPPED)
		return false;
	more = drained && hall_ring_arm_head(&hs->rx.ring, 1);
	if (sock_flag(hs->sk, SOCK_FASYNC))
		hall_ring_arm_edge(&hs->rx.ring);
	return more;
}

/*
 * After a read. A program that waits for edges takes a short read for "drained":
 * the next byte must make an edge, as in TCP. One that gets signals may leave
 * bytes unread, and gets a signal for each arrival.
 */
static void rearm_edges(struct hall_sock *hs, bool drained)
{
	bool more;

	if (!hall_sock_may_want_edges(hs->sk))
		return;
	spin_lock_bh(&hs->channel.lock);
	more = arm_edges(hs, drained);
	spin_unlock_bh(&hs->channel.lock);
	if (more)
		hs->sk->sk_data_ready(hs->sk);
}

/*
 * Is there no ring, and nothing to decide? None is accepted while the caller has rx_mutex,
 * or is behind the gate: a native read may begin without a look under lock_sock().
 */
static bool is_plain(const struct hall_sock *hs)
{
	return READ_ONCE(hs->rx.state) == HALL_RX_NATIVE &&
	       READ_ONCE(hs->quiet) && !READ_ONCE(hs->detached) &&
	       READ_ONCE(hs->pinned) != HALLWAY_REASON_CORRUPT;
}

/* The short way */

/* Are the ring's bytes the next ones, and nothing else to be seen to? slock. */
static __always_inline bool ring_is_next(const struct hall_sock *hs)
{
	const struct hall_rx_ring *ring = &hs->rx.ring;
	const struct tcp_sock *tp = tcp_sk(hs->sk);

	return hs->rx.state == HALL_RX_MAPPED && ring->started && !ring->ended &&
	       tp->copied_seq == ring->start_seq &&
	       tp->rcv_nxt == ring->start_seq && !tp->urg_data &&
	       !tp->recvmsg_inq;
}

/* Can no byte come by the ring, of those that the short way takes? channel.lock. */
static __always_inline bool ring_is_over(const struct hall_sock *hs)
{
	const struct hall_rx_ring *ring = &hs->rx.ring;

	return ring->broken || is_over(hs->sk) || READ_ONCE(ring->shared->end);
}

/* No byte is there. -EAGAIN, or 0: the call has to go the long way. channel.lock. */
static int arm_small(struct hall_sock *hs, bool waits)
{
	/* As in read_once(). */
	if (ring_is_over(hs) || (!waits && hall_ring_arm_head(&hs->rx.ring, 1)))
		return 0;
	hall_count(HALL_RING_EMPTY);
	return -EAGAIN;
}

/* Bytes, or as arm_small(). channel.lock. */
static int copy_small(struct hall_sock *hs, struct msghdr *msg, size_t len,
		      bool waits)
{
	struct hall_rx_ring *ring = &hs->rx.ring;
	u32 used = hall_ring_count_used(ring), copied;
	const u8 *data;

	if (!used)
		return arm_small(hs, waits);
	if (used < len) {
		if (used < sock_rcvlowat(hs->sk, 0, len))
			return 0;
		len = used;
	}
	if (len > HALL_SMALL)
		return 0;
	data = hall_ring_find_unread(ring, len);
	if (!data)
		return 0;
	pagefault_disable();
	copied = _copy_to_iter(data, len, &msg->msg_iter);
	pagefault_enable();
	if (likely(copied == len && hall_rx_is_intact(hs)))
		return len;
	iov_iter_revert(&msg->msg_iter, copied);
	return 0;
}

/*
 * The short way of a call that finds its bytes in the ring, or finds it empty: under
 * slock, with page faults off. rx_mutex is not taken: a thread that reads TCP's bytes
 * has read them all once copied_seq is at the mark. Bytes; -EAGAIN if there are none,
 * with the doorbell armed unless the caller waits here; 0: the call has to go the
 * long way.
 */
static noinline int receive_small(struct hall_sock *hs, struct sock *sk,
				  struct msghdr *msg, size_t len, bool waits)
{
	bool ringing = false, more = false;
	int n = 0;

	spin_lock_bh(&sk->sk_lock.slock);
	if (!hall_sock_is_idle(hs, sk) || !ring_is_next(hs))
		goto out;
	spin_lock(&hs->channel.lock);
	n = copy_small(hs, msg, len, waits);
	if (n > 0) {
		ringing = hall_ring_consume(&hs->rx.ring, n);
		more = hall_sock_may_want_edges(hs->sk) && arm_edges(hs, n < len);
	}
	spin_unlock(&hs->channel.lock);
	if (n > 0) {
		hall_info_count_received(hs, n);
		sk_peek_offset_bwd(sk, n);
	}
	if (more)
		sk->sk_data_ready(sk);
	/* The doorbell ends in locks of the other end: not under ours. */
	if (ringing)
		refcount_inc(&hs->channel.refs);
out:
	spin_unlock_bh(&sk->sk_lock.slock);
	if (ringing) {
		hall_channel_notify_sender(&hs->channel);
		hall_sock_put(hs);
	}
	return n;
}

/* Has TCP neither a byte for a reader, nor anything to do as one looks? */
static bool tcp_is_empty(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return tp->rcv_nxt == tp->copied_seq &&
	       sk->sk_state == TCP_ESTABLISHED && !is_over(sk) &&
	       !sock_flag(sk, SOCK_DONE) && !tp->urg_data && !tp->repair &&
	       !inet_csk_ack_scheduled(sk) && !sk_can_busy_loop(sk);
}

/*
 * Is no byte there, as tcp_recvmsg() would find? One that waits looks again before it
 * sleeps, under the lock.
 */
static noinline bool finds_nothing(const struct hall_sock *hs, struct sock *sk, bool waits)
{
	bool nothing;

	if (waits)
		return is_plain(hs) && tcp_is_empty(sk);
	spin_lock_bh(&sk->sk_lock.slock);
	nothing = hall_sock_is_idle(hs, sk) && is_plain(hs) && tcp_is_empty(sk);
	spin_unlock_bh(&sk->sk_lock.slock);
	return nothing;
}

/*
 * The short way of a call on a connection without a ring, which one native read
 * answers. Returns as that does, -EAGAIN also where the caller waits; or HALL_NATIVE:
 * the call has to go the long way.
 */
static noinline int receive_plain(struct hall_sock *hs, struct sock *sk,
				  struct msghdr *msg, size_t len, int flags)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	int n = HALL_NATIVE;

	/* As in inet_recvmsg(). */
	sock_rps_record_flow(sk);
	if (READ_ONCE(tp->rcv_nxt) == READ_ONCE(tp->copied_seq) &&
	    finds_nothing(hs, sk, !(flags & MSG_DONTWAIT)))
		return -EAGAIN;
	if (hall_sock_needs_packets(sk) || tp->recvmsg_inq ||
	    READ_ONCE(sk->sk_rcvlowat) > 1 || !hall_gate_enter(hs, sk))
		return HALL_NATIVE;
	if (likely(is_plain(hs)))
		n = read_tcp(hs, sk, msg, len, flags HALL_RECVMSG_NONE);
	hall_gate_leave(hs);
	return n;
}

/* True: the ring is empty, and the doorbell rings for its next byte. */
static bool arm_empty_ring(struct hall_sock *hs, struct sock *sk)
{
	bool armed = false;

	spin_lock_bh(&sk->sk_lock.slock);
	if (hall_sock_is_idle(hs, sk) && ring_is_next(hs)) {
		spin_lock(&hs->channel.lock);
		armed = !ring_is_over(hs) && !hall_ring_arm_head(&hs->rx.ring, 1);
		spin_unlock(&hs->channel.lock);
	}
	spin_unlock_bh(&sk->sk_lock.slock);
	if (armed)
		hall_count(HALL_RX_SLEEPS);
	return armed;
}

/* Is there no byte on a connection without a ring, and may one come? No lock is held. */
static bool tcp_is_quiet(const struct hall_sock *hs, const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return is_plain(hs) && !is_over(sk) &&
	       READ_ONCE(tp->rcv_nxt) == READ_ONCE(tp->copied_seq);
}

/* May a caller sleep on the short way? */
static bool may_wait_small(struct hall_sock *hs, const struct sock *sk)
{
	/* Until the socket is quiet, the waiters' number is exact: see is_sole_user(). */
	if (!READ_ONCE(hs->quiet) || READ_ONCE(sk->sk_rcvlowat) > 1)
		return false;
	if (READ_ONCE(hs->rx.state) != HALL_RX_MAPPED)
		return true;
	/*
	 * Where the writer may share the CPU, a reader that sleeps sooner is woken by fewer
	 * bytes, and more often in the writer's time: streams get slower.
	 */
	return hs->channel.member->transport->remote &&
	       !hall_sock_may_spin(&hs->spin_credit);
}

/*
 * The short way to sleep until there may be news, of a call that has found no byte on a
 * short way. False: it has not slept. lock_sock() is not needed: what changes after the
 * looks wakes the entry, which is in the queue before them.
 */
static bool wait_small(struct hall_sock *hs, struct sock *sk, long *timeo)
{
	DEFINE_WAIT_FUNC(entry, hall_rx_wake_function);
	bool sleeps;

	if (!may_wait_small(hs, sk))
		return false;
	add_wait_queue(sk_sleep(sk), &entry);
	sk_set_bit(SOCKWQ_ASYNC_WAITDATA, sk);
	atomic_inc(&hs->rx_waiters);
	/* Pairs with those of hall_detach() and of whatever wakes a socket's sleepers. */
	smp_mb__after_atomic();
	sleeps = tcp_is_quiet(hs, sk) || arm_empty_ring(hs, sk);
	if (sleeps)
		*timeo = wait_woken(&entry, TASK_INTERRUPTIBLE, *timeo);
	/* As in hall_sock_sleep(). */
	entry.flags |= WQ_FLAG_WOKEN;
	atomic_dec(&hs->rx_waiters);
	sk_clear_bit(SOCKWQ_ASYNC_WAITDATA, sk);
	remove_wait_queue(sk_sleep(sk), &entry);
	return sleeps;
}

/* One of the two short ways. Bytes, or as receive_plain(). */
static int receive_short(struct hall_sock *hs, struct sock *sk,
			 struct msghdr *msg, size_t len, int flags)
{
	if (READ_ONCE(hs->rx.state) == HALL_RX_MAPPED)
		return receive_small(hs, sk, msg, len, !(flags & MSG_DONTWAIT)) ?:
		       HALL_NATIVE;
	return receive_plain(hs, sk, msg, len, flags);
}

static bool is_small(const struct msghdr *msg, size_t len, int flags)
{
	return len && !msg->msg_get_inq &&
	       !(flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC));
}

/* The long way */

/* What TCP returns when no byte is there; as in tcp_recvmsg_locked(). */
static int find_empty_result(struct sock *sk, bool more)
{
	if (sock_flag(sk, SOCK_DONE))
		return 0;
	if (sk->sk_err)
		return more ? 0 : sock_error(sk);
	if (sk->sk_shutdown & RCV_SHUTDOWN)
		return 0;
	if (sk->sk_state == TCP_CLOSE)
		return more ? 0 : -ENOTCONN;
	return -EAGAIN;
}

/* The unread byte at which a peek begins: SO_PEEK_OFF, where TCP has it. */
static u32 find_peek_offset(const struct sock *sk, int flags)
{
	return flags & MSG_PEEK ? max(sk_peek_offset(sk, flags), 0) : 0;
}

/*
 * Continues a peek on the ring, after n bytes of TCP. ahead: bytes of the ring to
 * skip. `more` and the result are those of read_once().
 */
static int peek_ring(struct hall_sock *hs, struct msghdr *msg, size_t len,
		     int flags, u32 n, u32 ahead, bool more)
{
	int peeked;

	lock_sock(hs->sk);
	if (hs->rx.state == HALL_RX_MAPPED && hs->rx.ring.started &&
	    tcp_sk(hs->sk)->copied_seq + n == hs->rx.ring.start_seq &&
	    hall_rx_count_unread(hs) > ahead)
		peeked = read_ring(hs, msg, len, flags, ahead);
	else
		peeked = find_empty_result(hs->sk, more);
	release_sock(hs->sk);
	return peeked;
}

/*
 * The next `avail` bytes are TCP's; a peek goes on in the ring behind them. No
 * lock of the socket held. Returns as read_once().
 */
static int read_up_to_mark(struct hall_sock *hs, struct msghdr *msg, size_t len,
			   int flags, u32 avail, u32 skip, bool more,
			   bool *seam HALL_RECVMSG_LAST)
{
	int n;

	if (skip >= avail)
		return peek_ring(hs, msg, len, flags, avail, skip - avail, more);
	n = read_tcp(hs, hs->sk, msg, min_t(size_t, len, avail - skip),
		     flags HALL_RECVMSG_PASS);
	if (n == avail - skip && n < len && (flags & MSG_PEEK))
		n += max(peek_ring(hs, msg, len - n, flags, avail, 0, true), 0);
	else if (n > 0)
		rearm_edges(hs, n < len);
	*seam = n == avail;
	return n;
}

/* The next bytes are the ring's. lock_sock(). Returns as read_once(). */
static int read_from_ring(struct hall_sock *hs, struct msghdr *msg, size_t len,
			  int flags, u32 skip, bool more, bool *seam)
{
	int n = read_ring(hs, msg, len, flags, skip);

	if (n >= 0 && !(flags & MSG_PEEK))
		rearm_edges(hs, n < len);
	*seam = n > 0 && hs->rx.ring.ended;
	/* The peek begins behind the last byte. */
	if (!n && skip)
		n = find_empty_result(hs->sk, more);
	return n;
}

/*
 * A peek that begins behind bytes may begin behind an ended ring, too: TCP's queue
 * takes what is left of that. 0: the caller looks again. -EAGAIN: bytes below the ring
 * are missing. Or -ENOMEM. lock_sock().
 */
static int requeue_for_peek(struct hall_sock *hs)
{
	int err = hall_rx_requeue(hs, GFP_KERNEL);

	if (!err)
		hall_rx_release(hs, HALLWAY_REASON_NONE);
	if (err != -EPROTO)
		return err;
	hall_sock_break(hs);
	return 0;
}

/*
 * Reads once, from one carrier. Bytes, 0 at the end of the stream, -EAGAIN if no
 * byte is there, HALL_NATIVE if the socket is detached, or an error. rx_mutex.
 *
 *   more    the call has bytes already: errors are for the next call
 *   waits   the caller waits here if no byte is there
 *   *seam   the bytes end where the carrier does: the next one may have more
 */
static int read_once(struct hall_sock *hs, struct msghdr *msg, size_t len,
		     int flags, bool more, bool waits,
		     bool *seam HALL_RECVMSG_LAST)
{
	enum hall_rx_source source;
	struct sock *sk = hs->sk;
	int n, err = 0;
	u32 avail, skip;

	*seam = false;
	if (is_plain(hs) && !more)
		return read_tcp(hs, sk, msg, len, flags HALL_RECVMSG_PASS);
	lock_sock(sk);
	/*
	 * Another attachment may have rings: it took a caller that waits for rx_mutex for
	 * none. It may be of another connection.
	 */
	if (unlikely(hs->detached) && (!more || hall_sock_is_quiet(sk) ||
				       hall_sock_is_disconnected(hs))) {
		n = more ? 0 : HALL_NATIVE;
		goto out;
	}
	hall_sock_apply_policy(hs, 0);
	skip = find_peek_offset(sk, flags);
again:
	/* TCP may bring bytes until the socket is reset. */
	if (unlikely(hs->pinned == HALLWAY_REASON_CORRUPT)) {
		n = find_empty_result(sk, more);
		n = n == -EAGAIN ? -ECONNRESET : n;
		goto out;
	}
	if (hs->rx.state == HALL_RX_NATIVE) {
		if (more && hall_rx_get_arrived(sk) == tcp_sk(sk)->copied_seq) {
			n = find_empty_result(sk, more);
			goto out;
		}
		release_sock(sk);
		return more ? read_more_tcp(hs, sk, msg, len, flags HALL_RECVMSG_PASS) :
			      read_tcp(hs, sk, msg, len, flags HALL_RECVMSG_PASS);
	}
	source = hall_rx_find_source(hs, &avail);
	if (unlikely(skip && hs->rx.ring.ended)) {
		err = requeue_for_peek(hs);
		if (!err)
			goto again;
	}
	switch (source) {
	case HALL_RX_TCP:
		release_sock(sk);
		return read_up_to_mark(hs, msg, len, flags, avail, skip, more,
				       seam HALL_RECVMSG_PASS);
	case HALL_RX_RING:
		n = read_from_ring(hs, msg, len, flags, skip, more, seam);
		/* It may be no end: there was no memory to look behind the ring. */
		if (unlikely(n <= 0 && err))
			n = err;
		break;
	case HALL_RX_ENDED:
		hall_rx_release(hs, HALLWAY_REASON_NONE);
		goto again;
	case HALL_RX_CORRUPT:
		hall_sock_break(hs);
		n = find_empty_result(sk, more);
		break;
	default:
		hall_count(HALL_RING_EMPTY);
		n = find_empty_result(sk, more);
		/*
		 * A caller that polls next needs the doorbell armed; one that
		 * waits here may get by without. True: bytes have come.
		 */
		if (n == -EAGAIN && !waits && arm_unless_ready(hs, skip, 1))
			goto again;
	}
out:
	release_sock(sk);
	return n;
}

static bool stops_at_urgent(struct hall_sock *hs, u32 seen)
{
	bool stops;

	lock_sock(hs->sk);
	stops = hall_rx_is_at_urgent(hs, seen);
	release_sock(hs->sk);
	return stops;
}

/*
 * Reads from both carriers until target bytes are there. A call that has bytes
 * when the socket is detached goes on here, on TCP. timeo: for which it may wait.
 */
static int receive_from_both(struct hall_sock *hs, struct msghdr *msg,
			     size_t len, int target, long timeo,
			     int flags HALL_RECVMSG_LAST)
{
	struct sock *sk = hs->sk;
	int lowat = sock_rcvlowat(sk, 0, INT_MAX);
	bool last, slept, seam = false;
	int copied = 0, peeked = 0, n;
	u32 seen;

	for (;;) {
		seen = find_peek_offset(sk, flags);
		last = is_over(sk);
		if (READ_ONCE(hs->detached) && hall_sock_may_return(copied))
			return copied ?: HALL_NATIVE;
		mutex_lock(&hs->rx_mutex);
		n = read_once(hs, msg, len - copied, flags, copied, timeo,
			      &seam HALL_RECVMSG_PASS);
		hall_rx_unlock(hs);
		if (n > 0)
			copied += n;
		/* No call reads across urgent data, as in TCP. */
		if (n > 0 && unlikely(tcp_sk(sk)->urg_data) &&
		    stops_at_urgent(hs, flags & MSG_PEEK ? seen + n : 0))
			return copied;
		if (n > 0 && !(flags & MSG_PEEK) && copied < len &&
		    (copied < target || seam))
			continue;
		if (n == 0 || copied >= target)
			return copied;
		if (n < 0 && n != -EAGAIN)
			return copied ?: n;
		if (!timeo || (n > 0 && last))
			return copied ?: -EAGAIN;
		if (signal_pending(current))
			return copied ?: sock_intr_errno(timeo);
		/* There is more, and it can't be copied. */
		if (n > 0 && n <= peeked)
			return copied;
		/* A peek for more than is there starts again. */
		if (n > 0) {
			if (!(flags & MSG_TRUNC))
				iov_iter_revert(&msg->msg_iter, n);
			sk_peek_offset_bwd(sk, n);
			seen += n;
			copied = 0;
		}
		slept = wait_for_bytes(hs, &timeo, copied, seen,
				       min(lowat, target - max(copied, n)));
		peeked = slept ? 0 : n;
		/* As sk_wait_event(). */
		if (hall_sock_is_disconnected(hs))
			return copied ?: -EPIPE;
	}
}

/* Unread bytes, for TCP_INQ and io_uring; as tcp_inq_hint(). */
static int count_unread(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;
	int n;

	lock_sock(sk);
	n = tcp_sk(sk)->rcv_nxt - tcp_sk(sk)->copied_seq +
	    hall_rx_count_readable(hs);
	if (!n && sock_flag(sk, SOCK_DONE))
		n = 1;
	release_sock(sk);
	return n;
}

static noinline int receive_message(struct hall_sock *hs, struct msghdr *msg,
				    size_t len, int target, long timeo,
				    int flags HALL_RECVMSG_LAST)
{
	bool inq = tcp_sk(hs->sk)->recvmsg_inq;
	__kernel_size_t controllen = msg->msg_controllen;
	u32 reason = hall_sock_needs_packets(hs->sk);
	unsigned int truncated = msg->msg_flags & MSG_CTRUNC;
	void *control = msg->msg_control;
	struct hall_call call;
	int ret;

	/* Neither of these waits, and a ring holds neither. */
	if (unlikely(flags & (MSG_OOB | MSG_ERRQUEUE)))
		return hs->native->recvmsg(hs->sk, msg, len,
					   flags HALL_RECVMSG_PASS);
	if (unlikely(reason)) {
		hall_sock_handler.detach_sync(hs, reason);
		return HALL_NATIVE;
	}
	hall_call_begin(hs, &call);
	ret = receive_from_both(hs, msg, len, target, timeo,
				flags HALL_RECVMSG_PASS);
	if (ret >= 0 && (inq || msg->msg_get_inq)) {
		msg->msg_inq = count_unread(hs);
		if (inq) {
			/* TCP has put its own count there, once for each piece. */
			msg->msg_control = control;
			msg->msg_controllen = controllen;
			msg->msg_flags = (msg->msg_flags & ~MSG_CTRUNC) | truncated;
			put_cmsg(msg, SOL_TCP, TCP_CM_INQ, sizeof(msg->msg_inq),
				 &msg->msg_inq);
		}
	}
	hall_call_end(hs, &call);
	return ret;
}

int hall_receive(struct hall_sock *hs, struct msghdr *msg, size_t len,
		 int target, int flags HALL_RECVMSG_LAST)
{
	return receive_message(hs, msg, len, target,
			       sock_rcvtimeo(hs->sk, flags & MSG_DONTWAIT),
			       flags HALL_RECVMSG_PASS);
}

/* HALL_NATIVE: the socket is not attached any more. */
static int receive(struct sock *sk, struct msghdr *msg, size_t len,
		   int flags HALL_RECVMSG_LAST)
{
	struct hall_sock *hs = hall_sock_get(sk);
	int ret = HALL_NATIVE;

	if (hs) {
		ret = hall_receive(hs, msg, len,
				   sock_rcvlowat(sk, flags & MSG_WAITALL, len),
				   flags HALL_RECVMSG_PASS);
		hall_sock_put(hs);
	}
	return ret;
}

/*
 * Waits for bytes, which a short way has not found, and takes them by one; or goes on
 * the long way. As receive().
 */
static noinline int wait_and_receive(struct sock *sk, struct msghdr *msg,
				     size_t len, int flags)
{
	struct hall_sock *hs = hall_sock_get(sk);
	int target = sock_rcvlowat(sk, 0, len), n = -EAGAIN;
	long timeo = sock_rcvtimeo(sk, false);

	if (!hs)
		return HALL_NATIVE;
	while (n == -EAGAIN && timeo) {
		if (signal_pending(current)) {
			n = sock_intr_errno(timeo);
			break;
		}
		if (!wait_small(hs, sk, &timeo))
			wait_for_bytes(hs, &timeo, 0, 0, target);
		/* As sk_wait_event(). */
		n = hall_sock_is_disconnected(hs) ?
		    -EPIPE : receive_short(hs, sk, msg, len, flags);
	}
	if (n == HALL_NATIVE)
		n = receive_message(hs, msg, len, target, timeo,
				    flags HALL_RECVMSG_NONE);
	hall_sock_put(hs);
	return n;
}

int hall_recvmsg(struct sock *sk, struct msghdr *msg, size_t len,
		 int flags HALL_RECVMSG_LAST)
{
	int ret = receive(sk, msg, len, flags HALL_RECVMSG_PASS);

	if (ret == HALL_NATIVE)
		return READ_ONCE(sk->sk_prot)->recvmsg(sk, msg, len,
						       flags HALL_RECVMSG_PASS);
	return ret;
}

int hall_ops_recvmsg(struct socket *sock, struct msghdr *msg, size_t len,
		     int flags)
{
	struct sock *sk = sock->sk;
	struct hall_sock *hs = hall_sock_peek(sk);
	int ret = HALL_NATIVE;

	if (hs && is_small(msg, len, flags)) {
		ret = receive_short(hs, sk, msg, len, flags);
		if (ret == -EAGAIN && !(flags & MSG_DONTWAIT))
			ret = wait_and_receive(sk, msg, len, flags);
	}
	if (ret == HALL_NATIVE)
		return hall_sock_find_native_ops(sock)->recvmsg(sock, msg, len,
								flags);
	/* A stream has no address to tell, as in inet_recvmsg(). */
	if (ret >= 0)
		msg->msg_namelen = 0;
	return ret;
}
