// SPDX-License-Identifier: GPL-2.0-only
/*
 * The generic netlink family "hallway": spec/netlink.yaml. A dump is a snapshot:
 * start collects all elements, the calls that follow send as many as fit.
 *
 * Any user may ask. The members' UUIDs and names, and the connections of other
 * namespaces, are for administrators.
 */
#include "netlink.h"

#include <linux/module.h>
#include <net/genetlink.h>

#include <hallway/netlink.h>
#include <hallway/reason.h>
#include <hallway/socket.h>

#include "../outsource/room.h"
#include "../sock/lookup.h"
#include "../switch/switch.h"
#include "counters.h"

/* Dumps that users have begun, and not read to their end. Each keeps a snapshot. */
#define DUMPS_MAX	32

static struct genl_family family;
/* Of all users but administrators. */
static atomic_t dumps;

/* The snapshot of one dump, in cb->args[0]. */
struct snapshot {
	unsigned int count, room, next;	/* elements; next: to send */
	size_t size;			/* bytes of an element */
	const struct net *net;		/* only its connections; NULL: all */
	bool private;			/* what is for administrators, too */
	void *element;
};

struct connection {
	struct in6_addr local, remote;
	u16 local_port, remote_port;
	u8 state;
	u32 netns, tx_carrier, rx_carrier, reason;
	u64 tx_tcp, tx_ring, rx_tcp, rx_ring;
	char peer[HALLWAY_NAME_SIZE];
	bool outsourced, datagram;
};

struct member {
	const char *transport;
	bool own;			/* this guest */
	bool outsourcer;
	bool named;			/* uuid and name are the asker's to see */
	u32 slot, generation, tunnels, cid;
	u8 uuid[16];
	char name[HALLWAY_NAME_SIZE];
	unsigned int addresses;
	struct in6_addr address[HALLWAY_ADDRESSES_MAX];
};

/* Makes room for twice the elements. 0 or -ENOMEM. */
static int snapshot_grow(struct snapshot *snapshot)
{
	unsigned int room = max(16u, snapshot->room * 2);
	/* Charged to the caller: it lives until the dump ends. */
	void *element = kvmalloc_array(room, snapshot->size, GFP_KERNEL_ACCOUNT);

	if (!element)
		return -ENOMEM;
	if (snapshot->count)
		memcpy(element, snapshot->element,
		       snapshot->count * snapshot->size);
	kvfree(snapshot->element);
	snapshot->element = element;
	snapshot->room = room;
	return 0;
}

/* Returns a zeroed element at the end, or NULL: no room. */
static void *snapshot_add(struct snapshot *snapshot)
{
	void *element;

	if (snapshot->count == snapshot->room)
		return NULL;
	element = snapshot->element + snapshot->count++ * snapshot->size;
	memset(element, 0, snapshot->size);
	return element;
}

/* Returns an error pointer: -EBUSY, -ENOMEM. */
static struct snapshot *snapshot_new(struct netlink_callback *cb, size_t size)
{
	bool private = netlink_capable(cb->skb, CAP_NET_ADMIN);
	struct snapshot *snapshot;

	if (!private && atomic_inc_return(&dumps) > DUMPS_MAX) {
		atomic_dec(&dumps);
		return ERR_PTR(-EBUSY);
	}
	snapshot = kzalloc(sizeof(*snapshot), GFP_KERNEL);
	if (!snapshot) {
		if (!private)
			atomic_dec(&dumps);
		return ERR_PTR(-ENOMEM);
	}
	snapshot->size = size;
	snapshot->private = private;
	cb->args[0] = (long)snapshot;
	return snapshot;
}

static int snapshot_free(struct netlink_callback *cb)
{
	struct snapshot *snapshot = (void *)cb->args[0];

	if (!snapshot)
		return 0;
	if (!snapshot->private)
		atomic_dec(&dumps);
	kvfree(snapshot->element);
	kfree(snapshot);
	return 0;
}

/* Sends elements until the buffer is full. */
static int dump(struct sk_buff *skb, struct netlink_callback *cb, u8 command,
		int (*put)(struct sk_buff *skb, const void *element))
{
	struct snapshot *snapshot = (void *)cb->args[0];
	void *header;

	while (snapshot->next < snapshot->count) {
		header = genlmsg_put(skb, NETLINK_CB(cb->skb).portid,
				     cb->nlh->nlmsg_seq, &family, NLM_F_MULTI,
				     command);
		if (!header)
			break;
		if (put(skb, snapshot->element +
			     snapshot->next * snapshot->size)) {
			genlmsg_cancel(skb, header);
			break;
		}
		genlmsg_end(skb, header);
		snapshot->next++;
	}
	return skb->len;
}

