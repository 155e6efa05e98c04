// SPDX-License-Identifier: GPL-2.0-only
/* The operator's switch; start and end of the room. */
#include "switch.h"

#include <linux/delay.h>

#include <hallway/reason.h>

#include "../sock/life.h"

bool hall_enabled;

void hall_switch_set(bool on, u32 reason)
{
	static DEFINE_MUTEX(mutex);

	mutex_lock(&mutex);
	WRITE_ONCE(hall_enabled, on);
	hall_addresses_enable(on);
	if (on) {
		hall_scan();
	} else {
		/* A probe or scan that saw "on" has attached its socket then. */
		synchronize_rcu();
		hall_detach_streams(NULL, reason);
	}
	mutex_unlock(&mutex);
}

int hall_switch_init(void)
{
	int err;

	hall_sock_handler.policy = hall_policy_offer_ring;
	hall_sock_handler.full = hall_policy_grow;
	hall_sock_handler.work = hall_switch_run_work;
	hall_sock_handler.detach = hall_detach;
	hall_sock_handler.detach_sync = hall_detach_sync;
	hall_sock_handler.detach_now = hall_detach_now;
	hall_discovery_handler.departed = hall_depart_member;
	hall_discovery_handler.detach = hall_detach_member;
	err = hall_ulp_init();
	if (err)
		return err;
	hall_tick_init();
	hall_scan_init();
	return 0;
}

/* Waits until no socket is left, for `most` milliseconds; 0: without limit. */
static void wait_for_sockets(unsigned int most)
{
	unsigned int waited;

	for (waited = 0; hall_sock_count() && (!most || waited < most);
	     waited += 10) {
		if (waited && waited % 5000 == 0)
			pr_info("hallway: unloading waits for %u sockets\n",
				hall_sock_count());
		msleep(10);
	}
}

void hall_switch_stop(void)
{
	hall_switch_set(false, HALLWAY_REASON_UNLOAD);
	hall_scan_uninit();
	hall_tick_uninit();
	/*
	 * For 2 s peers drain our rings, and calls end. Then calls return the
	 * bytes that they have; peers that don't answer are not waited for.
	 */
	wait_for_sockets(2000);
	WRITE_ONCE(hall_sock_return_short, true);
}

/*
 * After this no socket points to the module, and no thread is in its code:
 *   - the switch is off and the probe is removed, so no socket is attached;
 *   - hall_switch_set() detached all sockets;
 *   - a thread in one of our calls, a queued work item, a pending doorbell and an
 *     undrained ring each hold a hall_sock, and none is left, since the
 *     transports have ended the channels of peers that did not answer;
 *   - a thread that loaded a function pointer and has not called it, or that has
 *     put its hall_sock and not returned, does so before
 *     synchronize_rcu_tasks() ends.
 */
void hall_switch_uninit(void)
{
	wait_for_sockets(0);
	/* The last transports and sockets may have queued a scan. */
	hall_scan_uninit();
	hall_ulp_uninit();
	synchronize_rcu_tasks();
	hall_attach_uninit();
}
