// SPDX-License-Identifier: GPL-2.0-only
/* Making, working and freeing of a hall_sock. */
#include "life.h"

#include <linux/file.h>
#include <linux/net.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>
#include <net/tcp.h>
#include <net/transp_v6.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "callbacks.h"
#include "carrier.h"
#include "lock.h"
#include "lookup.h"
#include "wake.h"

struct hall_sock_handler hall_sock_handler;
bool hall_sock_return_short;

/* Most rings are drained sooner, and need no grace period for each. */
#define ORPHAN		(HZ / 2)

/* Free ones that are kept, of each native table. */
#define KEPT_MAX	64

static atomic_t existing = ATOMIC_INIT(0);

/*
 * Free hall_socks that wait for the next socket with the same native table. Most
 * connections are short and never had a ring; theirs are used again without a grace
 * period. So a task may find one by a sk_prot that it has loaded before, or call what it
 * found there: prot and native stay as they are, and such a task looks at the sk_prot of
 * its socket again: hall_sock_tryget(), hall_sock_is_of(). Where there was an endpoint, its
 * number is looked up under RCU without that, and so a grace period passes.
 */
struct kept {
	spinlock_t lock;		/* any context */
	unsigned int count;
	struct hall_sock *first;
};

static struct kept kept_v4 = { .lock = __SPIN_LOCK_UNLOCKED(kept_v4.lock) };
#if IS_ENABLED(CONFIG_IPV6)
static struct kept kept_v6 = { .lock = __SPIN_LOCK_UNLOCKED(kept_v6.lock) };
#endif

/* NULL: others' tables may be gone, and their addresses be those of other tables. */
static struct kept *find_kept(const struct proto *native)
{
	if (native == &tcp_prot)
		return &kept_v4;
#if IS_ENABLED(CONFIG_IPV6)
	if (native == &tcpv6_prot)
		return &kept_v6;
#endif
	return NULL;
}

static struct hall_sock *take_kept(const struct proto *native)
{
	struct kept *kept = find_kept(native);
	struct hall_sock *hs;
	unsigned long flags;

	if (!kept)
		return NULL;
	spin_lock_irqsave(&kept->lock, flags);
	hs = kept->first;
	if (hs) {
		kept->first = hs->next;
		kept->count--;
	}
	spin_unlock_irqrestore(&kept->lock, flags);
	return hs;
}

static bool keep(struct hall_sock *hs)
{
	struct kept *kept = hs->had_endpoint ? NULL : find_kept(hs->native);
	unsigned long flags;
	bool keeps;

	if (!kept)
		return false;
	spin_lock_irqsave(&kept->lock, flags);
	keeps = kept->count < KEPT_MAX;
	if (keeps) {
		hs->next = kept->first;
		kept->first = hs;
		kept->count++;
	}
	spin_unlock_irqrestore(&kept->lock, flags);
	return keeps;
}

static void free_sock(struct rcu_head *rcu)
{
	kfree(container_of(rcu, struct hall_sock, rcu));
}

/* Neither a reference nor a plain read is left. Any context. */
static void free_released(struct hall_sock *hs)
{
	atomic_set(&hs->gate, HALL_GATE_CLOSED);
	/* A task may have loaded a pointer from prot, and not called it yet. */
	if (!keep(hs))
		call_rcu_tasks(&hs->rcu, free_sock);
	atomic_dec(&existing);
}

/* Any context: the last reference of a channel is gone. */
static void release_channel(struct hall_channel *channel)
{
	struct hall_sock *hs = hall_sock_of(channel);

	if (hs->sk)
		sock_put(hs->sk);
	if (atomic_fetch_or(HALL_GATE_CLOSED | HALL_GATE_RELEASED, &hs->gate) <= 0)
		free_released(hs);
}

void hall_gate_leave_closed(struct hall_sock *hs, int gate)
{
	if (gate == HALL_GATE_CLOSED) {
		hall_sock_queue_work(hs, 0);
		hall_sock_put(hs);
	} else if (gate == (HALL_GATE_CLOSED | HALL_GATE_RELEASED)) {
		free_released(hs);
	}
}

static void run_work(struct work_struct *work)
{
	struct hall_sock *hs = container_of(to_delayed_work(work),
					    struct hall_sock, work);
	unsigned int noio = memalloc_noio_save();

	/* The socket may be that of a disk on which memory waits to be written. */
	hall_sock_handler.work(hs);
	memalloc_noio_restore(noio);
	hall_sock_put(hs);
}

static void queue_raised(struct hall_channel *channel)
{
	hall_sock_queue_work(hall_sock_of(channel), 0);
}

static void wake_channel(struct hall_channel *channel)
{
	hall_sock_wake(hall_sock_of(channel));
}

