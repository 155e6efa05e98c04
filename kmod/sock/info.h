/* SPDX-License-Identifier: GPL-2.0-only */
/* Counters that programs see, and tokens that follow from them. lock_sock(). */
#ifndef HALL_INFO_H
#define HALL_INFO_H

#include "../obs/counters.h"
#include "sock.h"

/* n bytes went into a ring. */
static inline void hall_info_count_sent(struct hall_sock *hs, u32 n)
{
	struct tcp_sock *tp = tcp_sk(hs->sk);

	hs->tx.bytes_ring += n;
	tp->bytes_sent += n;
	tp->bytes_acked += n;
	tp->lsndtime = tcp_jiffies32;
	hall_count_add(HALL_TX_BYTES_RING, n);
	hall_channel_count_sent(&hs->channel, n);
}

/* n bytes left a ring. */
static inline void hall_info_count_received(struct hall_sock *hs, u32 n)
{
	hs->rx.bytes_ring += n;
	tcp_sk(hs->sk)->bytes_received += n;
	inet_csk(hs->sk)->icsk_ack.lrcvtime = tcp_jiffies32;
	hall_count_add(HALL_RX_BYTES_RING, n);
	this_cpu_add(hs->channel.member->bytes->rx, n);
}

/* n of the bytes that went into a ring were sent again over TCP. */
void hall_info_count_resent(struct hall_sock *hs, u32 n);
/*
 * The tokens that follow from the initial sequence numbers. drained: as they will be once the
 * peer says that it has drained our ring.
 */
void hall_sock_make_tokens(const struct hall_sock *hs, bool drained,
			   struct hall_tokens *tokens);

#endif /* HALL_INFO_H */
