// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requeueing: the unread rest of a ring becomes part of TCP's receive queue.
 *
 * Ring bytes have no sequence numbers. Their place is right before the start
 * mark's number S, after all bytes that TCP carried before the ring. So the
 * unread TCP bytes below S and the rest of the ring are copied into new
 * buffers at the head of the queue, numbered backwards from S, and copied_seq
 * moves back to the first of them:
 *
 *     queue before   [c .. S) [S .. rcv_nxt)         ring  r bytes
 *     queue after    [c - r .. S) [S .. rcv_nxt)     copied_seq = c - r
 *
 * Buffers that begin below S are dropped. If one reaches across S, its bytes above
 * S are copied, too: a sockmap's programs take whole buffers and ignore
 * copied_seq. TCP queues retransmitted bytes untrimmed, so several buffers may
 * reach across S, with others between them that begin at S; each ends later than
 * the one before it. A FIN that was read counts as one byte: copied_seq may then
 * be above S.
 *
 * Charging the buffers follows tcp_send_rcvq() in net/ipv4/tcp_input.c.
 */
#include "requeue.h"

#include "../obs/counters.h"
#include "callbacks.h"
#include "info.h"
#include "stream.h"

#define CHUNK	SKB_WITH_OVERHEAD(16384)

static struct sk_buff *new_chunk(struct sk_buff_head *list, u32 left, gfp_t gfp)
{
	struct sk_buff *skb = alloc_skb(min_t(u32, left, CHUNK), gfp);

	if (skb)
		__skb_queue_tail(list, skb);
	return skb;
}

/* Appends n bytes of TCP, beginning at a sequence number. */
static int copy_tcp(struct sock *sk, struct sk_buff_head *list, u32 seq, u32 n,
		    gfp_t gfp)
{
	struct sk_buff *from, *to;
	u32 offset, len;

	skb_queue_walk(&sk->sk_receive_queue, from) {
		while (n && (offset = seq - TCP_SKB_CB(from)->seq) < from->len) {
			to = new_chunk(list, n, gfp);
			if (!to)
				return -ENOMEM;
			len = min3(n, from->len - offset, (u32)skb_tailroom(to));
			if (skb_copy_bits(from, offset, skb_put(to, len), len))
				return -EPROTO;
			seq += len;
			n -= len;
		}
	}
	return n ? -EPROTO : 0;
}

/* Appends the n unread bytes of the ring. */
static int copy_ring(struct hall_sock *hs, struct sk_buff_head *list, u32 n,
		     gfp_t gfp)
{
	struct hall_span span;
	struct sk_buff *to;
	u32 done;

	for (done = 0; done < n; done += span.len) {
		to = new_chunk(list, n - done, gfp);
		if (!to)
			return -ENOMEM;
		span = hall_ring_get_rx_span(&hs->rx.ring, done,
					     min_t(u32, n - done, skb_tailroom(to)));
		if (!span.len)
			return -EPROTO;
		skb_put_data(to, span.data, span.len);
	}
	return 0;
}

/* Charges the whole list to the socket, or none of it. */
static int charge_list(struct sock *sk, struct sk_buff_head *list)
{
	struct sk_buff *skb;
	u32 truesize = 0;

	skb_queue_walk(list, skb)
		truesize += skb->truesize;
	skb = skb_peek(list);
	if (skb && !sk_rmem_schedule(sk, skb, truesize))
		return -ENOMEM;
	skb_queue_walk(list, skb)
		skb_set_owner_r(skb, sk);
	return 0;
}

/* Bytes above a sequence number in buffers that begin below it; no FIN. */
static u32 count_above(struct sock *sk, u32 seq)
{
	struct sk_buff *skb;
	u32 last, n = 0;

	skb_queue_walk(&sk->sk_receive_queue, skb) {
		last = TCP_SKB_CB(skb)->seq + skb->len;
		if (before(TCP_SKB_CB(skb)->seq, seq) && before(seq + n, last))
			n = last - seq;
	}
	return n;
}

