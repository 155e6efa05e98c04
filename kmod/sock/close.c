// SPDX-License-Identifier: GPL-2.0
/*
 * The end of a socket.
 *
 * What we sent stays in the ring until the peer took it: the end mark tells it
 * that no more will come, the native close sends the FIN after. What we did
 * not read is lost, and TCP answers that with an RST: linger on, time 0, makes
 * the native close send it.
 */
#include "calls.h"

#include <hallway/reason.h>

#include "carrier.h"
#include "lookup.h"
#include "stream.h"

static bool end_rings(struct hall_sock *hs)
{
	bool lost = hall_rx_count_unread(hs);

	hall_tx_demote(hs);
	lost |= hs->tx.lost;
	hall_rx_release(hs, HALLWAY_REASON_CLOSED);
	hall_sock_handler.detach(hs, HALLWAY_REASON_CLOSED);
	/* The work frees what may be freed now; the rest goes with DONE. */
	if (hs->channel.endpoint)
		hall_channel_raise(&hs->channel, HALL_EVENT_LOOK);
	return lost;
}

void hall_close(struct sock *sk, long timeout)
{
	struct hall_sock *hs = hall_sock_get(sk);

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

/* Where the peer has cut the ring, bytes are repeated, and before the FIN. */
void hall_shutdown(struct sock *sk, int how)
{
	struct hall_sock *hs = hall_sock_get(sk);

	if (!hs) {
		READ_ONCE(sk->sk_prot)->shutdown(sk, how);
		return;
	}
	if (how & SEND_SHUTDOWN)
		hall_tx_demote(hs);
	/* Bytes that could not be repeated: an RST is on its way, no FIN. */
	if (!hs->tx.lost)
		hs->native->shutdown(sk, how);
	hall_sock_put(hs);
}

/* A socket that no program ever had in its hands: no ring, and no sleeping. */
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
 * connect(AF_UNSPEC), under lock_sock(); or a listener that gives up a
 * connection nobody accepted, which has no ring, under the spinlock.
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
