// SPDX-License-Identifier: GPL-2.0-only
/*
 * What arrives at the host's part of a UDP socket.
 *
 * A datagram becomes a packet on the loopback device, from the other end to the socket's
 * port: the native stack delivers it. So all that programs can ask of a received datagram
 * is as ever: buffers, filters, timestamps, control messages, every way to wait. An error
 * goes to the socket's error queue, or is its error, as the native stack has it.
 */
#include "datagrams.h"

#include <linux/errqueue.h>
#include <linux/inetdevice.h>
#include <net/addrconf.h>
#include <net/ip.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/route.h>
#include <net/udp.h>

#include "../compat/recverr.h"
#include "../obs/counters.h"
#include "decide.h"
#include "record.h"

/* Records of one turn, and bytes, with bottom halves off. */
#define TURN		64
#define TURN_BYTES	(256 << 10)
#define TTL	64
/* Payload that is one piece with the headers. */
#define LINEAR	2048

static void store_bytes(void *to, u32 at, const u8 *from, u32 len)
{
	struct sk_buff *skb = to;

	/* The buffer was made for it. */
	WARN_ON_ONCE(skb_store_bits(skb, skb_transport_offset(skb) +
				    sizeof(struct udphdr) + at, from, len));
}

/* A packet with room for its headers, and the payload. NULL: no memory. */
static struct sk_buff *alloc_packet(u32 headers, u32 length)
{
	u32 frags = length > LINEAR ? length : 0;
	struct sk_buff *skb;
	int err;

