/* SPDX-License-Identifier: GPL-2.0-only */
/* Sleeping and waking: threads in our calls, pollers, and the work item. */
#ifndef HALL_WAKE_H
#define HALL_WAKE_H

#include "callbacks.h"
#include "sock.h"

/* Runs the work item: now, or after a delay in jiffies. Any context. */
void hall_sock_queue_work(struct hall_sock *hs, unsigned long delay);

/*
 * Sleeps until the entry, which is on the socket's wait queue, is woken.
 * lock_sock(), released while it sleeps. *timeo counts down, in jiffies.
 */
void hall_sock_sleep(struct hall_sock *hs, struct wait_queue_entry *entry,
		     long *timeo);
/*
 * woken_wake_function() for our readers: it distinguishes them from writers and
 * from the kernel's own sleepers.
 */
int hall_rx_wake_function(struct wait_queue_entry *entry, unsigned int mode,
			  int sync, void *key);

/*
 * The doorbell rang: wakes readers, writers and pollers. Softirq, RCU read lock; or
 * with a reference that keeps the socket.
 */
void hall_sock_wake(struct hall_sock *hs);
/*
 * Does a waiter want an edge for each arrival, not only for the first one in an
 * empty ring? epoll and io_uring may. unpolled: one that does not poll before
 * the next edge. io_uring may not poll; epoll does, and leaves the private of
 * its entries alone. Any context.
 */
bool hall_sock_wants_edges(struct sock *sk, bool unpolled);
/* May something wait for an edge at all? Quick; the caller has the socket's file. */
static inline bool hall_sock_may_want_edges(const struct sock *sk)
{
	return waitqueue_active(sk_sleep((struct sock *)sk)) ||
	       !hall_callbacks_are_native(sk) || sock_flag(sk, SOCK_FASYNC);
}

/* A reader waits for more bytes than the ring ever holds. Any context. */
void hall_rx_report_small(struct hall_sock *hs);

/*
 * TCP wakes no reader for fewer bytes than SO_RCVLOWAT, though they may be
 * enough together with the ring bytes behind them: the work item watches TCP
 * then. Any context.
 */
void hall_rx_await_tcp(struct hall_sock *hs);
/* Has TCP brought the bytes that a reader awaits? If so, wakes it. lock_sock(). */
bool hall_rx_check_tcp(struct hall_sock *hs);

/* Learns what wakes pollers, by polling the file of a fresh socket. */
void hall_sock_learn_pollers(struct file *file, struct sock *fresh);

#endif /* HALL_WAKE_H */
