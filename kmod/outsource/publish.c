// SPDX-License-Identifier: GPL-2.0-only
/*
 * How a listener comes to be published. The native one stays, and the outsourcer
 * listens too if its policy publishes the port: clients in this guest, by the NIC and
 * by the host all reach one listener, and when the host's part goes the others notice
 * nothing.
 *
 * listen() asks the outsourcer and waits for the answer. Listeners that are there when
 * an outsourcer arrives are found in TCP's table, and it is asked for each. One that
 * was made before the first outsourcer may have a thread in the native accept(), which
 * does not look at our queue: it is asked for when a call comes through our table,
 * unless all that wait for it are pollers.
 *
 * The same listeners are looked for when the outsourcer says that its policy publishes
 * other ports. One for which it was asked under the policy before may be refused after
 * that: they are looked for once more then.
 */
#include "listeners.h"

#include <net/inet_hashtables.h>
#include <net/tcp.h>

#include "../obs/counters.h"
#include "calls.h"
#include "datagrams.h"
#include "decide.h"
#include "hook.h"
#include "ports.h"
#include "room.h"

/* How soon to look again at sockets that were locked. */
#define AGAIN		(HZ / 4)
/* Between two times that the host has all listeners looked for, at least. */
#define POLICY		(HZ / 5)

static unsigned int policy;	/* counts those of which the outsourcer has said so */
static bool stopped;

static void publish_all(struct work_struct *work);
static DECLARE_DELAYED_WORK(publish_work, publish_all);

/* A listener that its program has closed is in scope: nothing is left to withdraw. */
static bool is_in_scope(struct sock *sk)
{
	const struct socket *sock;
	bool in;

	rcu_read_lock();
	sock = READ_ONCE(sk->sk_socket);
	in = !sock || hall_scope_has(sk, READ_ONCE(sock->ops));
	rcu_read_unlock();
	return in;
}

/*
 * May a thread be in the native accept(), or about to be? Pollers alone show that
 * there is none.
 */
static bool may_be_in_accept(struct sock *sk, bool native_till_now)
{
	if (hall_accept_is_native(sk))
		return true;
	/* One that goes to sleep now is about to be there: no barrier is needed. */
	return native_till_now && !waitqueue_active(sk_sleep(sk));
}

static bool is_listening(const struct sock *sk)
{
	return sk->sk_state == TCP_LISTEN;
}

/*
 * The listener's object, in the hash, or NULL: it is no listener any more, another
 * thread has published it, or there is no outsourcer.
 */
static struct hall_out *make_listener(struct socket *sock, bool native_till_now, gfp_t gfp)
{
	struct sock *sk = sock->sk;
	unsigned int backlog = max(READ_ONCE(sk->sk_max_ack_backlog), 1U);
	struct hall_member *member;
	struct hall_out *out;

	if (!hall_is_watched(sock) || !is_listening(sk) ||
	    !hall_outsource_may_publish(sk) || !is_in_scope(sk))
		return NULL;
	out = hall_out_get(sk);
	if (out) {
		WRITE_ONCE(out->backlog, backlog);
		hall_out_put(out);
		return NULL;
	}
	member = hall_members_get_outsourcer();
	if (!member)
		return NULL;
	out = hall_out_new(&hall_out_listener, member, gfp);
	hall_member_put(member);
	if (!out)
		return NULL;
	out->backlog = backlog;
	out->pending = may_be_in_accept(sk, native_till_now);
	hall_out_publish(out, sk);
	return out;
}

/* Mutex. The answer is the work item's. */
static void ask_outsourcer(struct hall_out *out)
{
	static const struct hallway_handle none;
	struct hallway_call call = { };

	out->pending = false;
	out->policy = READ_ONCE(policy);
	/* Asked already, for a call that came meanwhile? */
	if (out->closed || out->channel.endpoint)
		return;
	hall_port_describe(out, out->sk, &call);
	/* Without a number it is as if the policy did not publish the port. */
	if (!READ_ONCE(hall_outsourcing) || !is_in_scope(out->sk) ||
	    hall_channel_open(&out->channel)) {
		hall_listener_end(out, EACCES);
		/* No DEPARTED comes for a channel without a number. */
		if (READ_ONCE(out->channel.member->departed))
			hall_publish_listeners();
		return;
	}
	hall_channel_call(&out->channel, HALL_OUT_CARRIER, &call, &out->local,
			  out->local_port, &out->remote, 0, out->backlog, &none);
}

