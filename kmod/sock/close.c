// SPDX-License-Identifier: GPL-2.0-only
/*
 * The end of a socket.
 *
 * Bytes that we sent stay in the ring until the peer has read them: the end mark
 * says that they are the last, and the native close sends the FIN behind it.
 * Bytes that we did not read are lost, and TCP answers that with an RST: linger
 * on, time 0, makes the native close send it.
 */
#include "calls.h"

#include <hallway/reason.h>

#include "carrier.h"
#include "idle.h"
#include "lookup.h"
#include "stream.h"

/* Ends the rings and detaches. lock_sock(). True: bytes are lost. */
static bool end_rings(struct hall_sock *hs)
{
	bool lost = hall_rx_count_unread(hs);

	hall_tx_demote(hs, HALLWAY_REASON_CLOSED);
	lost |= hs->tx.lost;
	hall_rx_release(hs, HALLWAY_REASON_CLOSED);
	hall_sock_handler.detach(hs, HALLWAY_REASON_CLOSED);
	/* The work item frees what can be freed now; DONE frees the rest. */
	if (hs->channel.endpoint)
		hall_channel_raise(&hs->channel, HALL_EVENT_LOOK);
	return lost;
}

/*
 * Detaches a connection that no thread has locked, and that has neither a ring nor an
 * offer of one: its bytes are TCP's. The attachment's reference is enough until then.
 */
static noinline bool detach_plain(struct sock *sk)
{
	struct hall_sock *hs;
	bool plain;

	spin_lock_bh(&sk->sk_lock.slock);
	hs = hall_sock_peek(sk);
	plain = hs && !sock_owned_by_user(sk) && !hs->channel.endpoint &&
		!hall_sock_has_ring(hs) && !hs->tx.replacing && !hs->tx.lost;
	if (plain)
		hall_sock_handler.detach(hs, HALLWAY_REASON_CLOSED);
	spin_unlock_bh(&sk->sk_lock.slock);
	return plain;
}

void hall_close(struct sock *sk, long timeout)
{
	struct hall_sock *hs = detach_plain(sk) ? NULL : hall_sock_get(sk);

	if (hs) {
		lock_sock(sk);
		if (!hs->detached && end_rings(hs)) {
			sock_set_flag(sk, SOCK_LINGER);
			sk->sk_lingertime = 0;
		}
		release_sock(sk);
		hall_sock_put(hs);
	}
	READ_ONCE(sk->sk_prot)->close(sk, timeout);
}

/* Where the peer has truncated the ring, the rest is resent before the FIN. */
void hall_shutdown(struct sock *sk, int how)
{
	struct hall_sock *hs = hall_sock_get(sk);

	if (!hs) {
		READ_ONCE(sk->sk_prot)->shutdown(sk, how);
		return;
	}
	if (how & SEND_SHUTDOWN)
		hall_tx_demote(hs, HALLWAY_REASON_CLOSED);
	/* Bytes that could not be resent: an RST is on its way, no FIN. */
	if (!hs->tx.lost)
		hs->native->shutdown(sk, how);
	/* Then TCP refuses what the peer sends. */
	if (sk->sk_shutdown == SHUTDOWN_MASK)
		hall_sock_request_detach(hs, HALLWAY_REASON_STATE);
	hall_sock_put(hs);
}

/* A socket that was never accepted: it has no ring, and nothing may sleep. */
void hall_destroy(struct sock *sk)
{
	struct hall_sock *hs = hall_sock_get(sk);

	if (hs) {
		hall_sock_handler.detach(hs, HALLWAY_REASON_CLOSED);
		hall_sock_put(hs);
	}
	READ_ONCE(sk->sk_prot)->destroy(sk);
}

/*
 * connect(AF_UNSPEC), under lock_sock(); or a listener that drops a connection
 * before accept(), which has no ring, under the spinlock.
 */
int hall_disconnect(struct sock *sk, int flags)
{
	struct hall_sock *hs = hall_sock_get(sk);

	if (hs) {
		end_rings(hs);
		hall_sock_put(hs);
	}
	return READ_ONCE(sk->sk_prot)->disconnect(sk, flags);
}
