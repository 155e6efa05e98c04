/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Outsourcing: sockets of this guest that a process of the host executes, the
 * outsourcer (spec/protocol.md, section 7).
 *
 * A socket is *watched* from its creation, if that comes after the first outsourcer:
 * sock->ops is a table that all watched sockets share (hook.c). connect() decides
 * (decide.c). A socket that stays native gets the native table back and is a stock
 * socket from then on. An outsourced one gets the other shared table, and a
 * hall_out. A listener stays native and watched, and has a hall_out if its port is
 * published: accept() takes from both queues.
 *
 * The struct sock of an outsourced socket stays as a husk: wait queue, sk_err,
 * sk_shutdown, timeouts, options. Its sk_state remains TCP_CLOSE and it is in no
 * hash, so no timer, no diagnosis and no sockmap of TCP's acts on it.
 *
 * The shared tables are never freed: threads keep a pointer to one for as long as
 * they like (do_accept() does). When the module goes their entries become native's.
 *
 * Locks, outermost first:
 *   mutex         all of a hall_out, unless it says otherwise; no thread waits for
 *                 the host or for bytes while it holds it
 *   channel.lock  the rings' private ends, and whether rings are there: poll(), the
 *                 doorbell and readers that spin run without the mutex
 */
#ifndef HALL_OUTSOURCE_H
#define HALL_OUTSOURCE_H

#include <linux/mutex.h>
#include <linux/net.h>
#include <linux/skbuff.h>
#include <linux/socket.h>
#include <linux/workqueue.h>
#include <net/sock.h>

#include <hallway/datagram.h>

#include "../channel/channel.h"
#include "../compat/address.h"
#include "../compat/native.h"
#include "../ring/ring.h"
#include "../sock/turn.h"
#include "record.h"
#include "room.h"

/* The carrier of a socket's only ring in a direction. */
#define HALL_OUT_CARRIER	1

enum hall_out_state {
	HALL_OUT_CALLING,	/* the OFFER is not answered, or not accepted */
	HALL_OUT_CONNECTED,	/* or listening */
	HALL_OUT_NATIVE,	/* not allowed: the native stack has the socket */
	HALL_OUT_REFUSED,	/* for error, or ended; only the object is left */
};

struct hall_out {
	struct hall_channel channel;	/* holds the reference count */
	struct hlist_node hash;		/* by sk; RCU */
	struct sock *sk;		/* referenced; NULL: not accepted yet */
	struct mutex mutex;
	enum hall_out_state state;	/* acquire and release */
	int error;			/* errno of a listener, or bound socket, that is REFUSED */
	bool closed;			/* by the program, or by unloading */
	bool failed;			/* reset; its program may have read SO_ERROR. Mutex */
	bool awaited;			/* the work item waits for the mutex */
	bool held;			/* the member: see hall_channel_hold() */
	bool chosen;			/* by the program: choice.c */

	/* Set before CONNECTED. IPv4 mapped; ports in host order. */
	struct in6_addr local, remote;
	u16 local_port, remote_port;
	/* What connect() was given, for the native stack. */
	struct sockaddr_storage address;
	int address_len;

	struct hall_tx_ring tx;
	struct hall_memory memory;	/* of tx; channel.lock to free it */
	struct hall_memory area;	/* of tx that has grown; the same */
	bool ended;			/* our end mark is set */
	struct hall_rx_ring rx;
	bool mapped;			/* rx is there; channel.lock to change it */
	u64 tx_bytes, rx_bytes;		/* that programs have sent and received */
	unsigned int spin_credit;	/* see sock/spin.c; no lock */
	u32 asked;			/* number of the last question: options.c */
	wait_queue_head_t answers;	/* sleepers that have asked */
	int passed[HALLWAY_OPTION_MAX + 1];	/* options, as they were passed */
	/* Bytes of a ring after its writer departed: allocated, and charged. */
	u8 *rest;
	u32 rest_len, rest_at;

	/* Of a listener: connections that wait for accept(); under its mutex. */
	struct list_head arrivals;
	unsigned int arrived, backlog;
	bool took_arrival;		/* by the last accept(); no lock */
	atomic_t unaccepted;		/* objects that have it as listener */
	bool pending;			/* not asked for yet: see publish.c */
	unsigned int policy;		/* of the host, when it was asked for */
	struct list_head arrival;	/* the place there of one that waits */
	struct hall_out *listener;	/* of one that is not accepted yet; referenced */

	struct hall_datagrams *datagrams;	/* of a UDP socket; allocated */

