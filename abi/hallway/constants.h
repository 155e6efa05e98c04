/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Generated from spec/abi.yaml by spec/generate: do not edit. */
#ifndef HALLWAY_ABI_CONSTANTS_H
#define HALLWAY_ABI_CONSTANTS_H

/* region.h */

/* Another major version is refused. */
#define HALLWAY_MAJOR 3
/* Another minor version is served; features have bits. */
#define HALLWAY_MINOR 5
/* "HALLWAY1", of a formatted region. */
#define HALLWAY_REGION_MAGIC 0x315941574c4c4148ULL
/* "HALLSICE", of a slice that its member has formatted. */
#define HALLWAY_SLICE_MAGIC 0x454349534c4c4148ULL
/* "HALLPAGE", of a private page that the daemon has formatted. */
#define HALLWAY_PAGE_MAGIC 0x454741504c4c4148ULL
/* Members of one region. */
#define HALLWAY_SLOTS_MAX 64
/* Bytes before the first slice. */
#define HALLWAY_HEADER_SIZE 12288
/* Bytes of a name with its final NUL. */
#define HALLWAY_NAME_SIZE 64
/* Addresses that one member publishes. */
#define HALLWAY_ADDRESSES_MAX 64
/* Bytes of the smallest slice. */
#define HALLWAY_SLICE_MIN (2ULL << 20)
/* hallway_member.state: The slot has no member. */
#define HALLWAY_MEMBER_ABSENT 0
/* hallway_member.state: The slot has a member. */
#define HALLWAY_MEMBER_PRESENT 1
/* Messages that a mailbox holds. */
#define HALLWAY_MAILBOX_MESSAGES 64
/* Bytes of a message. */
#define HALLWAY_MESSAGE_SIZE 128
/* Endpoint numbers of one member for another; 0 is the mailbox. */
#define HALLWAY_ENDPOINTS_MAX 4096
/* Bytes of the private page. */
#define HALLWAY_PAGE_SIZE 4096
/* Ranges of ports in a reply. */
#define HALLWAY_TUNNEL_RANGES 4
/* Regions that one VM can join. */
#define HALLWAY_PAGE_ENTRIES 8
/* The first minor version in which the private page has the CIDs of peers. */
#define HALLWAY_MINOR_PEERS 3
/* The first minor version in which the private page has keys of regions. */
#define HALLWAY_MINOR_KEYS 4
/* The first minor version in which a VM may have a given CID. */
#define HALLWAY_MINOR_CIDS 5
/* Peer id of the daemon's doorbell. */
#define HALLWAY_DAEMON_ID 1
/* hallway_request.command: No request. */
#define HALLWAY_COMMAND_NONE 0
/* hallway_request.command: The guest asks for a slot of the region. */
#define HALLWAY_COMMAND_JOIN 1
/* hallway_request.command: The guest gives its slot back. */
#define HALLWAY_COMMAND_LEAVE 2
/* hallway_request.command: The guest has started; it names no region. */
#define HALLWAY_COMMAND_HELLO 3
/* hallway_reply.status: Done. */
#define HALLWAY_STATUS_OK 0
/* hallway_reply.status: The guest has another major version. */
#define HALLWAY_STATUS_VERSION 1
/* hallway_reply.status: The daemon has no such region. */
#define HALLWAY_STATUS_UNKNOWN 2
/* hallway_reply.status: The region has no slot left. */
#define HALLWAY_STATUS_FULL 3
/* hallway_reply.status: The VM may not join the region. */
#define HALLWAY_STATUS_DENIED 4
/* hallway_reply.status: The request is malformed. */
#define HALLWAY_STATUS_INVALID 5
/* Addresses that a guest reports to the daemon. */
#define HALLWAY_HOME_MAX 16
/* Addresses of candidates that the daemon reports to a guest. */
#define HALLWAY_CANDIDATES_MAX 64
/* hallway_cpu_report.status: As many CPUs are online. */
#define HALLWAY_CPUS_DONE 0
/* hallway_cpu_report.status: They are being brought online or offline. */
#define HALLWAY_CPUS_WORKING 1
/*
 * hallway_cpu_report.status: The guest's kernel does not let it; the guest
 * tries again.
 */
