// SPDX-License-Identifier: GPL-2.0
/* The counters of each CPU, and their sums. */
#include "counters.h"

#include <linux/cpumask.h>

DEFINE_PER_CPU(struct hall_counters, hall_counters);

u64 hall_counter_read(enum hall_counter counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(hall_counters, cpu).value[counter]);
	return sum;
}