void hall_listener_ask(struct hall_out *out)
{
	if (out->pending)
		ask_outsourcer(out);
}

/* The end of a published listener */

void hall_listener_end(struct hall_out *out, int error)
{
	out->error = error;
	smp_store_release(&out->state, HALL_OUT_REFUSED);
	hall_listener_close(out);
	hall_channel_close(&out->channel);
	if (out->policy != READ_ONCE(policy))
		queue_delayed_work(hall_control_queue, &publish_work, POLICY);
}

void hall_listener_forget(const struct sock *sk)
{
	struct hall_out *out = hall_out_get(sk);

	if (!out)
		return;
	/* Another thread's connect() may have had the socket outsourced. */
	if (out->channel.kind == &hall_out_listener) {
		mutex_lock(&out->mutex);
		hall_listener_close(out);
		hall_out_unlock(out);
	}
	hall_out_put(out);
}

/* How they are found, and listen() */

/* Of one bucket, from a position on; returns the next one. */
static unsigned int collect_listeners(unsigned int number, unsigned int from,
				      struct hall_port_batch *batch)
{
	struct inet_hashinfo *table = init_net.ipv4.tcp_death_row.hashinfo;
	struct inet_listen_hashbucket *bucket = &table->lhash2[number];
	struct hlist_nulls_node *node;
	unsigned int at = 0;
	struct sock *sk;

	spin_lock(&bucket->lock);
	sk_nulls_for_each(sk, node, &bucket->nulls_head)
		if (at++ >= from && hall_port_collect(batch, sk))
			break;
	spin_unlock(&bucket->lock);
	return at;
}

static const struct hall_port_kind listener = {
	.has_port = is_listening,
	.make = make_listener,
	.ask = ask_outsourcer,
	.close = hall_listener_close,
	.collect = collect_listeners,
};

int hall_watched_listen(struct socket *sock, int backlog)
{
	const struct proto_ops *native = hall_tables_of(sock->sk)->native;
	int err;

	/* It sleeps before there is an object. */
	hall_out_enter();
	err = native->listen(sock, backlog);
	if (!err) {
		err = hall_port_publish(&listener, sock);
		/* The port is taken on the host, say: it is no listener after all. */
		if (err)
			native->shutdown(sock, SHUT_RD);
	}
	hall_out_leave();
	return err;
}

int hall_watched_release(struct socket *sock)
{
	const struct proto_ops *native;

	if (!sock->sk)
		return 0;
	native = hall_tables_of(sock->sk)->native;
	if (is_listening(sock->sk))
		hall_exclude(sock);
	hall_listener_forget(sock->sk);
	return native->release(sock);
}

static unsigned int walk_listeners(void)
{
	struct inet_hashinfo *table = init_net.ipv4.tcp_death_row.hashinfo;

	return hall_port_walk(&listener, table->lhash2_mask);
}

static void publish_all(struct work_struct *work)
{
	/* The outsourcer may ask for them till the transports have stopped. */
	if (READ_ONCE(hall_outsourcing) && !READ_ONCE(stopped) &&
	    walk_listeners() + hall_bound_walk())
		queue_delayed_work(hall_control_queue, &publish_work, AGAIN);
}

void hall_publish_listeners(void)
{
	mod_delayed_work(hall_control_queue, &publish_work, 0);
}

/* Softirq: one CPU alone hears of the outsourcer's messages at a time. */
void hall_publish_by_policy(void)
{
	WRITE_ONCE(policy, policy + 1);
	queue_delayed_work(hall_control_queue, &publish_work, POLICY);
}

void hall_publish_stop(void)
{
	WRITE_ONCE(stopped, true);
	cancel_delayed_work_sync(&publish_work);
}

static void withdraw_one(struct hall_out *out, void *data)
{
	bool listens = out->channel.kind == &hall_out_listener;

	if ((!listens && !(out->datagrams && out->datagrams->published)) ||
	    (READ_ONCE(hall_outsourcing) && is_in_scope(out->sk)))
		return;
	/* A program may have the mutex of this one for as long as it likes. */
	if (!listens) {
		hall_channel_raise(&out->channel, HALL_EVENT_ABANDONED);
		return;
	}
	mutex_lock(&out->mutex);
	hall_listener_close(out);
	hall_out_unlock(out);
}

void hall_withdraw_listeners(void)
{
	hall_out_walk(withdraw_one, NULL);
}
