// SPDX-License-Identifier: GPL-2.0-only
/* Making, finding, working and freeing of a hall_out. */
#include "out.h"

#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/rculist.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <net/tcp_states.h>

#include "../sock/lookup.h"
#include "../sock/spin.h"
#include "datagrams.h"
#include "room.h"

static DEFINE_SPINLOCK(lock);		/* BH; writers of the hash */
static DEFINE_HASHTABLE(by_sock, 10);
static atomic_t existing = ATOMIC_INIT(0);

void (*hall_out_run_events)(struct hall_out *out, unsigned long events);

struct hall_out *hall_out_get(const struct sock *sk)
{
	struct hall_out *out;

	rcu_read_lock();
	hash_for_each_possible_rcu(by_sock, out, hash, (unsigned long)sk)
		if (out->sk == sk && hall_channel_tryget(&out->channel))
			break;
	rcu_read_unlock();
	return out;
}

struct hall_out *hall_out_get_connection(const struct sock *sk)
{
	struct hall_out *out = hall_out_get(sk);

	if (!out || out->channel.kind == &hall_out_socket)
		return out;
	hall_out_put(out);
	return NULL;
}

void hall_out_put(struct hall_out *out)
{
	hall_channel_put(&out->channel);
}

void hall_out_publish(struct hall_out *out, struct sock *sk)
{
	refcount_inc(&out->channel.refs);
	sock_hold(sk);
	out->sk = sk;
	spin_lock_bh(&lock);
	hash_add_rcu(by_sock, &out->hash, (unsigned long)sk);
	spin_unlock_bh(&lock);
}

void hall_out_unpublish(struct hall_out *out)
{
	bool found;

	spin_lock_bh(&lock);
	found = hash_hashed(&out->hash);
	hash_del_rcu(&out->hash);
	spin_unlock_bh(&lock);
	if (found)
		hall_out_put(out);
}

struct hall_out *hall_out_get_any(void)
{
	struct hall_out *out;
	int bucket;

	rcu_read_lock();
	hash_for_each_rcu(by_sock, bucket, out, hash)
		if (hall_channel_tryget(&out->channel))
			break;
	rcu_read_unlock();
	return out;
}

/* A UDP socket is native, and known by the addresses that it has here. */
static void describe_datagram(const struct hall_out *out, struct hall_outsourced *to)
{
	const struct sock *sk = out->sk;
	const struct inet_sock *inet = inet_sk(sk);

	to->datagram = true;
	to->state = READ_ONCE(sk->sk_state);
	to->local_port = READ_ONCE(inet->inet_num);
	hall_sock_read_local(sk, &to->local);
	if (to->state == TCP_ESTABLISHED) {
		to->remote_port = ntohs(READ_ONCE(inet->inet_dport));
		hall_sock_read_remote(sk, &to->remote);
	} else if (sk->sk_family == AF_INET) {
		ipv6_addr_set_v4mapped(0, &to->remote);
	}
}

/* Takes no mutex: a thread may hold it for any time. */
static bool describe(const struct hall_out *out, struct hall_outsourced *to)
{
	enum hall_out_state state = hall_out_state(out);
	bool listens = out->channel.kind == &hall_out_listener;

	if (state != HALL_OUT_CONNECTED &&
	    (listens || out->datagrams || state != HALL_OUT_CALLING))
		return false;
	to->local = out->local;
	to->remote = out->remote;
	to->local_port = out->local_port;
	to->remote_port = out->remote_port;
	to->datagram = false;
	if (out->datagrams)
		describe_datagram(out, to);
	else if (listens)
		to->state = TCP_LISTEN;
	else if (state == HALL_OUT_CALLING)
		to->state = TCP_SYN_SENT;
	else
		to->state = READ_ONCE(out->ended) ? TCP_FIN_WAIT2 : TCP_ESTABLISHED;
	to->tx_bytes = READ_ONCE(out->tx_bytes);
	to->rx_bytes = READ_ONCE(out->rx_bytes);
	to->peer = out->channel.member->name;
	return true;
}

void hall_out_walk(void (*fn)(struct hall_out *out, void *data), void *data)
{
	unsigned int room = hall_out_count() + 64, n = 0, bucket, i;
	struct hall_out **found, *out;

	/* Without it `hallway outsource off` would withdraw nothing. */
	found = kvmalloc_array(room, sizeof(*found), GFP_KERNEL | __GFP_NOFAIL);
	rcu_read_lock();
	hash_for_each_rcu(by_sock, bucket, out, hash)
		if (n < room && hall_channel_tryget(&out->channel))
			found[n++] = out;
	rcu_read_unlock();
	for (i = 0; i < n; i++) {
		fn(found[i], data);
		hall_out_put(found[i]);
	}
	kvfree(found);
}

