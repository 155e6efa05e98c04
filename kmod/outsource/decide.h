/* SPDX-License-Identifier: GPL-2.0-only */
/* What may be outsourced: by the rules of decide.c, and of the programs of scope.c. */
#ifndef HALL_OUT_DECIDE_H
#define HALL_OUT_DECIDE_H

#include <net/sock.h>

#include "../compat/address.h"

/* decide.c */
/*
 * HALLWAY_REASON_NONE if the outsourcer may execute this connect(), or why it may
 * not. Under lock_sock().
 */
u32 hall_outsource_check_connect(struct socket *sock,
				 const struct hall_sockaddr *address, int len);
bool hall_outsource_may_publish(struct sock *sk);
/* May it execute an answer to an end of this family, of a published socket? No lock. */
bool hall_outsource_may_answer(struct sock *sk, bool v4);
/* May it execute a datagram's sending? No lock. */
bool hall_outsource_may_send(struct sock *sk, const struct in6_addr *remote);
/* Is it an address of one other machine, not link-local? Any context. */
bool hall_address_leads_out(const struct in6_addr *address);
/* IPv4 mapped. False: another family, or too short. */
bool hall_read_address(const struct hall_sockaddr *from, int len,
		       struct in6_addr *address, u16 *port);

/* scope.c: is the program, or the socket, one of those that are outsourced? */
bool hall_scope_has(struct sock *sk, const struct proto_ops *ops);
/* Ids of cgroups; none: all programs. 0, -ENOMEM, or -EOPNOTSUPP. */
int hall_scope_set(const u64 *id, unsigned int count);

#endif /* HALL_OUT_DECIDE_H */
