// SPDX-License-Identifier: GPL-2.0-only
/*
 * UDP sockets.
 *
 * Such a socket stays native, and bound in this guest. Beside it is a socket of the host,
 * from the first datagram on that leads out: sendmsg() decides for each one, by its
 * destination, and writes those that the host may send into the ring. No call waits for
 * the host: the first ones are in the ring before it has answered. What its policy does
 * not allow comes back (returned.c). What arrives there goes the native way (deliver.c).
 *
 * A program that has chosen its address or port is known by them: see bound.c.
 */
#include "datagrams.h"

#include <linux/poll.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <net/udp.h>

#include "../obs/counters.h"
#include "../sock/lookup.h"
#include "calls.h"
#include "decide.h"
#include "hook.h"
#include "ports.h"
#include "record.h"
#include "room.h"

/* A ring is writable while the longest datagram fits, and wakes a writer at half. */
#define LEAST_SPACE	hall_record_size(HALLWAY_DATAGRAM_MAX)
/* Datagrams of one call, with UDP_SEGMENT. */
#define SEGMENTS	64

/* Where the message goes. False: nowhere, or there is more to its address than that. */
static bool find_destination(const struct sock *sk, const struct msghdr *msg,
			     struct hall_destination *to)
{
	const struct sockaddr_in6 *v6 = msg->msg_name;

	if (msg->msg_name) {
		if (!hall_read_address(msg->msg_name, msg->msg_namelen, &to->address,
				       &to->port) ||
		    v6->sin6_family != sk->sk_family)
			return false;
		return to->port &&
		       (sk->sk_family == AF_INET ||
			(msg->msg_namelen >= (int)sizeof(*v6) && !v6->sin6_scope_id &&
			 !v6->sin6_flowinfo));
	}
	if (sk->sk_state != TCP_ESTABLISHED)
		return false;
	to->port = ntohs(inet_sk(sk)->inet_dport);
	hall_sock_read_remote(sk, &to->address);
	return to->port;
}

/* The own address of an answer: that by which the host was asked. */
static bool is_own_address(const struct cmsghdr *control)
{
	return (control->cmsg_level == SOL_IP && control->cmsg_type == IP_PKTINFO) ||
	       (control->cmsg_level == SOL_IPV6 && control->cmsg_type == IPV6_PKTINFO);
}

/* UDP_SEGMENT is the one control message that the host gets. */
static bool read_control(const struct sock *sk, struct msghdr *msg, u16 *segment)
{
	struct cmsghdr *control;

	for_each_cmsghdr(control, msg) {
		if (CMSG_OK(msg, control) && hall_has_chosen_port(sk) && is_own_address(control))
			continue;
		if (!CMSG_OK(msg, control) || control->cmsg_level != SOL_UDP ||
		    control->cmsg_type != UDP_SEGMENT ||
		    control->cmsg_len != CMSG_LEN(sizeof(*segment)))
			return false;
		memcpy(segment, CMSG_DATA(control), sizeof(*segment));
	}
	return true;
}

/* Can a record say all of the message? */
static bool fill_head(const struct sock *sk, struct msghdr *msg, size_t size,
		      const struct hall_destination *to, struct hallway_datagram *head)
{
	u16 segment = READ_ONCE(udp_sk(sk)->gso_size);
	const struct inet_sock *inet = inet_sk(sk);
	int hops = inet->uc_ttl;

	if ((msg->msg_flags & (MSG_MORE | MSG_OOB | MSG_ZEROCOPY | MSG_PROBE |
			       MSG_DONTROUTE)) ||
	    size > HALLWAY_DATAGRAM_MAX || !read_control(sk, msg, &segment))
		return false;
	if (size <= segment)
		segment = 0;
	/* Longer than a packet of IPv4 can be: an error that the native stack has. */
	if (segment ? size > (size_t)segment * SEGMENTS :
		      size > IP_MAX_MTU - sizeof(struct iphdr) - sizeof(struct udphdr))
		return false;
	*head = (struct hallway_datagram){
		.length = size,
		.type = HALLWAY_DATAGRAM_DATA,
		.port = to->port,
		.tos = inet->tos,
		.discover = inet->pmtudisc,
		.segment = segment,
	};
#if IS_ENABLED(CONFIG_IPV6)
	if (!ipv6_addr_v4mapped(&to->address)) {
		hops = inet6_sk(sk)->hop_limit;
		head->tos = inet6_sk(sk)->tclass;
		head->discover = inet6_sk(sk)->pmtudisc;
	}
#endif
	head->hops = max(hops, 0);
	memcpy(head->address, &to->address, sizeof(head->address));
	return true;
}

/* Under lock_sock(). The port that the native stack would choose now. */
static bool bind_port(struct sock *sk)
{
	struct inet_sock *inet = inet_sk(sk);

	if (!inet->inet_num) {
		if (sk->sk_prot->get_port(sk, 0))
			return false;
		inet->inet_sport = htons(inet->inet_num);
	}
	return true;
}

struct hall_out *hall_datagram_make(gfp_t gfp)
{
	struct hall_member *member = hall_members_get_outsourcer();
	struct hall_datagrams *datagrams;
	struct hall_out *out;

