// SPDX-License-Identifier: GPL-2.0-only
/*
 * The Xen transport: stock Xen, stock guests of it, PV and PVH.
 *
 * A daemon in dom0 says in XenStore which domains may share memory. Two of them
 * share a slice of each, by grants, and ring each other by an event channel.
 * Everything else is that of any members over shared pages.
 *
 * Each file calls only those before it: grant.c, store.c, pair.c, and this one,
 * which is the transport as a whole. One work item looks at all pairs: when a watch
 * of XenStore fires, when a peer sends messages, and now and then for heartbeats.
 */
#define pr_fmt(fmt) "hallway: xen: " fmt

#include <linux/err.h>
#include <linux/minmax.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/pm.h>
#include <linux/printk.h>
#include <linux/sched/mm.h>
#include <linux/utsname.h>

#include <xen/xen.h>

#include "../transports.h"
#include "pair.h"

/* How soon to look again at what waits for peers to be gone. */
#define AGAIN		msecs_to_jiffies(10)
/* At least between two looks: a peer can change its offer without end. */
#define REST		msecs_to_jiffies(20)
/* A guest has that many pairs at most; each costs a slice. */
#define PAIRS_MAX	64
/* How long the end of the domain waits for peers to unmap its memory. */
#define SHUTDOWN_PATIENCE	(10 * HZ)

static void control(struct work_struct *work);
static DECLARE_DELAYED_WORK(control_work, control);

static bool started;
static int own_domid;			/* negative: XenStore did not say */
static bool ending;			/* no pair is listed any more */
static bool ended;			/* and none is left */
static int list_changed;		/* dom0's, as a watch said; xchg() */
static bool short_of_memory;		/* for a pair of that list */
static unsigned long rested;		/* jiffies: the work item does not run before */
static unsigned long listen;		/* jiffies: the next look at heartbeats */
static DECLARE_WAIT_QUEUE_HEAD(idle);	/* woken when it has ended */

static void look_soon(void)
{
	long pause = READ_ONCE(rested) - jiffies;

	mod_delayed_work(hall_control_queue, &control_work,
			 clamp(pause, 0L, (long)REST));
}

static void read_list_soon(void)
{
	WRITE_ONCE(list_changed, true);
	look_soon();
}

static void note_event(struct xenbus_watch *watch, const char *path,
		       const char *token)
{
	/* Those that have left the list since the last event of dom0's. */
	hall_xen_pairs_free();
	read_list_soon();
}

static struct xenbus_watch own_watch = {
	.node = HALL_XEN_FOLDER,
	.will_handle = hall_xen_takes_event,
	.callback = note_event,
};

/* Reading XenStore */

static void list_one(domid_t domid)
{
	unsigned int count = 0;
	struct pair *pair;

	if (domid == own_domid)
		return;
	list_for_each_entry(pair, &xen_former, list)
		count++;
	list_for_each_entry(pair, &xen_pairs, list) {
		count++;
		if (pair->domid == domid) {
			/* One that has ended goes first. */
			pair->found = !pair->ended;
			return;
		}
	}
	if (count >= PAIRS_MAX) {
		pr_warn_once("more than %u domains may share memory with this one: the others stay on TCP\n",
			     PAIRS_MAX);
		return;
	}
	pair = hall_xen_pair_create(own_domid, domid, look_soon);
	if (pair)
		pair->found = true;
	else
		short_of_memory = true;
}

/* False: it is to be read again. Without an answer all pairs stay as they are. */
static bool read_list(void)
{
	struct pair *pair;
	bool all = true;

	short_of_memory = false;
	list_for_each_entry(pair, &xen_pairs, list)
		pair->found = false;
	if (!ending && own_domid < 0)
		own_domid = hall_xen_read_domid();
	if (!ending && own_domid < 0 && own_domid != -ENOENT)
		return false;
	if (!ending && own_domid >= 0 && hall_xen_list(list_one))
		return false;
	list_for_each_entry(pair, &xen_pairs, list) {
		if (pair->found)
			all &= hall_xen_pair_check(pair);
		pair->listed = pair->found && !pair->ended;
	}
	list_for_each_entry(pair, &xen_former, list)
		all &= hall_xen_pair_check(pair);
	return all && !short_of_memory;
}