	struct work_struct work;
	struct hall_turn turn;		/* of the work item, at the lock of the socket */
	struct rcu_head rcu;
};

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

static inline struct hall_out *hall_out_of(struct hall_channel *channel)
{
	return container_of(channel, struct hall_out, channel);
}

static inline enum hall_out_state hall_out_state(const struct hall_out *out)
{
	return smp_load_acquire(&out->state);
}

/* hook.c: the shared tables of one family. */
struct hall_tables {
	struct proto prot;		/* of sockets that are being made */
	struct proto_ops watched;
	struct proto_ops chosen;	/* watched, whatever the cgroup is: choice.c */
	struct proto_ops excluded;	/* native, by the program's choice, or closed */
	struct proto_ops stream;	/* of outsourced sockets */
	struct proto *native_prot;
	const struct proto_ops *native;
};

/* The tables of the socket's family. */
struct hall_tables *hall_tables_of(const struct sock *sk);
bool hall_is_watched(const struct socket *sock);
/* Also if an earlier load of the module has left its table, which is the same. */
bool hall_is_native(const struct socket *sock);
/*
 * close() has begun: from now on no work finds the socket, and has the host take its port
 * once more. Process context; not under lock_sock().
 */
void hall_exclude(struct socket *sock);

/* Events besides those of hall_channel_event. The listener has closed. */
#define HALL_EVENT_ABANDONED	HALL_EVENT_KIND
/* Of a listener: a call has come through our table. */
#define HALL_EVENT_CALLED	(HALL_EVENT_KIND + 1)
/* Of a UDP socket: there are more records; the ring is corrupt. */
#define HALL_EVENT_RECORDS	(HALL_EVENT_KIND + 2)
#define HALL_EVENT_CORRUPT	(HALL_EVENT_KIND + 3)
/* It may be idle. */
#define HALL_EVENT_IDLE		(HALL_EVENT_KIND + 4)

/* life.c */
extern const struct hall_channel_kind hall_out_socket, hall_out_listener,
				      hall_out_datagram;

/* events.c: under the mutex. Set before the first transport starts. */
extern void (*hall_out_run_events)(struct hall_out *out, unsigned long events);
void hall_out_init(void);
/* Of both kinds. */
void hall_out_queue_work(struct hall_channel *channel);
void hall_out_release_channel(struct hall_channel *channel);

/* NULL: no memory. The caller has the one reference. */
struct hall_out *hall_out_new(const struct hall_channel_kind *kind,
			      struct hall_member *member, gfp_t gfp);
/* Finds the socket's, with a reference, or NULL. Any context. */
struct hall_out *hall_out_get(const struct sock *sk);
/* The same, if it is a connection of TCP: another thread may have begun to listen. */
struct hall_out *hall_out_get_connection(const struct sock *sk);
void hall_out_put(struct hall_out *out);
/* It is accepted, or gone: it counts at its listener no more. Mutex, or the last reference. */
void hall_out_leave_listener(struct hall_out *out);
/* The copy of the peer's ring is freed, if there is one. Mutex, or the last reference. */
void hall_out_free_rest(struct hall_out *out);
/* The hash holds a reference from publish to unpublish, which may come twice. */
void hall_out_publish(struct hall_out *out, struct sock *sk);
void hall_out_unpublish(struct hall_out *out);
/* Each in the hash, with a reference. Process context, no lock. */
void hall_out_walk(void (*fn)(struct hall_out *out, void *data), void *data);
/* A published one with a reference, or NULL if there is none. */
struct hall_out *hall_out_get_any(void);
/* Wakes each thread that waits for the socket, in whatever way. Any context. */
void hall_out_wake_all(struct sock *sk);
/* Around calls that may sleep in the native stack with our frames on their stack. */
void hall_out_enter(void);
void hall_out_leave(void);
/* Of objects, and of such calls. */
unsigned int hall_out_count(void);
/* Unlocks the mutex in a call. */
void hall_out_unlock(struct hall_out *out);

/* Rings' memory and marks. Under the mutex, process context. */
int hall_out_offer(struct hall_out *out, const struct sock *sk,
		   const struct hallway_call *call);
int hall_out_map(struct hall_out *out, const struct hallway_message *offer);
/* Makes the ring larger if it has not space for these bytes. False: it stays as it is. */
bool hall_out_grow(struct hall_out *out, size_t bytes);
void hall_out_free_tx(struct hall_out *out);
void hall_out_unmap(struct hall_out *out);
/* Sets the end mark: FIN. The caller rings. */
void hall_out_end(struct hall_out *out);
/* Says that we read no more; reason: errno, or 0. */
void hall_out_finish_rx(struct hall_out *out, u32 reason);
/* Frees the endpoint number once the peer uses it no more. */
void hall_out_close_channel(struct hall_out *out);

