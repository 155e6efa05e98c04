// SPDX-License-Identifier: GPL-2.0-only
/* hallway_vsock.ko for kernels with which it does not work: it says so. */
#include <linux/module.h>

static int __init hall_vsock_init(void)
{
	pr_err("hallway_vsock: this kernel has no AF_VSOCK, or one that is not supported: boot another one\n");
	return -EOPNOTSUPP;
}

module_init(hall_vsock_init);

MODULE_DESCRIPTION("AF_VSOCK between virtual machines of one host: not on this kernel");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.2.0");
