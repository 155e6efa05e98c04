// SPDX-License-Identifier: GPL-2.0
/* Life and look-up of our sockets, and what both directions share. */
#include "sock.h"

#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/hashtable.h>
#include <linux/jhash.h>
#include <linux/net.h>
#include <linux/slab.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>

#include <hallway/reason.h>

#include "../obs/counters.h"

struct hall_sock_handler hall_sock_handler;

static DEFINE_SPINLOCK(lock);		/* BH; the two below */
static DEFINE_HASHTABLE(by_address, 12);
static LIST_HEAD(all);
static unsigned int attached;		/* entries of all */
static atomic_t existing = ATOMIC_INIT(0);

/* Where a program's names for a file are looked for: low numbers. */
#define NAMES_MAX	1024

struct hall_sock *hall_sock_get(const struct sock *sk)
{
	struct hall_sock *hs = NULL;
	struct proto *prot;

	/* Contexts are freed after a grace period of tasks: prot stays. */
	rcu_read_lock();
	prot = READ_ONCE(sk->sk_prot);
	if (prot->close == hall_close) {
		hs = container_of(prot, struct hall_sock, prot);
		if (!hall_channel_tryget(&hs->channel))
			hs = NULL;
	}
	rcu_read_unlock();
	return hs;
}

void hall_sock_put(struct hall_sock *hs)
{
	hall_channel_put(&hs->channel);
}

static void free_settled(struct rcu_head *rcu)
{
	kfree(container_of(rcu, struct hall_sock, rcu));
}

/* Any context: the last reference of a channel is gone. */
static void release(struct hall_channel *channel)
{
	struct hall_sock *hs = hall_sock_of(channel);

	sock_put(hs->sk);
	/* A task may have loaded a pointer from prot or ops and not used it. */
	call_rcu_tasks(&hs->rcu, free_settled);
	atomic_dec(&existing);
}

static void work(struct work_struct *work)
{
	struct hall_sock *hs = container_of(to_delayed_work(work),
					    struct hall_sock, work);

	hall_sock_handler.work(hs);
	hall_sock_put(hs);
}

void hall_sock_work(struct hall_sock *hs, unsigned long delay)
{
	bool fresh;

	/* The queued work holds a reference. */
	refcount_inc(&hs->channel.refs);
	if (delay)
		fresh = queue_delayed_work(hall_workqueue, &hs->work, delay);
	else
		fresh = !mod_delayed_work(hall_workqueue, &hs->work, 0);
	if (!fresh)
		hall_sock_put(hs);
}

static void raised(struct hall_channel *channel)
{
	hall_sock_work(hall_sock_of(channel), 0);
}

static void woken(struct hall_channel *channel)
{
	hall_sock_wake(hall_sock_of(channel));
}

static struct hall_channel *find(struct hall_member *member,
				 const struct hallway_message *offer);

static const struct hall_channel_kind stream = {
	.number = HALLWAY_KIND_STREAM,
	.offer = find,
	.raised = raised,
	.wake = woken,
	.release = release,
};

static void set_addresses(struct hall_sock *hs, const struct sock *sk)
{
	const struct inet_sock *inet = inet_sk(sk);

	hall_sock_remote(sk, &hs->remote);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		hs->local = sk->sk_v6_rcv_saddr;
	else
#endif
		ipv6_addr_set_v4mapped(inet->inet_rcv_saddr, &hs->local);
	hs->local_port = ntohs(inet->inet_sport);
	hs->remote_port = ntohs(inet->inet_dport);
}

void hall_sock_remote(const struct sock *sk, struct in6_addr *address)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		*address = sk->sk_v6_daddr;
		return;
	}
#endif
	ipv6_addr_set_v4mapped(sk->sk_daddr, address);
}

struct hall_sock *hall_sock_new(struct sock *sk, struct hall_member *member)
{
	struct hall_sock *hs = kzalloc(sizeof(*hs), GFP_ATOMIC | __GFP_NOWARN);

	if (!hs)
		return NULL;
	atomic_inc(&existing);
	sock_hold(sk);
	hs->sk = sk;
	hall_channel_setup(&hs->channel, &stream, member);
	hall_sock_lock_init(hs);
	INIT_DELAYED_WORK(&hs->work, work);
	INIT_LIST_HEAD(&hs->list);
	hs->tx.next = 1;
	hs->active_since = jiffies;
	hs->retry_at = jiffies;
	hs->reason = HALLWAY_REASON_YOUNG;
	set_addresses(hs, sk);
	hall_owner_take(hs);
	return hs;
}

static u32 hash_of(const struct in6_addr *local, u16 local_port,
		   const struct in6_addr *remote, u16 remote_port)
{
	return jhash2((__force const u32 *)local->s6_addr32, 4,
		      jhash2((__force const u32 *)remote->s6_addr32, 4,
			     (u32)local_port << 16 | remote_port));
}

void hall_sock_publish(struct hall_sock *hs)
{
	spin_lock_bh(&lock);
	list_add_tail(&hs->list, &all);
	attached++;
	hash_add_rcu(by_address, &hs->hash,
		     hash_of(&hs->local, hs->local_port, &hs->remote,
			     hs->remote_port));
	spin_unlock_bh(&lock);
}

