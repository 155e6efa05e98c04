// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections that arrive at a published listener, and accept(), which takes from
 * its queue and from the native one.
 *
 * Threads in accept() of a watched listener sleep here, published or not: it may be
 * published while they sleep. They leave for the native accept() when the module
 * goes.
 */
#include "listeners.h"

#include <linux/sched/signal.h>
#include <net/inet_connection_sock.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "calls.h"
#include "decide.h"
#include "hook.h"
#include "options.h"

bool hall_accept_is_native(struct sock *sk)
{
	struct wait_queue_entry *entry;
	struct socket_wq *wq;
	bool native = false;
	unsigned long flags;

	/* The program may have closed it. */
	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq)) {
		spin_lock_irqsave(&wq->wait.lock, flags);
		list_for_each_entry(entry, &wq->wait.head, entry)
			native |= entry->func == autoremove_wake_function;
		spin_unlock_irqrestore(&wq->wait.lock, flags);
	}
	rcu_read_unlock();
	return native;
}

/* Wakes a thread that takes it; one in the native accept() would sleep on. */
static void wake_acceptor(struct sock *sk)
{
	sk->sk_data_ready(sk);
	if (hall_accept_is_native(sk))
		hall_out_wake_all(sk);
}

/* Connections that arrive */

/*
 * Besides a full queue there are those that wait for their work item, which may not run
 * while the outsourcer sends.
 */
#define ARRIVING_MAX	256

/* Softirq: one CPU alone hears of the outsourcer's messages at a time. */
static bool has_place(const struct hall_out *listener)
{
	return (unsigned int)atomic_read(&listener->unaccepted) <=
	       READ_ONCE(listener->backlog) + ARRIVING_MAX;
}

struct hall_channel *hall_listener_meet(struct hall_member *member,
					const struct hallway_message *offer)
{
	struct hall_out *out, *listener;
	struct hall_channel *channel;

	channel = hall_channel_find(member, offer->offer.call.listener);
	if (!channel)
		return NULL;
	listener = hall_out_of(channel);
	out = channel->kind == &hall_out_listener && has_place(listener) ?
		      hall_out_new(&hall_out_socket, member, GFP_ATOMIC) : NULL;
	if (!out) {
		hall_channel_put(channel);
		return NULL;
	}
	atomic_inc(&listener->unaccepted);
	out->listener = listener;
	/* It has no endpoint of its own before accept(). */
	out->held = hall_channel_hold(member);
	if (!out->held) {
		hall_out_put(out);
		return NULL;
	}
	return &out->channel;
}

/* Mutex. The outsourcer resets the connection. */
static void decline_arrival(struct hall_out *out)
{
	hall_channel_send(&out->channel, HALLWAY_DECLINE, HALL_OUT_CARRIER,
			  HALLWAY_REASON_STATE, 0);
	hall_out_free_tx(out);
	hall_out_unmap(out);
	smp_store_release(&out->state, HALL_OUT_REFUSED);
	out->closed = true;
	/* It has a number if accept() found no memory for its ring. */
	hall_out_close_channel(out);
}

void hall_listener_take(struct hall_out *out, struct hallway_message *offer)
{
	struct hall_out *listener = out->listener;
	bool taken = false;

	if (out->closed || hall_out_map(out, offer)) {
		hall_channel_decline(out->channel.member, offer,
				     HALLWAY_REASON_STATE);
		return;
	}
	/* Programs trust addresses of this guest; on the host 127.0.0.1 is any local user. */
	if (!hall_address_leads_out(&out->remote)) {
		decline_arrival(out);
		return;
	}
	mutex_lock_nested(&listener->mutex, SINGLE_DEPTH_NESTING);
	/* A program may have closed it, or set an option that packets must meet. */
	if (listener->sk->sk_state != TCP_LISTEN ||
	    !hall_outsource_may_publish(listener->sk))
		hall_listener_close(listener);
	if (!listener->closed && listener->arrived <= listener->backlog) {
		refcount_inc(&out->channel.refs);
		list_add_tail(&out->arrival, &listener->arrivals);
		listener->arrived++;
		taken = true;
		wake_acceptor(listener->sk);
	}
	hall_out_unlock(listener);
	if (!taken)
		decline_arrival(out);
}

void hall_listener_drop(struct hall_out *out)
{
	if (!out->sk && out->state == HALL_OUT_CALLING)
		decline_arrival(out);
}