/* Takes no lock: a thread may hold a socket's lock for any time. */
static void collect_connection(struct hall_sock *hs, void *data)
{
	struct snapshot *snapshot = data;
	const struct sock *sk = hs->sk;
	struct connection *to;
	u32 rx_carrier;

	if (snapshot->net && !net_eq(sock_net(sk), snapshot->net))
		return;
	/* No mutex is held. */
	if (snapshot->count == snapshot->room && snapshot_grow(snapshot))
		return;
	to = snapshot_add(snapshot);
	to->local = hs->local;
	to->remote = hs->remote;
	to->local_port = hs->local_port;
	to->remote_port = hs->remote_port;
	to->state = READ_ONCE(sk->sk_state);
	to->netns = sock_net(sk)->ns.inum;
	to->tx_carrier = READ_ONCE(hs->tx.carrier);
	rx_carrier = READ_ONCE(hs->rx.carrier);
	/* An accepted ring carries bytes once it has its start mark. */
	to->rx_carrier = (rx_carrier & 1) && !READ_ONCE(hs->rx.ring.started) ?
			 rx_carrier - 1 : rx_carrier;
	to->reason = READ_ONCE(hs->reason);
	to->tx_tcp = READ_ONCE(hs->tx.bytes_tcp);
	to->tx_ring = READ_ONCE(hs->tx.bytes_ring);
	to->rx_tcp = atomic64_read(&hs->rx.bytes_tcp);
	to->rx_ring = READ_ONCE(hs->rx.bytes_ring);
	if (snapshot->private)
		strscpy(to->peer, hs->channel.member->name, sizeof(to->peer));
}

/* Outsourced sockets are of the first namespace. */
static void collect_outsourced(const struct hall_outsourced *one, void *data)
{
	struct snapshot *snapshot = data;
	struct connection *to;

	if ((snapshot->net && !net_eq(snapshot->net, &init_net)) ||
	    (snapshot->count == snapshot->room && snapshot_grow(snapshot)))
		return;
	to = snapshot_add(snapshot);
	to->outsourced = true;
	to->datagram = one->datagram;
	to->local = one->local;
	to->remote = one->remote;
	to->local_port = one->local_port;
	to->remote_port = one->remote_port;
	to->state = one->state;
	to->netns = init_net.ns.inum;
	to->tx_carrier = 1;
	to->rx_carrier = 1;
	to->tx_ring = one->tx_bytes;
	to->rx_ring = one->rx_bytes;
	if (snapshot->private)
		strscpy(to->peer, one->peer, sizeof(to->peer));
}

static int put_connection(struct sk_buff *skb, const void *element)
{
	const struct connection *from = element;

	return nla_put_in6_addr(skb, HALLWAY_A_LOCAL, &from->local) ?:
	       nla_put_in6_addr(skb, HALLWAY_A_REMOTE, &from->remote) ?:
	       nla_put_u16(skb, HALLWAY_A_LOCAL_PORT, from->local_port) ?:
	       nla_put_u16(skb, HALLWAY_A_REMOTE_PORT, from->remote_port) ?:
	       nla_put_u32(skb, HALLWAY_A_NETNS, from->netns) ?:
	       nla_put_u8(skb, HALLWAY_A_STATE, from->state) ?:
	       nla_put_u32(skb, HALLWAY_A_TX_CARRIER, from->tx_carrier) ?:
	       nla_put_u32(skb, HALLWAY_A_RX_CARRIER, from->rx_carrier) ?:
	       nla_put_u64_64bit(skb, HALLWAY_A_TX_TCP, from->tx_tcp,
				 HALLWAY_A_PAD) ?:
	       nla_put_u64_64bit(skb, HALLWAY_A_TX_RING, from->tx_ring,
				 HALLWAY_A_PAD) ?:
	       nla_put_u64_64bit(skb, HALLWAY_A_RX_TCP, from->rx_tcp,
				 HALLWAY_A_PAD) ?:
	       nla_put_u64_64bit(skb, HALLWAY_A_RX_RING, from->rx_ring,
				 HALLWAY_A_PAD) ?:
	       nla_put_u32(skb, HALLWAY_A_REASON, from->reason) ?:
	       nla_put_string(skb, HALLWAY_A_REASON_TEXT,
			      hall_reason_text(from->reason)) ?:
	       nla_put_string(skb, HALLWAY_A_NAME, from->peer) ?:
	       (from->outsourced ? nla_put_flag(skb, HALLWAY_A_OUTSOURCED) : 0) ?:
	       (from->datagram ? nla_put_flag(skb, HALLWAY_A_DATAGRAM) : 0);
}

static int start_connections(struct netlink_callback *cb)
{
	struct snapshot *snapshot = snapshot_new(cb, sizeof(struct connection));

	if (IS_ERR(snapshot))
		return PTR_ERR(snapshot);
	/* As in /proc/net/tcp: only an administrator sees other namespaces. */
	if (!snapshot->private)
		snapshot->net = sock_net(cb->skb->sk);
	hall_sock_walk(collect_connection, snapshot);
	hall_outsource_walk(collect_outsourced, snapshot);
	return 0;
}

