// SPDX-License-Identifier: GPL-2.0
/*
 * Connections that existed before the module was loaded, or before their peer
 * joined, are found in TCP's table of established sockets and attached like new
 * ones. Threads may be in native calls on them: see hall_sock_check_quiet().
 *
 * A scan waits for no socket: a thread may hold its lock without limit, by sending
 * memory that a program pages in. It looks at such a socket again a little later.
 * Peers can cause scans by publishing addresses, so there is a pause after each.
 *
 * Connections to candidates are only counted: their traffic shows for which of
 * them a region is worth asking. No event shows that an old connection is in use
 * again, so they are counted once a second, while there are candidates.
 */
#include "switch.h"

#include <linux/sched.h>
#include <net/inet_hashtables.h>
#include <net/net_namespace.h>

#include "../sock/lookup.h"

#define BATCH	64
#define COUNT	HZ
#define ENOUGH	16384		/* bytes a second to ask for a region */
#define PAUSE	(HZ / 20)	/* between two scans */
#define AGAIN	(HZ / 4)	/* between two scans for locked sockets, at most */

static void run_scan(struct work_struct *work);
static DECLARE_DELAYED_WORK(scan_work, run_scan);
static unsigned long rested;	/* jiffies: not before; run_scan() only */
static unsigned long again;	/* jiffies until locked sockets are looked at again */
static unsigned int locked;	/* locked sockets that this scan found */

static void run_count(struct work_struct *work);
static DECLARE_DELAYED_WORK(count_work, run_count);

static struct hall_member *find_member(const struct sock *sk)
{
	struct in6_addr remote;

	hall_sock_read_remote(sk, &remote);
	return hall_members_find(&remote);
}

/* Fills the batch from one bucket, skipping the first ones. Returns the count. */
static unsigned int collect_batch(struct net *net, struct inet_hashinfo *table,
				  unsigned int bucket, unsigned int skip,
				  struct sock **batch)
{
	spinlock_t *lock = inet_ehash_lockp(table, bucket);
	struct hlist_nulls_node *node;
	unsigned int n = 0;
	struct sock *sk;

	spin_lock_bh(lock);
	sk_nulls_for_each(sk, node, &table->ehash[bucket].chain) {
		if (sk->sk_state != TCP_ESTABLISHED ||
		    !net_eq(sock_net(sk), net) || skip-- > 0)
			continue;
		skip = 0;
		if (n < BATCH && refcount_inc_not_zero(&sk->sk_refcnt))
			batch[n++] = sk;
	}
	spin_unlock_bh(lock);
	return n;
}

static void attach_one(struct sock *sk)
{
	struct hall_member *member;

	rcu_read_lock();
	member = find_member(sk);
	if (!member || !hall_can_attach(sk))
		goto unlock;
	spin_lock_bh(&sk->sk_lock.slock);
	if (sock_owned_by_user(sk))
		locked++;
	else if (sk->sk_state == TCP_ESTABLISHED &&
		 READ_ONCE(hall_enabled) && find_member(sk) == member)
		hall_attach(sk, member, true);
	spin_unlock_bh(&sk->sk_lock.slock);
unlock:
	rcu_read_unlock();
}

static void count_bytes(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct in6_addr remote;

	hall_sock_read_remote(sk, &remote);
	hall_candidates_count(&remote, READ_ONCE(tp->bytes_acked) +
				       READ_ONCE(tp->bytes_received));
}

static void scan_net(struct net *net, void (*visit)(struct sock *sk))
{
	struct inet_hashinfo *table = net->ipv4.tcp_death_row.hashinfo;
	struct sock *batch[BATCH];
	unsigned int bucket, n, i, skip;

	for (bucket = 0; bucket <= table->ehash_mask; bucket++) {
		if (hlist_nulls_empty(&table->ehash[bucket].chain))
			continue;
		skip = 0;
		do {
			n = collect_batch(net, table, bucket, skip, batch);
			for (i = 0; i < n; i++) {
				visit(batch[i]);
				sock_put(batch[i]);
			}
			skip += n;
		} while (n == BATCH);
		cond_resched();
	}
}

static void scan_all(void (*visit)(struct sock *sk))
{
	struct net *net;

	down_read(&net_rwsem);
	for_each_net(net)
		scan_net(net, visit);
	up_read(&net_rwsem);
}

static void run_scan(struct work_struct *work)
{
	if (!READ_ONCE(hall_enabled))
		return;
	if (time_before(jiffies, rested)) {
		queue_delayed_work(hall_workqueue, &scan_work, rested - jiffies);
		return;
	}
	locked = 0;
	scan_all(attach_one);
	rested = jiffies + PAUSE;
	if (!locked)
		return;
	queue_delayed_work(hall_workqueue, &scan_work, READ_ONCE(again));
	WRITE_ONCE(again, min_t(unsigned long, 2 * READ_ONCE(again), AGAIN));
}

static void run_count(struct work_struct *work)
{
	if (!READ_ONCE(hall_enabled) || !hall_candidates_count_begin())
		return;
	scan_all(count_bytes);
	hall_candidates_count_end(ENOUGH);
	queue_delayed_work(hall_workqueue, &count_work, COUNT);
}

static void queue_count(void)
{
	queue_delayed_work(hall_workqueue, &count_work, 0);
}

void hall_scan(void)
{
	WRITE_ONCE(again, PAUSE);
	mod_delayed_work(hall_workqueue, &scan_work, 0);
	queue_count();
}

int hall_scan_init(void)
{
	rested = jiffies;
	hall_discovery_handler.served = hall_scan;
	hall_discovery_handler.candidates = queue_count;
	return 0;
}

void hall_scan_uninit(void)
{
	cancel_delayed_work_sync(&scan_work);
	cancel_delayed_work_sync(&count_work);
}
