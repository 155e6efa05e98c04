/* SPDX-License-Identifier: GPL-2.0-only */
/* Where the next bytes of a stream are. lock_sock(). */
#ifndef HALL_STREAM_H
#define HALL_STREAM_H

#include "sock.h"

/* Where the next bytes to read are, and how many. State MAPPED. */
enum hall_rx_source hall_rx_find_source(struct hall_sock *hs, u32 *n);
/*
 * Are the ring's bytes the next ones, behind *n bytes in TCP's queue? No if some of
 * those have not arrived. channel.lock alone: no reader may have seen the start mark
 * yet.
 */
bool hall_rx_ring_is_next(const struct hall_sock *hs, u32 *n);
/* Bytes of the ring that are not read yet. */
u32 hall_rx_count_unread(struct hall_sock *hs);
/* The same, but none while TCP lacks bytes that come before. lock_sock(). */
u32 hall_rx_count_readable(struct hall_sock *hs);
/* n bytes of the ring are read. Rings the peer's doorbell if it waits for space. */
void hall_rx_consume(struct hall_sock *hs, u32 n);
/* Is urgent data the next byte to be read, or peeked at after those that were seen? */
bool hall_rx_is_at_urgent(struct hall_sock *hs, u32 seen);
/* Bytes of our ring that the peer has not read. */
u32 hall_tx_count_unread(struct hall_sock *hs);

/*
 * Were the bytes that have just been copied from the ring the peer's? A member's
 * memory may be taken away under a reader.
 */
static inline bool hall_rx_is_intact(struct hall_sock *hs)
{
	struct hall_member *member = hs->channel.member;

	return likely(member->transport->intact(member));
}

/* The sequence number after the last byte that arrived over TCP, less a FIN. */
static inline u32 hall_rx_get_arrived(const struct sock *sk)
{
	return tcp_sk(sk)->rcv_nxt - (sock_flag(sk, SOCK_DONE) ? 1 : 0);
}

/* Are bytes missing in TCP that come before a ring that has started? */
static inline bool hall_rx_lacks_tcp(const struct hall_sock *hs)
{
	return hs->rx.ring.started &&
	       after(hs->rx.ring.start_seq, hall_rx_get_arrived(hs->sk));
}

#endif /* HALL_STREAM_H */