static int dump_connections(struct sk_buff *skb, struct netlink_callback *cb)
{
	return dump(skb, cb, HALLWAY_CMD_CONNECTIONS, put_connection);
}

static int collect_address(const struct in6_addr *address, void *data)
{
	struct member *to = data;

	if (to->addresses < ARRAY_SIZE(to->address))
		to->address[to->addresses++] = *address;
	return 0;
}

static int collect_member(struct hall_member *member, void *data)
{
	struct snapshot *snapshot = data;
	struct member *to = snapshot_add(snapshot);

	if (!to)
		return -ENOSPC;
	to->transport = member->transport->name;
	to->own = !member->transport->own;
	to->outsourcer = member->outsourcer;
	to->slot = member->slot;
	to->generation = member->generation;
	to->tunnels = atomic_read(&member->tunnels);
	to->cid = member->cid;
	to->named = snapshot->private;
	memcpy(to->uuid, member->uuid, sizeof(to->uuid));
	strscpy(to->name, member->name, sizeof(to->name));
	return hall_member_addresses(member, collect_address, to);
}

static int collect_own(const struct hall_own *own, void *data)
{
	struct snapshot *snapshot = data;
	struct member *to = snapshot_add(snapshot);

	if (!to)
		return -ENOSPC;
	to->transport = own->transport->name;
	to->own = true;
	to->outsourcer = false;
	to->slot = own->slot;
	to->generation = own->generation;
	to->tunnels = 0;
	to->cid = READ_ONCE(hall_cid);
	to->named = snapshot->private;
	memcpy(to->uuid, own->uuid, sizeof(to->uuid));
	strscpy(to->name, own->name, sizeof(to->name));
	to->addresses = own->addresses;
	memcpy(to->address, own->address,
	       own->addresses * sizeof(*own->address));
	return 0;
}

static int put_member(struct sk_buff *skb, const void *element)
{
	const struct member *from = element;
	unsigned int i;
	int err;

	err = nla_put_string(skb, HALLWAY_A_TRANSPORT, from->transport) ?:
	      nla_put_u32(skb, HALLWAY_A_SLOT, from->slot) ?:
	      nla_put_u32(skb, HALLWAY_A_GENERATION, from->generation) ?:
	      nla_put_u32(skb, HALLWAY_A_CID, from->cid) ?:
	      nla_put_u32(skb, HALLWAY_A_TUNNELS, from->tunnels) ?:
	      (from->own ? nla_put_flag(skb, HALLWAY_A_SELF) : 0) ?:
	      (from->outsourcer ? nla_put_flag(skb, HALLWAY_A_OUTSOURCER) : 0);
	if (!err && from->named)
		err = nla_put(skb, HALLWAY_A_UUID, sizeof(from->uuid),
			      from->uuid) ?:
		      nla_put_string(skb, HALLWAY_A_NAME, from->name);
	for (i = 0; !err && i < from->addresses; i++)
		err = nla_put_in6_addr(skb, HALLWAY_A_ADDRESS,
				       &from->address[i]);
	return err;
}

static int start_members(struct netlink_callback *cb)
{
	struct snapshot *snapshot = snapshot_new(cb, sizeof(struct member));
	int err;

	if (IS_ERR(snapshot))
		return PTR_ERR(snapshot);
	/* Mutexes are held: memory is found before. */
	do {
		snapshot->count = 0;
		err = snapshot_grow(snapshot) ?:
		      hall_transport_own(collect_own, snapshot) ?:
		      hall_members_walk(collect_member, snapshot);
	} while (err == -ENOSPC);
	/* done is not called for a dump whose start failed. */
	if (err)
		snapshot_free(cb);
	return err;
}

static int dump_members(struct sk_buff *skb, struct netlink_callback *cb)
{
	return dump(skb, cb, HALLWAY_CMD_MEMBERS, put_member);
}

