// SPDX-License-Identifier: GPL-2.0-only
/* Generated from spec/netlink.yaml by spec/generate: do not edit. */
#include "counters.h"

#include <hallway/reason.h>

const char *hall_counter_name(enum hall_counter counter)
{
	static const char * const names[] = {
		[HALL_ATTACHED] = "attached",
		[HALL_DETACHED] = "detached",
		[HALL_SCANS] = "scans",
		[HALL_TX_PROMOTED] = "tx_promoted",
		[HALL_TX_DEMOTED] = "tx_demoted",
		[HALL_RX_PROMOTED] = "rx_promoted",
		[HALL_RX_DEMOTED] = "rx_demoted",
		[HALL_TX_BYTES_TCP] = "tx_bytes_tcp",
		[HALL_TX_BYTES_RING] = "tx_bytes_ring",
		[HALL_TX_BYTES_UNREAD] = "tx_bytes_unread",
		[HALL_TX_BYTES_RESENT] = "tx_bytes_resent",
		[HALL_RX_BYTES_TCP] = "rx_bytes_tcp",
		[HALL_RX_BYTES_RING] = "rx_bytes_ring",
		[HALL_RX_BYTES_REQUEUED] = "rx_bytes_requeued",
		[HALL_RX_TRUNCATIONS] = "rx_truncations",
		[HALL_RINGS_IDLE] = "rings_idle",
		[HALL_RINGS_GROWN] = "rings_grown",
		[HALL_RINGS_SHRUNK] = "rings_shrunk",
		[HALL_RINGS_REFUSED] = "rings_refused",
		[HALL_OFFERS] = "offers",
		[HALL_OFFERS_DECLINED] = "offers_declined",
		[HALL_DECLINES] = "declines",
		[HALL_DEMOTE_REQUESTS] = "demote_requests",
		[HALL_DOORBELLS_SENT] = "doorbells_sent",
		[HALL_DOORBELLS_MERGED] = "doorbells_merged",
		[HALL_DOORBELLS_REPEATED] = "doorbells_repeated",
		[HALL_DOORBELLS_RECEIVED] = "doorbells_received",
		[HALL_STORMS] = "storms",
		[HALL_RX_SLEEPS] = "rx_sleeps",
		[HALL_RX_SPINS] = "rx_spins",
		[HALL_RX_SPIN_HITS] = "rx_spin_hits",
		[HALL_TX_SLEEPS] = "tx_sleeps",
		[HALL_RING_FULL] = "ring_full",
		[HALL_RING_EMPTY] = "ring_empty",
		[HALL_RING_WRAPS] = "ring_wraps",
		[HALL_SWITCH_IN_TCP] = "switch_in_tcp",
		[HALL_SWITCH_IN_RING] = "switch_in_ring",
		[HALL_SWITCH_READER] = "switch_reader",
		[HALL_SWITCH_WRITER] = "switch_writer",
		[HALL_OUTSOURCE_CALLS] = "outsource_calls",
		[HALL_OUTSOURCE_REFUSED] = "outsource_refused",
		[HALL_OUTSOURCE_CONNECTIONS] = "outsource_connections",
		[HALL_OUTSOURCE_LISTENERS] = "outsource_listeners",
		[HALL_OUTSOURCE_ARRIVALS] = "outsource_arrivals",
		[HALL_OUTSOURCE_DATAGRAM_SOCKETS] = "outsource_datagram_sockets",
		[HALL_OUTSOURCE_RETURNED] = "outsource_returned",
		[HALL_OUTSOURCE_RESETS] = "outsource_resets",
		[HALL_TX_BYTES_OUTSOURCED] = "tx_bytes_outsourced",
		[HALL_RX_BYTES_OUTSOURCED] = "rx_bytes_outsourced",
		[HALL_TUNNEL_CALLS] = "tunnel_calls",
		[HALL_TUNNEL_CONNECTIONS] = "tunnel_connections",
		[HALL_TUNNEL_ARRIVALS] = "tunnel_arrivals",
		[HALL_TUNNEL_REFUSALS] = "tunnel_refusals",
		[HALL_TUNNEL_RESETS] = "tunnel_resets",
		[HALL_TUNNEL_LOANS] = "tunnel_loans",
		[HALL_TRUNKS] = "trunks",
		[HALL_TUNNEL_DATAGRAMS_SENT] = "tunnel_datagrams_sent",
		[HALL_TUNNEL_DATAGRAMS_RECEIVED] = "tunnel_datagrams_received",
		[HALL_TUNNEL_COPIES_DROPPED] = "tunnel_copies_dropped",
		[HALL_TUNNEL_DATAGRAMS_DROPPED] = "tunnel_datagrams_dropped",
		[HALL_TX_BYTES_TUNNEL] = "tx_bytes_tunnel",
		[HALL_RX_BYTES_TUNNEL] = "rx_bytes_tunnel",
		[HALL_CPUS_PARKED] = "cpus_parked",
		[HALL_CPUS_RETURNED] = "cpus_returned",
		[HALL_CPUS_REFUSED] = "cpus_refused",
		[HALL_CORRUPT_RINGS] = "corrupt_rings",
		[HALL_CORRUPT_MESSAGES] = "corrupt_messages",
		[HALL_ADDRESS_CONFLICTS] = "address_conflicts",
		[HALL_MESSAGES_LOST] = "messages_lost",
		[HALL_RESETS] = "resets",
		[HALL_WATCHDOG_WAKES] = "watchdog_wakes",
	};

	return names[counter];
}

