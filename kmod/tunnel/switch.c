// SPDX-License-Identifier: GPL-2.0-only
/*
 * The switch. Off, all tunnels are reset and none begins: programs close their sockets
 * then, and the module can be unloaded.
 *
 * Each tunnel looks at the switch after it has its endpoint number, and each trunk under
 * the lock of their table. So one that begins meanwhile finds it off, or is found here.
 * Members that depart are not walked: their tunnels end with the departure.
 */
#include "tunnel.h"

#include <linux/moduleparam.h>

#include "../discovery/discovery.h"

static int reset_tunnels(struct hall_member *member, void *data)
{
	hall_channel_raise_all(member, &hall_tunnel_kind, HALL_EVENT_RESET);
	return 0;
}

static int set_enabled(const char *value, const struct kernel_param *param)
{
	int err = param_set_bool(value, param);

	if (err || READ_ONCE(hall_tunnels_enabled))
		return err;
	hall_members_walk(reset_tunnels, NULL);
	hall_trunks_end();
	return 0;
}

static const struct kernel_param_ops enabled_ops = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = set_enabled,
	.get = param_get_bool,
};

module_param_cb(enabled, &enabled_ops, &hall_tunnels_enabled, 0644);
MODULE_PARM_DESC(enabled, "serve tunnels; off resets those that are open (default: on)");
