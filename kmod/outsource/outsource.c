// SPDX-License-Identifier: GPL-2.0-only
/* Start and end of the room. */
#include "room.h"

#include <linux/delay.h>

#include "calls.h"
#include "datagrams.h"
#include "decide.h"
#include "hook.h"
#include "listeners.h"

bool hall_outsourcing = true;

static DEFINE_MUTEX(mutex);	/* of this file alone; the outermost */
static bool hooked, stopped;

/* No outsourcer, no cost: sockets are watched from the first one's arrival. */
static void take_outsourcer(void)
{
	int err;

	mutex_lock(&mutex);
	if (!hooked && !stopped) {
		err = hall_clients_init() && hall_returned_init() ? hall_hook_init() :
								    -ENOMEM;
		hooked = !err;
		if (err)
			pr_warn("hallway: sockets can't be outsourced on this kernel (error %d): they stay native\n",
				err);
	}
	if (hooked)
		hall_publish_listeners();
	mutex_unlock(&mutex);
}

void hall_outsource_init(void)
{
	hall_out_init();
	hall_discovery_handler.outsourcer = take_outsourcer;
}

int hall_outsource_set(bool on, const u64 *cgroup, unsigned int cgroups)
{
	int err = 0;

	mutex_lock(&mutex);
	if (on)
		err = hall_scope_set(cgroup, cgroups);
	if (!err) {
		WRITE_ONCE(hall_outsourcing, on);
		hall_withdraw_listeners();
		if (on && hooked)
			hall_publish_listeners();
	}
	mutex_unlock(&mutex);
	return err;
}

static void abandon_all(void)
{
	struct hall_out *out;

	while ((out = hall_out_get_any())) {
		hall_out_abandon(out);
		hall_out_put(out);
	}
}

/*
 * After hall_hook_uninit() no table leads here. What was in our code before holds a
 * hall_out, or leaves it before a grace period of tasks ends.
 */
void hall_outsource_stop(void)
{
	mutex_lock(&mutex);
	/* Also what was begun, and failed. */
	hall_hook_uninit();
	hooked = false;
	stopped = true;
	mutex_unlock(&mutex);
	hall_publish_stop();
	hall_accept_stop();
	synchronize_rcu_tasks();
	abandon_all();
}

/* The transports have stopped: no channel has a member any more. */
void hall_outsource_uninit(void)
{
	unsigned int waited;

	for (waited = 0; hall_out_count(); waited += 10) {
		if (waited && waited % 5000 == 0)
			pr_info("hallway: unloading waits for %u outsourced sockets\n",
				hall_out_count());
		msleep(10);
		/* A call that had begun may have published another. */
		abandon_all();
	}
	/* A departure may have queued it once more. */
	hall_publish_stop();
	hall_idle_stop();
	hall_scope_set(NULL, 0);
	synchronize_rcu_tasks();
	rcu_barrier();
	hall_returned_uninit();
	hall_clients_uninit();
}
