// SPDX-License-Identifier: GPL-2.0-only
/*
 * Connections that existed before the module was loaded, or before their peer
 * joined, are found in TCP's table of established sockets and attached like new
 * ones. Threads may be in native calls on them: see hall_sock_check_quiet().
 *
 * A scan waits for no socket: a thread may hold its lock without limit, by sending
 * memory that a program pages in. It looks at such a socket again a little later.
 * Peers can cause scans by publishing addresses, so there is a pause after each, of
 * fifty times what the scan took.
 *
 * Namespaces share TCP's table, but for those that have one of their own. Each
 * table is walked once.
 *
 * Connections to candidates are only counted: their traffic shows for which of
 * them a region is worth asking. No event shows that an old connection is in use
 * again, so they are counted once a second, while there are candidates.
 */
#include "switch.h"

#include <linux/ktime.h>
#include <linux/sched.h>
#include <net/inet_hashtables.h>
#include <net/net_namespace.h>

#include "../obs/counters.h"
#include "../sock/lookup.h"

#define BATCH	64
#define COUNT	HZ
#define ENOUGH	16384		/* bytes a second to ask for a region */
#define PAUSE	(HZ / 20)	/* between two scans, at least */
#define SHARE	50		/* of a scan's time, too */
#define AGAIN	(HZ / 4)	/* between two scans for locked sockets, at most */

static void run_scan(struct work_struct *work);
static DECLARE_DELAYED_WORK(scan_work, run_scan);
static unsigned long rested;	/* jiffies: not before; run_scan() only */
static unsigned long again;	/* jiffies until locked sockets are looked at again */
static unsigned int locked;	/* locked sockets that this scan found */

static void run_count(struct work_struct *work);
static DECLARE_DELAYED_WORK(count_work, run_count);
static unsigned long counted;	/* jiffies: not before; run_count() only */

static struct hall_member *find_member(const struct sock *sk)
{
	struct in6_addr remote;

	hall_sock_read_remote(sk, &remote);
	return hall_members_find(&remote);
}

/* Something done to an established socket, in a work item. */
struct visit {
	/* Under the bucket's lock. True: visit() is called. */
	bool (*pick)(struct sock *sk);
	void (*visit)(struct sock *sk);
};

/*
 * Fills the batch with those that are picked from one bucket, from a position on
 * that is moved behind them. Returns their count.
 */
static unsigned int collect_batch(struct inet_hashinfo *table,
				  unsigned int bucket, unsigned int *from,
				  bool (*pick)(struct sock *sk),
				  struct sock **batch)
{
	spinlock_t *lock = inet_ehash_lockp(table, bucket);
	struct hlist_nulls_node *node;
	unsigned int at = 0, n = 0;
	struct sock *sk;

	spin_lock_bh(lock);
	sk_nulls_for_each(sk, node, &table->ehash[bucket].chain) {
		if (sk->sk_state != TCP_ESTABLISHED || at++ < *from ||
		    !pick(sk) || !refcount_inc_not_zero(&sk->sk_refcnt))
			continue;
		batch[n++] = sk;
		if (n == BATCH)
			break;
	}
	spin_unlock_bh(lock);
	*from = at;
	return n;
}

/* The bucket's lock keeps the socket; find_member() is RCU's. */
static bool may_attach(struct sock *sk)
{
	bool may;

	rcu_read_lock();
	may = find_member(sk) && hall_can_attach(sk);
	rcu_read_unlock();
	return may;
}

static void attach_one(struct sock *sk)
{
	struct hall_member *member;

	/* Look first: a busy socket's spinlock is wanted by others. */
	if (READ_ONCE(sk->sk_lock.owned)) {
		locked++;
		return;
	}
	rcu_read_lock();
	member = find_member(sk);
	if (!member || !hall_can_attach(sk))
		goto unlock;
	spin_lock_bh(&sk->sk_lock.slock);
	if (sock_owned_by_user(sk))
		locked++;
	else if (sk->sk_state == TCP_ESTABLISHED &&
		 READ_ONCE(hall_enabled) && find_member(sk) == member)
		hall_attach(sk, member);
	spin_unlock_bh(&sk->sk_lock.slock);
unlock:
	rcu_read_unlock();
}

