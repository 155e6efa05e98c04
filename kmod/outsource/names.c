// SPDX-License-Identifier: GPL-2.0-only
/* getsockname(), getpeername() and ioctl() of an outsourced socket. */
#include "calls.h"

#include <asm/ioctls.h>
#include <linux/sockios.h>
#include <net/ipv6.h>
#include <net/tcp.h>

#include "hook.h"
#include "options.h"

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

/* As TCP: no, once it is reset, or both directions have ended. The outsourcer has said so. */
static bool has_peer(const struct hall_out *out)
{
	return hall_out_state(out) == HALL_OUT_CONNECTED && READ_ONCE(out->memory.ring);
}

int hall_out_getname(struct socket *sock, struct sockaddr *address, int peer)
{
	struct hall_out *out = hall_out_get(sock->sk);
	int ret;

	if (!out)
		return hall_tables_of(sock->sk)->native->getname(sock, address,
								 peer);
	if (peer && !has_peer(out))
		ret = -ENOTCONN;
	else if (peer)
		ret = put_address(sock->sk, address, &out->remote,
				  out->remote_port);
	else if (hall_out_state(out) != HALL_OUT_CONNECTED)
		ret = put_address(sock->sk, address, &in6addr_any, 0);
	else
		ret = put_address(sock->sk, address, &out->local, out->local_port);
	hall_out_put(out);
	return ret;
}

int hall_out_count_unsent(struct hall_out *out, bool unsent)
{
	int n, on_ring = 0;

	if (hall_out_state(out) != HALL_OUT_CONNECTED)
		return 0;
	/* First: what leaves the ring meanwhile is then counted twice, not never. */
	spin_lock_bh(&out->channel.lock);
	if (out->memory.ring)
		on_ring = hall_ring_count_unread(&out->tx);
	spin_unlock_bh(&out->channel.lock);
	n = hall_options_count_unacked(out, unsent);
	return n < 0 ? n : n + on_ring;
}

static noinline int control_out(struct socket *sock, unsigned int cmd,
				unsigned long arg)
{
	struct hall_out *out = hall_out_get(sock->sk);
	bool eof;
	int n = 0;

	if (!out)
		return HALL_NATIVE;
	switch (cmd) {
	case SIOCINQ:
		mutex_lock(&out->mutex);
		n = hall_out_count_unread(out, &eof);
		hall_out_unlock(out);
		break;
	case SIOCOUTQ:
	case SIOCOUTQNSD:
		n = hall_out_count_unsent(out, cmd == SIOCOUTQNSD);
		break;
	case SIOCATMARK:
		break;
	default:
		n = HALL_NATIVE;
	}
	/* It may sleep, and the object keeps the module. */
	if (n >= 0)
		n = put_user(n, (int __user *)arg);
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

/* A connected socket has its address, and cannot become a listener. */
int hall_out_bind(struct socket *sock, struct hall_sockaddr *address, int len)
{
	return -EINVAL;
}

int hall_out_listen(struct socket *sock, int backlog)
{
	return -EINVAL;
}
