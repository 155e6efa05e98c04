// SPDX-License-Identifier: GPL-2.0-only
/*
 * Datagrams that the outsourcer does not send: the host's policy is against it, or it has
 * no socket for them. They are sent natively, as are all later ones to there.
 *
 * An outsourcer that breaks the rules must not have this guest send what it likes: only
 * where the program has sent to itself does anything go.
 */
#include "datagrams.h"

#include <linux/jhash.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <net/ipv6.h>

#include "../compat/file.h"
#include "../obs/counters.h"
#include "hook.h"
#include "record.h"

/* Memory of datagrams of one socket that wait to be sent. */
#define WAITING		(512 << 10)

/* Of one that waits: in its cb. */
struct returned {
	struct hall_destination to;
	u16 segment;		/* as in its record */
};

/*
 * Of its own: a send waits for the lock of a socket that its program corks at that moment,
 * and the program may hold the lock for as long as it likes, in a page fault. Nothing
 * else waits behind it.
 */
static struct workqueue_struct *queue;

/* Sends for sockets that are closed: one at a time. */
static DEFINE_MUTEX(closed_mutex);

#define SENDS	512	/* at once; kernels have other defaults each */

bool hall_returned_init(void)
{
	if (!queue)
		queue = alloc_workqueue("hallway_returned", WQ_UNBOUND | WQ_MEM_RECLAIM,
					SENDS);
	return queue;
}

void hall_returned_uninit(void)
{
	if (queue)
		destroy_workqueue(queue);
	queue = NULL;
}

/* Where a destination is, if it is known. */
static struct hall_destination *find_set(struct hall_datagrams *datagrams,
					 const struct in6_addr *address, u16 port)
{
	u32 hash = jhash2((const u32 *)address->s6_addr32,
			  ARRAY_SIZE(address->s6_addr32), port);

	return datagrams->known[hash % HALL_DESTINATION_SETS];
}

static struct hall_destination *find_known(struct hall_datagrams *datagrams,
					   const struct in6_addr *address, u16 port)
{
	struct hall_destination *set = find_set(datagrams, address, port), *one;

	for (one = set; one < set + HALL_DESTINATION_WAYS; one++)
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
		known = find_set(datagrams, &to->address, to->port) +
			datagrams->next++ % HALL_DESTINATION_WAYS;
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

/* The next record of rx is to be sent natively, unless that many wait. channel.lock */
static void send_later(struct hall_out *out, struct hall_rx_ring *rx,
		       const struct hallway_datagram *head, unsigned int most)
{
	struct hall_datagrams *datagrams = out->datagrams;
	struct sk_buff *skb;

	skb = datagrams->returned_bytes < most ? copy_record(rx, head) : NULL;
	if (!skb)
		return;
	__skb_queue_tail(&datagrams->returned, skb);
	datagrams->returned_bytes += skb->truesize;
	refcount_inc(&out->channel.refs);
	if (!queue_work(queue, &datagrams->send))
		hall_out_put(out);
}

void hall_datagram_take_returned(struct hall_out *out,
				 const struct hallway_datagram *head)
{
	struct hall_datagrams *datagrams = out->datagrams;
	struct hall_destination *known;
	struct in6_addr address;

	memcpy(&address, head->address, sizeof(address));
	known = head->port ? find_known(datagrams, &address, head->port) : NULL;
	/* An answer by the NIC would come from an address that nobody has asked. */
	if (!known || datagrams->published)
		return;
	known->native = true;
	send_later(out, &out->rx, head, WAITING);
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
	/* IPV6_ADDRFORM has made the socket one of IPv4 since. */
	if (sk->sk_family == AF_INET && !ipv6_addr_v4mapped(&to->address))
		return;
	/* It would become a part of the one that the program is making. */
	if (READ_ONCE(udp_sk(sk)->pending) || udp_test_bit(CORK, sk))
		return;
	/* The program has disconnected it: it has no port any more. */
	if (!READ_ONCE(inet_sk(sk)->inet_sport))
		return;
	/* A datagram that finds no way is lost. */
	sk->sk_prot->sendmsg(sk, &msg, skb->len);
}

/*
 * A send that finds the buffer full follows a pointer that close() clears. So an open socket
 * is held open; to one that is closed nothing else sends, and its buffer is looked at before.
 */
static bool is_full(const struct sock *sk)
{
	return sk_wmem_alloc_get(sk) >= READ_ONCE(sk->sk_sndbuf);
}

/* The file of an open socket, held. NULL: it is closed. */
static struct file *hold_open(struct sock *sk)
{
	struct file *file;
	bool is_open;

	for (;;) {
		read_lock_bh(&sk->sk_callback_lock);
		is_open = sk->sk_socket;
		file = is_open ? sk->sk_socket->file : NULL;
		if (file && !hall_try_get_file(file))
			file = NULL;
		read_unlock_bh(&sk->sk_callback_lock);
		if (file || !is_open)
			return file;
		/* It is being closed. */
		schedule_timeout_uninterruptible(1);
	}
}

static void send_returned(struct work_struct *work)
{
	struct hall_datagrams *datagrams =
		container_of(work, struct hall_datagrams, send);
	struct hall_out *out = datagrams->out;
	struct sk_buff_head batch;
	struct sk_buff *skb;
	struct file *file;

	/* What comes back meanwhile has another turn. */
	__skb_queue_head_init(&batch);
	spin_lock_bh(&out->channel.lock);
	skb_queue_splice_init(&datagrams->returned, &batch);
	datagrams->returned_bytes = 0;
	spin_unlock_bh(&out->channel.lock);
	file = hold_open(out->sk);
	if (!file)
		mutex_lock(&closed_mutex);
	while ((skb = __skb_dequeue(&batch))) {
		if (file || !is_full(out->sk))
			send_natively(out->sk, skb);
		kfree_skb(skb);
	}
	if (file)
		fput(file);
	else
		mutex_unlock(&closed_mutex);
	hall_out_put(out);
}

void hall_returned_setup(struct hall_out *out, struct hall_datagrams *datagrams)
{
	out->datagrams = datagrams;
	datagrams->out = out;
	__skb_queue_head_init(&datagrams->returned);
	INIT_WORK(&datagrams->send, send_returned);
}

/* The socket is a stock one from now on. False: it is locked. */
static bool make_native(struct hall_out *out)
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
		.data = out->tx.data,
		.data_size = out->tx.size,
		.size = out->tx.size,
		.head = out->tx.head,
		.tail = out->tx.tail,
		.ended = true,
	};
	struct hallway_datagram head;

	/* The port of a bound one may be published later. */
	if (!out->datagrams->published && !make_native(out))
		return false;
	if (!rx.shared)
		return true;
	while (hall_record_find(&rx, &head) > 0) {
		spin_lock_bh(&out->channel.lock);
		/* No more than the ring holds, once. */
		if (hall_datagram_knows(out, &head))
			send_later(out, &rx, &head, UINT_MAX);
		spin_unlock_bh(&out->channel.lock);
		hall_ring_consume(&rx, hall_record_size(head.length));
	}
	return true;
}
