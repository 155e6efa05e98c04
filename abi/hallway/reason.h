/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Generated from spec/netlink.yaml by spec/generate: do not edit. */
#ifndef HALLWAY_ABI_REASON_H
#define HALLWAY_ABI_REASON_H

/* Why a direction of a connection is not on a ring, or was demoted. */
/* on a ring, or nothing prevents it */
#define HALLWAY_REASON_NONE 0
/* too new, and too few bytes so far, to earn a ring */
#define HALLWAY_REASON_YOUNG 1
/* a ring is offered, and the peer has not answered yet */
#define HALLWAY_REASON_OFFERED 2
/* the peer has no such connection (NAT or a proxy between?) */
#define HALLWAY_REASON_NO_MATCH 3
/* no ring memory left in this member's slice */
#define HALLWAY_REASON_NO_MEMORY 4
/* no endpoint number left for this peer */
#define HALLWAY_REASON_NO_ENDPOINT 5
/*
 * a call that is older than Hallway is in the socket, or an earlier ring is not
 * drained
 */
#define HALLWAY_REASON_BUSY 6
/*
 * a kernel user owns the callbacks, and was not seen to read by calls of the
 * socket
 */
#define HALLWAY_REASON_FOREIGN 7
/* its program has not accepted it yet */
#define HALLWAY_REASON_UNACCEPTED 8
/* TCP is not in a state that carries data both ways */
#define HALLWAY_REASON_STATE 9
/* switched off by the operator */
#define HALLWAY_REASON_OFF 10
/* the module is being unloaded */
#define HALLWAY_REASON_UNLOAD 11
/* the peer left the region or died */
#define HALLWAY_REASON_PEER_LEFT 12
/* the region's memory was unplugged */
#define HALLWAY_REASON_REGION_GONE 13
/* TCP_ULP: another protocol (kTLS) takes the socket over */
#define HALLWAY_REASON_ULP 14
/* sockmap takes the socket over */
#define HALLWAY_REASON_SOCKMAP 15
/* TCP_REPAIR: the socket is being checkpointed */
#define HALLWAY_REASON_REPAIR 16
/* IPV6_ADDRFORM turns the socket into another family */
#define HALLWAY_REASON_ADDRFORM 17
/* MSG_ZEROCOPY or TCP_ZEROCOPY_RECEIVE is in use */
#define HALLWAY_REASON_ZEROCOPY 18
/* urgent data is in use */
#define HALLWAY_REASON_URGENT 19
/* the packets are signed or encrypted (IPsec, TCP MD5 or AO) */
#define HALLWAY_REASON_SECURED 20
/* the ring or a message was corrupt: the connection is reset */
#define HALLWAY_REASON_CORRUPT 21
/* one end did not answer in time, and the other truncated the ring */
#define HALLWAY_REASON_TIMEOUT 22
/* the socket was closed */
#define HALLWAY_REASON_CLOSED 23
/* the peer does not know this kind of channel */
#define HALLWAY_REASON_KIND 24
/* the peer is unresponsive: its heartbeat has stopped */
#define HALLWAY_REASON_UNRESPONSIVE 25
/* timestamps of packets are requested */
#define HALLWAY_REASON_TIMESTAMP 26
/* its ring was idle */
#define HALLWAY_REASON_IDLE 27
/* packet filters must see its packets */
#define HALLWAY_REASON_FILTERED 28
/* its reader waits for more bytes than the ring holds */
#define HALLWAY_REASON_SMALL 29
/* this VM is being saved or migrated */
#define HALLWAY_REASON_SUSPENDED 30
/* it is in another network namespace than the first */
#define HALLWAY_REASON_NAMESPACE 31
/* its cgroup is not one of those that are outsourced */
#define HALLWAY_REASON_SCOPE 32
/* its address is this VM's own, loopback, link-local or multicast */
#define HALLWAY_REASON_LOCAL 33
/* its peer is a VM with which this one shares memory */
#define HALLWAY_REASON_MEMBER 34
/* its program has bound it before connect() */
#define HALLWAY_REASON_BOUND 35
/* it has an option or a device that a socket of the host cannot have */
#define HALLWAY_REASON_OPTION 36
/* the policy of the host, or a limit of its outsourcer, is against it */
#define HALLWAY_REASON_REFUSED 37
/* this VM has no outsourcer now, or no memory for the socket */
#define HALLWAY_REASON_NO_OUTSOURCER 38

#define HALLWAY_REASON_COUNT 39

#endif /* HALLWAY_ABI_REASON_H */
