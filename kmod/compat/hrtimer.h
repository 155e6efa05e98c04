/* SPDX-License-Identifier: GPL-2.0-only */
/* hrtimer_setup() took the place of hrtimer_init(). */
#ifndef HALL_COMPAT_HRTIMER_H
#define HALL_COMPAT_HRTIMER_H

#include <linux/hrtimer.h>

#ifndef HALL_HAS_HRTIMER_SETUP
static inline void hrtimer_setup(struct hrtimer *timer,
				 enum hrtimer_restart (*function)(struct hrtimer *),
				 clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = function;
}
#endif

#endif /* HALL_COMPAT_HRTIMER_H */
