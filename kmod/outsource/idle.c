// SPDX-License-Identifier: GPL-2.0-only
/*
 * UDP sockets that have carried nothing for a while. Their rings are freed, and the
 * host closes its socket: as a NAT, it forgets what was asked. The next datagram that leads
 * out opens another, at another port. Those with a published port stay.
 */
#include "datagrams.h"

#include <linux/moduleparam.h>

static unsigned int datagram_idle_ms = 120000;
module_param(datagram_idle_ms, uint, 0644);
MODULE_PARM_DESC(datagram_idle_ms, "milliseconds without a datagram after which an outsourced UDP socket's rings are freed (default: 120000)");

/* How often to look, for each time that makes one idle; and bounds of that, in ms. */
#define LOOKS		4
#define LOOK_MIN	250
#define LOOK_MAX	15000

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(look_work, look);

bool hall_out_is_idle(const struct hall_out *out)
{
	unsigned long limit = msecs_to_jiffies(READ_ONCE(datagram_idle_ms));

	return jiffies - READ_ONCE(out->datagrams->active) >= limit;
}

static void look_at(struct hall_out *out, void *data)
{
	bool *any = data;

	if (!out->datagrams || out->datagrams->published)
		return;
	*any = true;
	if (hall_out_is_idle(out) && hall_out_state(out) == HALL_OUT_CONNECTED)
		hall_channel_raise(&out->channel, HALL_EVENT_IDLE);
}

void hall_idle_start(void)
{
	unsigned int every = READ_ONCE(datagram_idle_ms) / LOOKS;

	queue_delayed_work(hall_control_queue, &look_work,
			   msecs_to_jiffies(clamp(every, LOOK_MIN, LOOK_MAX)));
}

static void look(struct work_struct *work)
{
	bool any = false;

	hall_out_walk(look_at, &any);
	if (any)
		hall_idle_start();
}

void hall_idle_stop(void)
{
	cancel_delayed_work_sync(&look_work);
}
