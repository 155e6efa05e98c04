// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rules that apply to a connection's packets, to count or to drop them: those of
 * its network namespace (nftables, iptables) and the BPF programs of its cgroup. A
 * ring has no packets, so such a connection stays on TCP, or is demoted.
 *
 * Rings don't matter to hooks that follow connections, or decide when one begins:
 * connection tracking, NAT, defragmentation. Rule sets are distinguished from
 * these and from other hooks by what registered them, for iptables by the
 * priorities of its tables. Hooks may be read under RCU, as in nfnetlink_hook.c.
 *
 * No event says that rules were added. So we look before a ring is offered or
 * accepted, and once a second while it exists.
 */
#include "switch.h"

#include <linux/bpf-cgroup.h>
#include <linux/moduleparam.h>
#include <linux/netfilter.h>
#include <linux/netfilter_ipv4.h>

#include <hallway/reason.h>

static bool honour_filters = true;
module_param(honour_filters, bool, 0644);
MODULE_PARM_DESC(honour_filters, "connections whose packets nftables, iptables or a cgroup's BPF programs are to see stay on TCP (default: Y)");

#ifdef CONFIG_NETFILTER
static bool is_rule_set(const struct nf_hook_ops *ops)
{
	if (ops->hook_ops_type != NF_HOOK_OP_UNDEFINED)
		return true;
	/* iptables: the same numbers in both families. */
	switch (ops->priority) {
	case NF_IP_PRI_RAW_BEFORE_DEFRAG:
	case NF_IP_PRI_RAW:
	case NF_IP_PRI_MANGLE:
	case NF_IP_PRI_FILTER:
	case NF_IP_PRI_SECURITY:
		return true;
	}
	return false;
}

/* Not a flowtable: that is for forwarded packets only. Unused without hooks of devices. */
static bool __maybe_unused is_device_rule_set(const struct nf_hook_ops *ops)
{
	return ops->hook_ops_type == NF_HOOK_OP_NF_TABLES;
}

/* RCU */
static bool have_rules(const struct nf_hook_entries *entries,
		       bool (*are_rules)(const struct nf_hook_ops *ops))
{
	struct nf_hook_ops **ops;
	unsigned int i;

	if (!entries)
		return false;
	ops = nf_hook_entries_get_hook_ops(entries);
	for (i = 0; i < entries->num_hook_entries; i++)
		if (are_rules(READ_ONCE(ops[i])))
			return true;
	return false;
}

/* Rules of nftables' family netdev, or of a chain at ingress. RCU */
static bool has_device_rules(const struct net_device *dev)
{
	bool ruled = false;

	if (!dev)
		return false;
#ifdef CONFIG_NETFILTER_INGRESS
	ruled |= have_rules(rcu_dereference(dev->nf_hooks_ingress), is_device_rule_set);
#endif
#ifdef CONFIG_NETFILTER_EGRESS
	ruled |= have_rules(rcu_dereference(dev->nf_hooks_egress), is_device_rule_set);
#endif
	return ruled;
}

static bool has_rules(const struct sock *sk, bool v4)
{
	static const u8 passed[] = { NF_INET_PRE_ROUTING, NF_INET_LOCAL_IN,
				     NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING };
	struct netns_nf *nf = &sock_net(sk)->nf;
	struct nf_hook_entries __rcu **hooks = v4 ? nf->hooks_ipv4 :
						    nf->hooks_ipv6;
	const struct dst_entry *dst;
	bool ruled = false;
	unsigned int i;

	rcu_read_lock();
	for (i = 0; i < ARRAY_SIZE(passed); i++)
		ruled |= have_rules(rcu_dereference(hooks[passed[i]]), is_rule_set);
	/* The device of outgoing packets, and that of the last incoming one. */
	dst = rcu_dereference(sk->sk_dst_cache);
	ruled |= has_device_rules(dst ? dst->dev : NULL) ||
		 has_device_rules(dev_get_by_index_rcu(sock_net(sk),
						       READ_ONCE(sk->sk_rx_dst_ifindex)));
	rcu_read_unlock();
	return ruled;
}
#else
static bool has_rules(const struct sock *sk, bool v4)
{
	return false;
}
#endif

/* Of the socket's cgroup, of one type. */
#ifdef CONFIG_CGROUP_BPF
#define HAS_PROGRAM(sk, type)	(cgroup_bpf_enabled(type) && cgroup_bpf_sock_enabled(sk, type))
#else
#define HAS_PROGRAM(sk, type)	false
#endif

bool hall_filters_apply(struct sock *sk, bool v4)
{
	return READ_ONCE(honour_filters) &&
	       (has_rules(sk, v4) || HAS_PROGRAM(sk, CGROUP_INET_INGRESS) ||
		HAS_PROGRAM(sk, CGROUP_INET_EGRESS));
}

bool hall_filters_apply_connect(struct sock *sk)
{
	return READ_ONCE(honour_filters) && (HAS_PROGRAM(sk, CGROUP_INET4_CONNECT) ||
					     HAS_PROGRAM(sk, CGROUP_INET6_CONNECT));
}

bool hall_filters_apply_sendmsg(struct sock *sk)
{
	return READ_ONCE(honour_filters) && (HAS_PROGRAM(sk, CGROUP_UDP4_SENDMSG) ||
					     HAS_PROGRAM(sk, CGROUP_UDP6_SENDMSG));
}

void hall_filters_check(struct hall_sock *hs)
{
	if ((READ_ONCE(hs->tx.state) != HALL_TX_RING &&
	     READ_ONCE(hs->rx.state) != HALL_RX_MAPPED) ||
	    READ_ONCE(hs->detaching) ||
	    !hall_filters_apply(hs->sk, ipv6_addr_v4mapped(&hs->remote)))
		return;
	hall_sock_request_detach(hs, HALLWAY_REASON_FILTERED);
}
