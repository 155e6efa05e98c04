// SPDX-License-Identifier: GPL-2.0-only
/* Doorbells that a peer rings without end. */
#include "shared.h"

#include <linux/jiffies.h>
#include <linux/moduleparam.h>

#include "../../obs/counters.h"

static unsigned int storm = 512;
module_param(storm, uint, 0644);
MODULE_PARM_DESC(storm, "doorbells in one jiffy from which on the interrupt is masked until the next (default: 512)");

unsigned int hall_storm_count(struct hall_storm *counted)
{
	unsigned int most = READ_ONCE(storm);

	if (counted->jiffy != jiffies) {
		counted->jiffy = jiffies;
		counted->doorbells = 0;
	}
	counted->doorbells++;
	if (!most || counted->doorbells < most)
		return 0;
	if (counted->doorbells == most)
		hall_count(HALL_STORMS);
	return counted->doorbells - most + 1;
}
