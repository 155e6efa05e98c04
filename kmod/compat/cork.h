/* SPDX-License-Identifier: GPL-2.0-only */
/* UDP_CORK, which became a bit of udp_flags. */
#ifndef HALL_COMPAT_CORK_H
#define HALL_COMPAT_CORK_H

#include <linux/udp.h>

static inline bool hall_udp_is_corked(const struct sock *sk)
{
#ifdef udp_test_bit
	return udp_test_bit(CORK, sk);
#else
	return READ_ONCE(udp_sk(sk)->corkflag);
#endif
}

#endif /* HALL_COMPAT_CORK_H */