void hall_sock_unpublish(struct hall_sock *hs)
{
	spin_lock_bh(&lock);
	list_del_init(&hs->list);
	attached--;
	hash_del_rcu(&hs->hash);
	spin_unlock_bh(&lock);
}

static struct hall_channel *find(struct hall_member *member,
				 const struct hallway_message *offer)
{
	struct in6_addr local, remote;
	struct hall_sock *hs;
	u32 hash;

	memcpy(&local, offer->offer.remote, sizeof(local));
	memcpy(&remote, offer->offer.local, sizeof(remote));
	hash = hash_of(&local, offer->offer.remote_port, &remote,
		       offer->offer.local_port);
	rcu_read_lock();
	hash_for_each_possible_rcu(by_address, hs, hash, hash) {
		if (hs->channel.member == member &&
		    hs->local_port == offer->offer.remote_port &&
		    hs->remote_port == offer->offer.local_port &&
		    ipv6_addr_equal(&hs->local, &local) &&
		    ipv6_addr_equal(&hs->remote, &remote) &&
		    hall_channel_tryget(&hs->channel)) {
			rcu_read_unlock();
			return &hs->channel;
		}
	}
	rcu_read_unlock();
	return NULL;
}

void hall_sock_walk(void (*fn)(struct hall_sock *hs, void *data), void *data)
{
	unsigned int room = READ_ONCE(attached) + 64, n = 0, i;
	struct hall_sock **snapshot, *hs;

	snapshot = kvmalloc_array(room, sizeof(*snapshot), GFP_KERNEL);
	if (!snapshot)
		return;
	spin_lock_bh(&lock);
	list_for_each_entry(hs, &all, list)
		if (n < room && hall_channel_tryget(&hs->channel))
			snapshot[n++] = hs;
	spin_unlock_bh(&lock);
	for (i = 0; i < n; i++) {
		fn(snapshot[i], data);
		hall_sock_put(snapshot[i]);
	}
	kvfree(snapshot);
}

unsigned int hall_sock_count(void)
{
	return atomic_read(&existing);
}

void hall_sock_tags(const struct hall_sock *hs, bool drained,
		    struct hall_tags *tags)
{
	hall_tags_make(tags, hs->channel.member->key,
		       hall_info_own_isn(hs, drained), hall_info_peer_isn(hs));
}

bool hall_sock_hurry;

void hall_sock_sleep(struct hall_sock *hs, struct wait_queue_entry *entry,
		     long *timeo)
{
	/* Once detached, nobody finds the sleeper to hurry it. */
	long slice = hs->detached ? min(*timeo, HZ / 10L) : *timeo;
	long left;

	release_sock(hs->sk);
	left = wait_woken(entry, TASK_INTERRUPTIBLE, slice);
	/* Awake, though the lock may keep us: the watchdog asks. */
	entry->flags |= WQ_FLAG_WOKEN;
	if (*timeo != MAX_SCHEDULE_TIMEOUT)
		*timeo -= slice - left;
	lock_sock(hs->sk);
}

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

void hall_sock_rest(struct hall_sock *hs)
{
	if (!hs->tx.memory.ring && hs->rx.state == HALL_RX_NATIVE)
		hall_channel_close(&hs->channel);
}

void hall_sock_break(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;

	if (hs->pinned == HALLWAY_REASON_CORRUPT)
		return;
	hs->pinned = HALLWAY_REASON_CORRUPT;
	hs->reason = HALLWAY_REASON_CORRUPT;
	hall_count(HALL_CORRUPT_RINGS);
	hall_tx_demote(hs);
	hall_rx_release(hs, HALLWAY_REASON_CORRUPT);
	hall_rx_forget(sk);
	sk->sk_err = ECONNRESET;
	hall_channel_raise(&hs->channel, HALL_EVENT_BROKEN);
}

void hall_sock_reset(struct hall_sock *hs, int err)
{
	struct sock *sk = hs->sk;

	/*
	 * A socket that its program has left is TCP's alone; where an RST was
	 * first, the program has its error already; and by connect(AF_UNSPEC)
	 * it may have become another connection.
	 */
	if (sock_flag(sk, SOCK_DEAD) || inet_sk_state_load(sk) == TCP_CLOSE ||
	    hs->local_port != ntohs(inet_sk(sk)->inet_sport) ||
	    hs->remote_port != ntohs(inet_sk(sk)->inet_dport))
		return;
	hall_count(HALL_RESETS);
	tcp_abort(sk, err);
}

/* Not all that we compare with is exported: a fresh socket shows it. */
static int learn(void)
{
	struct socket *sock;
	struct file *file;
	int err;

	err = sock_create_kern(&init_net, AF_INET, SOCK_STREAM, IPPROTO_TCP,
			       &sock);
	if (err)
		return err;
	/* Takes the socket along, also where it fails. */
	file = sock_alloc_file(sock, 0, NULL);
	if (IS_ERR(file))
		return PTR_ERR(file);
	hall_owner_learn(sock->sk);
	hall_poll_learn(file, sock->sk);
	fput(file);
	return 0;
}

int hall_sock_init(void)
{
	int err = learn();

	if (err)
		return err;
	hall_channel_register(&stream);
	return 0;
}

void hall_sock_uninit(void)
{
	/* The last contexts are on their way through call_rcu_tasks(). */
	rcu_barrier_tasks();
}