static int put_counter(struct sk_buff *skb, enum hall_counter counter)
{
	struct nlattr *nest = nla_nest_start(skb, HALLWAY_A_COUNTER);

	if (!nest || nla_put_string(skb, HALLWAY_A_NAME,
				    hall_counter_name(counter)) ||
	    nla_put_u64_64bit(skb, HALLWAY_A_VALUE, hall_counter_read(counter),
			      HALLWAY_A_PAD))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

/* What was counted for one reason; nothing if that is 0. */
static int put_count(struct sk_buff *skb, int attribute, u32 reason, u64 count)
{
	struct nlattr *nest;

	if (!count)
		return 0;
	nest = nla_nest_start(skb, attribute);
	if (!nest || nla_put_u32(skb, HALLWAY_A_REASON, reason) ||
	    nla_put_u64_64bit(skb, HALLWAY_A_VALUE, count, HALLWAY_A_PAD))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int put_cgroups(struct sk_buff *skb)
{
	u64 id[HALLWAY_CGROUPS_MAX];
	unsigned int count = hall_outsource_get_cgroups(id);

	return nla_put(skb, HALLWAY_A_CGROUPS, count * sizeof(*id), id);
}

static int get(struct sk_buff *request, struct genl_info *info)
{
	/* The counters alone fill most of one. */
	struct sk_buff *skb = genlmsg_new(2 * NLMSG_GOODSIZE, GFP_KERNEL);
	void *header;
	int err, i;

	if (!skb)
		return -ENOMEM;
	header = genlmsg_put_reply(skb, info, &family, 0, HALLWAY_CMD_GET);
	err = !header ? -EMSGSIZE :
	      nla_put_string(skb, HALLWAY_A_VERSION, THIS_MODULE->version) ?:
	      nla_put_u8(skb, HALLWAY_A_ENABLED, READ_ONCE(hall_enabled)) ?:
	      nla_put_u8(skb, HALLWAY_A_OUTSOURCING, READ_ONCE(hall_outsourcing)) ?:
	      put_cgroups(skb);
	for (i = 0; !err && i < HALL_COUNTER_COUNT; i++)
		err = put_counter(skb, i);
	for (i = 0; !err && i < HALLWAY_REASON_COUNT; i++)
		err = put_count(skb, HALLWAY_A_DEMOTIONS, i, hall_demotions_read(i)) ?:
		      put_count(skb, HALLWAY_A_NATIVES, i, hall_natives_read(i));
	if (err) {
		nlmsg_free(skb);
		return err;
	}
	genlmsg_end(skb, header);
	return genlmsg_reply(skb, info);
}

static int set(struct sk_buff *request, struct genl_info *info)
{
	struct nlattr *enabled = info->attrs[HALLWAY_A_ENABLED];
	struct nlattr *outsourcing = info->attrs[HALLWAY_A_OUTSOURCING];
	struct nlattr *cgroups = info->attrs[HALLWAY_A_CGROUPS];
	u64 id[HALLWAY_CGROUPS_MAX];
	unsigned int length = 0;

	if (!enabled && !outsourcing) {
		NL_SET_ERR_MSG(info->extack, "what to switch is missing");
		return -EINVAL;
	}
	if (cgroups)
		length = nla_memcpy(id, cgroups, sizeof(id));
	if (length % sizeof(*id)) {
		NL_SET_ERR_MSG(info->extack, "ids of cgroups have 8 bytes each");
		return -EINVAL;
	}
	if (length && !(outsourcing && nla_get_u8(outsourcing))) {
		NL_SET_ERR_MSG(info->extack, "cgroups go with outsourcing on");
		return -EINVAL;
	}
	if (enabled)
		hall_switch_set(nla_get_u8(enabled), HALLWAY_REASON_OFF);
	return outsourcing ? hall_outsource_set(nla_get_u8(outsourcing), id,
						length / sizeof(*id)) : 0;
}

static const struct nla_policy policy[HALLWAY_A_MAX + 1] = {
	[HALLWAY_A_ENABLED] = NLA_POLICY_MAX(NLA_U8, 1),
	[HALLWAY_A_OUTSOURCING] = NLA_POLICY_MAX(NLA_U8, 1),
	[HALLWAY_A_CGROUPS] = { .type = NLA_BINARY,
				.len = HALLWAY_CGROUPS_MAX * sizeof(u64) },
};

static const struct genl_ops ops[] = {
	{
		.cmd = HALLWAY_CMD_GET,
		.doit = get,
	},
	{
		.cmd = HALLWAY_CMD_SET,
		.flags = GENL_ADMIN_PERM,
		.doit = set,
	},
	{
		.cmd = HALLWAY_CMD_MEMBERS,
		.start = start_members,
		.dumpit = dump_members,
		.done = snapshot_free,
	},
	{
		.cmd = HALLWAY_CMD_CONNECTIONS,
		.start = start_connections,
		.dumpit = dump_connections,
		.done = snapshot_free,
	},
};

static struct genl_family family __ro_after_init = {
	.name = HALLWAY_GENL_NAME,
	.version = HALLWAY_GENL_VERSION,
	.maxattr = HALLWAY_A_MAX,
	.policy = policy,
	.ops = ops,
	.n_ops = ARRAY_SIZE(ops),
	.module = THIS_MODULE,
	.parallel_ops = true,
};

int __init hall_netlink_init(void)
{
	return genl_register_family(&family);
}

void hall_netlink_uninit(void)
{
	genl_unregister_family(&family);
}
