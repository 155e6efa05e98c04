// SPDX-License-Identifier: GPL-2.0
/*
 * Both locks of a socket for the work item, which must not wait for them.
 *
 * A thread holds them while it copies, and may be in a page fault then that takes
 * as long as a program likes (userfaultfd, FUSE). All work items share a queue
 * that runs a limited number at once: a few hundred that wait for such threads
 * would stop the work items of all other sockets. So a work item that finds a
 * lock taken ends, and the release of the lock queues it again. TCP's backlog is
 * the same idea.
 */
#include "lock.h"
#include "lookup.h"
#include "wake.h"

/* Under sk_lock.slock, by release_sock(). */
static int queue_waiting_work(struct wait_queue_entry *entry,
			      unsigned int mode, int sync, void *key)
{
	struct hall_sock *hs = container_of(entry, struct hall_sock, turn);

	list_del_init(&entry->entry);
	hall_sock_queue_work(hs, 0);
	/* The entry's reference; the holder of the lock has one of the socket. */
	hall_sock_put(hs);
	return 0;
}

void hall_sock_init_locks(struct hall_sock *hs)
{
	mutex_init(&hs->rx_mutex);
	init_waitqueue_func_entry(&hs->turn, queue_waiting_work);
	INIT_LIST_HEAD(&hs->turn.entry);
}

/* Is the lock taken? Its release queues the work item then. slock. */
static bool is_taken(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;

	if (!sock_owned_by_user(sk))
		return false;
	if (list_empty(&hs->turn.entry)) {
		refcount_inc(&hs->channel.refs);
		add_wait_queue(&sk->sk_lock.wq, &hs->turn);
	}
	return true;
}

bool hall_sock_is_taken(struct hall_sock *hs)
{
	bool taken;

	spin_lock_bh(&hs->sk->sk_lock.slock);
	taken = is_taken(hs);
	spin_unlock_bh(&hs->sk->sk_lock.slock);
	return taken;
}

static bool trylock_sock(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;
	bool taken;

	spin_lock_bh(&sk->sk_lock.slock);
	taken = is_taken(hs);
	if (!taken)
		sk->sk_lock.owned = 1;
	spin_unlock_bh(&sk->sk_lock.slock);
	if (taken)
		return false;
	/* For lockdep: release_sock() releases it, as after lock_sock(). */
	mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
	return true;
}

bool hall_sock_trylock(struct hall_sock *hs)
{
	if (!mutex_trylock(&hs->rx_mutex)) {
		WRITE_ONCE(hs->awaited, true);
		/* Pairs with the one of hall_rx_unlock(). */
		smp_mb();
		if (!mutex_trylock(&hs->rx_mutex))
			return false;
	}
	WRITE_ONCE(hs->awaited, false);
	if (trylock_sock(hs))
		return true;
	mutex_unlock(&hs->rx_mutex);
	return false;
}

void hall_sock_unlock(struct hall_sock *hs)
{
	release_sock(hs->sk);
	mutex_unlock(&hs->rx_mutex);
}

void hall_rx_unlock(struct hall_sock *hs)
{
	mutex_unlock(&hs->rx_mutex);
	/* Released first, loaded then: one of the two sees the other. */
	smp_mb();
	if (unlikely(READ_ONCE(hs->awaited)) && xchg(&hs->awaited, false))
		hall_sock_queue_work(hs, 0);
}
