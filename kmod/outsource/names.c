// SPDX-License-Identifier: GPL-2.0
/* getsockname(), getpeername() and ioctl() of an outsourced socket. */
#include "outsource.h"

#include <asm/ioctls.h>
#include <linux/sockios.h>
#include <net/ipv6.h>
#include <net/tcp.h>

static int put_address(const struct sock *sk, struct sockaddr *to,
		       const struct in6_addr *address, u16 port)
{
	struct sockaddr_in *v4 = (void *)to;
	struct sockaddr_in6 *v6 = (void *)to;

	if (sk->sk_family == AF_INET) {
		*v4 = (struct sockaddr_in){
			.sin_family = AF_INET,
			.sin_port = htons(port),
			.sin_addr.s_addr = address->s6_addr32[3],
		};
		return sizeof(*v4);
	}
	*v6 = (struct sockaddr_in6){
		.sin6_family = AF_INET6,
		.sin6_port = htons(port),
		.sin6_addr = *address,
	};
	return sizeof(*v6);
}

int hall_out_getname(struct socket *sock, struct sockaddr *address, int peer)
{
	struct hall_out *out = hall_out_get(sock->sk);
	int ret;

	if (!out)
		return hall_tables_of(sock->sk)->native->getname(sock, address,
								 peer);
	if (hall_out_state(out) != HALL_OUT_CONNECTED)
		ret = peer ? -ENOTCONN :
			     put_address(sock->sk, address, &in6addr_any, 0);
	else if (peer)
		ret = put_address(sock->sk, address, &out->remote,
				  out->remote_port);
	else
		ret = put_address(sock->sk, address, &out->local, out->local_port);
	hall_out_put(out);
	return ret;
}

static noinline int control_out(struct socket *sock, unsigned int cmd,
				unsigned long arg)
{
	struct hall_out *out = hall_out_get(sock->sk);
	bool eof, known = true;
	int n = 0;

	if (!out)
		return HALL_NATIVE;
	mutex_lock(&out->mutex);
	if (cmd == SIOCINQ)
		n = hall_out_count_unread(out, &eof);
	else if (cmd == SIOCOUTQ || cmd == SIOCOUTQNSD)
		n = out->memory.ring ? hall_ring_count_unread(&out->tx) : 0;
	else
		known = cmd == SIOCATMARK;
	hall_out_unlock(out);
	/* It may sleep, and the object keeps the module. */
	n = known ? put_user(n, (int __user *)arg) : HALL_NATIVE;
	hall_out_put(out);
	return n;
}

int hall_out_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg)
{
	int ret = control_out(sock, cmd, arg);

	if (ret != HALL_NATIVE)
		return ret;
	return hall_tables_of(sock->sk)->native->ioctl(sock, cmd, arg);
}

/* A connected socket has its address. */
int hall_out_bind(struct socket *sock, struct hall_sockaddr *address, int len)
{
	return -EINVAL;
}
