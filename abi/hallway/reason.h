/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Why a connection is not on a ring, or left it. The numbers go over the wire
 * and never change meaning; the words are what people are shown.
 */
#ifndef HALLWAY_ABI_REASON_H
#define HALLWAY_ABI_REASON_H

#define HALLWAY_REASONS(R) \
	R(0, NONE, "promoted, or nothing against it") \
	R(1, YOUNG, "too few bytes and too young to earn a ring yet") \
	R(2, OFFERED, "offered to the peer, no answer yet") \
	R(3, NO_MATCH, "the peer has no such connection (NAT or a proxy between?)") \
	R(4, NO_MEMORY, "no ring memory left in this member's slice") \
	R(5, NO_ENDPOINT, "no endpoint number left towards this peer") \
	R(6, BUSY, "a call from before Hallway came is still inside the socket") \
	R(7, FOREIGN, "a kernel user owns the callbacks and was not seen to call recvmsg") \
	R(8, UNACCEPTED, "not yet accepted by its program") \
	R(9, STATE, "TCP is not in a state that carries data both ways") \
	R(10, OFF, "switched off by the operator") \
	R(11, UNLOAD, "the module is being unloaded") \
	R(12, PEER_LEFT, "the peer left the region or died") \
	R(13, REGION_GONE, "the region's memory was unplugged") \
	R(14, ULP, "TCP_ULP: another protocol (kTLS) takes the socket over") \
	R(15, SOCKMAP, "sockmap takes the socket over") \
	R(16, REPAIR, "TCP_REPAIR: the socket is being checkpointed") \
	R(17, ADDRFORM, "IPV6_ADDRFORM turns the socket into another family") \
	R(18, ZEROCOPY, "MSG_ZEROCOPY or TCP_ZEROCOPY_RECEIVE is in use") \
	R(19, URGENT, "urgent data is in use") \
	R(20, SECURED, "the packets are signed or encrypted (IPsec, TCP MD5 or AO)") \
	R(21, CORRUPT, "the ring or a message was corrupt: the connection is reset") \
	R(22, TIMEOUT, "one end did not answer in time: the other has cut the ring") \
	R(23, CLOSED, "the socket was closed") \
	R(24, KIND, "the peer does not know this kind of channel") \
	R(25, SILENT, "the peer's heartbeat stands still") \
	R(26, TIMESTAMP, "timestamps of packets are asked for") \
	R(27, IDLE, "it was idle, and gave its ring back") \
	R(28, FILTERED, "packet filters are to see its packets") \
	R(29, SMALL, "its reader waits for more than the ring holds")

/* The same numbers as constants. */
#define HALLWAY_REASON_NONE	0
#define HALLWAY_REASON_YOUNG	1
#define HALLWAY_REASON_OFFERED	2
#define HALLWAY_REASON_NO_MATCH	3
#define HALLWAY_REASON_NO_MEMORY	4
#define HALLWAY_REASON_NO_ENDPOINT 5
#define HALLWAY_REASON_BUSY	6
#define HALLWAY_REASON_FOREIGN	7
#define HALLWAY_REASON_UNACCEPTED	8
#define HALLWAY_REASON_STATE	9
#define HALLWAY_REASON_OFF	10
#define HALLWAY_REASON_UNLOAD	11
#define HALLWAY_REASON_PEER_LEFT	12
#define HALLWAY_REASON_REGION_GONE 13
#define HALLWAY_REASON_ULP	14
#define HALLWAY_REASON_SOCKMAP	15
#define HALLWAY_REASON_REPAIR	16
#define HALLWAY_REASON_ADDRFORM	17
#define HALLWAY_REASON_ZEROCOPY	18
#define HALLWAY_REASON_URGENT	19
#define HALLWAY_REASON_SECURED	20
#define HALLWAY_REASON_CORRUPT	21
#define HALLWAY_REASON_TIMEOUT	22
#define HALLWAY_REASON_CLOSED	23
#define HALLWAY_REASON_KIND	24
#define HALLWAY_REASON_SILENT	25
#define HALLWAY_REASON_TIMESTAMP 26
#define HALLWAY_REASON_IDLE	27
#define HALLWAY_REASON_FILTERED	28
#define HALLWAY_REASON_SMALL	29
#define HALLWAY_REASON_COUNT	30

#endif /* HALLWAY_ABI_REASON_H */
