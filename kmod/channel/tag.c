// SPDX-License-Identifier: GPL-2.0
/*
 * The name of a connection: a keyed hash of both initial sequence numbers.
 *
 * Only the two ends of a TCP connection know both numbers, so a proxy, a NAT
 * or a forged address between them gives no match. The key belongs to the
 * region; the hash is directional, so that each end has a name of its own
 * even where both are in one kernel.
 *
 * tcp_sock keeps no initial sequence number. The peer's follows from rcv_nxt
 * and bytes_received exactly. Our own follows from snd_una and bytes_acked,
 * but the side that connected has counted its SYN there and the side that
 * accepted has not: each end states both candidates and knows the other's own
 * number exactly. Bytes that went through rings are in those counters, too: for
 * which of them both numbers are smaller, see sock/info.c.
 *
 * Who offers a ring proves by it that it is the connection's other end, and so
 * does who accepts one: an address alone, which any member may publish, earns
 * nobody a byte.
 */
#include "channel.h"

#include <linux/siphash.h>
#include <linux/string.h>

static u64 name(const siphash_key_t *key, u32 from, u32 to)
{
	return siphash_2u32(from, to, key);
}

void hall_tags_make(struct hall_tags *tags, const u8 key[16], u32 own_isn,
		    u32 peer_isn)
{
	siphash_key_t siphash;

	memcpy(&siphash, key, sizeof(siphash));
	tags->own[0] = name(&siphash, own_isn, peer_isn);
	tags->own[1] = name(&siphash, own_isn + 1, peer_isn);
	tags->peer[0] = name(&siphash, peer_isn, own_isn);
	tags->peer[1] = name(&siphash, peer_isn, own_isn + 1);
}

bool hall_tags_match(const struct hall_tags *tags,
		     const __u64 tag[2])
{
	unsigned int i;

	for (i = 0; i < 4; i++)
		if (tags->peer[i & 1] == tag[i >> 1])
			return true;
	return false;
}
