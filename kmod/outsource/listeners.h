/* SPDX-License-Identifier: GPL-2.0-only */
/* Published listeners, and connections that wait for accept(). */
#ifndef HALL_OUT_LISTENERS_H
#define HALL_OUT_LISTENERS_H

#include "out.h"

/* accept.c */
/* Softirq: the channel of a connection that arrived, with a reference, or NULL. */
struct hall_channel *hall_listener_meet(struct hall_member *member,
					const struct hallway_message *offer);
/* The work item of a connection that arrived: queues it for accept(). */
void hall_listener_take(struct hall_out *out, struct hallway_message *offer);
/* The work item of one that waits: nothing will accept it. */
void hall_listener_drop(struct hall_out *out);
/* Unpublishes a listener, closes its channel, and resets what waits for accept(). Mutex. */
void hall_listener_close(struct hall_out *out);
/* Threads in accept() go on in the native one, from now on. */
void hall_accept_stop(void);
/* Does a thread sleep in the native accept()? Any context. */
bool hall_accept_is_native(struct sock *sk);

/* publish.c */
/* Asks the outsourcer for all listeners that it does not publish. Any context. */
void hall_publish_listeners(void);
/* The same soon: the host's policy has become another one. */
void hall_publish_by_policy(void);
void hall_publish_stop(void);
/* Ends the published listeners that may not be any more. Process context. */
void hall_withdraw_listeners(void);
/* A program's call on a listener. Any context. */
static inline void hall_listener_note_call(struct hall_out *out)
{
	if (READ_ONCE(out->pending))
		hall_channel_raise(&out->channel, HALL_EVENT_CALLED);
}

/* The work item, after such a call. */
void hall_listener_ask(struct hall_out *out);
/* The outsourcer's part has ended, or there will be none; errno. Mutex. */
void hall_listener_end(struct hall_out *out, int error);
/* Ends the host's part of the socket's listener, if there is one. */
void hall_listener_forget(const struct sock *sk);

#endif /* HALL_OUT_LISTENERS_H */
