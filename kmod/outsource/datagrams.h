/* SPDX-License-Identifier: GPL-2.0-only */
/* UDP sockets. */
#ifndef HALL_OUT_DATAGRAMS_H
#define HALL_OUT_DATAGRAMS_H

#include <linux/in6.h>
#include <linux/skbuff.h>

#include <hallway/datagram.h>

#include "out.h"

/* Where a datagram goes. */
struct hall_destination {
	struct in6_addr address;	/* IPv4 mapped */
	u16 port;			/* host order */
	bool native;			/* the host's policy does not allow it */
};

/* Destinations of one socket that are kept at a time: as many as the outsourcer keeps. */
#define HALL_DESTINATION_SETS	64
#define HALL_DESTINATION_WAYS	16

/* Under channel.lock. */
struct hall_datagrams {
	struct hall_out *out;
	bool published;		/* bind() has given it a port: bound.c */
	unsigned long active;	/* jiffies of the last record; no lock */
	/* By a hash of it. port 0: none */
	struct hall_destination known[HALL_DESTINATION_SETS][HALL_DESTINATION_WAYS];
	unsigned int next;		/* of a set, to be replaced */
	struct sk_buff_head returned;	/* to be sent natively; bounded */
	unsigned int returned_bytes;	/* of memory */
	struct work_struct send;	/* sends them: returned.c */
};

/* datagram.c */
/* An object to the outsourcer, which the caller has, or NULL. */
struct hall_out *hall_datagram_make(gfp_t gfp);
/* The program, or the outsourcer, wants no more. Mutex. */
void hall_datagram_close(struct hall_out *out, u32 reason);
/* The outsourcer has sent, or returned, all that was in our ring. Mutex. */
void hall_datagram_finish(struct hall_out *out);
/* The outsourcer has no socket for it. Mutex. */
void hall_datagram_refuse(struct hall_out *out, int error);
/* Its program has closed it, and hall_datagram_release() was not called. Any context. */
static inline bool hall_datagram_is_orphan(const struct hall_out *out)
{
	return sock_flag(out->sk, SOCK_DEAD);
}

/* Ends the socket's part on the host, if there is one. Process context, no lock. */
void hall_datagram_forget(const struct sock *sk);

/* idle.c: has idle sockets closed, from the first one on. Any context. */
void hall_idle_start(void);
/* No socket is left. */
void hall_idle_stop(void);
bool hall_out_is_idle(const struct hall_out *out);

static inline void hall_datagram_note_use(struct hall_out *out)
{
	WRITE_ONCE(out->datagrams->active, jiffies);
}

/* clients.c: other ends that have sent to a published port. */
/* False: no memory. Process context, serialised. */
bool hall_clients_init(void);
void hall_clients_uninit(void);
/* Ports in host order. Any context. */
void hall_clients_note(u16 local_port, const struct hall_destination *end);
bool hall_clients_have(u16 local_port, const struct hall_destination *end);

/* returned.c */
/* False: no memory. Process context, serialised. */
bool hall_returned_init(void);
/* No object is left. */
void hall_returned_uninit(void);
/* All zero. The object has it until it is freed. */
void hall_returned_setup(struct hall_out *out, struct hall_datagrams *datagrams);
/* Keeps a destination in mind. False: what goes there is native. Process context. */
bool hall_datagram_note(struct hall_out *out, const struct hall_destination *to);
/* Is it one of those? channel.lock or mutex */
bool hall_datagram_knows(struct hall_out *out, const struct hallway_datagram *head);
/* The next record of rx has come back: it is sent natively, later. channel.lock */
void hall_datagram_take_returned(struct hall_out *out,
				 const struct hallway_datagram *head);
/*
 * The outsourcer has no socket: what is in our ring is sent natively. False: the socket is
 * locked; its release has the work item run. Mutex.
 */
bool hall_datagram_take_refusal(struct hall_out *out);

/* deliver.c */
/*
 * Hands records of the outsourcer to the socket, and has the rest handed on later. Any
 * context.
 */
void hall_datagram_deliver(struct hall_out *out);
/* The same after a doorbell; also wakes writers. Softirq, RCU. */
void hall_datagram_wake(struct hall_out *out);

#endif /* HALL_OUT_DATAGRAMS_H */