static void close_listener(struct hall_out *out)
{
	struct hall_out *arrival, *next;

	out->closed = true;
	/* Its number is free once the outsourcer has answered: hall_listener_end(). */
	if (out->state == HALL_OUT_CONNECTED)
		hall_channel_send(&out->channel, HALLWAY_DONE, HALL_OUT_CARRIER,
				  0, 0);
	/* The program may listen again before the answer: the port has to be free. */
	else if (out->state == HALL_OUT_CALLING && out->channel.endpoint)
		hall_channel_send(&out->channel, HALLWAY_DECLINE, HALL_OUT_CARRIER,
				  HALLWAY_REASON_STATE, 0);
	list_for_each_entry_safe(arrival, next, &out->arrivals, arrival) {
		list_del_init(&arrival->arrival);
		/* Its mutex comes before ours. */
		hall_channel_raise(&arrival->channel, HALL_EVENT_ABANDONED);
		hall_out_put(arrival);
	}
	out->arrived = 0;
	/* listen() waits no longer. */
	hall_out_wake_all(out->sk);
}

void hall_listener_close(struct hall_out *out)
{
	if (!out->closed)
		close_listener(out);
	/* Not before: the next object would ask for a port that is not free yet. */
	hall_out_unpublish(out);
}

/* accept() */

/* A thread that sleeps in it. */
struct sleeper {
	struct list_head list;
	struct sock *sk;
};

static DEFINE_SPINLOCK(lock);
static LIST_HEAD(sleepers);	/* under lock */
static bool stopped;

static void add_sleeper(struct sleeper *sleeper)
{
	spin_lock(&lock);
	list_add(&sleeper->list, &sleepers);
	spin_unlock(&lock);
}

static void remove_sleeper(struct sleeper *sleeper)
{
	spin_lock(&lock);
	list_del(&sleeper->list);
	spin_unlock(&lock);
}

void hall_accept_stop(void)
{
	struct sleeper *sleeper;

	WRITE_ONCE(stopped, true);
	spin_lock(&lock);
	list_for_each_entry(sleeper, &sleepers, list)
		wake_up_all(sk_sleep(sleeper->sk));
	spin_unlock(&lock);
}

static struct hall_out *pop_arrival(struct hall_out *listener)
{
	struct hall_out *out;

	mutex_lock(&listener->mutex);
	out = list_first_entry_or_null(&listener->arrivals, struct hall_out,
				       arrival);
	if (out) {
		list_del_init(&out->arrival);
		listener->arrived--;
	}
	hall_out_unlock(listener);
	return out;
}

/* The socket layer made `fresh` without a struct sock: it gets a new one. */
static int graft_sock(struct sock *listener, struct socket *fresh)
{
	struct socket *sock;
	struct sock *sk;
	int err;

	err = __sock_create(sock_net(listener), listener->sk_family, SOCK_STREAM,
			    IPPROTO_TCP, &sock, 0);
	if (err)
		return err;
	sk = sock->sk;
	lock_sock(sk);
	sock->sk = NULL;
	sock_graft(sk, fresh);
	/* As accept() does natively. */
	if (test_bit(SOCK_SUPPORT_ZC, &sock->flags))
		set_bit(SOCK_SUPPORT_ZC, &fresh->flags);
	hall_options_inherit(sk, listener);
	release_sock(sk);
	/* It has no sk, so its release is native's. */
	sock->ops = hall_tables_of(sk)->native;
	sock_release(sock);
	return 0;
}

static int accept_arrival(struct hall_out *out, struct sock *listener,
			  struct socket *fresh)
{
	struct hallway_call call = { };
	int err;

	mutex_lock(&out->mutex);
	if (out->state != HALL_OUT_CALLING || !out->mapped) {
		err = -ECONNABORTED;
	} else {
		call.answers = out->channel.sender;
		err = graft_sock(listener, fresh);
		/* Errors of memory end some servers, and the peer has caused this one. */
		if (!err && hall_out_offer(out, fresh->sk, &call))
			err = -ECONNABORTED;
	}
	if (err) {
		if (out->state == HALL_OUT_CALLING)
			decline_arrival(out);
		goto unlock;
	}
	/* From here on the endpoint's number keeps the member's memory. */
	hall_channel_release(out->channel.member);
	out->held = false;
	hall_out_leave_listener(out);
	hall_out_publish(out, fresh->sk);
	fresh->state = SS_CONNECTED;
	smp_store_release(&fresh->ops, &hall_tables_of(fresh->sk)->stream);
	smp_store_release(&out->state, HALL_OUT_CONNECTED);
	hall_count(HALL_OUTSOURCE_ARRIVALS);
unlock:
	hall_out_unlock(out);
	hall_out_put(out);
	return err;
}

