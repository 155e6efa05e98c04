// SPDX-License-Identifier: GPL-2.0-only
/* CPUs that come and go at the daemon's word: see cpus.h. */
#define pr_fmt(fmt) "hallway: ivshmem: " fmt

#include "cpus.h"

#include <linux/cpu.h>
#include <linux/kernel.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>

#include "../../obs/counters.h"
#include "../transports.h"

/* Jiffies from one CPU to the next, and until the kernel is asked again. */
#define STEP	(HZ / 10)
#define RETRY	(5 * HZ)

static bool cpus = true;
module_param(cpus, bool, 0644);
MODULE_PARM_DESC(cpus, "let hallwayd say how many CPUs are online (default: Y)");

/*
 * Not one of the transports' queues: those may not wait for the kernel's, and CPUs
 * that go do.
 */
static struct workqueue_struct *queue;

static void run_step(struct work_struct *work);
static DECLARE_DELAYED_WORK(step_work, run_step);

static u32 order;		/* as taken last */
static bool failed;		/* the kernel did not let it */
static struct cpumask parked;	/* the work item's */

bool ivshmem_cpus_differ(const struct doorbell *doorbell)
{
	return READ_ONCE(doorbell->page->cpu_order.online) !=
	       READ_ONCE(doorbell->cpu_order);
}

/* How many CPUs are to be online; sets why that is not as ordered, if so. */
static u32 find_goal(u32 *status)
{
	u32 wanted = READ_ONCE(order);

	*status = HALLWAY_CPUS_DONE;
	if (!wanted)
		return num_present_cpus();
	if (!READ_ONCE(cpus)) {
		*status = HALLWAY_CPUS_REFUSED;
		return num_present_cpus();
	}
	if (wanted > num_present_cpus()) {
		*status = HALLWAY_CPUS_INVALID;
		return num_online_cpus();
	}
	return wanted;
}

/* The CPU to park next, or to bring back; 0: none. */
static unsigned int find_cpu(u32 goal)
{
	unsigned int cpu;

	if (num_online_cpus() > goal)
		return cpumask_last(cpu_online_mask);
	if (num_online_cpus() < goal)
		for_each_cpu(cpu, &parked)
			if (!cpu_online(cpu))
				return cpu;
	return 0;
}

static void report(struct doorbell *doorbell)
{
	struct hallway_cpu_report *shared = &doorbell->page->cpu_report;
	struct hallway_cpu_report now = {
		.order = READ_ONCE(order),
		.online = num_online_cpus(),
		.present = num_present_cpus(),
	};
	u32 goal = find_goal(&now.status);

	if (now.status == HALLWAY_CPUS_DONE && now.order && now.online != goal)
		now.status = READ_ONCE(failed) || !find_cpu(goal) ?
				     HALLWAY_CPUS_FAILED :
				     HALLWAY_CPUS_WORKING;
	now.seq = doorbell->cpu_report.seq;
	if (now.seq && !memcmp(&now, &doorbell->cpu_report, sizeof(now)))
		return;
	now.seq = READ_ONCE(shared->seq) | 1;
	WRITE_ONCE(shared->seq, now.seq++);
	/* 0 is for guests that report nothing. */
	now.seq += now.seq ? 0 : 2;
	virt_wmb();
	WRITE_ONCE(shared->order, now.order);
	WRITE_ONCE(shared->status, now.status);
	WRITE_ONCE(shared->online, now.online);
	WRITE_ONCE(shared->present, now.present);
	virt_store_release(&shared->seq, now.seq);
	doorbell->cpu_report = now;
}

static void report_all(void)
{
	struct doorbell *doorbell;

	list_for_each_entry(doorbell, &ivshmem_doorbells, list)
		report(doorbell);
}

void ivshmem_cpus_take_order(void)
{
	struct doorbell *doorbell;
	u32 status, now = 0;

	/* The first one's is what remains. */
	list_for_each_entry_reverse(doorbell, &ivshmem_doorbells, list) {
		now = READ_ONCE(doorbell->page->cpu_order.online);
		WRITE_ONCE(doorbell->cpu_order, now);
	}
	if (now != order) {
		pr_info_once("hallwayd says how many CPUs are online, now %u of %u; the parameter cpus=N refuses that\n",
			     now, num_present_cpus());
		WRITE_ONCE(order, now);
		WRITE_ONCE(failed, false);
		mod_delayed_work(queue, &step_work, 0);
	}
	/* Others may bring CPUs online, and the parameter may change. */
	if (find_cpu(find_goal(&status)))
		queue_delayed_work(queue, &step_work, STEP);
	report_all();
}

#ifdef CONFIG_HOTPLUG_CPU
static int move_cpu(unsigned int cpu)
{
	int err;

	if (cpu_online(cpu)) {
		err = remove_cpu(cpu);
		if (err)
			return err;
		cpumask_set_cpu(cpu, &parked);
		hall_count(HALL_CPUS_PARKED);
		return 0;
	}
	err = add_cpu(cpu);
	if (err)
		return err;
	cpumask_clear_cpu(cpu, &parked);
	hall_count(HALL_CPUS_RETURNED);
	return 0;
}
#else
static int move_cpu(unsigned int cpu)
{
	return -EOPNOTSUPP;
}
#endif

/*
 * One CPU at a time, with a pause. Without ivshmem_mutex while a CPU comes or goes: a
 * busy guest takes seconds for it.
 */
static void run_step(struct work_struct *work)
{
	u32 status, goal = find_goal(&status);
	unsigned int cpu = find_cpu(goal);
	int err = 0;

	/* A CPU that starts while the kernel goes would run into the next one. */
	if (system_state != SYSTEM_RUNNING)
		return;
	if (cpu)
		err = move_cpu(cpu);
	if (err) {
		hall_count(HALL_CPUS_REFUSED);
		pr_warn_once("CPU %u does not go where hallwayd wants it (error %d): trying again\n",
			     cpu, err);
	}
	WRITE_ONCE(failed, err);
	if (find_cpu(goal))
		queue_delayed_work(queue, &step_work, err ? RETRY : STEP);
	mutex_lock(&ivshmem_mutex);
	report_all();
	mutex_unlock(&ivshmem_mutex);
}

int ivshmem_cpus_init(void)
{
	/* As the transports' work items: no device may be away meanwhile. */
	queue = alloc_workqueue("hallway_cpus", WQ_UNBOUND | WQ_FREEZABLE, 1);
	return queue ? 0 : -ENOMEM;
}

void ivshmem_cpus_uninit(void)
{
	unsigned int cpu;

	cancel_delayed_work_sync(&step_work);
	destroy_workqueue(queue);
	for_each_cpu(cpu, &parked)
		if (!cpu_online(cpu) && move_cpu(cpu))
			pr_warn("CPU %u stays offline: echo 1 >/sys/devices/system/cpu/cpu%u/online\n",
				cpu, cpu);
}
