// SPDX-License-Identifier: GPL-2.0-only
/*
 * What every socket with a ring needs once a second: is its ring memory of better use
 * to others, were filters added, was a doorbell lost, did a kernel user come? Sockets on
 * TCP are not looked at, however many there are.
 */
#include "switch.h"

#include "../sock/callbacks.h"
#include "../sock/lookup.h"

static void tick(struct work_struct *work);
static DECLARE_DELAYED_WORK(tick_work, tick);

static void tick_sock(struct hall_sock *hs, void *data)
{
	hall_policy_check(hs);
	hall_filters_check(hs);
	hall_watchdog_check(hs);
	hall_callbacks_check(hs);
}

static void tick(struct work_struct *work)
{
	hall_sock_walk_rings(tick_sock, NULL);
	hall_tick_init();
}

void hall_tick_init(void)
{
	queue_delayed_work(hall_control_queue, &tick_work, HZ);
}

void hall_tick_uninit(void)
{
	cancel_delayed_work_sync(&tick_work);
}
