// SPDX-License-Identifier: GPL-2.0-only
/*
 * The heartbeat: a word in the slice that its owner counts up. A peer that does
 * not count it up is unresponsive: it is there, but no stream may wait for it.
 */
#define pr_fmt(fmt) "hallway: " fmt

#include "shared.h"

#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/rculist.h>

#define BEAT		(HZ / 2)
/*
 * Looks that find a heartbeat unchanged until its member is unresponsive. Looks
 * are a little more frequent than beats: the member has been dead for 1.75 s, and
 * for 2.7 s at most, so that others know within 3 s on a slow machine.
 */
#define MISSED		5
static_assert(MISSED * HALL_LISTEN - BEAT >= HALL_UNRESPONSIVE,
	      "a member is dead for that long before it is given up");
#define LOOK_MS		400		/* at least between two looks that count */

static DEFINE_MUTEX(mutex);		/* writers of the list */
static LIST_HEAD(slices);		/* with a heartbeat; RCU */
static struct workqueue_struct *workqueue;

static void beat(struct work_struct *work);
static DECLARE_DELAYED_WORK(beat_work, beat);

/*
 * Waits for no lock and no peer: a peer that does not answer must not make this
 * guest unresponsive to others.
 */
static void beat(struct work_struct *work)
{
	struct hall_own_slice *own;

	rcu_read_lock();
	list_for_each_entry_rcu(own, &slices, beating)
		if (hall_slice_is_owned(&own->slice))
			WRITE_ONCE(own->slice.header->heartbeat,
				   ++own->heartbeat);
	rcu_read_unlock();
	queue_delayed_work(workqueue, &beat_work, BEAT);
}

void hall_heartbeat_start(struct hall_own_slice *own)
{
	mutex_lock(&mutex);
	list_add_tail_rcu(&own->beating, &slices);
	mutex_unlock(&mutex);
}

void hall_heartbeat_stop(struct hall_own_slice *own)
{
	mutex_lock(&mutex);
	list_del_rcu(&own->beating);
	mutex_unlock(&mutex);
	synchronize_rcu();
}

/*
 * Where a busy host stopped this VM, several looks may follow at once: those
 * count that are about as far apart as they should be.
 */
bool hall_peer_listen(struct hall_peer *peer)
{
	u32 heartbeat = READ_ONCE(peer->slice.header->heartbeat);
	ktime_t now = ktime_get();

	if (heartbeat != peer->heartbeat) {
		if (!hall_peer_responds(peer)) {
			/* Its streams are not all demoted yet: at a later look. */
			if (READ_ONCE(peer->detaching))
				return false;
			pr_info_ratelimited("%s: member %u (%s) responds again\n",
					    peer->member.transport->name,
					    peer->member.slot, peer->member.name);
			peer->address_seq = ~0;
		}
		peer->heartbeat = heartbeat;
		peer->missed = 0;
		peer->looked_at = now;
		return false;
	}
	if (!hall_peer_responds(peer) ||
	    ktime_before(now, ktime_add_ms(peer->looked_at, LOOK_MS)))
		return false;
	peer->looked_at = now;
	if (++peer->missed < MISSED)
		return false;
	pr_info_ratelimited("%s: member %u (%s) is unresponsive\n",
			    peer->member.transport->name, peer->member.slot,
			    peer->member.name);
	return true;
}

bool hall_peer_responds(const struct hall_peer *peer)
{
	return peer->missed < MISSED;
}

int hall_heartbeat_init(void)
{
	/* Of its own: other work may be held up, and the heartbeat goes on. */
	workqueue = alloc_workqueue("hallway_beat",
				    WQ_UNBOUND | WQ_FREEZABLE | WQ_MEM_RECLAIM,
				    1);
	if (!workqueue)
		return -ENOMEM;
	queue_delayed_work(workqueue, &beat_work, 0);
	return 0;
}

void hall_heartbeat_uninit(void)
{
	cancel_delayed_work_sync(&beat_work);
	destroy_workqueue(workqueue);
}