static const struct hall_channel_kind stream = {
	.number = HALLWAY_KIND_STREAM,
	.offer = hall_sock_find_offered,
	.raised = queue_raised,
	.wake = wake_channel,
	.release = release_channel,
};

static void set_addresses(struct hall_sock *hs, const struct sock *sk)
{
	const struct inet_sock *inet = inet_sk(sk);

	hall_sock_read_remote(sk, &hs->remote);
	hall_sock_read_local(sk, &hs->local);
	hs->local_port = ntohs(inet->inet_sport);
	hs->remote_port = ntohs(inet->inet_dport);
}

static struct hall_sock *allocate(void)
{
	struct hall_sock *hs = kzalloc(sizeof(*hs), GFP_ATOMIC | __GFP_NOWARN);

	if (!hs)
		return NULL;
	mutex_init(&hs->rx_mutex);
	INIT_DELAYED_WORK(&hs->work, run_work);
	INIT_WORK(&hs->reset, hall_sock_run_reset);
	return hs;
}

struct hall_sock *hall_sock_new(struct sock *sk, struct hall_member *member)
{
	struct hall_sock *hs = take_kept(sk->sk_prot);

	if (hs)
		memset_startat(hs, 0, sk);
	else
		hs = allocate();
	if (!hs)
		return NULL;
	atomic_inc(&existing);
	sock_hold(sk);
	hs->sk = sk;
	hall_channel_setup(&hs->channel, &stream, member);
	hall_turn_init(&hs->turn, &hs->channel);
	INIT_LIST_HEAD(&hs->ringed);
	INIT_LIST_HEAD(&hs->calls);
	hs->disconnects = sk->sk_disconnects;
	/* What an earlier attachment has resent may be there yet. */
	if (sk->sk_wmem_queued > sk->sk_sndbuf)
		hs->tx.resent = tcp_sk(sk)->bytes_acked +
				(tcp_sk(sk)->write_seq - tcp_sk(sk)->snd_una);
	hs->rcvlowat = sk->sk_rcvlowat;
	hs->tx.next = 1;
	hs->active_since = jiffies;
	hs->retry_at = jiffies;
	hs->look_at = jiffies;
	hs->reason = HALLWAY_REASON_YOUNG;
	set_addresses(hs, sk);
	hall_callbacks_record(hs);
	atomic_set(&hs->gate, 0);
	return hs;
}

/*
 * The endpoint's number and the work item have a reference each. If nothing else has
 * one, nothing else can get to the socket from here: a detached one is found by its
 * endpoint alone, and then only by doorbells, under RCU, and by this work item.
 */
bool hall_sock_orphan(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;

	if (hs->rx.state != HALL_RX_NATIVE || hs->tx.state == HALL_TX_RING ||
	    !sock_flag(sk, SOCK_DEAD) ||
	    time_before(jiffies, hs->detached_at + ORPHAN) ||
	    refcount_read(&hs->channel.refs) != 2)
		return false;
	WRITE_ONCE(hs->sk, NULL);
	synchronize_rcu();
	sock_put(sk);
	return true;
}

unsigned int hall_sock_count(void)
{
	return atomic_read(&existing);
}

/* Some functions that we compare with are not exported: a fresh socket has them. */
static int learn_from_fresh_socket(void)
{
	struct socket *sock;
	struct file *file;
	int err;

	err = sock_create_kern(&init_net, AF_INET, SOCK_STREAM, IPPROTO_TCP,
			       &sock);
	if (err)
		return err;
	/* Releases the socket, too, where it fails. */
	file = sock_alloc_file(sock, 0, NULL);
	if (IS_ERR(file))
		return PTR_ERR(file);
	hall_callbacks_learn(sock->sk);
	hall_sock_learn_pollers(file, sock->sk);
	fput(file);
	return 0;
}

int hall_sock_init(void)
{
	int err = hall_reset_init();

	if (err)
		return err;
	err = learn_from_fresh_socket();
	if (err) {
		hall_reset_uninit();
		return err;
	}
	hall_lookup_init();
	hall_channel_register(&stream);
	return 0;
}

static void free_kept(struct kept *kept)
{
	struct hall_sock *hs;

	while ((hs = kept->first)) {
		kept->first = hs->next;
		kfree(hs);
	}
}

/* No task is in a call of ours any more, or about to make one. */
void hall_sock_uninit(void)
{
	free_kept(&kept_v4);
#if IS_ENABLED(CONFIG_IPV6)
	free_kept(&kept_v6);
#endif
	/* Waits for the callbacks of call_rcu_tasks(). */
	if (IS_ENABLED(CONFIG_TASKS_RCU))
		rcu_barrier_tasks();
	else
		rcu_barrier();
	hall_reset_uninit();
}