const char *hall_reason_text(u32 reason)
{
	static const char * const texts[] = {
		[HALLWAY_REASON_NONE] =
			"on a ring, or nothing prevents it",
		[HALLWAY_REASON_YOUNG] =
			"too new, and too few bytes so far, to earn a ring",
		[HALLWAY_REASON_OFFERED] =
			"a ring is offered, and the peer has not answered yet",
		[HALLWAY_REASON_NO_MATCH] =
			"the peer has no such connection (NAT or a proxy between?)",
		[HALLWAY_REASON_NO_MEMORY] =
			"no ring memory left in this member's slice",
		[HALLWAY_REASON_NO_ENDPOINT] =
			"no endpoint number left for this peer",
		[HALLWAY_REASON_BUSY] =
			"a call that is older than Hallway is in the socket, or an earlier ring is not drained",
		[HALLWAY_REASON_FOREIGN] =
			"a kernel user owns the callbacks, and was not seen to read by calls of the socket",
		[HALLWAY_REASON_UNACCEPTED] =
			"its program has not accepted it yet",
		[HALLWAY_REASON_STATE] =
			"TCP is not in a state that carries data both ways",
		[HALLWAY_REASON_OFF] =
			"switched off by the operator",
		[HALLWAY_REASON_UNLOAD] =
			"the module is being unloaded",
		[HALLWAY_REASON_PEER_LEFT] =
			"the peer left the region or died",
		[HALLWAY_REASON_REGION_GONE] =
			"the region's memory was unplugged",
		[HALLWAY_REASON_ULP] =
			"TCP_ULP: another protocol (kTLS) takes the socket over",
		[HALLWAY_REASON_SOCKMAP] =
			"sockmap takes the socket over",
		[HALLWAY_REASON_REPAIR] =
			"TCP_REPAIR: the socket is being checkpointed",
		[HALLWAY_REASON_ADDRFORM] =
			"IPV6_ADDRFORM turns the socket into another family",
		[HALLWAY_REASON_ZEROCOPY] =
			"MSG_ZEROCOPY or TCP_ZEROCOPY_RECEIVE is in use",
		[HALLWAY_REASON_URGENT] =
			"urgent data is in use",
		[HALLWAY_REASON_SECURED] =
			"the packets are signed or encrypted (IPsec, TCP MD5 or AO)",
		[HALLWAY_REASON_CORRUPT] =
			"the ring or a message was corrupt: the connection is reset",
		[HALLWAY_REASON_TIMEOUT] =
			"one end did not answer in time, and the other truncated the ring",
		[HALLWAY_REASON_CLOSED] =
			"the socket was closed",
		[HALLWAY_REASON_KIND] =
			"the peer does not know this kind of channel",
		[HALLWAY_REASON_UNRESPONSIVE] =
			"the peer is unresponsive: its heartbeat has stopped",
		[HALLWAY_REASON_TIMESTAMP] =
			"timestamps of packets are requested",
		[HALLWAY_REASON_IDLE] =
			"its ring was idle",
		[HALLWAY_REASON_FILTERED] =
			"packet filters must see its packets",
		[HALLWAY_REASON_SMALL] =
			"its reader waits for more bytes than the ring holds",
		[HALLWAY_REASON_SUSPENDED] =
			"this VM is being saved or migrated",
		[HALLWAY_REASON_NAMESPACE] =
			"it is in another network namespace than the first",
		[HALLWAY_REASON_SCOPE] =
			"its cgroup is not one of those that are outsourced",
		[HALLWAY_REASON_LOCAL] =
			"its address is this VM's own, loopback, link-local or multicast",
		[HALLWAY_REASON_MEMBER] =
			"its peer is a VM with which this one shares memory",
		[HALLWAY_REASON_BOUND] =
			"its program has bound it before connect()",
		[HALLWAY_REASON_OPTION] =
			"it has an option or a device that a socket of the host cannot have",
		[HALLWAY_REASON_REFUSED] =
			"the policy of the host, or a limit of its outsourcer, is against it",
		[HALLWAY_REASON_NO_OUTSOURCER] =
			"this VM has no outsourcer now, or no memory for the socket",
	};

	return reason < HALLWAY_REASON_COUNT ? texts[reason] : "unknown reason";
}
