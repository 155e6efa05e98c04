/* SPDX-License-Identifier: GPL-2.0-only */
/* Finding out whether a foreign call is in a socket: see quiet.c. */
#ifndef HALL_QUIET_H
#define HALL_QUIET_H

#include "sock.h"

/* A call of ours, on its stack. */
struct hall_call {
	struct list_head list;
	const struct task_struct *task;
};

/* On the list of calls until the socket is quiet, and off. */
void hall_call_note(struct hall_sock *hs, struct hall_call *call);
void hall_call_forget(struct hall_sock *hs, struct hall_call *call);

/*
 * Begin and end of each call that takes the lock of the socket, or calls a native
 * function that does. Process context.
 */
static inline void hall_call_begin(struct hall_sock *hs, struct hall_call *call)
{
	INIT_LIST_HEAD(&call->list);
	if (unlikely(!READ_ONCE(hs->quiet)))
		hall_call_note(hs, call);
}

static inline void hall_call_end(struct hall_sock *hs, struct hall_call *call)
{
	if (unlikely(!list_empty(&call->list)))
		hall_call_forget(hs, call);
}

/* At each release of the lock, while they are watched for: looks for foreign calls. */
void hall_quiet_watch(struct hall_sock *hs);

/* Is the socket attached, and known to be quiet? Any context. */
bool hall_sock_is_quiet(const struct sock *sk);
/*
 * Is no foreign call in the socket? lock_sock(). calling: the caller is a call
 * of the socket's user. earned: the connection is worth a grace period, after
 * which a later call knows where this one does not.
 */
bool hall_sock_check_quiet(struct hall_sock *hs, bool calling, bool earned);

#endif /* HALL_QUIET_H */
