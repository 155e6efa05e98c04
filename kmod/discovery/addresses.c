// SPDX-License-Identifier: GPL-2.0-only
/*
 * The addresses of this guest. Remote transports publish those of the initial
 * network namespace that can be reached from outside; the loopback transport
 * publishes those of every namespace.
 *
 * Notifiers only queue the work that collects all addresses again. That is rare,
 * and a list that is always whole can't drift.
 */
#include "discovery.h"

#include <linux/inetdevice.h>
#include <linux/notifier.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <net/addrconf.h>
#include <net/if_inet6.h>

static bool publishing;

static void collect(struct work_struct *work);
static DECLARE_WORK(collect_work, collect);

struct collection {
	bool remote;
	unsigned int count;
	struct in6_addr address[HALLWAY_ADDRESSES_MAX];
};

/* By `remote`; the work item's. */
static struct collection published[2];

static void add(struct collection *to, const struct in6_addr *address)
{
	if (to->count < HALLWAY_ADDRESSES_MAX &&
	    (!to->remote || hall_address_travels(address)))
		to->address[to->count++] = *address;
}

static void add_device(struct collection *to, struct net_device *dev)
{
	struct in_device *in_dev = __in_dev_get_rtnl(dev);
	struct in6_addr mapped;
	struct in_ifaddr *ifa;

	if (in_dev) {
		in_dev_for_each_ifa_rtnl(ifa, in_dev) {
			ipv6_addr_set_v4mapped(ifa->ifa_local, &mapped);
			add(to, &mapped);
		}
	}
#if IS_ENABLED(CONFIG_IPV6)
	{
		struct inet6_dev *idev = __in6_dev_get(dev);
		struct inet6_ifaddr *ifp;

		if (!idev)
			return;
		read_lock_bh(&idev->lock);
		list_for_each_entry(ifp, &idev->addr_list, if_list)
			add(to, &ifp->addr);
		read_unlock_bh(&idev->lock);
	}
#endif
}

static void collect_from(struct collection *to)
{
	struct net_device *dev;
	struct net *net;

	rtnl_lock();
	for_each_net(net) {
		if (to->remote && net != &init_net)
			continue;
		for_each_netdev(net, dev)
			add_device(to, dev);
	}
	rtnl_unlock();
}

/*
 * Any user may change addresses of a namespace of its own again and again: that must not
 * interrupt all peers.
 */
static void publish(struct collection *last, const struct collection *now)
{
	size_t size = now->count * sizeof(*now->address);

	if (last->count == now->count && !memcmp(last->address, now->address, size))
		return;
	memcpy(last->address, now->address, size);
	last->count = now->count;
	hall_transport_publish(now->remote, now->address, now->count);
}

static void collect(struct work_struct *work)
{
	/* Departures need the queue, and memory may wait for a disk behind their peers. */
	struct collection *to = kzalloc(sizeof(*to), GFP_NOIO);
	int remote;

	if (!to)
		return;
	for (remote = 0; remote < 2; remote++) {
		to->remote = remote;
		to->count = 0;
		if (READ_ONCE(publishing))
			collect_from(to);
		publish(&published[remote], to);
	}
	kfree(to);
}

static int queue_collection(struct notifier_block *block, unsigned long event,
			    void *data)
{
	queue_work(hall_control_queue, &collect_work);
	return NOTIFY_DONE;
}

static struct notifier_block inet_block = { .notifier_call = queue_collection };
#if IS_ENABLED(CONFIG_IPV6)
static struct notifier_block inet6_block = { .notifier_call = queue_collection };
#endif

void hall_addresses_enable(bool enabled)
{
	WRITE_ONCE(publishing, enabled);
	queue_work(hall_control_queue, &collect_work);
	flush_work(&collect_work);
}

int hall_addresses_init(void)
{
	int err = register_inetaddr_notifier(&inet_block);

	if (err)
		return err;
#if IS_ENABLED(CONFIG_IPV6)
	err = register_inet6addr_notifier(&inet6_block);
	if (err)
		unregister_inetaddr_notifier(&inet_block);
#endif
	return err;
}

void hall_addresses_uninit(void)
{
#if IS_ENABLED(CONFIG_IPV6)
	unregister_inet6addr_notifier(&inet6_block);
#endif
	unregister_inetaddr_notifier(&inet_block);
	cancel_work_sync(&collect_work);
}