#ifdef HALL_HAS_ACCEPT_ARG
#define ACCEPT_PARAMS	struct proto_accept_arg *arg
#define ACCEPT_PASS	arg
#define ACCEPT_FLAGS	(arg->flags)

static int accept_now(struct socket *sock, struct socket *fresh,
		      ACCEPT_PARAMS)
{
	struct proto_accept_arg now = *arg;

	now.flags |= O_NONBLOCK;
	return hall_tables_of(sock->sk)->native->accept(sock, fresh, &now);
}
#else
#define ACCEPT_PARAMS	int flags, bool kern
#define ACCEPT_PASS	flags, kern
#define ACCEPT_FLAGS	flags

static int accept_now(struct socket *sock, struct socket *fresh,
		      ACCEPT_PARAMS)
{
	return hall_tables_of(sock->sk)->native->accept(sock, fresh,
							flags | O_NONBLOCK, kern);
}
#endif

/*
 * Takes from either queue, by turns while both have something: clients that come all the
 * time by one way do not keep those of the other waiting.
 */
static int accept_any(struct socket *sock, struct socket *fresh, ACCEPT_PARAMS)
{
	struct hall_out *listener = hall_out_get(sock->sk), *arrival = NULL;
	int err = -EAGAIN;

	if (listener) {
		hall_listener_note_call(listener);
		if (READ_ONCE(listener->took_arrival) &&
		    !reqsk_queue_empty(&inet_csk(sock->sk)->icsk_accept_queue))
			err = accept_now(sock, fresh, ACCEPT_PASS);
		if (err == -EAGAIN)
			arrival = pop_arrival(listener);
		WRITE_ONCE(listener->took_arrival, !!arrival);
		hall_out_put(listener);
	}
	if (arrival)
		return accept_arrival(arrival, sock->sk, fresh);
	return err == -EAGAIN ? accept_now(sock, fresh, ACCEPT_PASS) : err;
}

static noinline int sleep_in_accept(struct socket *sock, struct socket *fresh,
				    long timeo, ACCEPT_PARAMS)
{
	struct sleeper sleeper = { .sk = sock->sk };
	wait_queue_head_t *queue = sk_sleep(sock->sk);
	bool last = false;
	int err;

	add_sleeper(&sleeper);
	do {
		DEFINE_WAIT_FUNC(wait, woken_wake_function);

		add_wait_queue_exclusive(queue, &wait);
		err = accept_any(sock, fresh, ACCEPT_PASS);
		if (err == -EAGAIN && READ_ONCE(stopped))
			err = HALL_NATIVE;
		else if (err == -EAGAIN && timeo && signal_pending(current))
			err = sock_intr_errno(timeo);
		else if (err == -EAGAIN && timeo)
			timeo = wait_woken(&wait, TASK_INTERRUPTIBLE, timeo);
		else
			last = true;
		remove_wait_queue(queue, &wait);
		/* After the time is over, too: it may have been the one to be woken. */
	} while (err == -EAGAIN && !last);
	remove_sleeper(&sleeper);
	return err;
}

int hall_watched_accept(struct socket *sock, struct socket *fresh, ACCEPT_PARAMS)
{
	const struct proto_ops *native = hall_tables_of(sock->sk)->native;
	long timeo = sock_rcvtimeo(sock->sk, ACCEPT_FLAGS & O_NONBLOCK);
	int err;

	/* The socket layer gave it the listener's table. */
	fresh->ops = native;
	/* A sleeper is counted before it looks whether the module goes. */
	hall_out_enter();
	err = timeo ? sleep_in_accept(sock, fresh, timeo, ACCEPT_PASS) :
		      accept_any(sock, fresh, ACCEPT_PASS);
	hall_out_leave();
	if (err != HALL_NATIVE)
		return err;
	return native->accept(sock, fresh, ACCEPT_PASS);
}

/* As TCP: the socket does not listen. */
int hall_out_accept(struct socket *sock, struct socket *fresh, ACCEPT_PARAMS)
{
	return -EINVAL;
}

/* Other calls of watched sockets */

int hall_watched_getname(struct socket *sock, struct sockaddr *address, int peer)
{
	/* do_accept() of some kernels asks the listener's table for the new socket. */
	const struct proto_ops *ops = READ_ONCE(sock->ops);

	if (ops->getname == hall_watched_getname)
		ops = hall_tables_of(sock->sk)->native;
	return ops->getname(sock, address, peer);
}
