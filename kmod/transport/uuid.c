// SPDX-License-Identifier: GPL-2.0-only
/* This VM's UUID: as its hypervisor says, in whatever way it does, or as a parameter says. */
#define pr_fmt(fmt) "hallway: " fmt

#include "transport.h"

#include <linux/dmi.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/uuid.h>

#include <hallway/tunnel.h>

#ifdef CONFIG_XEN
#include <xen/interface/xen.h>
#include <xen/interface/version.h>
#include <xen/xen.h>
#include <asm/xen/hypercall.h>
#endif

static char *given;
module_param_named(uuid, given, charp, 0444);
MODULE_PARM_DESC(uuid, "UUID of this VM, where its machine does not say it (QEMU's microvm)");

/* A domain of Xen may have no firmware, and no DMI. */
static bool read_domain(uuid_t *uuid)
{
#ifdef CONFIG_XEN
	return xen_domain() &&
	       !HYPERVISOR_xen_version(XENVER_guest_handle, uuid);
#else
	return false;
#endif
}

static bool read_firmware(uuid_t *uuid)
{
	const char *text = dmi_get_system_info(DMI_PRODUCT_UUID);

	return text && !uuid_parse(text, uuid);
}

int hall_uuid_find(void)
{
	uuid_t uuid;

	if (given) {
		if (strlen(given) != UUID_STRING_LEN || uuid_parse(given, &uuid) ||
		    uuid_is_null(&uuid)) {
			pr_err("the parameter uuid is \"%.40s\": it has to be a UUID, as QEMU's -uuid has it\n",
			       given);
			return -EINVAL;
		}
	} else if (!read_domain(&uuid) && !read_firmware(&uuid)) {
		pr_warn("the VM has no UUID (start QEMU with -uuid; on a microvm, set the parameter uuid): using a random one\n");
		uuid_gen(&uuid);
	}
	export_uuid(hall_uuid, &uuid);
	hall_cid = hallway_cid(hall_uuid);
	return 0;
}
