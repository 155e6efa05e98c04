// SPDX-License-Identifier: GPL-2.0-only
/* Orders the rooms' starts, and unwinds them. */
#include <linux/module.h>

#if !defined(CONFIG_X86) && !defined(CONFIG_UML_X86)
#error "Hallway needs x86: its bus-locked instructions, and its page tables' cache bits"
#endif

#include "obs/netlink.h"
#include "outsource/room.h"
#include "sock/life.h"
#include "switch/switch.h"

static void free_queues(void)
{
	/* Each one queues work in those after it. */
	if (hall_depart_queue)
		destroy_workqueue(hall_depart_queue);
	if (hall_control_queue)
		destroy_workqueue(hall_control_queue);
	if (hall_workqueue)
		destroy_workqueue(hall_workqueue);
}

static int alloc_queues(void)
{
	/*
	 * When a guest wakes up, its devices have no addresses yet, and their
	 * memory reads as all ones: no work runs until they are back.
	 * The sockets may be those of a network file system, or of a disk.
	 */
	unsigned int flags = WQ_UNBOUND | WQ_FREEZABLE | WQ_MEM_RECLAIM;

	hall_workqueue = alloc_workqueue("hallway", flags, 0);
	hall_depart_queue = alloc_workqueue("hallway_depart", flags, 0);
	hall_control_queue = alloc_workqueue("hallway_control", flags, 0);
	if (hall_workqueue && hall_depart_queue && hall_control_queue)
		return 0;
	free_queues();
	return -ENOMEM;
}

static int __init hall_init(void)
{
	int err;

	/* The tracepoint's probe, which attaches sockets, must not sleep there. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT)) {
		pr_err("hallway: this is a PREEMPT_RT kernel, which is not supported: boot another one; connections stay on TCP\n");
		return -EOPNOTSUPP;
	}
	err = alloc_queues();
	if (err)
		return err;
	hall_members_init();
	hall_candidates_init();
	hall_channel_init();
	hall_outsource_init();
	err = hall_sock_init();
	if (err)
		goto queues;
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
	hall_outsource_stop();
	hall_transports_uninit();
	hall_outsource_uninit();
candidates:
	/* The probe meets candidates, of which a transport may have reported some. */
	hall_probe_uninit();
	hall_candidates_uninit();
switching:
	hall_switch_stop();
	hall_switch_uninit();
sock:
	hall_sock_uninit();
queues:
	free_queues();
	return err;
}

static void __exit hall_exit(void)
{
	hall_netlink_uninit();
	hall_probe_uninit();
	hall_switch_stop();
	hall_addresses_uninit();
	hall_outsource_stop();
	hall_transports_uninit();
	hall_outsource_uninit();
	hall_switch_uninit();
	hall_candidates_uninit();
	hall_members_uninit();
	hall_sock_uninit();
	free_queues();
}

module_init(hall_init);
module_exit(hall_exit);

MODULE_DESCRIPTION("TCP between virtual machines of one host, through shared memory");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.2.0");
