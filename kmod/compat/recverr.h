/* SPDX-License-Identifier: GPL-2.0-only */
/* IP_RECVERR and IPV6_RECVERR, which became bits of inet_flags. */
#ifndef HALL_COMPAT_RECVERR_H
#define HALL_COMPAT_RECVERR_H

#include <linux/ipv6.h>
#include <net/inet_sock.h>

static inline bool hall_inet_has_recverr(const struct sock *sk)
{
#ifdef inet_test_bit
	return sk->sk_family == AF_INET6 ? inet6_test_bit(RECVERR6, sk) :
					   inet_test_bit(RECVERR, sk);
#else
	return sk->sk_family == AF_INET6 ? inet6_sk(sk)->recverr : inet_sk(sk)->recverr;
#endif
}

#endif /* HALL_COMPAT_RECVERR_H */
