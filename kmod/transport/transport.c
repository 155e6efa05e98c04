// SPDX-License-Identifier: GPL-2.0-only
/* All transports at once, and what is true for each. */
#include "transports.h"

#include <linux/kernel.h>
#include <net/ipv6.h>

#include "shared/shared.h"

#define ENTRY(name) &hall_##name##_transport,
static const struct hall_transport * const transports[] = {
	HALL_TRANSPORTS(ENTRY)
};

struct workqueue_struct *hall_workqueue;
struct workqueue_struct *hall_control_queue;
struct workqueue_struct *hall_depart_queue;
struct hall_transport_handler hall_transport_handler;
u8 hall_uuid[16];
u32 hall_cid;

bool hall_address_travels(const struct in6_addr *address)
{
	int type = ipv6_addr_type(address);

	return !(type & (IPV6_ADDR_LOOPBACK | IPV6_ADDR_LINKLOCAL)) &&
	       !(type == IPV6_ADDR_MAPPED &&
		 ipv4_is_loopback(address->s6_addr32[3]));
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

/* Stops the first count of them, in reverse order. */
static void uninit_transports(unsigned int count)
{
	while (count--)
		transports[count]->uninit();
	hall_heartbeat_uninit();
}

int hall_transports_init(void)
{
	unsigned int i;
	int err;

	err = hall_uuid_find() ?: hall_heartbeat_init();
	if (err)
		return err;
	for (i = 0; i < ARRAY_SIZE(transports); i++) {
		err = transports[i]->init();
		if (err) {
			uninit_transports(i);
			return err;
		}
	}
	return 0;
}

void hall_transports_uninit(void)
{
	uninit_transports(ARRAY_SIZE(transports));
}
