// SPDX-License-Identifier: GPL-2.0-only
/*
 * The hook: a probe on the stock tracepoint inet_sock_set_state.
 *
 * It runs with preemption off, often in softirq with the socket's spinlock held,
 * so it does only what can't wait: it replaces sk_prot, because a thread that
 * goes to sleep in the native tcp_recvmsg() would never see a ring. A connection
 * whose peer is no member costs one look-up.
 */
#include "switch.h"

#include <linux/tracepoint.h>

#include "../sock/idle.h"
#include "../sock/lookup.h"

static struct tracepoint *state_tracepoint;

/* Not inline: the address on the stack would cost each change of state. */
static noinline void attach_established(struct sock *sk)
{
	struct hall_member *member;
	struct in6_addr remote;

	hall_sock_read_remote(sk, &remote);
	rcu_read_lock();
	member = hall_members_find(&remote);
	if (member)
		hall_attach(sk, member);
	/* The member may publish another's address. */
	hall_candidates_meet(&remote);
	rcu_read_unlock();
}

static void on_state_change(void *data, const struct sock *csk,
			    const int oldstate, const int newstate)
{
	/* The tracepoint promises not to change the socket; we don't. */
	struct sock *sk = (struct sock *)csk;
	struct hall_sock *hs;

	if (sk->sk_protocol != IPPROTO_TCP || sk->sk_type != SOCK_STREAM)
		return;
	if (newstate == TCP_ESTABLISHED) {
		if (READ_ONCE(hall_enabled))
			attach_established(sk);
		return;
	}
	/* A FIN or RST came, or the like: the rest of the ring is due. Most have none. */
	hs = hall_sock_peek(sk);
	if (!hs || !READ_ONCE(hs->channel.endpoint))
		return;
	hs = hall_sock_get(sk);
	if (!hs)
		return;
	if (hs->channel.endpoint)
		hall_channel_raise(&hs->channel, HALL_EVENT_LOOK);
	hall_sock_put(hs);
}

static void find_tracepoint(struct tracepoint *tracepoint, void *name)
{
	if (!strcmp(tracepoint->name, name))
		state_tracepoint = tracepoint;
}

int hall_probe_init(void)
{
	for_each_kernel_tracepoint(find_tracepoint, "inet_sock_set_state");
	if (!state_tracepoint) {
		pr_err("hallway: this kernel has no tracepoint inet_sock_set_state (CONFIG_TRACEPOINTS): connections stay on TCP\n");
		return -EOPNOTSUPP;
	}
	return tracepoint_probe_register(state_tracepoint, on_state_change,
					 NULL);
}

void hall_probe_uninit(void)
{
	tracepoint_probe_unregister(state_tracepoint, on_state_change, NULL);
	tracepoint_synchronize_unregister();
}
