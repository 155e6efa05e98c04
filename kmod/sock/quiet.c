// SPDX-License-Identifier: GPL-2.0
/*
 * Foreign calls: those that entered the socket before it was attached, and may
 * still be in TCP's code. No ring may begin while there is one, for it would
 * read or send past it.
 */
#include "quiet.h"

#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/net.h>

#include "lookup.h"

/* Where a program's names for a file are looked for: low numbers. */
#define NAMES_MAX	1024

static void settled(struct rcu_head *rcu)
{
	struct hall_sock *hs = container_of(rcu, struct hall_sock, settle);

	WRITE_ONCE(hs->settled, true);
	hall_sock_put(hs);
}

struct names {
	const struct file *file;
	int count;
};

static int count_name(const void *data, struct file *file, unsigned int fd)
{
	struct names *names = (struct names *)data;

	names->count += file == names->file;
	return fd >= NAMES_MAX;
}

/* How often the caller's table names the file, which no other thread changes. */
static int own_names(const struct file *file)
{
	struct names names = { .file = file };

	iterate_fd(current->files, 0, count_name, &names);
	return names.count;
}

/*
 * Is no call inside this socket but ours? A file that only the table of one
 * thread names, as often as it likes, or one that a table of several names
 * once, and that nobody holds but we and those who sleep in our calls, can't be
 * in another thread's hands: fdget() takes a reference as soon as the table is
 * shared.
 */
static bool alone(struct hall_sock *hs)
{
	struct socket *sock = hs->sk->sk_socket;
	struct file *file = sock ? sock->file : NULL;

	hs->threaded = false;
	if (!file || !current->files || (current->flags & PF_KTHREAD))
		return false;
	hs->threaded = atomic_read(&current->files->count) > 1;
	if (!hs->threaded)
		return file_count(file) == 1 ||
		       file_count(file) == own_names(file);
	return file_count(file) == 2 + hs->rx_waiters + hs->tx_waiters;
}

/* Threads asleep on the socket in the kernel's own calls, not in poll. */
static unsigned int foreign_waiters(struct hall_sock *hs)
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
	/* Our own readers are woken by hall_rx_woken(). */
	return n - hs->tx_waiters;
}

/*
 * Where references of the file don't prove it, for a table of one thread alone
 * and for kernel threads: all who loaded native tables have slept since, and
 * whoever is inside a native call and does not hold the socket lock either
 * sleeps on the socket or waits for the lock. That misses one who was just
 * woken to take the lock, which threads of one program see to often: for them
 * the references have to do.
 */
bool hall_sock_quiet(struct hall_sock *hs, bool calling, bool earned)
{
	struct sock *sk = hs->sk;

	if (!hs->clean && calling)
		hs->clean = alone(hs);
	if (hs->clean)
		return true;
	if (hs->threaded)
		return false;
	if (!READ_ONCE(hs->settled)) {
		if (earned && !hs->settling) {
			hs->settling = true;
			refcount_inc(&hs->channel.refs);
			call_rcu_tasks(&hs->settle, settled);
		}
		return false;
	}
	/* Asleep on the socket, or waiting for its lock. */
	if (foreign_waiters(hs) || waitqueue_active(&sk->sk_lock.wq))
		return false;
	hs->clean = true;
	return true;
}