/*
 * Bytes to read. *eof: none will follow them. Under the mutex; a corrupt ring fails
 * the socket.
 */
u32 hall_out_count_unread(struct hall_out *out, bool *eof);
/* The socket fails: its program gets the errno once it has read what is there. */
void hall_out_fail(struct hall_out *out, int error);

/*
 * decide.c: HALLWAY_REASON_NONE if the outsourcer may execute this connect(), or why it may
 * not. Under lock_sock().
 */
u32 hall_outsource_check_connect(struct socket *sock,
				 const struct hall_sockaddr *address, int len);
bool hall_outsource_may_publish(struct sock *sk);
/* May it execute an answer to an end of this family, of a published socket? No lock. */
bool hall_outsource_may_answer(struct sock *sk, bool v4);
/* May it execute a datagram's sending? No lock. */
bool hall_outsource_may_send(struct sock *sk, const struct in6_addr *remote);
/* Is it an address of one other machine, not link-local? Any context. */
bool hall_address_leads_out(const struct in6_addr *address);
/* IPv4 mapped. False: another family, or too short. */
bool hall_read_address(const struct hall_sockaddr *from, int len,
		       struct in6_addr *address, u16 *port);

/* scope.c: is the program, or the socket, one of those that are outsourced? */
bool hall_scope_has(struct sock *sk, const struct proto_ops *ops);
/* Ids of cgroups; none: all programs. 0, -ENOMEM, or -EOPNOTSUPP. */
int hall_scope_set(const u64 *id, unsigned int count);

/* choice.c */
/* The socket is unconnected: its next connect() decides again. lock_sock(). */
void hall_out_watch_again(struct hall_out *out, struct socket *sock);
int hall_watched_setsockopt(struct socket *sock, int level, int name,
			    sockptr_t value, unsigned int length);

/* Calls of the shared tables. */
int hall_watched_connect(struct socket *sock, struct hall_sockaddr *address,
			 int len, int flags);
int hall_out_connect(struct socket *sock, struct hall_sockaddr *address, int len,
		     int flags);
/*
 * Waits until connect() is answered. 0, -EINPROGRESS if the time is over, or -EINTR
 * and the like. No lock.
 */
int hall_out_await_answer(struct hall_out *out, long timeo);
/* Resets the connection, or ends the attempt; the socket is watched again. Mutex, not closed. */
void hall_out_unconnect(struct hall_out *out, struct socket *sock);
/* connect() to AF_UNSPEC: the same. HALL_NATIVE: the native stack has the socket. */
int hall_out_disconnect(struct socket *sock);
int hall_out_bind(struct socket *sock, struct hall_sockaddr *address, int len);
int hall_out_listen(struct socket *sock, int backlog);
/* The work item: the answer to connect() is there. Under lock_sock(). */
void hall_out_take_answer(struct hall_out *out, struct hallway_message *offer);
/* Under lock_sock(), if there is a socket. */
void hall_out_take_refusal(struct hall_out *out, int error);

int hall_out_sendmsg(struct socket *sock, struct msghdr *msg, size_t size);
int hall_out_recvmsg(struct socket *sock, struct msghdr *msg, size_t size,
		     int flags);
/* Of both tables. */
__poll_t hall_out_poll(struct file *file, struct socket *sock,
		       struct poll_table_struct *wait);
void hall_out_wake(struct hall_out *out);
int hall_out_shutdown(struct socket *sock, int how);
int hall_out_release(struct socket *sock);
/* Ends a socket, or the host's part of a listener, for the unloading of the module. */
void hall_out_abandon(struct hall_out *out);
/* As SIOCOUTQ, or SIOCOUTQNSD (unsent), on the way to the other end; or an error. */
int hall_out_count_unsent(struct hall_out *out, bool unsent);
int hall_out_getname(struct socket *sock, struct sockaddr *address, int peer);
int hall_out_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg);

/* options.c: in our ring, before it is offered. */
void hall_options_init(struct hall_out *out, struct hallway_ring *ring,
		       const struct sock *sk);
/* Passes what has changed to the outsourcer. Mutex. */
void hall_options_pass(struct hall_out *out);
/* The same for SO_KEEPALIVE, which is set without a call of ours. No lock. */
static inline void hall_options_note(struct hall_out *out)
{
	if (READ_ONCE(out->passed[HALLWAY_OPTION_KEEPALIVE]) ==
	    sock_flag(out->sk, SOCK_KEEPOPEN))
		return;
	mutex_lock(&out->mutex);
	hall_options_pass(out);
	hall_out_unlock(out);
}