	if (!member)
		return NULL;
	out = hall_out_new(&hall_out_datagram, member, gfp);
	hall_member_put(member);
	if (!out)
		return NULL;
	datagrams = kvzalloc(sizeof(*datagrams), gfp);
	if (!datagrams) {
		hall_out_put(out);
		return NULL;
	}
	hall_returned_setup(out, datagrams);
	hall_datagram_note_use(out);
	return out;
}

/* Mutex. False: the socket stays native, or another thread has done it. */
static bool open_on_host(struct hall_out *out, struct socket *sock)
{
	struct sock *sk = sock->sk;
	const struct hallway_call call = { };
	struct hall_out *other = NULL;
	bool good;

	lock_sock(sk);
	/* Another thread may have bound it meanwhile. */
	good = hall_is_watched(sock) && !hall_has_chosen_port(sk);
	if (good)
		other = hall_out_get(sk);
	good = good && !other && bind_port(sk);
	if (good)
		hall_out_publish(out, sk);
	release_sock(sk);
	if (other)
		hall_out_put(other);
	if (!good)
		return false;
	hall_count(HALL_OUTSOURCE_DATAGRAM_SOCKETS);
	hall_idle_start();
	if (hall_out_offer(out, sk, &call)) {
		hall_datagram_close(out, 0);
		return false;
	}
	return true;
}

/* The socket's object, with a reference; another thread may have made it. */
static struct hall_out *get_object(struct socket *sock)
{
	struct hall_out *out = hall_out_get(sock->sk);
	bool good;

	if (out || hall_has_chosen_port(sock->sk) || !READ_ONCE(hall_outsourcing) ||
	    !hall_is_watched(sock) || !hall_scope_has(sock->sk, READ_ONCE(sock->ops)))
		return out;
	/* It sleeps before there is an object. */
	hall_out_enter();
	out = hall_datagram_make(GFP_KERNEL);
	if (out) {
		mutex_lock(&out->mutex);
		good = open_on_host(out, sock);
		hall_out_unlock(out);
		if (!good) {
			hall_out_put(out);
			out = hall_out_get(sock->sk);
		}
	}
	hall_out_leave();
	return out;
}

/* Bytes, 0 if the ring has no space, HALL_NATIVE, or an error. Mutex. */
static int write_datagram(struct hall_out *out, struct msghdr *msg,
			  const struct hallway_datagram *head,
			  const struct hall_destination *to)
{
	u32 total = hall_record_size(head->length);
	struct iov_iter payload = msg->msg_iter;
	struct hall_span space[2];
	bool fits, ringing;
	int err;

	if (out->closed || !out->memory.ring || !hall_datagram_note(out, to) ||
	    (out->datagrams->published && out->state != HALL_OUT_CONNECTED))
		return HALL_NATIVE;
	spin_lock_bh(&out->channel.lock);
	fits = hall_record_reserve(&out->tx, total, space);
	spin_unlock_bh(&out->channel.lock);
	if (out->tx.broken) {
		hall_count(HALL_CORRUPT_RINGS);
		hall_datagram_close(out, ECONNRESET);
		return HALL_NATIVE;
	}
	if (!fits)
		return 0;
	err = hall_record_write(space, head, &payload);
	if (err)
		return err;
	iov_iter_advance(&msg->msg_iter, head->length);
	spin_lock_bh(&out->channel.lock);
	ringing = hall_ring_publish(&out->tx, total);
	spin_unlock_bh(&out->channel.lock);
	/* Before its answer the outsourcer looks at all that is there. */
	if (ringing && hall_out_state(out) == HALL_OUT_CONNECTED)
		hall_channel_notify_receiver(&out->channel);
	hall_datagram_note_use(out);
	hall_count_add(HALL_TX_BYTES_OUTSOURCED, head->length);
	WRITE_ONCE(out->tx_bytes, out->tx_bytes + head->length);
	return total;
}

/* True: there is space, or the ring is used no more. */
static bool arm_space(struct hall_out *out, u32 least)
{
	bool ready = true, armed = false;

	spin_lock_bh(&out->channel.lock);
	if (out->memory.ring) {
		armed = out->tx.armed;
		ready = hall_ring_arm_tail(&out->tx, least,
					   max(least, HALL_RING_WAKE_SPACE(out->tx.size)));
	}
	spin_unlock_bh(&out->channel.lock);
	/* It is armed no more: a doorbell on its way would wake no other sleeper. */
	if (armed && ready)
		hall_out_wake_all(out->sk);
	/* After the sleeper is in its queue: nothing else wakes it once this is set. */
	return ready || READ_ONCE(out->closed);
}

static int wait_for_space(struct hall_out *out, u32 least, long *timeo)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct sock *sk = out->sk;

	if (!*timeo)
		return arm_space(out, least) ? 0 : -EAGAIN;
	if (signal_pending(current))
		return sock_intr_errno(*timeo);
	add_wait_queue(sk_sleep(sk), &wait);
	if (!arm_space(out, least))
		*timeo = wait_woken(&wait, TASK_INTERRUPTIBLE, *timeo);
	remove_wait_queue(sk_sleep(sk), &wait);
	return 0;
}

