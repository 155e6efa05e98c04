/* SPDX-License-Identifier: GPL-2.0-only */
/* Generated from spec/netlink.yaml by spec/generate: do not edit. */
#ifndef HALL_COUNTER_LIST_H
#define HALL_COUNTER_LIST_H

enum hall_counter {
	/* Sockets attached. */
	HALL_ATTACHED,
	/* Sockets detached. */
	HALL_DETACHED,
	/* Scans of TCP's tables for connections to attach. */
	HALL_SCANS,
	/* Directions that this end sends, moved to a ring. */
	HALL_TX_PROMOTED,
	/* Directions that this end sends, demoted to TCP. */
	HALL_TX_DEMOTED,
	/* Directions that the peer sends, moved to a ring. */
	HALL_RX_PROMOTED,
	/* Directions that the peer sends, demoted to TCP. */
	HALL_RX_DEMOTED,
	/* Bytes of attached sockets sent over TCP. */
	HALL_TX_BYTES_TCP,
	/* Bytes sent through rings. */
	HALL_TX_BYTES_RING,
	/* Bytes in a ring that its reader closed without reading. */
	HALL_TX_BYTES_UNREAD,
	/* Bytes of rings that the peer truncated, sent again over TCP. */
	HALL_TX_BYTES_RESENT,
	/* Bytes of attached sockets received over TCP. */
	HALL_RX_BYTES_TCP,
	/* Bytes read from rings. */
	HALL_RX_BYTES_RING,
	/* Bytes moved from a ring to TCP's receive queue. */
	HALL_RX_BYTES_REQUEUED,
	/*
	 * Rings truncated, because the peer did not answer or there was no time
	 * to ask.
	 */
	HALL_RX_TRUNCATIONS,
	/* Rings ended because nothing was sent through them. */
	HALL_RINGS_IDLE,
	/* Rings that became larger, because they had been full. */
	HALL_RINGS_GROWN,
	/*
	 * Rings ended for smaller ones, because other connections need memory.
	 */
	HALL_RINGS_SHRUNK,
	/*
	 * Rings, or larger ones, of TCP connections that got no memory or no
	 * endpoint number.
	 */
	HALL_RINGS_REFUSED,
	/* Offers sent. */
	HALL_OFFERS,
	/* Offers that the peer declined. */
	HALL_OFFERS_DECLINED,
	/* Offers of peers that this end declined. */
	HALL_DECLINES,
	/* Requests to demote that this end sent. */
	HALL_DEMOTE_REQUESTS,
	/* Doorbells rung. */
	HALL_DOORBELLS_SENT,
	/*
	 * Doorbells not rung, because the peer had not taken earlier ones yet.
	 */
	HALL_DOORBELLS_MERGED,
	/*
	 * Doorbells rung again, because the peer had not taken earlier ones for
	 * long.
	 */
	HALL_DOORBELLS_REPEATED,
	/* Doorbell interrupts taken. */
	HALL_DOORBELLS_RECEIVED,
	/*
	 * Times that the interrupt vector was masked, because there were too
	 * many.
	 */
	HALL_STORMS,
	/* Readers that slept on a ring. */
	HALL_RX_SLEEPS,
	/* Readers that spun on a ring before they slept. */
	HALL_RX_SPINS,
	/* Readers that found bytes while they spun. */
	HALL_RX_SPIN_HITS,
	/* Writers that slept on a full ring. */
	HALL_TX_SLEEPS,
	/* Times that a writer found a ring full. */
	HALL_RING_FULL,
	/* Times that a reader found a ring empty. */
	HALL_RING_EMPTY,
	/* Times that a writer passed the end of a ring's memory. */
	HALL_RING_WRAPS,
	/* Promotions while bytes were unread in TCP. */
	HALL_SWITCH_IN_TCP,
	/* Demotions while bytes were unread in a ring. */
	HALL_SWITCH_IN_RING,
	/* Directions moved while a reader was blocked. */
	HALL_SWITCH_READER,
	/* Directions moved while a writer was blocked. */
	HALL_SWITCH_WRITER,
	/* Calls of connect() that the outsourcer was asked to execute. */
	HALL_OUTSOURCE_CALLS,
	/*
	 * Of those, the ones that the host's policy left to the native stack.
	 */
	HALL_OUTSOURCE_REFUSED,
	/* Of those, the ones that connected. */
	HALL_OUTSOURCE_CONNECTIONS,
	/* Listeners that the outsourcer published. */
	HALL_OUTSOURCE_LISTENERS,
	/* Connections at published listeners that were accepted. */
	HALL_OUTSOURCE_ARRIVALS,
	/*
	 * UDP sockets for which the outsourcer was asked for one of the host.
	 */
	HALL_OUTSOURCE_DATAGRAM_SOCKETS,
	/* Datagrams that the host's policy left to the native stack. */
	HALL_OUTSOURCE_RETURNED,
	/* Outsourced sockets that failed. */
	HALL_OUTSOURCE_RESETS,
	/* Bytes that outsourced sockets sent. */
	HALL_TX_BYTES_OUTSOURCED,
	/* Bytes that outsourced sockets received. */
	HALL_RX_BYTES_OUTSOURCED,
	/* Calls of connect() that asked another VM for a tunnel. */
	HALL_TUNNEL_CALLS,
	/* Of those, the ones that connected. */
	HALL_TUNNEL_CONNECTIONS,
	/* Tunnels that other VMs asked for, and got. */
	HALL_TUNNEL_ARRIVALS,
	/* Tunnels that other VMs asked for, and did not get. */
	HALL_TUNNEL_REFUSALS,
	/* Tunnels that were reset. */
	HALL_TUNNEL_RESETS,
	/*
	 * Messages that a program wrote into ring memory, or read there: loans.
	 */
	HALL_TUNNEL_LOANS,
	/* Trunks opened: rings for all datagrams to another VM. */
	HALL_TRUNKS,
	/* Datagrams that programs sent to other VMs. */
	HALL_TUNNEL_DATAGRAMS_SENT,
	/* Datagrams of other VMs given to a socket. */
	HALL_TUNNEL_DATAGRAMS_RECEIVED,
	/*
	 * Copies of multicast datagrams that were not sent: the other VM is
	 * slow, or memory is short.
	 */
	HALL_TUNNEL_COPIES_DROPPED,
	/*
	 * Datagrams of other VMs for which there was no socket, or no space in
	 * it.
	 */
	HALL_TUNNEL_DATAGRAMS_DROPPED,
	/* Bytes that programs sent through tunnels. */
	HALL_TX_BYTES_TUNNEL,
	/* Bytes that programs received through tunnels. */
	HALL_RX_BYTES_TUNNEL,
	/* CPUs taken offline, as hallwayd said. */
	HALL_CPUS_PARKED,
	/* CPUs brought online again. */
	HALL_CPUS_RETURNED,
	/* CPUs that the kernel did not let go or come. */
	HALL_CPUS_REFUSED,
	/* Rings found corrupt. */
	HALL_CORRUPT_RINGS,
	/* Messages found corrupt. */
	HALL_CORRUPT_MESSAGES,
	/*
	 * Addresses published by a member that another member had published
	 * before.
	 */
	HALL_ADDRESS_CONFLICTS,
	/* Messages lost for want of memory. */
	HALL_MESSAGES_LOST,
	/* Connections reset. */
	HALL_RESETS,
	/* Sleepers that the watchdog woke. Each one is a bug. */
	HALL_WATCHDOG_WAKES,
	HALL_COUNTER_COUNT
};

#endif /* HALL_COUNTER_LIST_H */