/* False: some is to be read again. */
static bool read_offers(struct list_head *pairs)
{
	struct pair *pair;
	bool all = true;

	list_for_each_entry(pair, pairs, list) {
		if (!xchg(&pair->changed, false) ||
		    !hall_xen_read_offer(&pair->nodes, &pair->offer))
			continue;
		WRITE_ONCE(pair->changed, true);
		all = false;
	}
	return all;
}

/*
 * What a peer changes without end costs no more than reading that. False: some is to
 * be read again.
 */
static bool read_store(void)
{
	bool all = true;

	if (xchg(&list_changed, false) && !read_list()) {
		WRITE_ONCE(list_changed, true);
		all = false;
	}
	all &= read_offers(&xen_pairs);
	all &= read_offers(&xen_former);
	return all;
}

static bool has_pairs(void)
{
	return !list_empty(&xen_pairs) || !list_empty(&xen_former);
}

static void control(struct work_struct *work)
{
	/* Departures want the mutex, and memory may wait for a disk behind their peers. */
	unsigned int noio = memalloc_noio_save();
	bool listens, all, again = false, gone = false;
	struct pair *pair, *next;
	long delay;

	mutex_lock(&xen_mutex);
	listens = time_after_eq(jiffies, listen);
	if (listens)
		listen = jiffies + HALL_LISTEN;
	all = read_store();
	list_for_each_entry_safe(pair, next, &xen_pairs, list) {
		if (pair->state == PAIR_JOINED) {
			hall_peers_read_addresses(&pair->own);
			if (listens)
				hall_peers_listen(&pair->own);
		}
		again |= hall_xen_pair_advance(pair, &gone);
	}
	list_for_each_entry_safe(pair, next, &xen_former, list)
		again |= hall_xen_pair_advance(pair, &gone);
	if (gone)
		read_list_soon();
	if (listens)
		hall_send_round_next();
	delay = max((long)(listen - jiffies), 0L);
	if (again)
		delay = min_t(long, delay, AGAIN);
	if (has_pairs() || !all)
		queue_delayed_work(hall_control_queue, &control_work, delay);
	if (ending && !has_pairs()) {
		WRITE_ONCE(ended, true);
		wake_up_all(&idle);
	}
	WRITE_ONCE(rested, jiffies + REST);
	mutex_unlock(&xen_mutex);
	memalloc_noio_restore(noio);
}

/* The transport */

static void xen_publish(const struct in6_addr *address, unsigned int count)
{
	struct pair *pair;

	mutex_lock(&xen_mutex);
	xen_addresses = count;
	memcpy(xen_address, address, count * sizeof(*address));
	list_for_each_entry(pair, &xen_pairs, list) {
		if (!pair->granted)
			continue;
		hall_own_slice_publish(&pair->own, address, count);
		preempt_disable();
		hall_mailbox_mark(hall_mailbox_at(&pair->own.slice, 0), 0);
		hall_xen_pair_ring(pair);
		preempt_enable();
	}
	mutex_unlock(&xen_mutex);
}

static int xen_own(int (*fn)(const struct hall_own *own, void *data), void *data)
{
	struct hall_own own = { .transport = &hall_xen_transport };
	struct pair *pair;
	int err = mutex_lock_killable(&xen_mutex);

	if (err)
		return err;
	own.slot = own_domid;
	memcpy(own.uuid, hall_uuid, sizeof(own.uuid));
	strscpy(own.name, init_utsname()->nodename, sizeof(own.name));
	own.address = xen_address;
	own.addresses = xen_addresses;
	list_for_each_entry(pair, &xen_pairs, list) {
		if (pair->state != PAIR_JOINED)
			continue;
		own.generation = pair->generation;
		err = fn(&own, data);
		if (err)
			break;
	}
	mutex_unlock(&xen_mutex);
	return err;
}

/*
 * Suspension, to be saved or migrated. In the thread that handles XenStore's watches:
 * programs and work queues stand still, so the pairs stay as they are. Memory of
 * other domains must not be mapped when Xen saves a PV domain.
 */
