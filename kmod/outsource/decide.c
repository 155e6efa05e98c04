// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which sockets the outsourcer may execute. What is said here is cheap, and saves a
 * question to the host; the host's policy decides.
 */
#include "decide.h"

#include <linux/bpf-cgroup.h>
#include <linux/errqueue.h>
#include <linux/inetdevice.h>
#include <net/addrconf.h>
#include <net/ipv6.h>
#include <net/route.h>
#include <net/tcp.h>
#include <net/udp.h>

#include <hallway/reason.h>

#include "../switch/switch.h"
#include "room.h"

bool hall_read_address(const struct hall_sockaddr *from, int len,
		       struct in6_addr *address, u16 *port)
{
	const struct sockaddr_in *v4 = (const void *)from;
	const struct sockaddr_in6 *v6 = (const void *)from;

	if (len >= (int)sizeof(*v4) && from->sa_family == AF_INET) {
		ipv6_addr_set_v4mapped(v4->sin_addr.s_addr, address);
		*port = ntohs(v4->sin_port);
		return true;
	}
	if (len >= (int)SIN6_LEN_RFC2133 && from->sa_family == AF_INET6) {
		*address = v6->sin6_addr;
		*port = ntohs(v6->sin6_port);
		return true;
	}
	return false;
}

bool hall_address_leads_out(const struct in6_addr *address)
{
	struct net *net = &init_net;
	int type;

	if (ipv6_addr_v4mapped(address))
		return inet_addr_type(net, address->s6_addr32[3]) == RTN_UNICAST &&
		       !ipv4_is_linklocal_169(address->s6_addr32[3]);
	type = ipv6_addr_type(address);
	return (type & IPV6_ADDR_UNICAST) &&
	       !(type & (IPV6_ADDR_LINKLOCAL | IPV6_ADDR_LOOPBACK |
			 IPV6_ADDR_COMPATv4)) &&
	       !(IS_ENABLED(CONFIG_IPV6) &&
		 ipv6_chk_addr(net, address, NULL, 0));
}

static bool is_member(const struct in6_addr *address)
{
	bool found;

	rcu_read_lock();
	found = hall_members_find(address);
	rcu_read_unlock();
	return found;
}

/* Options that the outsourcer does not get: see options.c. */
static bool has_tcp_options(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

#ifdef CONFIG_TCP_MD5SIG
	if (rcu_access_pointer(tp->md5sig_info))
		return true;
#endif
#ifdef CONFIG_TCP_AO
	if (rcu_access_pointer(tp->ao_info))
		return true;
#endif
	return tp->repair || tp->tcp_tx_delay || tp->fastopen_connect ||
	       inet_csk(sk)->icsk_ca_setsockopt || inet_csk(sk)->icsk_ulp_ops;
}

static bool has_ip_options(const struct sock *sk)
{
	const struct inet_sock *inet = inet_sk(sk);

#ifdef CONFIG_XFRM
	if (rcu_access_pointer(sk->sk_policy[0]) ||
	    rcu_access_pointer(sk->sk_policy[1]))
		return true;
#endif
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6 &&
	    (rcu_access_pointer(inet6_sk(sk)->opt) ||
	     inet6_sk(sk)->min_hopcount))
		return true;
#endif
	return inet->min_ttl || rcu_access_pointer(inet->inet_opt) ||
	       sk->sk_max_pacing_rate != ~0UL;
}

/* BPF programs of its cgroup that are called when TCP changes its state. */
static bool has_sock_ops(struct sock *sk)
{
#ifdef CONFIG_CGROUP_BPF
	return cgroup_bpf_enabled(CGROUP_SOCK_OPS) &&
	       cgroup_bpf_sock_enabled(sk, CGROUP_SOCK_OPS);
#else
	return false;
#endif
}

/* IPsec policies of the guest: to encrypt, or to drop, wherever to. */
static bool has_ipsec_policies(void)
{
#ifdef CONFIG_XFRM
	const struct netns_xfrm *xfrm = &init_net.xfrm;
	unsigned int dir;

	for (dir = XFRM_POLICY_IN; dir <= XFRM_POLICY_OUT; dir++)
		if (READ_ONCE(xfrm->policy_count[dir]) ||
		    READ_ONCE(xfrm->policy_default[dir]) == XFRM_USERPOLICY_BLOCK)
			return true;
#endif
	return false;
}

/* The host's packets pass no rule of this guest. */
static bool rules_apply(struct sock *sk, bool v4)
{
	return hall_filters_apply(sk, v4) || has_ipsec_policies();
}

