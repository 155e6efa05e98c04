// SPDX-License-Identifier: GPL-2.0
/*
 * Whose sockets may be outsourced: those of all programs, or of programs in some cgroups.
 * A program can also choose for each socket (hallway/socket.h): the choice is the table
 * of operations that the socket has.
 *
 * A cgroup is its id, so that nothing keeps it: one that is removed matches no more.
 */
#include "outsource.h"

#include <linux/cgroup.h>
#include <linux/slab.h>
#include <net/tcp.h>

#include <hallway/socket.h>

struct scope {
	struct rcu_head rcu;
	unsigned int count;
	u64 id[];
};

static struct scope __rcu *scope;	/* NULL: all; written under hall_outsource_set() */

static bool has_id(const struct scope *in, u64 id)
{
	unsigned int n;

	for (n = 0; n < in->count; n++)
		if (in->id[n] == id)
			return true;
	return false;
}

#ifdef CONFIG_SOCK_CGROUP_DATA
/* RCU */
static bool is_below(const struct scope *in, struct sock *sk)
{
	struct cgroup *cgroup = sock_cgroup_ptr(&sk->sk_cgrp_data);
	int level;

	for (level = cgroup->level; level >= 0; level--)
		if (has_id(in, cgroup_id(cgroup_ancestor(cgroup, level))))
			return true;
	return false;
}
#else
static bool is_below(const struct scope *in, struct sock *sk)
{
	return false;
}
#endif

bool hall_scope_has(const struct socket *sock)
{
	const struct scope *in;
	bool has;

	if (READ_ONCE(sock->ops) == &hall_tables_of(sock->sk)->chosen)
		return true;
	rcu_read_lock();
	in = rcu_dereference(scope);
	has = !in || is_below(in, sock->sk);
	rcu_read_unlock();
	return has;
}

int hall_scope_set(const u64 *id, unsigned int count)
{
	struct scope *new = NULL, *old;

	if (count) {
		new = kmalloc(struct_size(new, id, count), GFP_KERNEL);
		if (!new)
			return -ENOMEM;
		new->count = count;
		memcpy(new->id, id, count * sizeof(*id));
	}
	old = rcu_replace_pointer(scope, new, true);
	if (old)
		kfree_rcu(old, rcu);
	return 0;
}

unsigned int hall_outsource_get_cgroups(u64 *id)
{
	const struct scope *in;
	unsigned int count;

	rcu_read_lock();
	in = rcu_dereference(scope);
	count = in ? in->count : 0;
	if (in)
		memcpy(id, in->id, count * sizeof(*id));
	rcu_read_unlock();
	return count;
}

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

static int set_choice(struct socket *sock, sockptr_t from, unsigned int length)
{
	int value, err;

	if (length < sizeof(value))
		return -EINVAL;
	if (copy_from_sockptr(&value, from, sizeof(value)))
		return -EFAULT;
	if (value != 0 && value != 1)
		return -EINVAL;
	lock_sock(sock->sk);
	err = choose_table(sock, value);
	release_sock(sock->sk);
	return err;
}

void hall_out_watch_again(struct hall_out *out, struct socket *sock)
{
	struct hall_tables *tables = hall_tables_of(sock->sk);

	smp_store_release(&sock->ops, out->chosen ? &tables->chosen :
						    &tables->watched);
}

int hall_watched_setsockopt(struct socket *sock, int level, int name,
			    sockptr_t value, unsigned int length)
{
	int err;

	if (level != HALLWAY_SOL || name != HALLWAY_SO_OUTSOURCE)
		return hall_tables_of(sock->sk)->native->setsockopt(sock, level, name,
								    value, length);
	/* It may sleep before there is an object. */
	hall_out_enter();
	err = set_choice(sock, value, length);
	hall_out_leave();
	return err;
}
