/* SPDX-License-Identifier: GPL-2.0 */
/* Generic netlink: spec/netlink.yaml and abi/hallway/netlink.h. */
#ifndef HALL_NETLINK_H
#define HALL_NETLINK_H

int hall_netlink_init(void);
void hall_netlink_uninit(void);

#endif /* HALL_NETLINK_H */
