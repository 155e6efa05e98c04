/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints: a direction of a connection is promoted to a ring, or demoted to
 * TCP. docs/tracing.md describes the fields for users. Every room may use them, in
 * any context.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hallway

#if !defined(HALL_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define HALL_TRACE_H

#include <linux/in6.h>
#include <linux/tracepoint.h>

/* IPv4 addresses are mapped; ports are in the host's byte order. */
#define HALL_TRACE_STREAM					\
	__array(u8, local, sizeof(struct in6_addr))		\
	__array(u8, remote, sizeof(struct in6_addr))		\
	__field(u16, local_port)				\
	__field(u16, remote_port)				\
	__field(bool, sending)

#define HALL_TRACE_SET_STREAM do {					\
	memcpy(__entry->local, local, sizeof(struct in6_addr));		\
	memcpy(__entry->remote, remote, sizeof(struct in6_addr));	\
	__entry->local_port = local_port;				\
	__entry->remote_port = remote_port;				\
	__entry->sending = sending;					\
} while (0)

#define HALL_TRACE_FORMAT "%s local=[%pI6c]:%u remote=[%pI6c]:%u"
#define HALL_TRACE_ARGS						\
	__entry->sending ? "send" : "receive", __entry->local,	\
	__entry->local_port, __entry->remote, __entry->remote_port

/* ring_bytes: the size of the ring. */
TRACE_EVENT(hallway_promote,
	TP_PROTO(const struct in6_addr *local, u16 local_port,
		 const struct in6_addr *remote, u16 remote_port, bool sending,
		 u32 ring_bytes),
	TP_ARGS(local, local_port, remote, remote_port, sending, ring_bytes),
	TP_STRUCT__entry(
		HALL_TRACE_STREAM
		__field(u32, ring_bytes)
	),
	TP_fast_assign(
		HALL_TRACE_SET_STREAM;
		__entry->ring_bytes = ring_bytes;
	),
	TP_printk(HALL_TRACE_FORMAT " ring_bytes=%u", HALL_TRACE_ARGS,
		  __entry->ring_bytes)
);

/* reason: a HALLWAY_REASON_*; bytes: those that went through the ring. */
TRACE_EVENT(hallway_demote,
	TP_PROTO(const struct in6_addr *local, u16 local_port,
		 const struct in6_addr *remote, u16 remote_port, bool sending,
		 u32 reason, u64 bytes),
	TP_ARGS(local, local_port, remote, remote_port, sending, reason, bytes),
	TP_STRUCT__entry(
		HALL_TRACE_STREAM
		__field(u32, reason)
		__field(u64, bytes)
	),
	TP_fast_assign(
		HALL_TRACE_SET_STREAM;
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
