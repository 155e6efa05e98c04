// SPDX-License-Identifier: GPL-2.0-only
/* Making, working and freeing of a tunnel. */
#include "tunnel.h"

#include <linux/moduleparam.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "../sock/spin.h"
#include "loan.h"

static unsigned int tunnels_max = 1024;
module_param(tunnels_max, uint, 0644);
MODULE_PARM_DESC(tunnels_max,
		 "tunnels with one other VM at most, requests included (default: 1024)");

bool hall_tunnels_enabled = true;

/*
 * Of its own, as the module goes when it is empty. No item waits for lock_sock(), which a
 * program may hold for as long as it likes, in a page fault: see sock/turn.c.
 */
static struct workqueue_struct *queue;

void (*hall_tunnel_run_events)(struct hall_tunnel *tunnel, struct sock *sk,
			       unsigned long events);

static struct hall_tunnel *tunnel_of(struct hall_channel *channel)
{
	return container_of(channel, struct hall_tunnel, channel);
}

/* Any context. */
static void queue_channel(struct hall_channel *channel)
{
	refcount_inc(&channel->refs);
	if (!queue_work(queue, &tunnel_of(channel)->work))
		hall_channel_put(channel);
}

/* The last reference is gone. Any context. */
static void release_channel(struct hall_channel *channel)
{
	struct hall_tunnel *tunnel = tunnel_of(channel);

	if (tunnel->held)
		hall_channel_release(channel->member);
	atomic_dec(&channel->member->tunnels);
	hall_loan_free(tunnel);
	kfree(tunnel->trunk);
	kfree_rcu(tunnel, rcu);
}

static void run_work(struct work_struct *work)
{
	struct hall_tunnel *tunnel = container_of(work, struct hall_tunnel, work);
	/* The socket may be that of a file system for which memory waits. */
	unsigned int noio = memalloc_noio_save();
	struct sock *sk;

	spin_lock_bh(&tunnel->channel.lock);
	sk = tunnel->sk;
	if (sk)
		sock_hold(sk);
	spin_unlock_bh(&tunnel->channel.lock);
	if (!sk || hall_turn_trylock(&tunnel->turn, sk)) {
		/* It may have been closed meanwhile. */
		hall_tunnel_run_events(tunnel, tunnel->sk,
				       xchg(&tunnel->channel.events, 0));
		if (sk)
			release_sock(sk);
	}
	if (sk)
		sock_put(sk);
	hall_channel_put(&tunnel->channel);
	memalloc_noio_restore(noio);
}

const struct hall_channel_kind hall_tunnel_kind = {
	.number = HALLWAY_KIND_TUNNEL,
	.owner = THIS_MODULE,
	.offer = hall_tunnel_meet,
	.raised = queue_channel,
	.wake = hall_tunnel_wake,
	.release = release_channel,
};

struct hall_tunnel *hall_tunnel_new(struct hall_member *member, gfp_t gfp)
{
	struct hall_tunnel *tunnel;

	if (atomic_inc_return(&member->tunnels) > READ_ONCE(tunnels_max)) {
		atomic_dec(&member->tunnels);
		return ERR_PTR(-EUSERS);
	}
	tunnel = kzalloc(sizeof(*tunnel), gfp);
	if (!tunnel) {
		atomic_dec(&member->tunnels);
		return ERR_PTR(-ENOMEM);
	}
	hall_channel_setup(&tunnel->channel, &hall_tunnel_kind, member);
	INIT_WORK(&tunnel->work, run_work);
	hall_turn_init(&tunnel->turn, &tunnel->channel);
	tunnel->spin_credit = HALL_SPIN_CREDIT;
	return tunnel;
}

void hall_tunnel_attach(struct hall_tunnel *tunnel, struct sock *sk)
{
	sock_hold(sk);
	spin_lock_bh(&tunnel->channel.lock);
	tunnel->sk = sk;
	spin_unlock_bh(&tunnel->channel.lock);
	vsock_sk(sk)->trans = tunnel;
}

void hall_tunnel_detach(struct hall_tunnel *tunnel, struct vsock_sock *vsk)
{
	vsk->trans = NULL;
	spin_lock_bh(&tunnel->channel.lock);
	tunnel->sk = NULL;
	spin_unlock_bh(&tunnel->channel.lock);
	/* Not the last one: the caller has the socket. */
	sock_put(sk_vsock(vsk));
	hall_channel_put(&tunnel->channel);
}

int hall_tunnels_init(void)
{
	/*
	 * As for the queues of hallway.ko: no work runs until the devices are back, and the
	 * sockets may be those of a file system (9p takes any, as trans=fd).
	 */
	unsigned int flags = WQ_UNBOUND | WQ_FREEZABLE | WQ_MEM_RECLAIM;

	queue = alloc_workqueue("hallway_vsock", flags, 0);
	return queue ? 0 : -ENOMEM;
}

void hall_tunnels_uninit(void)
{
	/* An item that has put the last reference may still be on its way out. */
	destroy_workqueue(queue);
}