/* May the host have what the socket sends to there? */
static bool may_send(struct sock *sk, const struct hall_destination *to)
{
	if (!hall_has_chosen_port(sk))
		return hall_outsource_may_send(sk, &to->address);
	return hall_clients_have(inet_sk(sk)->inet_num, to) &&
	       hall_outsource_may_answer(sk, ipv6_addr_v4mapped(&to->address));
}

/* As write_datagram(); waits for space as the call may. */
static int send_by(struct hall_out *out, struct msghdr *msg,
		   const struct hallway_datagram *head, const struct hall_destination *to)
{
	long timeo = sock_sndtimeo(out->sk, msg->msg_flags & MSG_DONTWAIT);
	int ret = 0;

	while (!ret) {
		mutex_lock(&out->mutex);
		ret = write_datagram(out, msg, head, to);
		hall_out_unlock(out);
		if (!ret)
			ret = wait_for_space(out, hall_record_size(head->length), &timeo);
	}
	return ret;
}

static noinline int send_datagram(struct socket *sock, struct msghdr *msg, size_t size)
{
	struct hall_destination to = { };
	struct hallway_datagram head;
	struct sock *sk = sock->sk;
	struct hall_out *out;
	unsigned int tries = 0;
	bool closed;
	int ret;

	if (READ_ONCE(sk->sk_shutdown) & SEND_SHUTDOWN ||
	    !find_destination(sk, msg, &to) ||
	    !may_send(sk, &to) ||
	    !fill_head(sk, msg, size, &to, &head))
		return HALL_NATIVE;
	do {
		out = get_object(sock);
		if (!out)
			return HALL_NATIVE;
		/* As sendmsg() natively: an error of an earlier datagram. */
		ret = sock_error(sk) ?: send_by(out, msg, &head, &to);
		closed = READ_ONCE(out->closed);
		hall_out_put(out);
		/* It may have been idle, and closed at this moment. */
	} while (ret == HALL_NATIVE && closed && !tries++);
	return ret > 0 ? (int)size : ret;
}

int hall_datagram_sendmsg(struct socket *sock, struct msghdr *msg, size_t size)
{
	int ret = send_datagram(sock, msg, size);

	if (ret != HALL_NATIVE)
		return ret;
	return hall_tables_of(sock->sk)->native->sendmsg(sock, msg, size);
}

static noinline __poll_t poll_datagram(struct file *file, struct socket *sock,
				       poll_table *wait)
{
	struct hall_out *out = hall_out_get(sock->sk);
	__poll_t mask;

	if (!out)
		return HALL_NATIVE_POLL;
	/* It may sleep to allocate, and the object keeps the module. */
	mask = hall_tables_of(sock->sk)->native->poll(file, sock, wait);
	if (!arm_space(out, LEAST_SPACE))
		mask &= ~(EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND);
	hall_out_put(out);
	return mask;
}

__poll_t hall_datagram_poll(struct file *file, struct socket *sock,
			    struct poll_table_struct *wait)
{
	__poll_t mask = poll_datagram(file, sock, wait);

	if (mask != HALL_NATIVE_POLL)
		return mask;
	return hall_tables_of(sock->sk)->native->poll(file, sock, wait);
}

/* The end */

void hall_datagram_close(struct hall_out *out, u32 reason)
{
	if (out->closed)
		return;
	WRITE_ONCE(out->closed, true);
	/* What is in the ring is sent, by the host or, if that returns it, by this guest. */
	hall_out_end(out);
	if (out->mapped && (reason || !out->memory.ring))
		hall_out_finish_rx(out, reason);
	else if (out->mapped)
		hall_channel_notify_receiver(&out->channel);
	hall_out_unpublish(out);
	hall_out_close_channel(out);
	hall_out_wake_all(out->sk);
}

/* Turns: a ring of the shortest records. */
#define LAST_TURNS	40

void hall_datagram_finish(struct hall_out *out)
{
	unsigned int turn;

	for (turn = 0; turn < LAST_TURNS && out->mapped; turn++)
		hall_datagram_deliver(out);
	hall_out_finish_rx(out, 0);
	hall_datagram_close(out, 0);
}

void hall_datagram_refuse(struct hall_out *out, int error)
{
	out->error = error;
	smp_store_release(&out->state, HALL_OUT_REFUSED);
	hall_out_free_tx(out);
	hall_datagram_close(out, 0);
}

void hall_datagram_forget(const struct sock *sk)
{
	struct hall_out *out = hall_out_get(sk);

	if (!out)
		return;
	mutex_lock(&out->mutex);
	hall_datagram_close(out, 0);
	hall_out_unlock(out);
	hall_out_put(out);
}

int hall_datagram_release(struct socket *sock)
{
	const struct proto_ops *native;

	if (!sock->sk)
		return 0;
	native = hall_tables_of(sock->sk)->native;
	hall_exclude(sock);
	hall_datagram_forget(sock->sk);
	return native->release(sock);
}
