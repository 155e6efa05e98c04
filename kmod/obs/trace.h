/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: a direction of a connection is promoted to a ring, or demoted to
 * TCP. docs/tracing.md describes the fields for users. Every room may use them, in
 * any context.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hallway

#if !defined(HALL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define HALL_TRACE_H

#include <linux/tracepoint.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>

/* IPv4 addresses are mapped; ports are in the host's byte order. */
#define HALL_TRACE_STREAM					\
	__field(bool, sending)					\
	__field(u16, local_port)				\
	__field(u16, remote_port)				\
	__array(u8, local, sizeof(struct in6_addr))		\
	__array(u8, remote, sizeof(struct in6_addr))

#define HALL_TRACE_SET_STREAM(sk, is_sending) do {		\
	__entry->sending = is_sending;				\
	__entry->local_port = (sk)->sk_num;			\
	__entry->remote_port = ntohs((sk)->sk_dport);		\
	hall_trace_addresses(sk, (void *)__entry->local,	\
			     (void *)__entry->remote);		\
} while (0)

#define HALL_TRACE_FORMAT "%s local=[%pI6c]:%u remote=[%pI6c]:%u"
#define HALL_TRACE_ARGS						\
	__entry->sending ? "send" : "receive", __entry->local,	\
	__entry->local_port, __entry->remote, __entry->remote_port

#ifndef HALL_TRACE_ADDRESSES
#define HALL_TRACE_ADDRESSES
static inline void hall_trace_addresses(const struct sock *sk,
					struct in6_addr *local,
					struct in6_addr *remote)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		*local = sk->sk_v6_rcv_saddr;
		*remote = sk->sk_v6_daddr;
		return;
	}
#endif
	ipv6_addr_set_v4mapped(sk->sk_rcv_saddr, local);
	ipv6_addr_set_v4mapped(sk->sk_daddr, remote);
}
#endif

/* ring_bytes: the size of the ring. */
TRACE_EVENT(hallway_promote,
	TP_PROTO(const struct sock *sk, bool sending, u32 ring_bytes),
	TP_ARGS(sk, sending, ring_bytes),
	TP_STRUCT__entry(
		HALL_TRACE_STREAM
		__field(u32, ring_bytes)
	),
	TP_fast_assign(
		HALL_TRACE_SET_STREAM(sk, sending);
		__entry->ring_bytes = ring_bytes;
	),
	TP_printk(HALL_TRACE_FORMAT " ring_bytes=%u", HALL_TRACE_ARGS,
		  __entry->ring_bytes)
);

/* reason: a HALLWAY_REASON_*; bytes: those that went through the ring. */
TRACE_EVENT(hallway_demote,
	TP_PROTO(const struct sock *sk, bool sending, u32 reason, u64 bytes),
	TP_ARGS(sk, sending, reason, bytes),
	TP_STRUCT__entry(
		HALL_TRACE_STREAM
		__field(u32, reason)
		__field(u64, bytes)
	),
	TP_fast_assign(
		HALL_TRACE_SET_STREAM(sk, sending);
		__entry->reason = reason;
		__entry->bytes = bytes;
	),
	TP_printk(HALL_TRACE_FORMAT " reason=%u bytes=%llu", HALL_TRACE_ARGS,
		  __entry->reason, __entry->bytes)
);

#endif /* HALL_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
