// SPDX-License-Identifier: GPL-2.0-only
/*
 * How sockets come to be watched.
 *
 * The socket layer finds TCP's or UDP's proto in a list of struct inet_protosw, and calls its
 * init() for each new socket, in process context. No module can replace their entries,
 * which are permanent. But an entry is not constant: its proto is exchanged for a
 * copy with another init(), which first gives the socket the native proto back. So
 * nothing of ours is in a socket but its table of operations. To find the entry,
 * another one is registered for an instant: it lies in the same list.
 *
 * A thread may have read the copy, and sleep in sk_alloc(), while the module goes.
 * So the copies are never freed, and are native's at the end. The same holds for the
 * tables of operations.
 */
#include "hook.h"

#include <linux/kmemleak.h>
#include <linux/slab.h>
#include <net/inet_common.h>
#include <net/protocol.h>
#include <net/tcp.h>
#include <net/transp_v6.h>
#include <net/udp.h>

#include "calls.h"

/* No program can have a socket of it: it is beyond IPPROTO_MAX. */
#define MARKER_PROTOCOL	0xffff
/* Entries of one list that are looked at. */
#define LOOK_MAX	16

struct hook {
	unsigned short type;		/* SOCK_* */
	unsigned short protocol;
	struct inet_protosw *entry;
	struct hall_tables *tables;
	struct proto *native;
	void (*add)(struct inet_protosw *entry);
	void (*remove)(struct inet_protosw *entry);
};

static void add_v4(struct inet_protosw *entry)
{
	inet_register_protosw(entry);
}

#if IS_ENABLED(CONFIG_IPV6)
static void add_v6(struct inet_protosw *entry)
{
	inet6_register_protosw(entry);
}
#endif

enum { TCP4, TCP6, UDP4, UDP6, HOOKS };

static struct hook hooks[HOOKS] = {
	[TCP4] = { .type = SOCK_STREAM, .protocol = IPPROTO_TCP, .native = &tcp_prot,
		   .add = add_v4, .remove = inet_unregister_protosw },
	[UDP4] = { .type = SOCK_DGRAM, .protocol = IPPROTO_UDP, .native = &udp_prot,
		   .add = add_v4, .remove = inet_unregister_protosw },
#if IS_ENABLED(CONFIG_IPV6)
	[TCP6] = { .type = SOCK_STREAM, .protocol = IPPROTO_TCP, .native = &tcpv6_prot,
		   .add = add_v6, .remove = inet6_unregister_protosw },
	/* Its proto is not exported: see find_udpv6(). */
	[UDP6] = { .type = SOCK_DGRAM, .protocol = IPPROTO_UDP,
		   .add = add_v6, .remove = inet6_unregister_protosw },
#endif
};

struct hall_tables *hall_tables_of(const struct sock *sk)
{
	bool v6 = sk->sk_family == AF_INET6;

	if (sk->sk_type == SOCK_DGRAM)
		return hooks[v6 ? UDP6 : UDP4].tables;
	return hooks[v6 ? TCP6 : TCP4].tables;
}

bool hall_is_watched(const struct socket *sock)
{
	const struct proto_ops *ops = READ_ONCE(sock->ops);
	const struct hall_tables *tables = hall_tables_of(sock->sk);

	return ops == &tables->watched || ops == &tables->chosen;
}

bool hall_is_native(const struct socket *sock)
{
	return !memcmp(READ_ONCE(sock->ops), hall_tables_of(sock->sk)->native,
		       sizeof(*sock->ops));
}

void hall_exclude(struct socket *sock)
{
	struct sock *sk = sock->sk;

	spin_lock_bh(&sk->sk_lock.slock);
	smp_store_release(&sock->ops, &hall_tables_of(sk)->excluded);
	spin_unlock_bh(&sk->sk_lock.slock);
}

/*
 * A socket is being made; its proto is a copy of ours. UDP's own init() allocates memory
 * in newer kernels.
 */
static int init_sock(struct sock *sk)
{
	struct hall_tables *tables = container_of(sk->sk_prot, struct hall_tables,
						  prot);
	bool may_sleep = sk->sk_type == SOCK_DGRAM;
	int err;

	if (may_sleep)
		hall_out_enter();
	sk->sk_prot = tables->native_prot;
	sk->sk_prot_creator = tables->native_prot;
	err = tables->native_prot->init(sk);
	if (!err && !sk->sk_kern_sock && sk->sk_socket)
		smp_store_release(&sk->sk_socket->ops, &tables->watched);
	if (may_sleep)
		hall_out_leave();
	return err;
}

static struct inet_protosw *find_entry(const struct hook *hook)
{
	struct inet_protosw marker = {
		.type = hook->type,
		.protocol = MARKER_PROTOCOL,
		.prot = hook->native,
		.ops = &inet_stream_ops,
	};
	struct inet_protosw *entry, *found = NULL;
	struct list_head *at;
	unsigned int n;

	INIT_LIST_HEAD(&marker.list);
	hook->add(&marker);
	/* A list's head is no entry; ours is before the marker, and so found first. */
	for (at = marker.list.prev, n = 0;
	     at != &marker.list && n < LOOK_MAX && !found; at = at->prev, n++) {
		entry = list_entry(at, struct inet_protosw, list);
		if (entry->type == hook->type &&
		    entry->protocol == hook->protocol &&
		    entry->prot == hook->native)
			found = entry;
	}
	hook->remove(&marker);
	return found;
}

