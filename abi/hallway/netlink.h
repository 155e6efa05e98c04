/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Generated from spec/netlink.yaml by spec/generate: do not edit. */
#ifndef HALLWAY_ABI_NETLINK_H
#define HALLWAY_ABI_NETLINK_H

#define HALLWAY_GENL_NAME	"hallway"
#define HALLWAY_GENL_VERSION	1

/* Switch and counters. */
#define HALLWAY_CMD_GET 1
/* Turn promotion on; or turn it off, and demote all that is promoted. */
#define HALLWAY_CMD_SET 2
/* Members of every region, one message each. */
#define HALLWAY_CMD_MEMBERS 3
/* Attached connections, one message each. */
#define HALLWAY_CMD_CONNECTIONS 4

/* string: Version of the module. */
#define HALLWAY_A_VERSION 1
/* u8: Whether connections are promoted, 0 or 1. */
#define HALLWAY_A_ENABLED 2
/* nest, repeated: One counter, as name and value. */
#define HALLWAY_A_COUNTER 3
/* string: Name of a counter, or host name of a member. */
#define HALLWAY_A_NAME 4
/* u64: Value of a counter. */
#define HALLWAY_A_VALUE 5
/* string: Transport that reaches a member, such as ivshmem or loopback. */
#define HALLWAY_A_TRANSPORT 6
/* u32: Slot of a member in its region. */
#define HALLWAY_A_SLOT 7
/* 16 bytes: UUID of a member's VM, in RFC 4122 order. */
#define HALLWAY_A_UUID 8
/* u32: Generation of a member; each join gives it a new one. */
#define HALLWAY_A_GENERATION 9
/* flag: The member is this guest. */
#define HALLWAY_A_SELF 10
/* 16 bytes, repeated: Address of a member; IPv6, or IPv4 mapped. */
#define HALLWAY_A_ADDRESS 11
/* 16 bytes: Address of this end; IPv6, or IPv4 mapped. */
#define HALLWAY_A_LOCAL 12
/* 16 bytes: Address of the other end; IPv6, or IPv4 mapped. */
#define HALLWAY_A_REMOTE 13
/* u16: Port of this end, in host order. */
#define HALLWAY_A_LOCAL_PORT 14
/* u16: Port of the other end, in host order. */
#define HALLWAY_A_REMOTE_PORT 15
/* u32: Carrier of the bytes sent; even is TCP, odd is a ring. */
#define HALLWAY_A_TX_CARRIER 16
/* u32: Carrier of the bytes received; even is TCP, odd is a ring. */
#define HALLWAY_A_RX_CARRIER 17
/* u64: Bytes sent over TCP. */
#define HALLWAY_A_TX_TCP 18
/* u64: Bytes sent through rings. */
#define HALLWAY_A_TX_RING 19
/* u64: Bytes received over TCP. */
#define HALLWAY_A_RX_TCP 20
/* u64: Bytes received through rings. */
#define HALLWAY_A_RX_RING 21
/* u32: Why the connection is not on a ring, or was demoted. */
#define HALLWAY_A_REASON 22
/* string: Text of the reason. */
#define HALLWAY_A_REASON_TEXT 23
/* u8: State of TCP, as in /proc/net/tcp. */
#define HALLWAY_A_STATE 24
/* u32: Inode number of the connection's network namespace. */
#define HALLWAY_A_NETNS 25
/* pad: Alignment of u64 attributes. */
#define HALLWAY_A_PAD 26
/* The highest attribute. */
#define HALLWAY_A_MAX 26

#endif /* HALLWAY_ABI_NETLINK_H */
