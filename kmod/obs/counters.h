/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counters, and texts of reasons. What a peer can cause is counted here, not
 * printed, and reported over netlink. Every room may use this, in any context.
 */
#ifndef HALL_COUNTERS_H
#define HALL_COUNTERS_H

#include <linux/percpu.h>

#include <hallway/reason.h>

#include "counter_list.h"

struct hall_counters {
	u64 value[HALL_COUNTER_COUNT];
	u64 demotions[HALLWAY_REASON_COUNT];
	u64 natives[HALLWAY_REASON_COUNT];
};

DECLARE_PER_CPU(struct hall_counters, hall_counters);

static inline void hall_count_add(enum hall_counter counter, u64 n)
{
	this_cpu_add(hall_counters.value[counter], n);
}

static inline void hall_count(enum hall_counter counter)
{
	hall_count_add(counter, 1);
}

/*
 * Counts a direction that this end sends and that was demoted. A peer may have chosen
 * the reason's number.
 */
void hall_count_demotion(u32 reason);

/* Counts a connect() that is left to the native stack. reason < HALLWAY_REASON_COUNT */
static inline void hall_count_native(u32 reason)
{
	/* tests/ring builds this, and has no this_cpu_inc(). */
	this_cpu_add(hall_counters.natives[reason], 1);
}

/* Return the sum over all CPUs. Any context. */
u64 hall_counter_read(enum hall_counter counter);
u64 hall_demotions_read(u32 reason);	/* reason < HALLWAY_REASON_COUNT */
u64 hall_natives_read(u32 reason);	/* reason < HALLWAY_REASON_COUNT */
const char *hall_counter_name(enum hall_counter counter);

/* Returns the text of a HALLWAY_REASON_*, or one for unknown numbers. */
const char *hall_reason_text(u32 reason);

#endif /* HALL_COUNTERS_H */
