// SPDX-License-Identifier: GPL-2.0
/* What all transports have in common. */
#include "transport.h"

#include "transports.h"

#include <linux/kernel.h>

struct workqueue_struct *hall_workqueue;
struct hall_transport_handler hall_transport_handler;

void hall_member_init(struct hall_member *member,
		      const struct hall_transport *transport)
{
	member->transport = transport;
	refcount_set(&member->refs, 1);
	INIT_LIST_HEAD(&member->list);
	INIT_LIST_HEAD(&member->addresses);
	xa_init_flags(&member->endpoints, XA_FLAGS_ALLOC1 | XA_FLAGS_LOCK_BH);
	atomic_set(&member->channels, 0);
	init_waitqueue_head(&member->idle);
}

void hall_member_put(struct hall_member *member)
{
	if (refcount_dec_and_test(&member->refs)) {
		xa_destroy(&member->endpoints);
		member->transport->release(member);
	}
}

void hall_transport_publish(bool remote, const struct in6_addr *address,
			    unsigned int count)
{
	static const struct hall_transport * const transports[] = {
		&hall_loopback_transport,
		&hall_ivshmem_transport,
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(transports); i++)
		if (transports[i]->remote == remote)
			transports[i]->publish(address, count);
}
