// SPDX-License-Identifier: GPL-2.0-only
/*
 * Resending: a receiver that could not wait for our end mark has truncated the
 * ring. It took the bytes below that position. The bytes above are still in our
 * memory, and no byte went over TCP since the ring began: they go over TCP now,
 * before any other.
 *
 * They are sent at once, under the caller's lock: the socket's limits, which
 * would make a program wait, are lifted for them; the ring bounds their number, for the
 * next ring waits until the peer has acknowledged them.
 * So is a shutdown(), whose flag is set before we are called, and whose FIN
 * follows them. Where all of TCP's memory is in use, TCP still takes one segment
 * for a socket that is at its limit: the limit is moved along, a byte ahead.
 *
 * If some can't be sent, no other byte may take their place: sending is shut
 * down, and the connection is reset.
 */
#include "resend.h"

#include <linux/uio.h>

#include "../obs/counters.h"
#include "info.h"

static u32 send_truncated(struct hall_sock *hs, u32 bytes)
{
	struct msghdr msg = { .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL };
	struct sock *sk = hs->sk;
	struct hall_span span;
	struct kvec vec;
	u32 sent = 0;
	int n;

	/* An error is for the program: TCP would take it. */
	while (sent < bytes && !sk->sk_err) {
		span = hall_ring_get_truncated(&hs->tx.ring, sent);
		vec = (struct kvec){ span.data, span.len };
		iov_iter_kvec(&msg.msg_iter, ITER_SOURCE, &vec, 1, span.len);
		WRITE_ONCE(sk->sk_sndbuf, READ_ONCE(sk->sk_wmem_queued) + 1);
		n = tcp_sendmsg_locked(sk, &msg, span.len);
		if (n <= 0)
			break;
		sent += n;
	}
	return sent;
}

bool hall_tx_resend(struct hall_sock *hs, u32 bytes)
{
	struct sock *sk = hs->sk;
	struct tcp_sock *tp = tcp_sk(sk);
	u32 notsent_lowat = tp->notsent_lowat, sent;
	u8 shut = sk->sk_shutdown & SEND_SHUTDOWN;
	int sndbuf = sk->sk_sndbuf;

	WRITE_ONCE(sk->sk_shutdown, sk->sk_shutdown & ~SEND_SHUTDOWN);
	WRITE_ONCE(tp->notsent_lowat, UINT_MAX);
	sent = send_truncated(hs, bytes);
	WRITE_ONCE(sk->sk_sndbuf, sndbuf);
	WRITE_ONCE(tp->notsent_lowat, notsent_lowat);
	if (sent < bytes)
		shut = SEND_SHUTDOWN;
	/* TCP may have set its own flags. */
	WRITE_ONCE(sk->sk_shutdown, sk->sk_shutdown | shut);
	hall_info_count_resent(hs, sent);
	hs->tx.resent = tp->bytes_acked + (tp->write_seq - tp->snd_una);
	hall_ring_drop_truncated(&hs->tx.ring);
	return sent == bytes;
}
