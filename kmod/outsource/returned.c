// SPDX-License-Identifier: GPL-2.0-only
/*
 * Datagrams that the outsourcer does not send: the host's policy is against it, or it has
 * no socket for them. They are sent natively, as are all later ones to there.
 *
 * An outsourcer that breaks the rules must not have this guest send what it likes: only
 * where the program has sent to itself does anything go.
 */
#include "outsource.h"

#include <net/ipv6.h>

#include "../obs/counters.h"

/* Datagrams that wait to be sent. */
#define WAITING	64

/* Of one that waits: in its cb. */
struct returned {
	struct hall_destination to;
	u16 segment;		/* as in its record */
};

static struct hall_destination *find_known(struct hall_datagrams *datagrams,
					   const struct in6_addr *address, u16 port)
{
	struct hall_destination *one;

	for (one = datagrams->known; one < datagrams->known + HALL_DESTINATIONS; one++)
		if (one->port == port && ipv6_addr_equal(&one->address, address))
			return one;
	return NULL;
}

bool hall_datagram_note(struct hall_out *out, const struct hall_destination *to)
{
	struct hall_datagrams *datagrams = out->datagrams;
	struct hall_destination *known;
	bool native;

	spin_lock_bh(&out->channel.lock);
	known = find_known(datagrams, &to->address, to->port);
	if (!known) {
		known = &datagrams->known[datagrams->next++ % HALL_DESTINATIONS];
		*known = *to;
		known->native = false;
	}
	native = known->native;
	spin_unlock_bh(&out->channel.lock);
	return !native;
}

bool hall_datagram_knows(struct hall_out *out, const struct hallway_datagram *head)
{
	struct in6_addr address;

	memcpy(&address, head->address, sizeof(address));
	return head->port && find_known(out->datagrams, &address, head->port);
}

/* channel.lock */
static struct sk_buff *copy_record(struct hall_rx_ring *rx,
				   const struct hallway_datagram *head)
{
	struct sk_buff *skb = alloc_skb(max(head->length, 1U), GFP_ATOMIC | __GFP_NOWARN);
	struct returned *returned;

	if (!skb)
		return NULL;
	BUILD_BUG_ON(sizeof(*returned) > sizeof(skb->cb));
	returned = (struct returned *)skb->cb;
	memcpy(&returned->to.address, head->address, sizeof(returned->to.address));
	returned->to.port = head->port;
	returned->segment = head->segment;
	hall_record_read(rx, sizeof(*head), head->length, hall_record_copy,
			 skb_put(skb, head->length));
	return skb;
}

void hall_datagram_take_returned(struct hall_out *out,
				 const struct hallway_datagram *head)
{
	struct hall_datagrams *datagrams = out->datagrams;
	struct hall_destination *known;
	struct in6_addr address;
	struct sk_buff *skb;

	memcpy(&address, head->address, sizeof(address));
	known = head->port ? find_known(datagrams, &address, head->port) : NULL;
	/* An answer by the NIC would come from an address that nobody has asked. */
	if (!known || datagrams->published)
		return;
	known->native = true;
	skb = skb_queue_len(&datagrams->returned) < WAITING ?
		      copy_record(&out->rx, head) : NULL;
	if (!skb)
		return;
	__skb_queue_tail(&datagrams->returned, skb);
	hall_channel_raise(&out->channel, HALL_EVENT_RETURNED);
}

static void put_segment(struct msghdr *msg, struct cmsghdr *control, u16 segment)
{
	*control = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(sizeof(segment)),
		.cmsg_level = SOL_UDP,
		.cmsg_type = UDP_SEGMENT,
	};
	memcpy(CMSG_DATA(control), &segment, sizeof(segment));
	msg->msg_control = control;
	msg->msg_controllen = CMSG_SPACE(sizeof(segment));
}

static void send_natively(struct sock *sk, struct sk_buff *skb)
{
	const struct returned *returned = (const void *)skb->cb;
	const struct hall_destination *to = &returned->to;
	u8 control[CMSG_SPACE(sizeof(returned->segment))] __aligned(8);
	struct sockaddr_in v4 = {
		.sin_family = AF_INET,
		.sin_port = htons(to->port),
		.sin_addr.s_addr = to->address.s6_addr32[3],
	};
	struct sockaddr_in6 v6 = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(to->port),
		.sin6_addr = to->address,
	};
	struct msghdr msg = { .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL };
	struct kvec vector = { .iov_base = skb->data, .iov_len = skb->len };

	msg.msg_name = &v4;
	msg.msg_namelen = sizeof(v4);
	if (sk->sk_family == AF_INET6) {
		msg.msg_name = &v6;
		msg.msg_namelen = sizeof(v6);
	}
	iov_iter_kvec(&msg.msg_iter, WRITE, &vector, 1, skb->len);
	if (returned->segment)
		put_segment(&msg, (struct cmsghdr *)control, returned->segment);
	hall_count(HALL_OUTSOURCE_RETURNED);
	/* It would become a part of the one that the program is making. */
	if (READ_ONCE(udp_sk(sk)->pending))
		return;
	/* A datagram that finds no way is lost. */
	sk->sk_prot->sendmsg(sk, &msg, skb->len);
}

void hall_datagram_send_returned(struct hall_out *out)
{
	struct sk_buff_head batch;
	struct sk_buff *skb;

	/* What comes back meanwhile has another turn. */
	__skb_queue_head_init(&batch);
	spin_lock_bh(&out->channel.lock);
	skb_queue_splice_init(&out->datagrams->returned, &batch);
	spin_unlock_bh(&out->channel.lock);
	while ((skb = __skb_dequeue(&batch))) {
		send_natively(out->sk, skb);
		kfree_skb(skb);
	}
}

/* The socket is a stock one from now on. False: it is locked. */
static bool give_back(struct hall_out *out)
{
	struct sock *sk = out->sk;
	struct socket *sock;

	if (!hall_turn_trylock(&out->turn, sk))
		return false;
	sock = sk->sk_socket;
	/* close() marks it under the lock, and clears its pointers without. */
	if (sock && !sock_flag(sk, SOCK_DEAD) && hall_is_watched(sock))
		smp_store_release(&sock->ops, hall_tables_of(sk)->native);
	release_sock(sk);
	return true;
}

bool hall_datagram_take_refusal(struct hall_out *out)
{
	/* Our own ring, as we know it: the peer can write its indexes. */
	struct hall_rx_ring rx = {
		.shared = out->memory.ring,
		.size = out->tx.size,
		.head = out->tx.head,
		.tail = out->tx.tail,
		.ended = true,
	};
	struct hallway_datagram head;
	struct sk_buff *skb;

	/* The port of a bound one may be published later. */
	if (!out->datagrams->published && !give_back(out))
		return false;
	if (!rx.shared)
		return true;
	while (hall_record_find(&rx, &head) > 0) {
		skb = hall_datagram_knows(out, &head) ? copy_record(&rx, &head) : NULL;
		hall_ring_consume(&rx, hall_record_size(head.length));
		if (skb)
			send_natively(out->sk, skb);
		kfree_skb(skb);
	}
	return true;
}
