/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tunnels: sockets of AF_VSOCK between VMs of one region (spec/protocol.md, section 8).
 * This room is a module of its own, hallway_vsock.ko, since the core of AF_VSOCK pins
 * the module of a transport for as long as one of its sockets is open.
 *
 * It is the transport from host to guest, in the core's words: the core gives it each
 * connection to a CID above 2. So virtio-vsock keeps the host's.
 *
 * A tunnel and its socket hold a reference to each other from connect(), or from the
 * request of a peer, to close(). The tunnel lives on until the peer has read our ring.
 *
 * A trunk is a tunnel in one direction that has no socket: SOCK_DGRAM. See trunk.c.
 *
 * Locks, outermost first:
 *   lock_sock()   all of a tunnel that has a socket. Without one, only its work item
 *                 touches it. sk changes to NULL last.
 *   trunk.mutex   how a trunk that we write begins and ends
 *   trunk.lock    its ring, state and queue
 *   channel.lock  sk, and the ring that we read: the doorbell looks without lock_sock()
 */
#ifndef HALL_TUNNEL_H
#define HALL_TUNNEL_H

#include <linux/mutex.h>
#include <linux/workqueue.h>
#include <net/af_vsock.h>

#include <hallway/tunnel.h>

#include "../channel/channel.h"
#include "../ring/ring.h"
#include "../sock/turn.h"

/* The carrier of a tunnel's only ring in a direction. */
#define HALL_TUNNEL_CARRIER	1

enum hall_tunnel_state {
	HALL_TUNNEL_REQUESTED,	/* by the peer; there is no socket yet */
	HALL_TUNNEL_CALLING,	/* our request is not answered */
	HALL_TUNNEL_CONNECTED,
	HALL_TUNNEL_ENDED,	/* refused; or a trunk that the peer reads no more */
};

struct hall_trunk {
	bool reads;			/* the peer writes it, and not we */
	struct hall_tunnel *tunnel;	/* whose it is */
	struct list_head list;		/* of all that the peers write */
	struct mutex mutex;
	spinlock_t lock;
	struct list_head queue;		/* of what waits for space in the ring, in order */
	u32 cid;			/* of the peer */
};

struct hall_tunnel {
	struct hall_channel channel;	/* holds the reference count */
	struct hall_trunk *trunk;	/* if it is one */
	struct hall_loan *loan;		/* if a program took one; see loan.c */
	struct sock *sk;		/* referenced; NULL: not yet, or closed */
	struct work_struct work;
	struct hall_turn turn;		/* of the work item, at the lock of a socket */
	enum hall_tunnel_state state;
	bool held;			/* the member: see hall_channel_hold() */

	struct hall_tx_ring tx;
	struct hall_memory memory;	/* of tx, */
	struct hall_memory area;	/* and of tx that has grown; ring is NULL: it has not */
	u32 most;			/* bytes that tx may grow to; 0: it does not */
	bool ended;			/* our end mark is set */
	u32 need;			/* free bytes that the message at hand needs */
	int error;			/* of the enqueuing: the core takes none there */

	struct hall_rx_ring rx;
	bool mapped;			/* rx is there; channel.lock to change it */
	bool is_blank;			/* both rings began with zeros: a program may see them */
	struct hallway_ring *rest;	/* or our copy is, of what was left unread */
	size_t charged;			/* bytes of the member's, for rx or rest */
	bool fin;			/* the peer has set its end mark, */
	bool fin_reported;		/* and pollers know, or soon will */
	bool failed;			/* reset: ECONNRESET once all is read */
	unsigned int spin_credit;	/* see sock/spin.c */
	struct rcu_head rcu;
};

/* main.c */
extern const struct vsock_transport hall_vsock_transport;

/*
 * NULL: the socket has no tunnel. The core goes on with the transport that it has found,
 * after it has slept, too: a connect() that failed and another one may have given the
 * socket another transport meanwhile, with data of its own. lock_sock().
 */
static inline struct hall_tunnel *hall_tunnel_of(const struct vsock_sock *vsk)
{
	return vsk->transport == &hall_vsock_transport ? vsk->trans : NULL;
}

/*
 * Events besides those of hall_channel_event: the peer's end mark is there; of a trunk:
 * look at it.
 */
#define HALL_EVENT_FINISH	HALL_EVENT_KIND
/* Tunnels are switched off. */
#define HALL_EVENT_RESET	(HALL_EVENT_KIND + 1)

/* life.c */
extern const struct hall_channel_kind hall_tunnel_kind;
/* See switch.c. */
extern bool hall_tunnels_enabled;
/* events.c: under lock_sock(), or without a socket. */
extern void (*hall_tunnel_run_events)(struct hall_tunnel *tunnel, struct sock *sk,
				      unsigned long events);