/* Is there nothing about the socket that the host's one could not have? */
static bool is_plain(const struct sock *sk)
{
	return sock_net(sk) == &init_net && !sk->sk_bound_dev_if &&
	       !sk->sk_user_data && !sk->sk_mark &&
	       !sock_flag(sk, SOCK_ZEROCOPY) &&
	       !rcu_access_pointer(sk->sk_filter) && !inet_sk_transparent(sk) &&
	       !has_ip_options(sk);
}

static bool is_plain_tcp(struct sock *sk)
{
	return is_plain(sk) && !has_tcp_options(sk) && !has_sock_ops(sk);
}

/* Has the program chosen the device, or neighbours alone? */
static bool has_chosen_way(const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6 && inet6_sk(sk)->ucast_oif)
		return true;
#endif
	return inet_sk(sk)->uc_index || sock_flag(sk, SOCK_LOCALROUTE);
}

static bool is_plain_udp(struct sock *sk)
{
	return is_plain(sk) && !READ_ONCE(udp_sk(sk)->encap_type) &&
	       !READ_ONCE(udp_sk(sk)->pending) && !udp_test_bit(CORK, sk) &&
	       !sock_flag(sk, SOCK_TXTIME) && !has_chosen_way(sk) &&
	       !(READ_ONCE(sk->sk_tsflags) & SOF_TIMESTAMPING_TX_RECORD_MASK);
}

/* An address that the host may not have, or a port. */
static bool has_local_name(const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6 && !ipv6_addr_any(&sk->sk_v6_rcv_saddr))
		return true;
#endif
	return inet_sk(sk)->inet_num || inet_sk(sk)->inet_rcv_saddr;
}

u32 hall_outsource_check_connect(struct socket *sock,
				 const struct hall_sockaddr *address, int len)
{
	struct sock *sk = sock->sk;
	struct in6_addr remote;
	u16 port;

	if (!READ_ONCE(hall_outsourcing))
		return HALLWAY_REASON_OFF;
	/* A call that fails natively, or does something else there. */
	if (sock->state != SS_UNCONNECTED || sk->sk_state != TCP_CLOSE ||
	    !hall_read_address(address, len, &remote, &port) || !port ||
	    sk->sk_family != address->sa_family ||
	    (ipv6_addr_v4mapped(&remote) && sk->sk_family == AF_INET6 &&
	     ipv6_only_sock(sk)))
		return HALLWAY_REASON_STATE;
	if (sock_net(sk) != &init_net)
		return HALLWAY_REASON_NAMESPACE;
	if (!hall_scope_has(sk, READ_ONCE(sock->ops)))
		return HALLWAY_REASON_SCOPE;
	if (!hall_address_leads_out(&remote))
		return HALLWAY_REASON_LOCAL;
	if (is_member(&remote))
		return HALLWAY_REASON_MEMBER;
	if (has_local_name(sk))
		return HALLWAY_REASON_BOUND;
	if (!is_plain_tcp(sk))
		return HALLWAY_REASON_OPTION;
	if (hall_filters_apply_connect(sk) ||
	    rules_apply(sk, ipv6_addr_v4mapped(&remote)))
		return HALLWAY_REASON_FILTERED;
	return HALLWAY_REASON_NONE;
}

bool hall_outsource_may_send(struct sock *sk, const struct in6_addr *remote)
{
	bool v4 = ipv6_addr_v4mapped(remote);

	/* A program that has chosen its port is known by it. */
	return !(sk->sk_userlocks & (SOCK_BINDPORT_LOCK | SOCK_BINDADDR_LOCK)) &&
	       !(v4 && sk->sk_family == AF_INET6 && ipv6_only_sock(sk)) &&
	       is_plain_udp(sk) && hall_address_leads_out(remote) &&
	       !is_member(remote) && !hall_filters_apply_connect(sk) &&
	       !hall_filters_apply_sendmsg(sk) && !rules_apply(sk, v4);
}

bool hall_outsource_may_answer(struct sock *sk, bool v4)
{
	return is_plain_udp(sk) && !hall_filters_apply_sendmsg(sk) &&
	       !rules_apply(sk, v4);
}

bool hall_outsource_may_publish(struct sock *sk)
{
	bool plain = sk->sk_type == SOCK_DGRAM ? is_plain_udp(sk) : is_plain_tcp(sk);

	if (!READ_ONCE(hall_outsourcing) || !plain ||
	    rules_apply(sk, true) || rules_apply(sk, false))
		return false;
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		return !(ipv6_addr_type(&sk->sk_v6_rcv_saddr) &
			 (IPV6_ADDR_LOOPBACK | IPV6_ADDR_LINKLOCAL));
#endif
	return !ipv4_is_loopback(inet_sk(sk)->inet_rcv_saddr);
}
