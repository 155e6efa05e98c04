// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sleeping and waking: threads in our calls, pollers, and the work item.
 */
#include "wake.h"

#include <linux/poll.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "callbacks.h"
#include "lookup.h"
#include "stream.h"

/* The wake function of threads in select() and poll(). */
static wait_queue_func_t poll_wakes;

void hall_sock_queue_work(struct hall_sock *hs, unsigned long delay)
{
	struct timer_list *timer = &hs->work.timer;
	bool fresh;

	/* The queued work holds a reference. */
	refcount_inc(&hs->channel.refs);
	/* The earlier one of two times counts. */
	if (!delay || (timer_pending(timer) &&
		       time_before(jiffies + delay, READ_ONCE(timer->expires))))
		fresh = !mod_delayed_work(hall_workqueue, &hs->work, delay);
	else
		fresh = queue_delayed_work(hall_workqueue, &hs->work, delay);
	if (!fresh)
		hall_sock_put(hs);
	/* An event that was raised since the timer was looked at has been put off with it. */
	if (delay && READ_ONCE(hs->channel.events))
		hall_sock_queue_work(hs, 0);
}

void hall_sock_sleep(struct hall_sock *hs, struct wait_queue_entry *entry,
		     long *timeo)
{
	/* Once the socket is detached, no walk finds the sleeper. */
	long slice = hs->detached ? min(*timeo, HZ / 10L) : *timeo;
	long left;

	release_sock(hs->sk);
	left = wait_woken(entry, TASK_INTERRUPTIBLE, slice);
	/* Awake, though it may wait for the lock: the watchdog looks at it. */
	entry->flags |= WQ_FLAG_WOKEN;
	if (*timeo != MAX_SCHEDULE_TIMEOUT)
		*timeo -= slice - left;
	lock_sock(hs->sk);
}

void hall_sock_learn_pollers(struct file *file, struct sock *fresh)
{
	struct wait_queue_entry *entry;
	struct poll_wqueues table;

	poll_initwait(&table);
	vfs_poll(file, &table.pt);
	entry = list_first_entry_or_null(&sk_sleep(fresh)->head,
					 struct wait_queue_entry, entry);
	if (entry)
		poll_wakes = entry->func;
	poll_freewait(&table);
}

bool hall_sock_wants_edges(struct sock *sk, bool unpolled)
{
	struct wait_queue_entry *entry;
	struct socket_wq *wq;
	bool wanted = false;
	unsigned long flags;

	/* The program may have closed it, and a doorbell ring yet. */
	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (wq && waitqueue_active(&wq->wait)) {
		spin_lock_irqsave(&wq->wait.lock, flags);
		list_for_each_entry(entry, &wq->wait.head, entry)
			wanted |= entry->func != poll_wakes &&
				  entry->func != woken_wake_function &&
				  entry->func != hall_rx_wake_function &&
				  entry->func != autoremove_wake_function &&
				  (!unpolled || entry->private);
		spin_unlock_irqrestore(&wq->wait.lock, flags);
	}
	rcu_read_unlock();
	return wanted;
}

int hall_rx_wake_function(struct wait_queue_entry *entry, unsigned int mode,
			  int sync, void *key)
{
	return woken_wake_function(entry, mode, sync, key);
}

void hall_rx_report_small(struct hall_sock *hs)
{
	if (!READ_ONCE(hs->rx.end_requested))
		hall_channel_raise(&hs->channel, HALL_EVENT_SMALL);
}

void hall_rx_await_tcp(struct hall_sock *hs)
{
	if (READ_ONCE(hs->sk->sk_rcvlowat) <= 1)
		return;
	WRITE_ONCE(hs->rx.awaits_tcp, true);
	hall_sock_queue_work(hs, 0);
}

void hall_sock_wake(struct hall_sock *hs)
{
	struct hall_channel *channel = &hs->channel;
	struct hall_rx_ring *ring = &hs->rx.ring;
	bool readable = false, writable, look = false;
	struct sock *sk = READ_ONCE(hs->sk);

	/* See hall_sock_orphan(). */
	if (!sk)
		return;
	spin_lock_bh(&channel->lock);
	if (hs->rx.state == HALL_RX_MAPPED) {
		/*
		 * Another reader may have taken the bytes before the doorbell came. No
		 * doorbell is armed then: all sleepers are woken, look, and arm it again.
		 */
		readable = ring->armed;
		hall_ring_disarm_rx(ring);
		readable &= !ring->armed;
		readable |= hall_ring_count_used(ring) || ring->broken;
		/* For waiters that neither poll nor read before the next edge. */
		if (hall_sock_wants_edges(sk, true) || sock_flag(sk, SOCK_FASYNC))
			hall_ring_arm_edge(ring);
		/* A mark may have come: the work item looks. */
		look = READ_ONCE(ring->shared->end);
	}
	writable = hs->tx.state == HALL_TX_RING;
	if (writable)
		hall_ring_disarm_tx(&hs->tx.ring);
	spin_unlock_bh(&channel->lock);
	if (unlikely(!hall_callbacks_are_native(sk))) {
		hall_callbacks_wake(hs, sk);
	} else {
		/* A kernel user may come meanwhile: its callbacks need the lock. */
		if (readable)
			hall_callbacks_report_bytes(sk);
		if (writable && hall_sock_wants_space(sk))
			hall_callbacks_report_space(sk);
	}
	if (look)
		hall_channel_raise(channel, HALL_EVENT_LOOK);
}

bool hall_rx_check_tcp(struct hall_sock *hs)
{
	if (!READ_ONCE(hs->rx.awaits_tcp))
		return true;
	if (hs->rx.state == HALL_RX_MAPPED &&
	    (!hs->rx.ring.started || hall_rx_lacks_tcp(hs)))
		return false;
	WRITE_ONCE(hs->rx.awaits_tcp, false);
	hall_sock_wake(hs);
	return true;
}
