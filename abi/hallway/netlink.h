/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Generated from spec/netlink.yaml by spec/generate: do not edit. */
#ifndef HALLWAY_ABI_NETLINK_H
#define HALLWAY_ABI_NETLINK_H

#define HALLWAY_GENL_NAME	"hallway"
#define HALLWAY_GENL_VERSION	1

/* Switch and counters. */
#define HALLWAY_CMD_GET 1
/*
 * Turn promotion on; or turn it off, and demote all that is promoted. Turn
 * outsourcing on, with the cgroups that are given, or for all; or turn it off
 * for new sockets and listeners. At least one of the two.
 */
#define HALLWAY_CMD_SET 2
/* Members of every region, one message each. */
#define HALLWAY_CMD_MEMBERS 3
/* Attached connections and outsourced sockets, one message each. */
#define HALLWAY_CMD_CONNECTIONS 4

/* string: Version of the module. */
#define HALLWAY_A_VERSION 1
/* u8: Whether connections are promoted, 0 or 1. */
#define HALLWAY_A_ENABLED 2
/* u8: Whether new sockets may be outsourced, 0 or 1. */
#define HALLWAY_A_OUTSOURCING 3
/*
 * binary: Ids of the cgroups that may have sockets outsourced, and those of
 * cgroups below them; u64 each. None: all sockets.
 */
#define HALLWAY_A_CGROUPS 4
/* nest, repeated: One counter, as name and value. */
#define HALLWAY_A_COUNTER 5
/* string: Name of a counter, or host name of a member. */
#define HALLWAY_A_NAME 6
/* u64: Value of a counter. */
#define HALLWAY_A_VALUE 7
/* string: Transport that reaches a member, such as ivshmem or loopback. */
#define HALLWAY_A_TRANSPORT 8
/* u32: Slot of a member in its region. */
#define HALLWAY_A_SLOT 9
/* 16 bytes: UUID of a member's VM, in RFC 4122 order. */
#define HALLWAY_A_UUID 10
/* u32: Generation of a member; each join gives it a new one. */
#define HALLWAY_A_GENERATION 11
/* flag: The member is this guest. */
#define HALLWAY_A_SELF 12
/* 16 bytes, repeated: Address of a member; IPv6, or IPv4 mapped. */
#define HALLWAY_A_ADDRESS 13
/* 16 bytes: Address of this end; IPv6, or IPv4 mapped. */
#define HALLWAY_A_LOCAL 14
/* 16 bytes: Address of the other end; IPv6, or IPv4 mapped. */
#define HALLWAY_A_REMOTE 15
/* u16: Port of this end, in host order. */
#define HALLWAY_A_LOCAL_PORT 16
/* u16: Port of the other end, in host order. */
#define HALLWAY_A_REMOTE_PORT 17
/* u32: Carrier of the bytes sent; even is TCP, odd is a ring. */
#define HALLWAY_A_TX_CARRIER 18
/* u32: Carrier of the bytes received; even is TCP, odd is a ring. */
#define HALLWAY_A_RX_CARRIER 19
/* u64: Bytes sent over TCP. */
#define HALLWAY_A_TX_TCP 20
/* u64: Bytes sent through rings. */
#define HALLWAY_A_TX_RING 21
/* u64: Bytes received over TCP. */
#define HALLWAY_A_RX_TCP 22
/* u64: Bytes received through rings. */
#define HALLWAY_A_RX_RING 23
/* u32: Why the connection is not on a ring, or was demoted. */
#define HALLWAY_A_REASON 24
/* string: Text of the reason. */
#define HALLWAY_A_REASON_TEXT 25
/* u8: State of TCP, as in /proc/net/tcp. */
#define HALLWAY_A_STATE 26
/* u32: Inode number of the connection's network namespace. */
#define HALLWAY_A_NETNS 27
/*
 * flag: The host executes the socket: its bytes are those of rings, and its
 * peer is the outsourcer. The state is what TCP's would be.
 */
#define HALLWAY_A_OUTSOURCED 28
/* pad: Alignment of u64 attributes. */
#define HALLWAY_A_PAD 29
/*
 * flag: It is a UDP socket. The state is TCP_ESTABLISHED if it is connected,
 * else TCP_CLOSE.
 */
#define HALLWAY_A_DATAGRAM 30
/* u32: CID of a member in AF_VSOCK. */
#define HALLWAY_A_CID 31
/* u32: Tunnels with a member now, those that are being closed too. */
#define HALLWAY_A_TUNNELS 32
/*
 * nest, repeated: Directions that this end sends and that were demoted for one
 * reason, as reason and value. The reason is none if a larger ring replaced
 * theirs.
 */
#define HALLWAY_A_DEMOTIONS 33
/*
 * nest, repeated: Calls of connect() that were left to the native stack for one
 * reason, as reason and value. They are counted from the first outsourcer on.
 */
#define HALLWAY_A_NATIVES 34
/* flag: The member is an outsourcer, which is no VM and has no tunnels. */
#define HALLWAY_A_OUTSOURCER 35
/* The highest attribute. */
#define HALLWAY_A_MAX 35

#endif /* HALLWAY_ABI_NETLINK_H */
