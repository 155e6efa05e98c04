// SPDX-License-Identifier: GPL-2.0
/* Counters, and the words for reasons. */
#include "counters.h"

#include <linux/cpumask.h>
#include <linux/kernel.h>

#include <hallway/reason.h>

DEFINE_PER_CPU(struct hall_counters, hall_counters);

u64 hall_counter_read(enum hall_counter counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(hall_counters, cpu).value[counter]);
	return sum;
}

const char *hall_counter_name(enum hall_counter counter)
{
#define NAME(id, name) [HALL_##id] = #name,
	static const char * const names[] = { HALL_COUNTERS(NAME) };
#undef NAME

	return names[counter];
}

const char *hall_reason_text(u32 reason)
{
#define TEXT(number, id, text) [number] = text,
	static const char * const texts[] = { HALLWAY_REASONS(TEXT) };
#undef TEXT

	return reason < ARRAY_SIZE(texts) ? texts[reason] : "unknown reason";
}