/*
 * Bytes that have left our ring, and of which the host has no ACK; unsent: those of them
 * that it has not sent. Or an error. Sleeps, for a second at most; no lock.
 */
int hall_options_count_unacked(struct hall_out *out, bool unsent);

/* A connection that arrived has what TCP copies of the listener's. lock_sock(sk). */
void hall_options_inherit(struct sock *sk, const struct sock *listener);
int hall_out_setsockopt(struct socket *sock, int level, int name, sockptr_t value,
			unsigned int length);
int hall_out_getsockopt(struct socket *sock, int level, int name,
			char __user *value, int __user *length);

/* datagram.c */
int hall_datagram_sendmsg(struct socket *sock, struct msghdr *msg, size_t size);
__poll_t hall_datagram_poll(struct file *file, struct socket *sock,
			    struct poll_table_struct *wait);
int hall_datagram_release(struct socket *sock);
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

/* The port was an argument of bind(): the kernel has not chosen it. No lock. */
static inline bool hall_has_chosen_port(const struct sock *sk)
{
	return sk->sk_userlocks & SOCK_BINDPORT_LOCK;
}

/* bound.c */
int hall_bound_bind(struct socket *sock, struct hall_sockaddr *address, int len);
/*
 * Asks for the ports of sockets that are bound already. Returns how many have to be looked
 * at again.
 */
unsigned int hall_bound_walk(void);

/*
 * ports.c: what is done with listeners and bound UDP sockets. Their functions, for native
 * sockets of the first network namespace:
 */
#define HALL_PORT_BATCH	32	/* sockets that have their turn together */

struct hall_port_batch {
	struct sock *sk[HALL_PORT_BATCH];	/* referenced */
	unsigned int count;
};

struct hall_port_kind {
	/* Under its spinlock. */
	bool (*has_port)(const struct sock *sk);
	/*
	 * The socket's object, in the hash, or NULL: there is nothing to ask for. Under
	 * lock_sock(), or its spinlock. native_till_now: it was not watched before.
	 */
	struct hall_out *(*make)(struct socket *sock, bool native_till_now, gfp_t gfp);
	/* Asks the outsourcer; the answer is the work item's. Mutex. */
	void (*ask)(struct hall_out *out);
	/* Ends the host's part. Mutex. */
	void (*close)(struct hall_out *out);
	/* Those of a bucket of the native table, from a position on; returns the next one. */
	unsigned int (*collect)(unsigned int bucket, unsigned int from,
				struct hall_port_batch *batch);
};

/* Adds a socket. True: the batch is full. */
static inline bool hall_port_collect(struct hall_port_batch *batch, struct sock *sk)
{
	if (net_eq(sock_net(sk), &init_net) && refcount_inc_not_zero(&sk->sk_refcnt))
		batch->sk[batch->count++] = sk;
	return batch->count == HALL_PORT_BATCH;
}

/*
 * Asks for the port of a socket, and waits for the answer. 0, also if it is not
 * published, or the host's errno: it may not have the port. No lock.
 */
int hall_port_publish(const struct hall_port_kind *kind, struct socket *sock);
/*
 * Asks for the ports of all in the native table, whose last bucket that is. Returns how
 * many have to be looked at again.
 */
unsigned int hall_port_walk(const struct hall_port_kind *kind, unsigned int last);
/* Fills in where it is, for its OFFER. */
void hall_port_describe(struct hall_out *out, const struct sock *sk,
			struct hallway_call *call);

/* unrouted.c */
int hall_unrouted_connect(struct socket *sock, struct hall_sockaddr *address, int len,
			  int flags);

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

int hall_watched_listen(struct socket *sock, int backlog);
#ifdef HALL_HAS_ACCEPT_ARG
int hall_watched_accept(struct socket *sock, struct socket *fresh,
			struct proto_accept_arg *arg);
int hall_out_accept(struct socket *sock, struct socket *fresh,
		    struct proto_accept_arg *arg);
#else
int hall_watched_accept(struct socket *sock, struct socket *fresh, int flags,
			bool kern);
int hall_out_accept(struct socket *sock, struct socket *fresh, int flags,
		    bool kern);
#endif
int hall_watched_getname(struct socket *sock, struct sockaddr *address, int peer);
int hall_watched_shutdown(struct socket *sock, int how);
int hall_watched_release(struct socket *sock);
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

int hall_hook_init(void);
void hall_hook_uninit(void);

#endif /* HALL_OUTSOURCE_H */
