// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP_INFO, ss and BPF programs read the companion's own counters. The bytes of
 * a ring count in them as sent and acknowledged once they are in the ring, and as
 * received once they leave it. Segments, round trips and windows stay the
 * companion's.
 *
 * The tokens of a connection follow from the same counters. The bytes of a present
 * ring are subtracted, for the two ends count them at different times. Bytes of
 * past rings are alike at both ends, and stay in the counters, and so in the
 * tokens: a module that is loaded later can tell them from TCP's in no way.
 */
#include "info.h"

#include "../obs/counters.h"

void hall_info_count_resent(struct hall_sock *hs, u32 n)
{
	struct tcp_sock *tp = tcp_sk(hs->sk);

	/* TCP has counted them as its own. */
	hs->tx.bytes_ring -= n;
	hs->tx.bytes_tcp += n;
	tp->bytes_sent -= n;
	tp->bytes_acked -= n;
	hall_count_add(HALL_TX_BYTES_RESENT, n);
}

/*
 * The initial sequence numbers, less the bytes of rings that are gone; our own may be too
 * small by one: see token.c. They have 32 bits: the conversion is meant.
 */
static u32 get_own_isn(const struct hall_sock *hs, bool drained)
{
	u64 ring = drained ? 0 : hs->tx.bytes_ring - hs->tx.bytes_before;
	const struct tcp_sock *tp = tcp_sk(hs->sk);

	return tp->snd_una - (u32)(tp->bytes_acked - ring);
}

static u32 get_peer_isn(const struct hall_sock *hs)
{
	u64 ring = hs->rx.bytes_ring - hs->rx.bytes_before;
	const struct tcp_sock *tp = tcp_sk(hs->sk);

	return tp->rcv_nxt - (u32)(tp->bytes_received - ring);
}

void hall_sock_make_tokens(const struct hall_sock *hs, bool drained,
			   struct hall_tokens *tokens)
{
	hall_tokens_make(tokens, hs->channel.member->key, get_own_isn(hs, drained),
			 get_peer_isn(hs));
}
