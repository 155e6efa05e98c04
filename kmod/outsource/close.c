// SPDX-License-Identifier: GPL-2.0-only
/* shutdown(), close(), and other ends of an outsourced socket. */
#include "calls.h"

#include <net/tcp.h>

#include <hallway/reason.h>

#include "datagrams.h"
#include "hook.h"
#include "listeners.h"

/* As TCP: unread bytes, or SO_LINGER of 0, reset the connection. */
static u32 find_close_reason(struct hall_out *out)
{
	const struct sock *sk = out->sk;
	bool eof;

	if (hall_out_count_unread(out, &eof) ||
	    (sock_flag(sk, SOCK_LINGER) && !sk->sk_lingertime))
		return ECONNRESET;
	return 0;
}

/* Mutex. The object lives until the outsourcer has sent what is in our ring. */
static void close_stream(struct hall_out *out, u32 reason)
{
	if (out->closed)
		return;
	out->closed = true;
	wake_up_all(&out->answers);
	if (out->state == HALL_OUT_CONNECTED) {
		if (!reason)
			reason = find_close_reason(out);
		/* A reset must not look like FIN first. */
		if (!reason)
			hall_out_end(out);
		/* One doorbell for both: DONE rings. */
		if (out->mapped)
			hall_out_finish_rx(out, reason);
		else
			hall_channel_notify_receiver(&out->channel);
	} else if (out->state == HALL_OUT_CALLING && out->memory.ring) {
		/* If it crosses the answer, hall_out_take_answer() declines that. */
		hall_channel_send(&out->channel, HALLWAY_DECLINE, HALL_OUT_CARRIER,
				  HALLWAY_REASON_STATE, 0);
	}
	hall_out_close_channel(out);
}

void hall_out_unconnect(struct hall_out *out, struct socket *sock)
{
	struct sock *sk = sock->sk;

	close_stream(out, ECONNRESET);
	hall_out_unpublish(out);
	lock_sock(sk);
	/* As tcp_disconnect() leaves it; the next connect() clears it. */
	WRITE_ONCE(sk->sk_err, sk->sk_shutdown == SHUTDOWN_MASK ? 0 : ECONNRESET);
	WRITE_ONCE(sk->sk_shutdown, 0);
	sock->state = SS_UNCONNECTED;
	hall_out_watch_again(out, sock);
	/* Last: a thread in connect() then finds the error. */
	if (out->state == HALL_OUT_CALLING)
		smp_store_release(&out->state, HALL_OUT_REFUSED);
	release_sock(sk);
}

/* how: of sk_shutdown. HALL_NATIVE: the native stack has the socket. */
static int shut_down(struct hall_out *out, struct socket *sock, int how)
{
	struct sock *sk = sock->sk;
	int err = 0;

	mutex_lock(&out->mutex);
	if (out->state == HALL_OUT_NATIVE) {
		err = HALL_NATIVE;
	} else if (out->closed || out->failed || out->state == HALL_OUT_REFUSED) {
		err = -ENOTCONN;
	} else if (out->state == HALL_OUT_CALLING) {
		/* As natively: that ends the attempt, and a thread's wait in connect(). */
		hall_out_unconnect(out, sock);
	} else {
		WRITE_ONCE(sk->sk_shutdown, sk->sk_shutdown | how);
		if (how & SEND_SHUTDOWN) {
			hall_out_end(out);
			hall_channel_notify_receiver(&out->channel);
		}
	}
	hall_out_unlock(out);
	if (!err)
		sk->sk_state_change(sk);
	return err;
}

int hall_out_shutdown(struct socket *sock, int how)
{
	int err = HALL_NATIVE;
	struct hall_out *out;

	if (how < SHUT_RD || how > SHUT_RDWR)
		return -EINVAL;
	out = hall_out_get_connection(sock->sk);
	if (out) {
		err = shut_down(out, sock, how + 1);
		hall_out_put(out);
	}
	if (err != HALL_NATIVE)
		return err;
	return hall_tables_of(sock->sk)->native->shutdown(sock, how);
}

/* Another thread's connect() may have decided, or be about to. */
static noinline void await_connect(struct sock *sk)
{
	/* It sleeps without an object. */
	hall_out_enter();
	lock_sock(sk);
	release_sock(sk);
	hall_out_leave();
}

