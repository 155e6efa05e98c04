// SPDX-License-Identifier: GPL-2.0
/* What all transports have in common. */
#include "transport.h"

#include "transports.h"

#include <linux/kernel.h>
#include <linux/percpu.h>

static const struct hall_transport * const transports[] = {
	&hall_loopback_transport,
	&hall_ivshmem_transport,
};

struct workqueue_struct *hall_workqueue;
struct hall_transport_handler hall_transport_handler;

int hall_member_init(struct hall_member *member,
		     const struct hall_transport *transport)
{
	member->bytes = alloc_percpu(struct hall_member_bytes);
	if (!member->bytes)
		return -ENOMEM;
	member->transport = transport;
	refcount_set(&member->refs, 1);
	INIT_LIST_HEAD(&member->list);
	INIT_LIST_HEAD(&member->addresses);
	xa_init_flags(&member->endpoints, XA_FLAGS_ALLOC1 | XA_FLAGS_LOCK_BH);
	atomic_set(&member->channels, 0);
	init_waitqueue_head(&member->idle);
	return 0;
}

struct hall_member_bytes hall_member_bytes(const struct hall_member *member)
{
	struct hall_member_bytes sum = { }, *bytes;
	int cpu;

	for_each_possible_cpu(cpu) {
		bytes = per_cpu_ptr(member->bytes, cpu);
		sum.tx += READ_ONCE(bytes->tx);
		sum.rx += READ_ONCE(bytes->rx);
	}
	return sum;
}

void hall_member_put(struct hall_member *member)
{
	if (refcount_dec_and_test(&member->refs)) {
		xa_destroy(&member->endpoints);
		free_percpu(member->bytes);
		member->transport->release(member);
	}
}

void hall_transport_publish(bool remote, const struct in6_addr *address,
			    unsigned int count)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(transports); i++)
		if (transports[i]->remote == remote)
			transports[i]->publish(address, count);
}

void hall_transport_want(const struct in6_addr *address, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(transports); i++)
		if (transports[i]->want)
			transports[i]->want(address, count);
}

int hall_transport_own(int (*fn)(const struct hall_own *own, void *data),
		       void *data)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < ARRAY_SIZE(transports) && !err; i++)
		if (transports[i]->own)
			err = transports[i]->own(fn, data);
	return err;
}
