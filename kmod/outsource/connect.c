// SPDX-License-Identifier: GPL-2.0-only
/*
 * connect().
 *
 * The OFFER of our ring is the call, and the outsourcer's OFFER the answer: one round
 * trip. No lock is held meanwhile, so getsockname() and poll() never wait for it. A
 * connection that the host's policy does not allow is made by the native stack: the
 * work item starts that, so that non-blocking programs notice nothing.
 */
#include "calls.h"

#include <linux/sched/signal.h>
#include <net/inet_common.h>
#include <net/ipv6.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "decide.h"
#include "hook.h"
#include "listeners.h"
#include "options.h"

/* The table is native's from here on: the socket is a stock one. */
static void make_native(struct socket *sock)
{
	smp_store_release(&sock->ops, hall_tables_of(sock->sk)->native);
}

/* Under lock_sock(). NULL: the socket stays native. */
static struct hall_out *take_over(struct socket *sock,
				  struct hall_sockaddr *address, int len)
{
	struct hall_member *member = hall_members_get_outsourcer();
	struct hall_out *out;

	if (!member)
		return NULL;
	out = hall_out_new(&hall_out_socket, member, GFP_KERNEL);
	hall_member_put(member);
	if (!out)
		return NULL;
	hall_read_address(address, len, &out->remote, &out->remote_port);
	/* The unspecified address of the same family. */
	if (ipv6_addr_v4mapped(&out->remote))
		ipv6_addr_set_v4mapped(0, &out->local);
	len = min_t(int, len, sizeof(out->address));
	memcpy(&out->address, address, len);
	out->address_len = len;
	out->chosen = READ_ONCE(sock->ops) == &hall_tables_of(sock->sk)->chosen;
	WRITE_ONCE(sock->sk->sk_err, 0);
	hall_out_publish(out, sock->sk);
	sock->state = SS_CONNECTING;
	smp_store_release(&sock->ops, &hall_tables_of(sock->sk)->stream);
	return out;
}

static void call_host(struct hall_out *out)
{
	struct hallway_call call = {
		.flags = out->sk->sk_family == AF_INET6 ? HALLWAY_SOCKET_IPV6 : 0,
	};

	mutex_lock(&out->mutex);
	hall_count(HALL_OUTSOURCE_CALLS);
	/* Without memory or number: as if the host's policy were against it. */
	if (!out->closed && hall_out_offer(out, out->sk, &call)) {
		lock_sock(out->sk);
		hall_count_native(HALLWAY_REASON_NO_OUTSOURCER);
		hall_out_take_refusal(out, EACCES);
		release_sock(out->sk);
	}
	hall_out_unlock(out);
}

int hall_out_await_answer(struct hall_out *out, long timeo)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = out->sk;
	int err = 0;

	add_wait_queue(sk_sleep(sk), &wait);
	while (hall_out_state(out) == HALL_OUT_CALLING && !err) {
		if (!timeo)
			err = -EINPROGRESS;
		else if (signal_pending(current))
			err = sock_intr_errno(timeo);
		else
			timeo = wait_woken(&wait, TASK_INTERRUPTIBLE, timeo);
	}
	remove_wait_queue(sk_sleep(sk), &wait);
	return err;
}

/* Completes connect(), or reports that the connection has been reset. */
static int note_connected(struct hall_out *out, struct socket *sock)
{
	int err = 0;

	mutex_lock(&out->mutex);
	if (out->closed) {
		/* By another thread. */
		err = -ECONNABORTED;
	} else if (out->failed) {
		err = sock_error(sock->sk) ?: -ECONNABORTED;
		hall_out_unconnect(out, sock);
	} else {
		sock->state = SS_CONNECTED;
	}
	hall_out_unlock(out);
	return err;
}

/*
 * 0 or an error; HALL_NATIVE: the native stack has the socket. As natively, the call
 * that learns of the connection returns 0, and later ones EISCONN. A connection that was
 * reset before is none: the socket is unconnected again.
 */
static int finish_connect(struct hall_out *out, struct socket *sock, int flags)
{
	struct sock *sk = sock->sk;
	int err = hall_out_await_answer(out, sock_sndtimeo(sk, flags & O_NONBLOCK));

	if (err)
		return err;
	switch (hall_out_state(out)) {
	case HALL_OUT_CONNECTED:
		return note_connected(out, sock);
	case HALL_OUT_NATIVE:
		/* The native connect() may have failed at once. */
		err = sock->state == SS_UNCONNECTED ? sock_error(sk) : 0;
		return err ?: HALL_NATIVE;
	default:
		lock_sock(sk);
		WRITE_ONCE(sk->sk_shutdown, 0);
		err = sock_error(sk) ?: -ECONNABORTED;
		release_sock(sk);
		return err;
	}
}

/*
 * What a call that does not wait returns. As natively, it learns of no answer, however
 * soon that came; only the native stack may have found at once that there is no way.
 */
static int leave_connecting(struct hall_out *out, struct sock *sk)
{
	int err = hall_out_state(out) == HALL_OUT_NATIVE ? sock_error(sk) : 0;

	return err ?: -EINPROGRESS;
}

static bool is_unspecified(const struct hall_sockaddr *address, int len)
{
	return len < (int)sizeof(address->sa_family) ||
	       address->sa_family == AF_UNSPEC;
}

/* Of an earlier call that failed. Its program may have read SO_ERROR since. */
static int take_stale_error(struct sock *sk)
{
	if (sk->sk_state != TCP_CLOSE || sk->sk_shutdown != SHUTDOWN_MASK)
		return 0;
	WRITE_ONCE(sk->sk_shutdown, 0);
	return sock_error(sk);
}