int hall_watched_shutdown(struct socket *sock, int how)
{
	const struct hall_tables *tables = hall_tables_of(sock->sk);

	/* That ends a listener. */
	if (how == SHUT_RD || how == SHUT_RDWR)
		hall_listener_forget(sock->sk);
	await_connect(sock->sk);
	if (READ_ONCE(sock->ops) == &tables->stream)
		return hall_out_shutdown(sock, how);
	return tables->native->shutdown(sock, how);
}

/* How often a close() that lingers looks. */
#define LINGER_LOOK	max(HZ / 50, 1)

/*
 * SO_LINGER: waits until the other end's kernel has all that was sent, and the FIN, or
 * for the time that the program gave. As in TCP, not while the process ends.
 */
static void linger(struct hall_out *out)
{
	struct sock *sk = out->sk;
	unsigned long begin = jiffies;
	bool eof;
	u32 unread;

	if (!sock_flag(sk, SOCK_LINGER) || (current->flags & PF_EXITING) ||
	    hall_out_state(out) != HALL_OUT_CONNECTED)
		return;
	mutex_lock(&out->mutex);
	unread = hall_out_count_unread(out, &eof);
	if (!unread && !out->closed && sk->sk_lingertime) {
		hall_out_end(out);
		hall_channel_notify_receiver(&out->channel);
	}
	hall_out_unlock(out);
	/* With bytes unread it is a reset. */
	while (!unread && jiffies - begin < sk->sk_lingertime &&
	       !READ_ONCE(out->closed) && !READ_ONCE(sk->sk_err) &&
	       !signal_pending(current) && hall_out_count_unsent(out, false))
		schedule_timeout_interruptible(LINGER_LOOK);
}

int hall_out_release(struct socket *sock)
{
	struct sock *sk = sock->sk;
	const struct hall_tables *tables;
	struct hall_out *out;

	if (!sk)
		return 0;
	tables = hall_tables_of(sk);
	out = hall_out_get(sk);
	if (out) {
		linger(out);
		mutex_lock(&out->mutex);
		close_stream(out, 0);
		hall_out_unpublish(out);
		/* The work item looks at sk_socket under the mutex. */
		WRITE_ONCE(sock->ops, tables->native);
		hall_out_unlock(out);
		hall_out_put(out);
	}
	return tables->native->release(sock);
}

/* The tables are native's already, so close() may have been native, too. */
void hall_out_abandon(struct hall_out *out)
{
	struct sock *sk = out->sk;
	struct socket *sock;

	mutex_lock(&out->mutex);
	if (out->channel.kind == &hall_out_listener) {
		hall_listener_close(out);
	} else if (out->channel.kind == &hall_out_datagram) {
		hall_datagram_close(out, 0);
	} else if (!out->closed && (out->state == HALL_OUT_CALLING ||
				    out->state == HALL_OUT_CONNECTED)) {
		hall_out_fail(out, ECONNRESET);
		close_stream(out, ECONNRESET);
		/* A native socket that is closed, and has an error to tell. */
		lock_sock(sk);
		sock = sk->sk_socket;
		if (sock) {
			sock->state = SS_UNCONNECTED;
			smp_store_release(&sock->ops, hall_tables_of(sk)->native);
		}
		release_sock(sk);
		/* A thread in connect() waits no longer. */
		if (out->state == HALL_OUT_CALLING)
			smp_store_release(&out->state, HALL_OUT_REFUSED);
		sk->sk_state_change(sk);
	}
	hall_out_unpublish(out);
	hall_out_unlock(out);
}

int hall_out_disconnect(struct socket *sock)
{
	struct hall_out *out = hall_out_get_connection(sock->sk);
	int err = 0;

	if (!out)
		return HALL_NATIVE;
	mutex_lock(&out->mutex);
	if (out->state == HALL_OUT_NATIVE)
		err = HALL_NATIVE;
	/* Otherwise another thread was faster, and may have connected the socket again. */
	else if (!out->closed && out->state != HALL_OUT_REFUSED)
		hall_out_unconnect(out, sock);
	hall_out_unlock(out);
	if (!err)
		sock->sk->sk_state_change(sock->sk);
	hall_out_put(out);
	return err;
}