#define HALLWAY_CPUS_FAILED 2
/* hallway_cpu_report.status: The guest does not take such orders. */
#define HALLWAY_CPUS_REFUSED 3
/* hallway_cpu_report.status: There are not that many CPUs. */
#define HALLWAY_CPUS_INVALID 4

/* ring.h */

/* "RING". */
#define HALLWAY_RING_MAGIC 0x474e4952
/* Bytes before the data. */
#define HALLWAY_RING_HEADER 4096
/* Fewest bytes of data. */
#define HALLWAY_RING_MIN 4096
/* Most bytes of data. */
#define HALLWAY_RING_MAX (16u << 20)
/* In start and end: the mark is set. */
#define HALLWAY_MARK_SET (1ULL << 63)
/*
 * In end, with MARK_SET: the writer resets a tunnel that it has read to the
 * end.
 */
#define HALLWAY_MARK_RESET (1ULL << 61)
/* In end: the receiver has truncated the ring. */
#define HALLWAY_MARK_TRUNCATED (1ULL << 62)
/* In end of a truncated ring: the low bits of the position. */
#define HALLWAY_MARK_POSITION 0x3fffffffffffffffULL
/* In grown, alone: the writer has no memory for a larger area now. */
#define HALLWAY_MARK_SHORT (1ULL << 62)
/* In start: the TCP sequence number. */
#define HALLWAY_MARK_SEQ 0xffffffffULL
/* index in hallway_options.value: SO_KEEPALIVE */
#define HALLWAY_OPTION_KEEPALIVE 0
/* index in hallway_options.value: TCP_NODELAY */
#define HALLWAY_OPTION_NODELAY 1
/* index in hallway_options.value: TCP_CORK */
#define HALLWAY_OPTION_CORK 2
/* index in hallway_options.value: TCP_KEEPIDLE */
#define HALLWAY_OPTION_KEEPIDLE 3
/* index in hallway_options.value: TCP_KEEPINTVL */
#define HALLWAY_OPTION_KEEPINTVL 4
/* index in hallway_options.value: TCP_KEEPCNT */
#define HALLWAY_OPTION_KEEPCNT 5
/* index in hallway_options.value: TCP_USER_TIMEOUT */
#define HALLWAY_OPTION_USER_TIMEOUT 6
/* index in hallway_options.value: TCP_SYNCNT */
#define HALLWAY_OPTION_SYNCNT 7
/* index in hallway_options.value: TCP_MAXSEG */
#define HALLWAY_OPTION_MAXSEG 8
/* index in hallway_options.value: IP_TOS */
#define HALLWAY_OPTION_TOS 9
/* index in hallway_options.value: IP_TTL */
#define HALLWAY_OPTION_TTL 10
/* index in hallway_options.value: IPV6_TCLASS */
#define HALLWAY_OPTION_TCLASS 11
/* index in hallway_options.value: IPV6_UNICAST_HOPS */
#define HALLWAY_OPTION_HOPS 12
/* index in hallway_options.value: the highest. */
#define HALLWAY_OPTION_MAX 12
/* Places in hallway_options.value. */
#define HALLWAY_OPTIONS 32
/* Bytes of hallway_options.info. */
#define HALLWAY_INFO_MAX 512

/* message.h */

/* hallway_message.type: The sender of a direction offers a ring. */
#define HALLWAY_OFFER 1
/* hallway_message.type: The receiver has mapped the ring. */
#define HALLWAY_ACCEPT 2
/* hallway_message.type: The receiver does not take the ring. */
#define HALLWAY_DECLINE 3
/* hallway_message.type: The receiver asks for the end mark. */
#define HALLWAY_DEMOTE 4
/* hallway_message.type: The receiver does not touch the ring any more. */
#define HALLWAY_DONE 5
/* hallway_message.offer.kind: A direction of a TCP connection. */
#define HALLWAY_KIND_STREAM 1
/*
 * hallway_message.offer.kind: A direction of a socket that the outsourcer
 * executes.
 */
#define HALLWAY_KIND_SOCKET 2
/*
 * hallway_message.offer.kind: A listening socket of the guest that the
 * outsourcer publishes.
 */