int hall_tunnels_init(void);
/* No tunnel is left. */
void hall_tunnels_uninit(void);
/* The caller has the one reference. -ENOMEM, or -EUSERS: there are too many. */
struct hall_tunnel *hall_tunnel_new(struct hall_member *member, gfp_t gfp);
/* The socket takes the caller's reference to the tunnel. */
void hall_tunnel_attach(struct hall_tunnel *tunnel, struct sock *sk);
/* Returns that reference. lock_sock(), or nobody else knows the socket. */
void hall_tunnel_detach(struct hall_tunnel *tunnel, struct vsock_sock *vsk);

/* rings.c: memory and marks. Process context; lock_sock(), or without a socket. */
/* Takes an endpoint number: before memory. 0; -EHOSTUNREACH: it departed; -EUSERS: none is free. */
int hall_tunnel_open(struct hall_tunnel *tunnel);
/*
 * Makes our ring: of this size if memory allows, or smaller. One that grows is short at first
 * if the peer supports rings that grow, and grows to this size. 0 or -ENOMEM.
 */
int hall_tunnel_alloc(struct hall_tunnel *tunnel, u64 bytes, bool grows);
/* Maps the peer's ring, which grows only if that is allowed here. 0 or -EPROTO. */
int hall_tunnel_map(struct hall_tunnel *tunnel, const struct hallway_message *offer, bool grows);
/*
 * Takes the peer's DONE. False: it is of no ring of ours. reason: 0, or that of a reset. The
 * caller frees the ring.
 */
bool hall_tunnel_finish_tx(struct hall_tunnel *tunnel, u32 *reason);
void hall_tunnel_free_tx(struct hall_tunnel *tunnel);
void hall_tunnel_unmap(struct hall_tunnel *tunnel);
/* Sets the end mark. The caller rings. */
void hall_tunnel_end(struct hall_tunnel *tunnel);
/*
 * Before hall_tunnel_finish_rx(): a writer that has yet to hear of DONE sees that no more is
 * read. The host's end looks for no such mark, and would take it for corruption.
 * lock_sock().
 */
void hall_tunnel_truncate_rx(struct hall_tunnel *tunnel);
/* Says that we read no more; reason: 0, or that of a reset. */
void hall_tunnel_finish_rx(struct hall_tunnel *tunnel, u32 reason);
/* Copies what is unread: the peer's memory may go then. sk may be NULL. */
void hall_tunnel_copy_rest(struct hall_tunnel *tunnel, struct sock *sk);
/* Frees the endpoint number once the peer uses it no more. */
void hall_tunnel_close_channel(struct hall_tunnel *tunnel);
/*
 * Bytes to read, frames included. Takes the end mark, and fails a tunnel whose ring is
 * corrupt. sk may be NULL.
 */
u32 hall_tunnel_count_unread(struct hall_tunnel *tunnel, struct sock *sk);
/*
 * Free bytes of our ring, which grows if that is less than bytes. 0, or -EPIPE, or
 * -ECONNRESET: it was corrupt, and is failed.
 */
int hall_tunnel_find_space(struct hall_tunnel *tunnel, struct sock *sk, u32 bytes, u32 *space);
/*
 * Has our ring grow if it can, and has less space than bytes. If memory is short, a mark says
 * so to the peer. A program waits for space: lock_sock().
 */
void hall_tunnel_grow(struct hall_tunnel *tunnel, u32 bytes);
/* n bytes of our ring are written, `payload` of them the program's. Any context. */
void hall_tunnel_publish(struct hall_tunnel *tunnel, u32 n, u32 payload);
/* The tunnel is reset. sk may be NULL. */
void hall_tunnel_fail(struct hall_tunnel *tunnel, struct sock *sk);
/* The same, and nothing more is read. */
void hall_tunnel_reset(struct hall_tunnel *tunnel, struct sock *sk);
/* The same, since the peer broke the rules. */
void hall_tunnel_corrupt(struct hall_tunnel *tunnel, struct sock *sk);
/*
 * After a copy from the peer's ring: was it the peer's yet? If not, another member may
 * have written there, and the tunnel is failed.
 */
bool hall_tunnel_is_intact(struct hall_tunnel *tunnel, struct sock *sk);
/* Does the next read give ECONNRESET? */
bool hall_tunnel_is_reset(struct hall_tunnel *tunnel, struct sock *sk);

/* stream.c, packet.c: calls of the core. lock_sock() */
ssize_t hall_tunnel_stream_dequeue(struct vsock_sock *vsk, struct msghdr *msg,
				   size_t len, int flags);
ssize_t hall_tunnel_stream_enqueue(struct vsock_sock *vsk, struct msghdr *msg,
				   size_t len);
ssize_t hall_tunnel_packet_dequeue(struct vsock_sock *vsk, struct msghdr *msg,
				   int flags);
