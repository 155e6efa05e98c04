// SPDX-License-Identifier: GPL-2.0-only
/*
 * Foreign calls: those that entered the socket before it was attached, and may
 * still be in TCP's code. No ring may begin while there is one: it would read or
 * send past the ring. Calls of an earlier attachment are foreign, too.
 *
 * In a program's first call it is often certain that no other is inside, by the
 * references of the file: is_sole_user(). Elsewhere time shows it. Calls of ours
 * are on a list until the socket is quiet. The socket is quiet if, during a grace
 * period of tasks, no other call was seen
 *   - asleep on the socket: its entry is in the queue until it has the lock again,
 *   - waiting for the lock, at any release of it,
 *   - releasing the lock.
 * The grace period ends when each task that ran at its start has slept or left the
 * kernel. A foreign call that reads or writes sleeps nowhere else: it would have
 * been seen. A task that was seen, and comes to a call of ours later, has left the
 * foreign one, or was in one that is harmless, as getsockname().
 *
 * TCP_ZEROCOPY_RECEIVE reads, too, and fetches its arguments first: a program that
 * has them in memory that does not arrive can take its own stream out of order.
 */
#include "quiet.h"

#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/net.h>

#include "calls.h"
#include "lookup.h"
#include "wake.h"

/* File descriptors that are searched for a file: the low ones. */
#define NAMES_MAX	1024

/* Where several tasks were seen. */
static const char several;

void hall_call_note(struct hall_sock *hs, struct hall_call *call)
{
	call->task = current;
	spin_lock_bh(&hs->channel.lock);
	list_add(&call->list, &hs->calls);
	if (hs->foreign == current)
		hs->foreign = NULL;
	spin_unlock_bh(&hs->channel.lock);
}

void hall_call_forget(struct hall_sock *hs, struct hall_call *call)
{
	spin_lock_bh(&hs->channel.lock);
	list_del(&call->list);
	spin_unlock_bh(&hs->channel.lock);
}

/* Is the task in a call of ours? If not, it is in a foreign one. channel.lock. */
static void look_at_task(struct hall_sock *hs, const void *task)
{
	const struct hall_call *call;

	list_for_each_entry(call, &hs->calls, list)
		if (call->task == task)
			return;
	hs->foreign = !hs->foreign || hs->foreign == task ? task : &several;
}

/* Looks at the tasks that wait for the socket's lock. slock and channel.lock. */
static void look_at_lockers(struct hall_sock *hs)
{
	struct wait_queue_head *queue = &hs->sk->sk_lock.wq;
	struct wait_queue_entry *entry;
	unsigned long flags;

	/* No barrier: entries come under slock. */
	if (!waitqueue_active(queue))
		return;
	spin_lock_irqsave(&queue->lock, flags);
	/* The work item's entry has no task: see lock.c. */
	list_for_each_entry(entry, &queue->head, entry)
		if (entry->private)
			look_at_task(hs, entry->private);
	spin_unlock_irqrestore(&queue->lock, flags);
}

void hall_quiet_watch(struct hall_sock *hs)
{
	spin_lock(&hs->channel.lock);
	look_at_task(hs, current);
	look_at_lockers(hs);
	spin_unlock(&hs->channel.lock);
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

/* Threads asleep on the socket that are in none of our calls, and do not poll. */
static unsigned int count_foreign_waiters(struct hall_sock *hs)
{
	wait_queue_head_t *queue = sk_sleep(hs->sk);
	struct wait_queue_entry *entry;
	unsigned int n = 0;
	unsigned long flags;

	spin_lock_irqsave(&queue->lock, flags);
	list_for_each_entry(entry, &queue->head, entry)
		n += entry->func == woken_wake_function ||
		     entry->func == hall_rx_wake_function;
	spin_unlock_irqrestore(&queue->lock, flags);
	/* Less ours; those of an earlier attachment are not counted in hs. */
	return n - hs->tx_waiters - atomic_read(&hs->rx_waiters);
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

	/* A fixed file of io_uring is used without a reference. */
	if (!file || !current->files || (current->flags & (PF_KTHREAD | PF_IO_WORKER)))
		return false;
	if (atomic_read(&current->files->count) == 1)
		return file_count(file) == 1 ||
		       file_count(file) == count_own_names(file);
	return file_count(file) == 2 + atomic_read(&hs->rx_waiters) + hs->tx_waiters &&
	       count_own_names(file) == 1;
}

static void end_grace(struct rcu_head *rcu)
{
	struct hall_sock *hs = container_of(rcu, struct hall_sock, grace);

	WRITE_ONCE(hs->grace_over, true);
	hall_sock_put(hs);
}

static void begin_grace(struct hall_sock *hs)
{
	hs->watched = true;
	hs->foreign = NULL;
	WRITE_ONCE(hs->prot.release_cb, hall_release_cb);
	WRITE_ONCE(hs->grace_over, false);
	refcount_inc(&hs->channel.refs);
	call_rcu_tasks(&hs->grace, end_grace);
}

/* Has a grace period passed in which no foreign call was seen? channel.lock. */
static bool is_proven_by_time(struct hall_sock *hs, bool earned)
{
	bool over = hs->watched && READ_ONCE(hs->grace_over);

	look_at_lockers(hs);
	/* Elsewhere a task may be preempted in the kernel and count as one that slept. */
	if (over && !hs->foreign && IS_ENABLED(CONFIG_TASKS_RCU))
		return true;
	if (over)
		hs->watched = false;
	if (!hs->watched && earned)
		begin_grace(hs);
	/* Those that wait now may have waited when it began. */
	look_at_lockers(hs);
	return false;
}

bool hall_sock_is_quiet(const struct sock *sk)
{
	struct hall_sock *hs = hall_sock_get(sk);
	bool quiet;

	if (!hs)
		return false;
	quiet = READ_ONCE(hs->quiet);
	hall_sock_put(hs);
	return quiet;
}

bool hall_sock_check_quiet(struct hall_sock *hs, bool calling, bool earned)
{
	bool quiet, waiting;

	if (hs->quiet)
		return true;
	waiting = count_foreign_waiters(hs);
	quiet = !waiting && calling && is_sole_user(hs);
	spin_lock_bh(&hs->channel.lock);
	if (waiting)
		hs->foreign = &several;
	else
		quiet = quiet || is_proven_by_time(hs, earned);
	WRITE_ONCE(hs->quiet, quiet);
	if (quiet)
		hs->watched = false;
	spin_unlock_bh(&hs->channel.lock);
	return quiet;
}