static int freeze(struct device *dev)
{
	struct pair *pair;

	/* Without an event of dom0's: this domain is saved, and goes on, again and again. */
	hall_xen_pairs_free();
	list_for_each_entry(pair, &xen_pairs, list)
		hall_xen_pair_suspend(pair);
	list_for_each_entry(pair, &xen_former, list)
		hall_xen_pair_suspend(pair);
	return 0;
}

/* Here again, or elsewhere under another number. */
static int resume(struct device *dev)
{
	own_domid = hall_xen_read_domid();
	read_list_soon();
	return 0;
}

static const struct dev_pm_ops pm_ops = {
	.freeze = freeze,
	.thaw = resume,
	.restore = resume,
};

static void begin_ending(void)
{
	mutex_lock(&xen_mutex);
	ending = true;
	mutex_unlock(&xen_mutex);
	/* No pair is added. */
	read_list_soon();
}

/*
 * The domain ends, or another kernel takes its place by kexec: Xen ends no grant then, and
 * peers would share that kernel's memory. Calls may be in a page fault for ever.
 */
static void shut_down(struct platform_device *unused)
{
	begin_ending();
	wait_event_timeout(idle, READ_ONCE(ended), SHUTDOWN_PATIENCE);
	hall_xen_grants_await();
}

/* It stands for this domain's part in all pairs. */
static struct platform_driver driver = {
	.driver = { .name = "hallway-xen", .pm = &pm_ops },
	.shutdown = shut_down,
};

static struct platform_device *device;

static int register_device(void)
{
	int err = platform_driver_register(&driver);

	if (err)
		return err;
	device = platform_device_register_simple("hallway-xen",
						 PLATFORM_DEVID_NONE, NULL, 0);
	if (!IS_ERR(device))
		return 0;
	platform_driver_unregister(&driver);
	return PTR_ERR(device);
}

static void unregister_device(void)
{
	platform_device_unregister(device);
	platform_driver_unregister(&driver);
}

static int xen_init(void)
{
	int err;

	/* A driver domain, and dom0 itself, serve others: they are no peers. */
	if (!xen_domain() || xen_initial_domain())
		return 0;
	own_domid = hall_xen_read_domid();
	err = register_device();
	if (err)
		return err;
	err = register_xenbus_watch(&own_watch);
	if (err) {
		unregister_device();
		return err;
	}
	started = true;
	if (own_domid < 0)
		pr_warn("XenStore does not say which domain this is: connections stay on TCP\n");
	return 0;
}

/* A pair that the last suspension has ended leaves that to the one that follows it. */
static void leave_one(domid_t domid)
{
	struct xen_nodes nodes;

	hall_xen_name_nodes(&nodes, own_domid, domid);
	hall_xen_leave(&nodes);
}

static void xen_uninit(void)
{
	if (!started)
		return;
	begin_ending();
	/* As long as programs like: their calls may be in a page fault. */
	wait_event(idle, READ_ONCE(ended));
	hall_xen_pairs_free();
	/* Waits for the thread of watches, too, which may have freed the last pair. */
	unregister_xenbus_watch(&own_watch);
	/* What its callbacks queue is canceled after it. */
	unregister_device();
	cancel_delayed_work_sync(&control_work);
	if (own_domid >= 0)
		hall_xen_list(leave_one);
	hall_xen_grants_uninit();
}

const struct hall_transport hall_xen_transport = {
	.name = "xen",
	.remote = true,
	.init = xen_init,
	.uninit = xen_uninit,
	.alloc = hall_slice_alloc,
	.free = hall_slice_free,
	.map = hall_slice_map,
	.unmap = hall_slice_unmap,
	.intact = hall_slice_is_intact,
	.send = hall_mailbox_send,
	.notify = hall_mailbox_notify,
	.forget = hall_mailbox_forget,
	.ring = hall_xen_ring,
	.publish = xen_publish,
	.own = xen_own,
	.release = hall_xen_release,
};

/* A domain has no device of ours: udev loads the module for the network device. */
MODULE_ALIAS("xen:vif");
