// SPDX-License-Identifier: GPL-2.0-only
/*
 * The programs that may have sockets outsourced: all, or those in some cgroups.
 * A program can also choose for each socket: choice.c.
 *
 * A cgroup is its id, so that nothing keeps it: one that is removed matches no more.
 */
#include "decide.h"

#include <linux/cgroup.h>
#include <linux/slab.h>

#include "hook.h"
#include "room.h"

struct scope {
	struct rcu_head rcu;
	unsigned int count;
	u64 id[];
};

static struct scope __rcu *scope;	/* NULL: all; written under hall_outsource_set() */

#ifdef CONFIG_SOCK_CGROUP_DATA
static bool has_id(const struct scope *in, u64 id)
{
	unsigned int n;

	for (n = 0; n < in->count; n++)
		if (in->id[n] == id)
			return true;
	return false;
}

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

bool hall_scope_has(struct sock *sk, const struct proto_ops *ops)
{
	const struct scope *in;
	bool has;

	if (ops == &hall_tables_of(sk)->chosen)
		return true;
	rcu_read_lock();
	in = rcu_dereference(scope);
	has = !in || is_below(in, sk);
	rcu_read_unlock();
	return has;
}

int hall_scope_set(const u64 *id, unsigned int count)
{
	struct scope *new = NULL, *old;

	if (count && !IS_ENABLED(CONFIG_SOCK_CGROUP_DATA))
		return -EOPNOTSUPP;
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