	skb = alloc_skb_with_frags(headers + length - frags, frags,
				   PAGE_ALLOC_COSTLY_ORDER, &err,
				   GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;
	skb_put(skb, headers + length - frags);
	skb->data_len = frags;
	skb->len += frags;
	skb_reset_mac_header(skb);
	skb_reset_network_header(skb);
	skb_set_transport_header(skb, headers - sizeof(struct udphdr));
	return skb;
}

/* A route to this guest, as the loopback device has it: no rule looks at its source. */
static bool set_route_v4(struct sk_buff *skb, __be32 to)
{
	struct flowi4 flow = { .daddr = to };
	struct rtable *route = ip_route_output_key(&init_net, &flow);

	if (IS_ERR(route))
		return false;
	skb_dst_set(skb, &route->dst);
	return route->rt_flags & RTCF_LOCAL;
}

static bool fill_v4(struct sk_buff *skb, const struct sock *sk,
		    const struct hallway_datagram *head, const struct in6_addr *from)
{
	struct iphdr *ip = ip_hdr(skb);
	__be32 to = inet_sk(sk)->inet_rcv_saddr;

	if (!to)
		to = inet_select_addr(init_net.loopback_dev, 0, RT_SCOPE_UNIVERSE) ?:
		     htonl(INADDR_LOOPBACK);
	*ip = (struct iphdr){
		.version = 4,
		.ihl = sizeof(*ip) / 4,
		.tos = head->tos,
		.tot_len = htons(skb->len),
		.frag_off = htons(IP_DF),
		.ttl = head->hops ?: TTL,
		.protocol = IPPROTO_UDP,
		.saddr = from->s6_addr32[3],
		.daddr = to,
	};
	ip_send_check(ip);
	skb->protocol = htons(ETH_P_IP);
	return set_route_v4(skb, to);
}

#if IS_ENABLED(CONFIG_IPV6)
static bool set_route_v6(struct sk_buff *skb, const struct in6_addr *to)
{
	struct flowi6 flow = { .daddr = *to };
	struct dst_entry *dst = ip6_route_output(&init_net, NULL, &flow);

	skb_dst_set(skb, dst);
	return !dst->error &&
	       (container_of(dst, struct rt6_info, dst)->rt6i_flags & RTF_LOCAL);
}

static bool fill_v6(struct sk_buff *skb, const struct sock *sk,
		    const struct hallway_datagram *head, const struct in6_addr *from)
{
	struct ipv6hdr *ip = ipv6_hdr(skb);
	struct in6_addr to = sk->sk_v6_rcv_saddr;

	if (sk->sk_family != AF_INET6)
		return false;
	if (ipv6_addr_any(&to) &&
	    ipv6_dev_get_saddr(&init_net, NULL, from, 0, &to))
		to = in6addr_loopback;
	*ip = (struct ipv6hdr){
		.version = 6,
		.payload_len = htons(skb->len - sizeof(*ip)),
		.nexthdr = IPPROTO_UDP,
		.hop_limit = head->hops ?: TTL,
		.saddr = *from,
		.daddr = to,
	};
	ip6_flow_hdr(ip, head->tos, 0);
	skb->protocol = htons(ETH_P_IPV6);
	return set_route_v6(skb, &to);
}
#else
static bool fill_v6(struct sk_buff *skb, const struct sock *sk,
		    const struct hallway_datagram *head, const struct in6_addr *from)
{
	return false;
}
#endif

/* A datagram that finds no memory or no way is lost, as on any network. */
static void deliver_data(struct hall_out *out, const struct hallway_datagram *head)
{
	struct hall_destination end = { .port = head->port };
	const struct in6_addr *from = &end.address;
	const struct sock *sk = out->sk;
	struct udphdr *udp;
	struct sk_buff *skb;
	bool v4, good;
	u32 ip;

	memcpy(&end.address, head->address, sizeof(end.address));
	v4 = ipv6_addr_v4mapped(from);
	ip = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	/* Programs trust addresses of this guest: no network brings datagrams from them. */
	if (!inet_sk(sk)->inet_num || !hall_address_leads_out(from) ||
	    head->length > IP_MAX_MTU - sizeof(struct iphdr) - sizeof(*udp))
		return;
	skb = alloc_packet(ip + sizeof(*udp), head->length);
	if (!skb)
		return;
	udp = udp_hdr(skb);
	*udp = (struct udphdr){
		.source = htons(head->port),
		.dest = htons(inet_sk(sk)->inet_num),
		.len = htons(sizeof(*udp) + head->length),
		/* It came through memory: the device says that it is right. */
		.check = CSUM_MANGLED_0,
	};
	skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb->dev = init_net.loopback_dev;
	hall_record_read(&out->rx, sizeof(*head), head->length, store_bytes, skb);
	good = v4 ? fill_v4(skb, sk, head, from) : fill_v6(skb, sk, head, from);
	if (!good) {
		kfree_skb(skb);
		return;
	}
	if (out->datagrams->published)
		hall_clients_note(inet_sk(sk)->inet_num, &end);
	netif_rx(skb);
	hall_count_add(HALL_RX_BYTES_OUTSOURCED, head->length);
	WRITE_ONCE(out->rx_bytes, out->rx_bytes + head->length);
}

/*
 * As ip_icmp_error(): the packet has the addresses that recvmsg() looks for, and what
 * control messages say of the packet of ICMP. Programs can see the rest of its headers.
 */
static void queue_error(struct sock *sk, const struct hallway_datagram *head)
{
	bool v4 = ipv6_addr_v4mapped((const struct in6_addr *)head->address);
	u32 ip = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct sk_buff *skb = alloc_packet(ip + sizeof(struct udphdr), 0);
	struct sock_exterr_skb *error;

	if (!skb)
		return;
	memset(skb->data, 0, skb->len);
	error = SKB_EXT_ERR(skb);
	memset(error, 0, sizeof(*error));
	error->ee.ee_errno = head->error;
	error->ee.ee_origin = head->origin;
	error->ee.ee_type = head->icmp_type;
	error->ee.ee_code = head->icmp_code;
	error->ee.ee_info = head->info;
	error->port = htons(head->port);
	if (v4) {
		skb->protocol = htons(ETH_P_IP);
		memcpy(&ip_hdr(skb)->saddr, head->offender + 12, 4);
		memcpy(&ip_hdr(skb)->daddr, head->address + 12, 4);
		ip_hdr(skb)->tos = head->tos;
		ip_hdr(skb)->ttl = head->hops;
		error->addr_offset = offsetof(struct iphdr, daddr);
	} else {
		skb->protocol = htons(ETH_P_IPV6);
		memcpy(&ipv6_hdr(skb)->saddr, head->offender, 16);
		memcpy(&ipv6_hdr(skb)->daddr, head->address, 16);
		ip6_flow_hdr(ipv6_hdr(skb), head->tos, 0);
		ipv6_hdr(skb)->hop_limit = head->hops;
		error->addr_offset = offsetof(struct ipv6hdr, daddr);
	}
	/* No payload of it is kept. */
	__skb_pull(skb, skb->len);
	if (sock_queue_err_skb(sk, skb))
		kfree_skb(skb);
}

/* Those that a program without IP_RECVERR learns of, by a connected socket. */
static bool is_hard(u32 error)
{
	return error == ECONNREFUSED || error == ENOPROTOOPT || error == EMSGSIZE;
}

static void report_error(struct sock *sk, const struct hallway_datagram *head)
{
	if (hall_inet_has_recverr(sk))
		queue_error(sk, head);
	else if (sk->sk_state != TCP_ESTABLISHED || !is_hard(head->error))
		return;
	WRITE_ONCE(sk->sk_err, head->error);
	sk_error_report(sk);
}

/* Others have a meaning of their own in an error queue. */
static bool is_possible_error(const struct hallway_datagram *head)
{
	return head->error && head->error <= EHWPOISON &&
	       (head->origin == SO_EE_ORIGIN_LOCAL ||
		head->origin == SO_EE_ORIGIN_ICMP || head->origin == SO_EE_ORIGIN_ICMP6);
}

/* False: it is no record that the outsourcer may write. */
static bool deliver_record(struct hall_out *out, const struct hallway_datagram *head)
{
	switch (head->type) {
	case HALLWAY_DATAGRAM_DATA:
		if (!READ_ONCE(out->closed))
			deliver_data(out, head);
		return true;
	case HALLWAY_DATAGRAM_RETURNED:
		hall_datagram_take_returned(out, head);
		return true;
	case HALLWAY_DATAGRAM_ERROR:
		if (!is_possible_error(head))
			return false;
		if (!READ_ONCE(out->closed) && hall_datagram_knows(out, head))
			report_error(out->sk, head);
		return true;
	default:
		return false;
	}
}

/* channel.lock. True: there are more. */
static bool deliver_some(struct hall_out *out, bool *ringing)
{
	struct hall_rx_ring *rx = &out->rx;
	struct hallway_datagram head;
	u32 n = 0, bytes = 0, size;
	int found = 0;

	while (out->mapped && !rx->broken && n < TURN && bytes < TURN_BYTES) {
		found = hall_record_find(rx, &head);
		if (found < 0)
			break;
		if (!found) {
			if (!hall_ring_arm_head(rx, 1))
				return false;
			continue;
		}
		if (!deliver_record(out, &head)) {
			rx->broken = true;
			break;
		}
		size = hall_record_size(head.length);
		*ringing |= hall_ring_consume(rx, size);
		bytes += size;
		n++;
	}
	if (n)
		hall_datagram_note_use(out);
	if (out->mapped && (found < 0 || rx->broken)) {
		rx->broken = true;
		hall_channel_raise(&out->channel, HALL_EVENT_CORRUPT);
		return false;
	}
	return n == TURN || bytes >= TURN_BYTES;
}

void hall_datagram_deliver(struct hall_out *out)
{
	bool more, ringing = false;

	if (!READ_ONCE(out->closed) && hall_datagram_is_orphan(out)) {
		hall_channel_raise(&out->channel, HALL_EVENT_ABANDONED);
		return;
	}
	spin_lock_bh(&out->channel.lock);
	more = deliver_some(out, &ringing);
	spin_unlock_bh(&out->channel.lock);
	if (ringing)
		hall_channel_notify_sender(&out->channel);
	if (more)
		hall_channel_raise(&out->channel, HALL_EVENT_RECORDS);
}

void hall_datagram_wake(struct hall_out *out)
{
	bool writable = false;

	if (!READ_ONCE(out->sk))
		return;
	hall_datagram_deliver(out);
	spin_lock_bh(&out->channel.lock);
	if (out->memory.ring && hall_ring_is_tx_due(&out->tx)) {
		hall_ring_disarm_tx(&out->tx);
		writable = true;
	}
	spin_unlock_bh(&out->channel.lock);
	/* Threads in sendmsg(), and pollers. */
	if (writable)
		hall_out_wake_all(out->sk);
}
