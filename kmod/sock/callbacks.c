// SPDX-License-Identifier: GPL-2.0-only
/*
 * A socket's callbacks: the socket layer's own, or those of a kernel user.
 *
 * NFS puts its own functions into sk_data_ready and sk_write_space, and reads by
 * recvmsg() when they are called; such a user can't tell a ring from TCP. Nor can
 * NVMe, which reads by the socket's read_sock(). iSCSI takes buffers from the receive
 * queue itself, by tcp_read_sock(), and would never see a ring. Only their reads tell
 * them apart: all bytes that left the queue since the callbacks changed must have left
 * it through calls of ours, and at least one must have. A user that comes while there
 * are rings may make no such call, and no doorbell is armed for it: AF_KCM is one. So
 * the callbacks are looked at when the lock is released, and once a second; the socket
 * is detached, and attached again to see how the user reads.
 *
 * TCP calls callbacks with the socket's spinlock held, or from the backlog with
 * the socket owned, and a user that removes its callbacks relies on that. So they
 * are called like that here; the socket layer's own need no lock.
 */
#include "callbacks.h"

#include <hallway/reason.h>

#include "stream.h"

/* The socket layer's own. */
static void (*native_data_ready)(struct sock *sk);
static void (*native_write_space)(struct sock *sk);
static void (*native_state_change)(struct sock *sk);

bool hall_callbacks_are_native(const struct sock *sk)
{
	return !sk->sk_user_data && sk->sk_data_ready == native_data_ready &&
	       sk->sk_write_space == native_write_space &&
	       sk->sk_state_change == native_state_change;
}

void hall_callbacks_report_bytes(struct sock *sk)
{
	native_data_ready(sk);
}

void hall_callbacks_report_space(struct sock *sk)
{
	native_write_space(sk);
}

void hall_callbacks_record(struct hall_sock *hs)
{
	struct hall_callbacks *callbacks = &hs->callbacks;

	callbacks->data_ready = hs->sk->sk_data_ready;
	callbacks->bytes = atomic64_read(&hs->rx.bytes_tcp);
	callbacks->seq = tcp_sk(hs->sk)->copied_seq - (u32)callbacks->bytes;
}

bool hall_callbacks_allow_ring(struct hall_sock *hs)
{
	const struct hall_callbacks *callbacks = &hs->callbacks;
	u64 bytes = atomic64_read(&hs->rx.bytes_tcp);

	if (hall_callbacks_are_native(hs->sk))
		return true;
	if (callbacks->data_ready != hs->sk->sk_data_ready) {
		hall_callbacks_record(hs);
		return false;
	}
	return bytes != callbacks->bytes &&
	       tcp_sk(hs->sk)->copied_seq - (u32)bytes == callbacks->seq;
}

static bool is_newcomer(const struct hall_sock *hs, const struct sock *sk)
{
	return !hall_callbacks_are_native(sk) &&
	       READ_ONCE(hs->callbacks.data_ready) != sk->sk_data_ready;
}

bool hall_callbacks_check(struct hall_sock *hs)
{
	/* Before the next ring, hall_callbacks_allow_ring() finds out. */
	if (hs->tx.state == HALL_TX_TCP && hs->rx.state == HALL_RX_NATIVE)
		return false;
	if (hs->detaching || !is_newcomer(hs, hs->sk))
		return false;
	hall_sock_request_detach(hs, HALLWAY_REASON_FOREIGN);
	return true;
}

void hall_callbacks_call(struct hall_sock *hs, struct sock *sk, bool put_off)
{
	if (hall_callbacks_are_native(sk))
		return;
	if (put_off && !sock_flag(sk, SOCK_DEAD))
		sk->sk_data_ready(sk);
	if (hs->detached)
		return;
	if (is_newcomer(hs, sk)) {
		hall_sock_request_detach(hs, HALLWAY_REASON_FOREIGN);
		return;
	}
	if (!put_off && hall_rx_count_unread(hs))
		sk->sk_data_ready(sk);
	if (hall_sock_wants_space(sk))
		sk->sk_write_space(sk);
}

void hall_callbacks_wake(struct hall_sock *hs, struct sock *sk)
{
	spin_lock_bh(&sk->sk_lock.slock);
	if (sock_owned_by_user(sk))
		hall_channel_raise(&hs->channel, HALL_EVENT_LOOK);
	else
		hall_callbacks_call(hs, sk, false);
	spin_unlock_bh(&sk->sk_lock.slock);
}

void hall_callbacks_learn(const struct sock *fresh)
{
	native_data_ready = fresh->sk_data_ready;
	native_write_space = fresh->sk_write_space;
	native_state_change = fresh->sk_state_change;
}