static noinline int connect_watched(struct socket *sock,
				    struct hall_sockaddr *address, int len,
				    int flags)
{
	struct sock *sk = sock->sk;
	struct hall_out *out = NULL;
	int err = HALL_NATIVE;
	u32 reason;

	/* AF_UNSPEC disconnects, a listener too; the socket remains watched. */
	if (is_unspecified(address, len)) {
		hall_listener_forget(sk);
		return HALL_NATIVE;
	}
	lock_sock(sk);
	/* Another thread may have decided. A listener's call fails. */
	if (hall_is_watched(sock) && sk->sk_state != TCP_LISTEN) {
		err = take_stale_error(sk);
		if (err)
			goto release;
		err = HALL_NATIVE;
		reason = hall_outsource_check_connect(sock, address, len);
		if (!reason) {
			out = take_over(sock, address, len);
			reason = HALLWAY_REASON_NO_OUTSOURCER;
		}
		if (!out) {
			/* A call that fails natively, too, could not be outsourced. */
			if (reason != HALLWAY_REASON_STATE)
				hall_count_native(reason);
			make_native(sock);
		}
	}
release:
	release_sock(sk);
	if (out) {
		call_host(out);
		err = flags & O_NONBLOCK ? leave_connecting(out, sk) :
					   finish_connect(out, sock, flags);
		hall_out_put(out);
	}
	return err;
}

int hall_watched_connect(struct socket *sock, struct hall_sockaddr *address,
			 int len, int flags)
{
	const struct hall_tables *tables = hall_tables_of(sock->sk);
	int err;

	/* It sleeps before there is an object. */
	hall_out_enter();
	err = connect_watched(sock, address, len, flags);
	hall_out_leave();
	if (err != HALL_NATIVE)
		return err;
	/* Or another thread's decision. */
	if (READ_ONCE(sock->ops) == &tables->stream)
		return hall_out_connect(sock, address, len, flags);
	return tables->native->connect(sock, address, len, flags);
}

static noinline int connect_again(struct socket *sock, int flags)
{
	struct hall_out *out = hall_out_get_connection(sock->sk);
	int err;

	if (!out)
		return HALL_NATIVE;
	if (sock->state == SS_CONNECTED)
		err = -EISCONN;
	else
		err = finish_connect(out, sock, flags);
	hall_out_put(out);
	/* As natively: an earlier call began to connect. */
	return err == -EINPROGRESS ? -EALREADY : err;
}

int hall_out_connect(struct socket *sock, struct hall_sockaddr *address, int len,
		     int flags)
{
	const struct hall_tables *tables = hall_tables_of(sock->sk);
	int err = is_unspecified(address, len) ? hall_out_disconnect(sock) :
						 connect_again(sock, flags);

	if (err != HALL_NATIVE)
		return err;
	return tables->native->connect(sock, address, len, flags);
}

void hall_out_take_answer(struct hall_out *out, struct hallway_message *offer)
{
	struct sock *sk = out->sk;
	int err = 0;

	if (out->state != HALL_OUT_CALLING || out->closed)
		err = -ESTALE;
	else
		err = hall_out_map(out, offer);
	if (err) {
		hall_channel_decline(out->channel.member, offer,
				     HALLWAY_REASON_STATE);
		/* Its DONE for our ring follows: that frees it. */
		if (err != -ESTALE)
			hall_out_take_refusal(out, ECONNABORTED);
		return;
	}
	/* What has been set since the OFFER. */
	hall_options_pass(out);
	smp_store_release(&out->state, HALL_OUT_CONNECTED);
	hall_count(HALL_OUTSOURCE_CONNECTIONS);
	sk->sk_state_change(sk);
	sk_wake_async(sk, SOCK_WAKE_IO, POLL_OUT);
}

/* Before what closes the socket: a poller that finds it closed finds the reason, too. */
static void set_error(struct sock *sk, int error)
{
	if (error)
		WRITE_ONCE(sk->sk_err, error);
	smp_wmb();
}

/*
 * The socket is unconnected again. If the outsourcer may not have it, it is the native
 * stack's, which begins to connect.
 */
void hall_out_take_refusal(struct hall_out *out, int error)
{
	struct sock *sk = out->sk;
	struct socket *sock;

	if (!sk) {
		smp_store_release(&out->state, HALL_OUT_REFUSED);
		return;
	}
	if (out->state != HALL_OUT_CALLING || out->closed)
		return;
	sock = sk->sk_socket;
	if (!sock) {
		/* While the module goes close() is native. */
		smp_store_release(&out->state, HALL_OUT_REFUSED);
	} else if (error == EACCES) {
		hall_count(HALL_OUTSOURCE_REFUSED);
		sock->state = SS_UNCONNECTED;
		error = -__inet_stream_connect(sock, (void *)&out->address,
					       out->address_len, O_NONBLOCK, 0);
		if (error == EINPROGRESS)
			error = 0;
		set_error(sk, error);
		/* Not before: poll() would find a socket that does not connect. */
		make_native(sock);
		smp_store_release(&out->state, HALL_OUT_NATIVE);
	} else {
		set_error(sk, error);
		sock->state = SS_UNCONNECTED;
		WRITE_ONCE(sk->sk_shutdown, SHUTDOWN_MASK);
		hall_out_watch_again(out, sock);
		smp_store_release(&out->state, HALL_OUT_REFUSED);
	}
	hall_out_unpublish(out);
	sk->sk_state_change(sk);
	if (error)
		sk_error_report(sk);
}
