// SPDX-License-Identifier: GPL-2.0-only
/*
 * A program's choice for one socket (hallway/socket.h). It is the table of operations that
 * the socket has until connect() or listen().
 */
#include "calls.h"

#include <linux/capability.h>
#include <net/tcp.h>

#include <hallway/socket.h>

#include "datagrams.h"
#include "hook.h"
#include "listeners.h"

/* Under lock_sock(). */
static int choose_table(struct socket *sock, int value)
{
	struct hall_tables *tables = hall_tables_of(sock->sk);
	const struct proto_ops *now = READ_ONCE(sock->ops);

	/* connect() or listen() has decided. */
	if (sock->sk->sk_state != TCP_CLOSE ||
	    (now != &tables->watched && now != &tables->chosen &&
	     now != &tables->excluded))
		return -EISCONN;
	smp_store_release(&sock->ops, value ? &tables->chosen : &tables->excluded);
	return 0;
}

static noinline int set_choice(struct socket *sock, sockptr_t from, unsigned int length)
{
	int value, err;

	if (length < sizeof(value))
		return -EINVAL;
	if (copy_from_sockptr(&value, from, sizeof(value)))
		return -EFAULT;
	if (value != 0 && value != 1)
		return -EINVAL;
	/* The operator has left the cgroup out. */
	if (value && !capable(CAP_NET_ADMIN))
		return -EPERM;
	lock_sock(sock->sk);
	err = choose_table(sock, value);
	release_sock(sock->sk);
	/* Another thread's call may have been faster. */
	if (!err && !value && sock->sk->sk_type == SOCK_DGRAM)
		hall_datagram_forget(sock->sk);
	else if (!err && !value)
		hall_listener_forget(sock->sk);
	return err;
}

void hall_out_watch_again(struct hall_out *out, struct socket *sock)
{
	struct hall_tables *tables = hall_tables_of(sock->sk);

	smp_store_release(&sock->ops, out->chosen ? &tables->chosen :
						    &tables->watched);
}

/* The socket's table becomes one of IPv4's own, so what the host has of it ends here. */
static int become_ipv4(struct socket *sock, sockptr_t value, unsigned int length)
{
	int err = hall_tables_of(sock->sk)->native->setsockopt(sock, SOL_IPV6, IPV6_ADDRFORM,
							       value, length);

	if (!err)
		hall_datagram_forget(sock->sk);
	return err;
}

static noinline int set_watched_option(struct socket *sock, int level, int name,
				       sockptr_t value, unsigned int length)
{
	bool choice = level == HALLWAY_SOL && name == HALLWAY_SO_OUTSOURCE;
	int err;

	if (!choice && (level != SOL_IPV6 || name != IPV6_ADDRFORM ||
			sock->sk->sk_type != SOCK_DGRAM))
		return HALL_NATIVE;
	/* It may sleep before there is an object. */
	hall_out_enter();
	err = choice ? set_choice(sock, value, length) :
		       become_ipv4(sock, value, length);
	hall_out_leave();
	return err;
}

int hall_watched_setsockopt(struct socket *sock, int level, int name,
			    sockptr_t value, unsigned int length)
{
	int err = set_watched_option(sock, level, name, value, length);

	if (err != HALL_NATIVE)
		return err;
	return hall_tables_of(sock->sk)->native->setsockopt(sock, level, name, value,
							    length);
}