static const struct visit attaching = {
	.pick = may_attach,
	.visit = attach_one,
};

static bool count_bytes(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct in6_addr remote;

	hall_sock_read_remote(sk, &remote);
	hall_candidates_count(&remote, READ_ONCE(tp->bytes_acked) +
				       READ_ONCE(tp->bytes_received));
	return false;
}

static const struct visit counting = {
	.pick = count_bytes,
};

/* Returns the time that it took in ns, less its pauses. */
static u64 scan_table(struct inet_hashinfo *table, const struct visit *visit)
{
	u64 began = ktime_get_ns(), busy = 0;
	unsigned int bucket, n, i, from;
	struct sock *batch[BATCH];

	for (bucket = 0; bucket <= table->ehash_mask; bucket++) {
		/* A namespace may have millions of buckets, all empty. */
		if (!(bucket % 1024))
			cond_resched();
		if (hlist_nulls_empty(&table->ehash[bucket].chain))
			continue;
		from = 0;
		do {
			n = collect_batch(table, bucket, &from, visit->pick,
					  batch);
			for (i = 0; i < n; i++) {
				visit->visit(batch[i]);
				sock_put(batch[i]);
			}
		} while (n == BATCH);
		busy += ktime_get_ns() - began;
		cond_resched();
		began = ktime_get_ns();
	}
	return busy + ktime_get_ns() - began;
}

static struct inet_hashinfo *table_of(const struct net *net)
{
	return net->ipv4.tcp_death_row.hashinfo;
}

/*
 * Returns the jiffies to rest before the next one. A namespace in use stays in the list,
 * which may be walked on from there.
 */
static unsigned long scan_all(const struct visit *visit)
{
	struct inet_hashinfo *shared = table_of(&init_net);
	u64 busy = scan_table(shared, visit);
	struct net *net;

	rcu_read_lock();
	for_each_net_rcu(net) {
		if (table_of(net) == shared || !maybe_get_net(net))
			continue;
		rcu_read_unlock();
		busy += scan_table(table_of(net), visit);
		rcu_read_lock();
		put_net(net);
	}
	rcu_read_unlock();
	return nsecs_to_jiffies(SHARE * busy);
}

static void run_scan(struct work_struct *work)
{
	if (!READ_ONCE(hall_enabled))
		return;
	if (time_before(jiffies, rested)) {
		queue_delayed_work(hall_control_queue, &scan_work, rested - jiffies);
		return;
	}
	hall_count(HALL_SCANS);
	locked = 0;
	rested = jiffies + max_t(unsigned long, PAUSE, scan_all(&attaching));
	if (!locked)
		return;
	queue_delayed_work(hall_control_queue, &scan_work, READ_ONCE(again));
	WRITE_ONCE(again, min_t(unsigned long, 2 * READ_ONCE(again), AGAIN));
}

static void run_count(struct work_struct *work)
{
	unsigned long pause;

	if (!READ_ONCE(hall_enabled))
		return;
	/* Peers can ask for it at any time. */
	if (time_before(jiffies, counted)) {
		queue_delayed_work(hall_control_queue, &count_work,
				   counted - jiffies);
		return;
	}
	if (!hall_candidates_count_begin())
		return;
	pause = scan_all(&counting);
	counted = jiffies + pause;
	hall_candidates_count_end(ENOUGH);
	queue_delayed_work(hall_control_queue, &count_work,
			   max_t(unsigned long, COUNT, pause));
}

static void queue_count(void)
{
	queue_delayed_work(hall_control_queue, &count_work, 0);
}

void hall_scan(void)
{
	WRITE_ONCE(again, PAUSE);
	mod_delayed_work(hall_control_queue, &scan_work, 0);
	queue_count();
}

void hall_scan_init(void)
{
	rested = jiffies;
	counted = jiffies;
	hall_discovery_handler.served = hall_scan;
	hall_discovery_handler.candidates = queue_count;
}

void hall_scan_uninit(void)
{
	cancel_delayed_work_sync(&scan_work);
	cancel_delayed_work_sync(&count_work);
}
