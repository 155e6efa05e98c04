/* SPDX-License-Identifier: GPL-2.0-only */
/* Generic netlink family "hallway": see netlink.c. */
#ifndef HALL_NETLINK_H
#define HALL_NETLINK_H

/* Returns 0 or an error of genl_register_family(). */
int hall_netlink_init(void);
void hall_netlink_uninit(void);

#endif /* HALL_NETLINK_H */
