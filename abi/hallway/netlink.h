/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Generic netlink family "hallway": what the guest's module tells, and its
 * switch. spec/netlink.yaml is the authoritative description.
 */
#ifndef HALLWAY_ABI_NETLINK_H
#define HALLWAY_ABI_NETLINK_H

#define HALLWAY_GENL_NAME	"hallway"
#define HALLWAY_GENL_VERSION	1

/* Commands. */
#define HALLWAY_CMD_GET		1	/* do: switch and counters */
#define HALLWAY_CMD_SET		2	/* do, admin: ENABLED */
#define HALLWAY_CMD_MEMBERS	3	/* dump: members of every region */
#define HALLWAY_CMD_CONNECTIONS	4	/* dump: attached connections */

/* Attributes, one space for all commands. */
#define HALLWAY_A_VERSION	1	/* string: of the module */
#define HALLWAY_A_ENABLED	2	/* u8: 0 or 1 */
#define HALLWAY_A_COUNTER	3	/* nest, repeated: NAME, VALUE */
#define HALLWAY_A_NAME		4	/* string */
#define HALLWAY_A_VALUE		5	/* u64 */
#define HALLWAY_A_TRANSPORT	6	/* string: loopback, ivshmem */
#define HALLWAY_A_SLOT		7	/* u32 */
#define HALLWAY_A_UUID		8	/* 16 bytes */
#define HALLWAY_A_GENERATION	9	/* u32 */
#define HALLWAY_A_SELF		10	/* flag: the member is this guest */
#define HALLWAY_A_ADDRESS	11	/* 16 bytes, repeated */
#define HALLWAY_A_LOCAL		12	/* 16 bytes, IPv4 mapped */
#define HALLWAY_A_REMOTE	13	/* 16 bytes, IPv4 mapped */
#define HALLWAY_A_LOCAL_PORT	14	/* u16, host order */
#define HALLWAY_A_REMOTE_PORT	15	/* u16, host order */
#define HALLWAY_A_TX_CARRIER	16	/* u32: even TCP, odd ring */
#define HALLWAY_A_RX_CARRIER	17	/* u32: even TCP, odd ring */
#define HALLWAY_A_TX_TCP	18	/* u64: bytes */
#define HALLWAY_A_TX_RING	19	/* u64: bytes */
#define HALLWAY_A_RX_TCP	20	/* u64: bytes */
#define HALLWAY_A_RX_RING	21	/* u64: bytes */
#define HALLWAY_A_REASON	22	/* u32: HALLWAY_REASON_* */
#define HALLWAY_A_REASON_TEXT	23	/* string */
#define HALLWAY_A_STATE		24	/* u8: TCP state, as in /proc/net/tcp */
#define HALLWAY_A_NETNS		25	/* u32: inode number of the namespace */
#define HALLWAY_A_PAD		26	/* alignment */
#define HALLWAY_A_MAX		26

#endif /* HALLWAY_ABI_NETLINK_H */
