// SPDX-License-Identifier: GPL-2.0-only
/*
 * connect() of a UDP socket in a guest that has no route to the other end. The native stack
 * needs one only to choose the socket's own address. Without that the socket is connected
 * all the same: it gets what comes from the other end, and nothing else.
 */
#include "calls.h"

#include <net/ipv6.h>
#include <net/transp_v6.h>
#include <net/udp.h>

#include "datagrams.h"
#include "decide.h"
#include "hook.h"
#include "ports.h"
#include "room.h"

static bool has_outsourcer(void)
{
	struct hall_member *member = hall_members_get_outsourcer();

	if (member)
		hall_member_put(member);
	return member;
}

/* Has the address no more than an address and port? */
static bool is_plain_address(const struct sock *sk, const struct hall_sockaddr *address,
			     int len)
{
	const struct sockaddr_in6 *v6 = (const void *)address;

	return address->sa_family == sk->sk_family &&
	       (sk->sk_family == AF_INET ||
		(len >= (int)sizeof(*v6) && !v6->sin6_scope_id && !v6->sin6_flowinfo));
}

/* Under lock_sock(). What __ip4_datagram_connect() sets, but for addresses of its own. */
static void set_other_end(struct sock *sk, const struct hall_destination *to)
{
	struct inet_sock *inet = inet_sk(sk);

	inet->inet_daddr = ipv6_addr_v4mapped(&to->address) ? to->address.s6_addr32[3] :
							      LOOPBACK4_IPV6;
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		sk->sk_v6_daddr = to->address;
#endif
	inet->inet_dport = htons(to->port);
	sk->sk_state = TCP_ESTABLISHED;
	sk_set_txhash(sk);
}

static bool connect_unrouted(struct socket *sock, struct hall_sockaddr *address, int len)
{
	struct hall_destination to = { };
	struct sock *sk = sock->sk;
	bool good;

	if (!READ_ONCE(hall_outsourcing) ||
	    !hall_read_address(address, len, &to.address, &to.port) || !to.port ||
	    !is_plain_address(sk, address, len) ||
	    !hall_outsource_may_send(sk, &to.address) || !has_outsourcer())
		return false;
	lock_sock(sk);
	/* The native connect() has chosen its port. */
	good = hall_is_watched(sock) && hall_scope_has(sk, READ_ONCE(sock->ops)) &&
	       sk->sk_state == TCP_CLOSE && inet_sk(sk)->inet_num;
	if (good)
		set_other_end(sk, &to);
	release_sock(sk);
	return good;
}

int hall_unrouted_connect(struct socket *sock, struct hall_sockaddr *address, int len,
			  int flags)
{
	int err;

	/* It sleeps without an object. */
	hall_out_enter();
	err = hall_tables_of(sock->sk)->native->connect(sock, address, len, flags);
	if ((err == -ENETUNREACH || err == -EHOSTUNREACH) &&
	    connect_unrouted(sock, address, len))
		err = 0;
	/* That has given a port back which the kernel chose: the next send() gets another one. */
	if (!err && address->sa_family == AF_UNSPEC &&
	    !hall_has_chosen_port(sock->sk))
		hall_datagram_forget(sock->sk);
	hall_out_leave();
	return err;
}
