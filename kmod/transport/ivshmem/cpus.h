/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPUs: the daemon says how many of this guest's are to be online. The others are
 * parked: they stay present, and are offline. A CPU that something else took offline
 * stays so, and CPU 0 is always online.
 */
#ifndef HALL_IVSHMEM_CPUS_H
#define HALL_IVSHMEM_CPUS_H

#include "doorbell.h"

/* Is the order of that doorbell another than at the last look? Any context. */
bool ivshmem_cpus_differ(const struct doorbell *doorbell);
/*
 * Takes the order of the first doorbell, or none if there is no doorbell, and reports
 * to all. A work item carries it out. Under ivshmem_mutex.
 */
void ivshmem_cpus_take_order(void);
/* Before the first device. 0 or -ENOMEM. Process context. */
int ivshmem_cpus_init(void);
/* After the last device is gone: all parked CPUs come back. Process context. */
void ivshmem_cpus_uninit(void);

#endif /* HALL_IVSHMEM_CPUS_H */
