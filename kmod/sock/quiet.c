// SPDX-License-Identifier: GPL-2.0
/*
 * Foreign calls: those that entered the socket before it was attached, and may
 * still be in TCP's code. No ring may begin while there is one: it would read or
 * send past the ring.
 */
#include "quiet.h"

#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/net.h>

#include "lookup.h"

/* File descriptors that are searched for a file: the low ones. */
#define NAMES_MAX	1024

static void end_grace(struct rcu_head *rcu)
{
	struct hall_sock *hs = container_of(rcu, struct hall_sock, grace);

	WRITE_ONCE(hs->grace_over, true);
	hall_sock_put(hs);
}

struct file_names {
	const struct file *file;
	int count;
};

static int count_name(const void *data, struct file *file, unsigned int fd)
{
	struct file_names *names = (struct file_names *)data;

	names->count += file == names->file;
	return fd >= NAMES_MAX;
}

/* Descriptors of the file in the caller's table, which no other thread changes. */
static int count_own_names(const struct file *file)
{
	struct file_names names = { .file = file };

	iterate_fd(current->files, 0, count_name, &names);
	return names.count;
}

/*
 * Is the caller the only user of the socket, besides threads that sleep in our
 * calls? Two cases prove it, for fdget() takes a reference of the file as soon as
 * the table is shared:
 *   - the table of one thread holds all references of the file;
 *   - a table of several threads has one descriptor, and all other references
 *     are those of our calls.
 */
static bool is_sole_user(struct hall_sock *hs)
{
	struct socket *sock = hs->sk->sk_socket;
	struct file *file = sock ? sock->file : NULL;

	hs->threaded = false;
	if (!file || !current->files || (current->flags & PF_KTHREAD))
		return false;
	hs->threaded = atomic_read(&current->files->count) > 1;
	if (!hs->threaded)
		return file_count(file) == 1 ||
		       file_count(file) == count_own_names(file);
	return file_count(file) == 2 + hs->rx_waiters + hs->tx_waiters;
}

/* Threads asleep on the socket in the kernel's own calls, not in poll. */
static unsigned int count_foreign_waiters(struct hall_sock *hs)
{
	wait_queue_head_t *queue = sk_sleep(hs->sk);
	struct wait_queue_entry *entry;
	unsigned int n = 0;
	unsigned long flags;

	spin_lock_irqsave(&queue->lock, flags);
	list_for_each_entry(entry, &queue->head, entry)
		if (entry->func == woken_wake_function)
			n++;
	spin_unlock_irqrestore(&queue->lock, flags);
	/* Our own readers have hall_rx_wake_function(), our writers do not. */
	return n - hs->tx_waiters;
}

/*
 * Where references of the file prove nothing, time does, for a table of one
 * thread and for kernel threads: after a grace period no task is about to call a
 * native function that it loaded earlier, and a task in a native call that does
 * not hold the socket lock either sleeps on the socket or waits for the lock.
 * This misses a task that was just woken to take the lock, which is frequent
 * among threads of one program: for them only references count.
 */
bool hall_sock_check_quiet(struct hall_sock *hs, bool calling, bool earned)
{
	struct sock *sk = hs->sk;

	if (!hs->quiet && calling)
		hs->quiet = is_sole_user(hs);
	if (hs->quiet)
		return true;
	if (hs->threaded)
		return false;
	if (!READ_ONCE(hs->grace_over)) {
		if (earned && !hs->grace_begun) {
			hs->grace_begun = true;
			refcount_inc(&hs->channel.refs);
			call_rcu_tasks(&hs->grace, end_grace);
		}
		return false;
	}
	/* Asleep on the socket, or waiting for its lock. */
	if (count_foreign_waiters(hs) || waitqueue_active(&sk->sk_lock.wq))
		return false;
	hs->quiet = true;
	return true;
}
