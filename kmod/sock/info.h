/* SPDX-License-Identifier: GPL-2.0-only */
/* Counters that programs see, and tokens that follow from them. lock_sock(). */
#ifndef HALL_INFO_H
#define HALL_INFO_H

#include "sock.h"

/* n bytes went into a ring, or left one. */
void hall_info_count_sent(struct hall_sock *hs, u32 n);
void hall_info_count_received(struct hall_sock *hs, u32 n);
/* n of the bytes that went into a ring were sent again over TCP. */
void hall_info_count_resent(struct hall_sock *hs, u32 n);
/*
 * The initial sequence numbers, less the bytes of rings that are gone; our own
 * may be too small by one: see token.c. drained: as it will be once the peer says
 * that it has drained our ring.
 */
u32 hall_info_get_own_isn(const struct hall_sock *hs, bool drained);
u32 hall_info_get_peer_isn(const struct hall_sock *hs);
/* The tokens that follow from them; drained as above. */
void hall_sock_make_tokens(const struct hall_sock *hs, bool drained,
			   struct hall_tokens *tokens);

#endif /* HALL_INFO_H */
