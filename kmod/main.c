// SPDX-License-Identifier: GPL-2.0
/* Orders the rooms' starts, and unwinds them. */
#include <linux/module.h>

#include "obs/netlink.h"
#include "sock/life.h"
#include "switch/switch.h"

static int __init hall_init(void)
{
	int err;

	/*
	 * When a machine wakes up, its devices have no addresses yet, and their
	 * memory reads as all ones: nobody is to look at it until they are back.
	 */
	hall_workqueue = alloc_workqueue("hallway", WQ_UNBOUND | WQ_FREEZABLE, 0);
	if (!hall_workqueue)
		return -ENOMEM;
	hall_members_init();
	hall_candidates_init();
	hall_channel_init();
	err = hall_sock_init();
	if (err)
		goto workqueue;
	err = hall_switch_init();
	if (err)
		goto sock;
	err = hall_probe_init();
	if (err)
		goto switching;
	err = hall_transports_init();
	if (err)
		goto candidates;
	err = hall_addresses_init();
	if (err)
		goto transports;
	err = hall_netlink_init();
	if (err)
		goto addresses;
	hall_switch_set(true, 0);
	return 0;
addresses:
	hall_addresses_uninit();
transports:
	hall_transports_uninit();
candidates:
	/* The probe meets candidates, of which a transport may have reported some. */
	hall_probe_uninit();
	hall_candidates_uninit();
switching:
	hall_switch_stop();
	hall_switch_uninit();
sock:
	hall_sock_uninit();
workqueue:
	destroy_workqueue(hall_workqueue);
	return err;
}

static void __exit hall_exit(void)
{
	hall_netlink_uninit();
	hall_probe_uninit();
	hall_switch_stop();
	hall_addresses_uninit();
	hall_transports_uninit();
	hall_switch_uninit();
	hall_candidates_uninit();
	hall_members_uninit();
	hall_sock_uninit();
	destroy_workqueue(hall_workqueue);
}

module_init(hall_init);
module_exit(hall_exit);

MODULE_DESCRIPTION("TCP between virtual machines of one host, through shared memory");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