/* Puts the list, numbered from seq on, in place of buffers that end at end or before. */
static void insert_list(struct sock *sk, struct sk_buff_head *list, u32 seq,
			u32 end)
{
	struct sk_buff_head *queue = &sk->sk_receive_queue;
	struct sk_buff *skb;
	u8 fin = 0;

	WRITE_ONCE(tcp_sk(sk)->copied_seq, seq);
	skb_queue_walk(list, skb) {
		TCP_SKB_CB(skb)->seq = seq;
		seq += skb->len;
		TCP_SKB_CB(skb)->end_seq = seq;
		TCP_SKB_CB(skb)->tcp_flags = TCPHDR_ACK;
	}
	while ((skb = skb_peek(queue)) && skb->len &&
	       !after(TCP_SKB_CB(skb)->seq + skb->len, end)) {
		fin |= TCP_SKB_CB(skb)->tcp_flags & TCPHDR_FIN;
		__skb_unlink(skb, queue);
		__kfree_skb(skb);
	}
	TCP_SKB_CB(skb_peek_tail(list))->tcp_flags |= fin;
	TCP_SKB_CB(skb_peek_tail(list))->end_seq += !!fin;
	skb_queue_splice(list, queue);
}

/*
 * The peer may send what the window allows, and Linux 6.1 drops what a full buffer has no
 * room for, without an ACK. As TCP of later versions does, the next ACK says so.
 */
static void close_full_window(struct sock *sk)
{
	const struct net *net = sock_net(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	int most = READ_ONCE(sk->sk_rcvbuf);

	/* Up to there TCP makes a buffer larger that a program has not set. */
	if (!(sk->sk_userlocks & SOCK_RCVBUF_LOCK))
		most = max(most, READ_ONCE(net->ipv4.sysctl_tcp_rmem[2]));
	if (atomic_read(&sk->sk_rmem_alloc) <= most)
		return;
	tp->pred_flags = 0;
	tp->rcv_wnd = 0;
	tp->rcv_wup = tp->rcv_nxt;
}

int hall_rx_requeue(struct hall_sock *hs, gfp_t gfp)
{
	struct hall_rx_ring *ring = &hs->rx.ring;
	struct tcp_sock *tp = tcp_sk(hs->sk);
	struct sk_buff_head list;
	u32 arrived = hall_rx_get_arrived(hs->sk);
	u32 n, from_tcp = 0, from_ring, above, start, end;
	int err;

	if (hall_rx_find_source(hs, &n) == HALL_RX_CORRUPT)
		return -EPROTO;
	if (!ring->started)
		return 0;
	from_ring = hall_rx_count_unread(hs);
	if (hall_rx_lacks_tcp(hs) && (from_ring || !ring->ended))
		return -EAGAIN;
	if (!from_ring)
		return ring->broken ? -EPROTO : 0;
	/*
	 * A kernel user that has read beyond would get the ring's bytes after those. For a
	 * program, TCP skips unread urgent data when other urgent data arrives.
	 */
	if (after(tp->copied_seq, ring->start_seq) &&
	    after(arrived, ring->start_seq) && !hall_callbacks_are_native(hs->sk))
		return -EPROTO;
	start = end = tp->copied_seq;
	if (before(end, ring->start_seq)) {
		from_tcp = ring->start_seq - end;
		end = ring->start_seq;
	}
	above = count_above(hs->sk, end);

	__skb_queue_head_init(&list);
	err = copy_tcp(hs->sk, &list, start, from_tcp, gfp) ?:
	      copy_ring(hs, &list, from_ring, gfp) ?:
	      copy_tcp(hs->sk, &list, end, above, gfp) ?:
	      charge_list(hs->sk, &list);
	if (!err && !hall_rx_is_intact(hs))
		err = -EPROTO;
	if (err) {
		__skb_queue_purge(&list);
		return err;
	}
	insert_list(hs->sk, &list, start - from_ring, end + above);
	spin_lock_bh(&hs->channel.lock);
	hall_ring_consume(ring, from_ring);
	spin_unlock_bh(&hs->channel.lock);
	hall_info_count_received(hs, from_ring);
	hs->callbacks.seq -= from_ring;
	/* Else 6.1's autotuning takes the step back for 4 GB that were read. */
	tp->rcvq_space.seq -= from_ring;
	close_full_window(hs->sk);
	hall_count(HALL_SWITCH_IN_RING);
	hall_count_add(HALL_RX_BYTES_REQUEUED, from_ring);
	/* Wakes native readers of the queue, as tcp_data_queue() does. */
	hs->sk->sk_data_ready(hs->sk);
	return 0;
}