static void fill_stream_tables(struct hall_tables *tables)
{
	struct proto_ops *watched = &tables->watched, *stream = &tables->stream;

	watched->connect = hall_watched_connect;
	watched->listen = hall_watched_listen;
	watched->accept = hall_watched_accept;
	watched->getname = hall_watched_getname;
	watched->poll = hall_out_poll;
	watched->shutdown = hall_watched_shutdown;
	watched->release = hall_watched_release;
	stream->bind = hall_out_bind;
	stream->connect = hall_out_connect;
	stream->accept = hall_out_accept;
	stream->listen = hall_out_listen;
	stream->getname = hall_out_getname;
	stream->poll = hall_out_poll;
	stream->release = hall_out_release;
	stream->ioctl = hall_out_ioctl;
	stream->shutdown = hall_out_shutdown;
	stream->setsockopt = hall_out_setsockopt;
	stream->getsockopt = hall_out_getsockopt;
	stream->sendmsg = hall_out_sendmsg;
	stream->recvmsg = hall_out_recvmsg;
	/* The socket layer then splices by recvmsg() and sendmsg(). */
	stream->splice_read = NULL;
	stream->read_sock = NULL;
	stream->peek_len = NULL;
	stream->mmap = sock_no_mmap;
#ifdef HALL_HAS_SENDPAGE
	stream->sendpage = NULL;
#endif
}

static void fill_datagram_tables(struct hall_tables *tables)
{
	struct proto_ops *watched = &tables->watched;

	watched->bind = hall_bound_bind;
	watched->connect = hall_unrouted_connect;
	watched->sendmsg = hall_datagram_sendmsg;
	watched->poll = hall_datagram_poll;
	watched->release = hall_datagram_release;
#ifdef HALL_HAS_SENDPAGE
	/* By sendmsg(). */
	watched->sendpage = sock_no_sendpage;
#endif
}

static void fill_tables(struct hall_tables *tables, const struct hook *hook)
{
	tables->native_prot = hook->native;
	tables->native = hook->entry->ops;
	tables->prot = *hook->native;
	/*
	 * The owner stays native's: while the module goes, no reference to it can be
	 * had, and no socket could be made.
	 */
	tables->prot.init = init_sock;
	tables->watched = *tables->native;
	tables->stream = *tables->native;
	if (hook->type == SOCK_DGRAM)
		fill_datagram_tables(tables);
	else
		fill_stream_tables(tables);
	tables->watched.setsockopt = hall_watched_setsockopt;
	tables->chosen = tables->watched;
	tables->excluded = *tables->native;
	tables->excluded.setsockopt = hall_watched_setsockopt;
}

static int set_hook(struct hook *hook)
{
	struct hall_tables *tables;

	hook->entry = find_entry(hook);
	if (!hook->entry)
		return -EOPNOTSUPP;
	tables = kzalloc(sizeof(*tables), GFP_KERNEL);
	if (!tables) {
		hook->entry = NULL;
		return -ENOMEM;
	}
	kmemleak_not_leak(tables);
	fill_tables(tables, hook);
	hook->tables = tables;
	return 0;
}

/* The proto that a fresh socket has. Without IPv6 there is none. */
static struct proto *find_udpv6(void)
{
	struct proto *prot = NULL;
	struct socket *sock;

	if (!sock_create_kern(&init_net, AF_INET6, SOCK_DGRAM, IPPROTO_UDP, &sock)) {
		prot = sock->sk->sk_prot;
		sock_release(sock);
	}
	return prot;
}

/* Where the guest was booted without IPv6, its lists are empty. */
static bool has_family(const struct hook *hook)
{
#if IS_ENABLED(CONFIG_IPV6)
	return hook->add != add_v6 || ipv6_mod_enabled();
#else
	return true;
#endif
}

int hall_hook_init(void)
{
	unsigned int n;
	int err;

	if (hooks[UDP6].add && !hooks[UDP6].native)
		hooks[UDP6].native = find_udpv6();
	for (n = 0; n < HOOKS; n++) {
		if (!hooks[n].native || hooks[n].entry || !has_family(&hooks[n]))
			continue;
		err = set_hook(&hooks[n]);
		if (err)
			return err;
	}
	for (n = 0; n < HOOKS; n++)
		if (hooks[n].entry)
			smp_store_release(&hooks[n].entry->prot,
					  &hooks[n].tables->prot);
	return 0;
}

/* Readers of the table see one function or the other. */
static void restore_ops(struct proto_ops *ops, const struct proto_ops *native)
{
	void *const *from = (void *const *)native;
	void **to = (void **)ops;
	size_t n;

	BUILD_BUG_ON(sizeof(*ops) % sizeof(*to));
	for (n = 0; n < sizeof(*ops) / sizeof(*to); n++)
		WRITE_ONCE(to[n], from[n]);
}

void hall_hook_uninit(void)
{
	struct hall_tables *tables;
	unsigned int n;

	for (n = 0; n < HOOKS; n++) {
		if (!hooks[n].entry)
			continue;
		tables = hooks[n].tables;
		/* Another module may have exchanged it after us: ours is inert then. */
		cmpxchg(&hooks[n].entry->prot, &tables->prot, tables->native_prot);
	}
	synchronize_rcu();
	for (n = 0; n < HOOKS; n++) {
		if (!hooks[n].entry)
			continue;
		tables = hooks[n].tables;
		WRITE_ONCE(tables->prot.init, tables->native_prot->init);
		restore_ops(&tables->watched, tables->native);
		restore_ops(&tables->chosen, tables->native);
		restore_ops(&tables->excluded, tables->native);
		restore_ops(&tables->stream, tables->native);
	}
	synchronize_rcu();
}
