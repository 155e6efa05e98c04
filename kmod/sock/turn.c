// SPDX-License-Identifier: GPL-2.0-only
/*
 * lock_sock() for work items, which must not wait for it.
 *
 * A thread holds the lock while it copies, and may be in a page fault then that takes as
 * long as a program likes (userfaultfd, FUSE). All work items share a queue that runs a
 * limited number at once: a few hundred that wait for such threads would stop the work
 * items of all other sockets. So a work item that finds the lock taken ends, and the
 * release of the lock queues it again. TCP's backlog is the same idea.
 */
#include "turn.h"

/* Under sk_lock.slock, by release_sock(). */
static int queue_waiting_work(struct wait_queue_entry *entry, unsigned int mode,
			      int sync, void *key)
{
	struct hall_turn *turn = container_of(entry, struct hall_turn, entry);
	struct hall_channel *channel = turn->channel;

	/* Another socket may be waited for next. */
	list_del_init_careful(&entry->entry);
	channel->kind->raised(channel);
	/* The entry's reference; the holder of the lock has one of the socket. */
	hall_channel_put(channel);
	return 0;
}

void hall_turn_init(struct hall_turn *turn, struct hall_channel *channel)
{
	turn->channel = channel;
	init_waitqueue_func_entry(&turn->entry, queue_waiting_work);
	INIT_LIST_HEAD(&turn->entry.entry);
}

bool hall_turn_is_taken(struct hall_turn *turn, struct sock *sk)
{
	if (!sock_owned_by_user_nocheck(sk))
		return false;
	if (list_empty_careful(&turn->entry.entry)) {
		refcount_inc(&turn->channel->refs);
		add_wait_queue(&sk->sk_lock.wq, &turn->entry);
	}
	return true;
}

bool hall_turn_trylock(struct hall_turn *turn, struct sock *sk)
{
	spin_lock_bh(&sk->sk_lock.slock);
	if (hall_turn_is_taken(turn, sk)) {
		spin_unlock_bh(&sk->sk_lock.slock);
		return false;
	}
	hall_turn_take(sk);
	return true;
}
