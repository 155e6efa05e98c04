// SPDX-License-Identifier: GPL-2.0-only
/*
 * The token of a connection: a keyed hash of both initial sequence numbers.
 *
 * Only the two ends of a TCP connection know both numbers: with a proxy or a NAT
 * between them, or a forged address, tokens differ. The key belongs to the
 * region, and no two regions have the same: a token of one is worth nothing in
 * another, also to a VM that is a member of both. The hash is directional: each end has a
 * token of its own, even where both ends are in one kernel.
 *
 * tcp_sock keeps no initial sequence number. The peer's is rcv_nxt minus
 * bytes_received, exactly. Our own is snd_una minus bytes_acked, but the side
 * that connected has counted its SYN there, and the side that accepted has not.
 * So each end sends a token for both candidates, and knows the peer's number
 * exactly. The counters include bytes that went through rings: sock/info.c tells
 * which of them the numbers are corrected for.
 *
 * The token in an OFFER proves that its sender is the other end of the
 * connection, and the token in an ACCEPT proves it of the receiver. An address
 * proves nothing: any member may publish it.
 */
#include "channel.h"

#include <linux/siphash.h>
#include <linux/string.h>

static u64 hash(const siphash_key_t *key, u32 from, u32 to)
{
	return siphash_2u32(from, to, key);
}

void hall_tokens_make(struct hall_tokens *tokens, const u8 key[16], u32 own_isn,
		      u32 peer_isn)
{
	siphash_key_t siphash;

	memcpy(&siphash, key, sizeof(siphash));
	tokens->own[0] = hash(&siphash, own_isn, peer_isn);
	tokens->own[1] = hash(&siphash, own_isn + 1, peer_isn);
	tokens->peer[0] = hash(&siphash, peer_isn, own_isn);
	tokens->peer[1] = hash(&siphash, peer_isn, own_isn + 1);
}

bool hall_tokens_match(const struct hall_tokens *tokens, const __u64 token[2])
{
	unsigned int i;

	for (i = 0; i < 4; i++)
		if (tokens->peer[i & 1] == token[i >> 1])
			return true;
	return false;
}