int hall_tunnel_packet_enqueue(struct vsock_sock *vsk, struct msghdr *msg,
			       size_t len);

/* wake.c */
/* n bytes of the peer's ring are read, `payload` of them by the program. lock_sock() */
void hall_tunnel_consume(struct hall_tunnel *tunnel, u32 n, u32 payload);
/* The doorbell rang. Softirq, RCU. */
void hall_tunnel_wake(struct hall_channel *channel);
/* Calls of the core. lock_sock() */
s64 hall_tunnel_stream_has_data(struct vsock_sock *vsk);
u32 hall_tunnel_packet_has_data(struct vsock_sock *vsk);
s64 hall_tunnel_has_space(struct vsock_sock *vsk);
/* Bytes, frames included, that the peer's program has not read. */
ssize_t hall_tunnel_count_unsent(struct vsock_sock *vsk);
int hall_tunnel_poll_in(struct vsock_sock *vsk, size_t target, bool *ready);
int hall_tunnel_poll_out(struct vsock_sock *vsk, size_t target, bool *space);

/* connect.c */
/* Sends an OFFER of our ring. */
void hall_tunnel_offer(struct hall_tunnel *tunnel, const struct hallway_tunnel *names);
/* Declines the peer's request, and ends the tunnel. The work item. */
void hall_tunnel_refuse(struct hall_tunnel *tunnel, const struct hallway_message *offer,
			u32 reason);
int hall_tunnel_connect(struct vsock_sock *vsk);
/*
 * The peer's request: sends an answer, or declines. False: the listener's lock is taken,
 * and the work item runs again. The work item.
 */
bool hall_tunnel_serve(struct hall_tunnel *tunnel,
		       const struct hallway_message *offer);
/* An answer to ours. The work item; sk may be NULL. */
void hall_tunnel_take_answer(struct hall_tunnel *tunnel, struct sock *sk,
			     const struct hallway_message *offer);
/* A connect() has failed, if it waits. lock_sock() */
void hall_tunnel_report_refused(struct sock *sk);
/* There will be none. lock_sock(), or sk is NULL. */
void hall_tunnel_take_refusal(struct hall_tunnel *tunnel, struct sock *sk);

/* close.c: calls of the core. lock_sock() */
int hall_tunnel_shutdown(struct vsock_sock *vsk, int mode);
/* The socket needs the tunnel no more, whether it is connected or not. */
int hall_tunnel_cancel(struct vsock_sock *vsk);

/* trunk.c: process context, unless it says otherwise. */
/* There is another socket of SOCK_DGRAM, and one less: trunks end with the last. */
void hall_trunks_open(void);
void hall_trunks_close(void);
/* Tunnels are switched off: trunks end. */
void hall_trunks_end(void);
/*
 * A call of the core: sends a datagram from the socket's port, when it is the caller's
 * turn. Its length; -EMSGSIZE, -EFAULT; -EAGAIN, or as sock_intr_errno(); -EHOSTUNREACH:
 * no VM has the CID; -ENODEV: tunnels are switched off; -ECONNREFUSED: the VM takes no
 * datagrams; -EUSERS, -ENOMEM. To HALLWAY_CID_MULTICAST it waits for no turn, and errors of
 * a VM's copy are counted alone. lock_sock(), released while it waits.
 */
int hall_letter_enqueue(struct vsock_sock *vsk, struct sockaddr_vm *to,
			struct msghdr *msg, size_t len);
/* The peer's request for a trunk, and what else it says. The work item. */
void hall_trunk_serve(struct hall_tunnel *tunnel, const struct hallway_message *offer);
void hall_trunk_run_events(struct hall_tunnel *tunnel, unsigned long events);
/* The doorbell rang. Softirq, RCU. */
void hall_trunk_wake(struct hall_tunnel *tunnel);

/* letter.c: sockets of SOCK_DGRAM, calls of the core. lock_sock(), but for dequeue. */
int hall_letter_bind(struct vsock_sock *vsk, struct sockaddr_vm *address);
int hall_letter_dequeue(struct vsock_sock *vsk, struct msghdr *msg, size_t len,
			int flags);
/* The socket is closed: it gets no more. */
void hall_letter_unbind(struct vsock_sock *vsk);
/*
 * Gives a datagram, which lies in the ring behind its header, to the socket of its port.
 * False: the memory was another member's by then. Any context.
 */
bool hall_letter_deliver(struct hall_tunnel *tunnel, const struct hallway_letter *letter);

/* events.c */
void hall_tunnel_events_init(void);
/* The channel that an OFFER is for; see struct hall_channel_kind. */
struct hall_channel *hall_tunnel_meet(struct hall_member *member,
				      const struct hallway_message *offer);

#endif /* HALL_TUNNEL_H */