struct walk {
	void (*fn)(const struct hall_outsourced *one, void *data);
	void *data;
};

static void describe_one(struct hall_out *out, void *data)
{
	const struct walk *walk = data;
	struct hall_outsourced one;

	if (describe(out, &one))
		walk->fn(&one, walk->data);
}

void hall_outsource_walk(void (*fn)(const struct hall_outsourced *one, void *data),
			 void *data)
{
	struct walk walk = { .fn = fn, .data = data };

	hall_out_walk(describe_one, &walk);
}

void hall_out_wake_all(struct sock *sk)
{
	struct socket_wq *wq;

	/* The program may have closed it. */
	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_all(&wq->wait);
	rcu_read_unlock();
}

void hall_out_enter(void)
{
	atomic_inc(&existing);
}

void hall_out_leave(void)
{
	atomic_dec(&existing);
}

unsigned int hall_out_count(void)
{
	return atomic_read(&existing);
}

static void free_out(struct rcu_head *rcu)
{
	struct hall_out *out = container_of(rcu, struct hall_out, rcu);

	if (out->datagrams)
		__skb_queue_purge(&out->datagrams->returned);
	kvfree(out->datagrams);
	kfree(out);
}

void hall_out_leave_listener(struct hall_out *out)
{
	atomic_dec(&out->listener->unaccepted);
	hall_out_put(out->listener);
	out->listener = NULL;
}

void hall_out_free_rest(struct hall_out *out)
{
	kvfree(out->rest);
	out->rest = NULL;
	hall_member_uncharge(out->channel.member, out->rest_len);
	hall_copied_uncharge(out->rest_len);
	spin_lock_bh(&out->channel.lock);
	out->rest_len = 0;
	out->rest_at = 0;
	spin_unlock_bh(&out->channel.lock);
}

/* Any context: the last reference is gone. */
void hall_out_release_channel(struct hall_channel *channel)
{
	struct hall_out *out = hall_out_of(channel);

	if (out->sk)
		sock_put(out->sk);
	if (out->held)
		hall_channel_release(channel->member);
	if (out->listener)
		hall_out_leave_listener(out);
	hall_out_free_rest(out);
	call_rcu(&out->rcu, free_out);
	atomic_dec(&existing);
}

void hall_out_queue_work(struct hall_channel *channel)
{
	struct hall_out *out = hall_out_of(channel);

	refcount_inc(&channel->refs);
	if (!queue_work(hall_workqueue, &out->work))
		hall_out_put(out);
}

/* The socket of a connect() that is not answered: what comes may make it native again. */
static struct sock *find_calling(const struct hall_out *out)
{
	return out->channel.kind == &hall_out_socket && out->state == HALL_OUT_CALLING ?
		       out->sk : NULL;
}

static void run_work(struct work_struct *work)
{
	struct hall_out *out = container_of(work, struct hall_out, work);
	/* The socket may be that of a disk on which memory waits to be written. */
	unsigned int noio = memalloc_noio_save();
	struct sock *sk;

	/*
	 * A thread in a call may hold the mutex for as long as its program likes, in
	 * a page fault: it queues this again when it unlocks.
	 */
	if (!mutex_trylock(&out->mutex)) {
		WRITE_ONCE(out->awaited, true);
		smp_mb();
		if (!mutex_trylock(&out->mutex))
			goto put;
	}
	WRITE_ONCE(out->awaited, false);
	sk = find_calling(out);
	if (!sk || hall_turn_trylock(&out->turn, sk)) {
		hall_out_run_events(out, xchg(&out->channel.events, 0));
		if (sk)
			release_sock(sk);
	}
	mutex_unlock(&out->mutex);
put:
	hall_out_put(out);
	memalloc_noio_restore(noio);
}

void hall_out_unlock(struct hall_out *out)
{
	mutex_unlock(&out->mutex);
	smp_mb();
	if (READ_ONCE(out->awaited))
		hall_out_queue_work(&out->channel);
}

struct hall_out *hall_out_new(const struct hall_channel_kind *kind,
			      struct hall_member *member, gfp_t gfp)
{
	struct hall_out *out = kzalloc(sizeof(*out), gfp);

	if (!out)
		return NULL;
	atomic_inc(&existing);
	hall_channel_setup(&out->channel, kind, member);
	hall_turn_init(&out->turn, &out->channel);
	INIT_HLIST_NODE(&out->hash);
	INIT_LIST_HEAD(&out->arrivals);
	INIT_LIST_HEAD(&out->arrival);
	INIT_WORK(&out->work, run_work);
	mutex_init(&out->mutex);
	init_waitqueue_head(&out->answers);
	out->spin_credit = HALL_SPIN_CREDIT;
	return out;
}
