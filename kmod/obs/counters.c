// SPDX-License-Identifier: GPL-2.0-only
/* The counters of each CPU, and their sums. */
#include "counters.h"

#include <linux/cpumask.h>
#include <linux/nospec.h>

DEFINE_PER_CPU(struct hall_counters, hall_counters);

void hall_count_demotion(u32 reason)
{
	if (reason >= HALLWAY_REASON_COUNT)
		return;
	reason = array_index_nospec(reason, HALLWAY_REASON_COUNT);
	this_cpu_inc(hall_counters.demotions[reason]);
}

static u64 sum_cpus(const u64 __percpu *value)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(value, cpu));
	return sum;
}

u64 hall_counter_read(enum hall_counter counter)
{
	return sum_cpus(&hall_counters.value[counter]);
}

u64 hall_demotions_read(u32 reason)
{
	return sum_cpus(&hall_counters.demotions[reason]);
}

u64 hall_natives_read(u32 reason)
{
	return sum_cpus(&hall_counters.natives[reason]);
}