#define HALLWAY_KIND_LISTENER 3
/*
 * hallway_message.offer.kind: A direction of a UDP socket that the outsourcer
 * executes.
 */
#define HALLWAY_KIND_DATAGRAM 4
/*
 * hallway_message.offer.kind: A direction of a tunnel between two sockets of
 * AF_VSOCK.
 */
#define HALLWAY_KIND_TUNNEL 5
/* hallway_message.offer.kind: the highest. */
#define HALLWAY_KIND_MAX 5
/* In flags of a SOCKET or LISTENER: the guest's socket is of AF_INET6. */
#define HALLWAY_SOCKET_IPV6 1
/* In flags of a LISTENER: it takes no IPv4 connection. */
#define HALLWAY_SOCKET_V6ONLY 2
/*
 * In flags of a LISTENER: other listeners of the guest may have the same
 * address and port.
 */
#define HALLWAY_SOCKET_REUSEPORT 4
/*
 * In features of an OFFER: its writer supports rings of outsourced sockets and
 * tunnels that grow.
 */
#define HALLWAY_FEATURE_GROWTH 1
/*
 * In features of an OFFER of SOCK_SEQPACKET: the ring began with zeros, so the
 * peer may lend it to a program.
 */
#define HALLWAY_FEATURE_BLANK 2
/* Bytes of a handle. */
#define HALLWAY_HANDLE_SIZE 48

/* datagram.h */

/* hallway_datagram.type: To send to the other end; or it came from there. */
#define HALLWAY_DATAGRAM_DATA 1
/*
 * hallway_datagram.type: Of the outsourcer: the host's policy does not allow
 * it. The guest sends it natively.
 */
#define HALLWAY_DATAGRAM_RETURNED 2
/*
 * hallway_datagram.type: Of the outsourcer: one to the other end failed. There
 * is no payload.
 */
#define HALLWAY_DATAGRAM_ERROR 3
/* Bytes of payload, at most. */
#define HALLWAY_DATAGRAM_MAX 65527
/* Positions of records in a ring are multiples of it. */
#define HALLWAY_DATAGRAM_ALIGN 8

/* tunnel.h */

/* hallway_tunnel.type: SOCK_STREAM: bytes. */
#define HALLWAY_TUNNEL_STREAM 1
/* hallway_tunnel.type: SOCK_SEQPACKET: messages, each after a hallway_frame. */
#define HALLWAY_TUNNEL_SEQPACKET 2
/*
 * hallway_tunnel.type: SOCK_DGRAM: a trunk. Datagrams, each after a
 * hallway_letter.
 */
#define HALLWAY_TUNNEL_DGRAM 3
/* In flags of a frame: the message was sent with MSG_EOR. */
#define HALLWAY_FRAME_EOR 1
/* Positions of frames in a ring are multiples of it. */
#define HALLWAY_FRAME_ALIGN 8
/* Positions of letters in a ring are multiples of it. */
#define HALLWAY_LETTER_ALIGN 16
/* Bytes of a datagram in a letter, at most. */
#define HALLWAY_LETTER_MAX 65536
/*
 * The lowest CID that the configuration can give a VM. AF_VSOCK has its own
 * meaning for lower ones.
 */
#define HALLWAY_CID_GIVEN_FIRST 3
/* The lowest CID of a VM that is given none; the given ones are below it. */
#define HALLWAY_CID_FIRST 0x40000000
/* The CID of the host, in a region that it shares with one VM. */
#define HALLWAY_CID_HOST 0x40000002
/* Where a datagram is sent that each other VM gets. */
#define HALLWAY_CID_MULTICAST 0x80000000

/* socket.h */

/* "HAL". Level of options that a program in a guest sets on a socket. */
#define HALLWAY_SOL 0x48414c
/*
 * Before connect() or listen(), and of UDP before bind(): 0 leaves the socket
 * native, 1 has it outsourced whatever its cgroup is.
 */
#define HALLWAY_SO_OUTSOURCE 1
/* Cgroups that outsourcing can be limited to. */
#define HALLWAY_CGROUPS_MAX 16

#endif /* HALLWAY_ABI_CONSTANTS_H */
