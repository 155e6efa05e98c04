/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An attached socket: the byte stream with its carriers and marks.
 *
 * Each direction is a sequence of carriers, numbered from 0: TCP has the even
 * numbers, rings the odd ones. The sender of a direction switches it.
 *
 *   direction we send    TCP -> OFFERED -> RING -> ENDED -> TCP
 *     TCP      bytes go over TCP, no ring
 *     OFFERED  bytes go over TCP, a ring is offered, no answer yet
 *     RING     the start mark is set: bytes go into the ring
 *     ENDED    the end mark is set: bytes go over TCP, the ring waits for DONE
 *
 *   direction we receive    TCP -> MAPPED -> TCP
 *     TCP      all bytes come over TCP; calls pass through
 *     MAPPED   we accepted a ring: hall_ring_find_source() says where bytes are
 *
 * Locks, outermost first:
 *   rx_mutex      one reader at a time, and acceptance: no thread may be in a
 *                 native read without a limit once the peer may start a ring
 *                 (reads without a ring pass a gate instead: lock.h)
 *   lock_sock()   everything here, unless it says otherwise
 *                 (small calls on rings hold its spinlock instead: idle.h)
 *   channel.lock  the rings' private ends, so that poll and the doorbell, which
 *                 run without lock_sock(), can look at them
 *
 * The hall_sock may outlive its attachment (detached is set then), while it has ring
 * memory that the peer has not drained. A peer can have that last until it departs,
 * so the hall_sock keeps its socket only until the program has closed it.
 */
#ifndef HALL_SOCK_H
#define HALL_SOCK_H

#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/workqueue.h>
#include <net/sock.h>
#include <net/tcp.h>

#include <hallway/reason.h>

#include "../channel/channel.h"
#include "../compat/native.h"
#include "../ring/ring.h"
#include "turn.h"

/* For which an offer may be unanswered, before another member is tried. */
#define HALL_ANSWER		(10 * HZ)

enum hall_tx_state { HALL_TX_TCP, HALL_TX_OFFERED, HALL_TX_RING, HALL_TX_ENDED };
enum hall_rx_state { HALL_RX_NATIVE, HALL_RX_MAPPED };

struct hall_tx {
	enum hall_tx_state state;
	u32 carrier;			/* of the bytes sent now */
	u32 offered;			/* of the ring, while there is one */
	u32 next;			/* of the next ring */
	bool lost;			/* bytes that could not be resent */
	bool replacing;			/* bytes wait for the next ring */
	unsigned long replace_by;	/* jiffies; they go over TCP from then */
	unsigned long answer_by;	/* jiffies; the offer should be answered */
	struct hall_tokens tokens;		/* of the offer: an acceptance shows the peer's */
	struct hall_tx_ring ring;
	struct hall_memory memory;
	u64 bytes_tcp, bytes_ring;
	u64 bytes_before;		/* of bytes_ring, in rings before this one */
	u64 resent;			/* bytes_acked, once the resent bytes are */
};

struct hall_rx {
	enum hall_rx_state state;
	u32 carrier;			/* of the ring, while MAPPED; else even */
	bool awaits_tcp;		/* see hall_rx_await_tcp() */
	bool end_requested;		/* the peer was asked to end the ring */
	bool put_off;			/* a read: see read_sock.c */
	struct hall_rx_ring ring;
	atomic64_t bytes_tcp;
	u64 bytes_ring;
	u64 bytes_before;		/* of bytes_ring, in rings before this one */
};

/* What the connection asks of the budget of ring memory; see switch/budget.c. */
struct hall_demand {
	u32 bytes;			/* of the next ring at most; 0: as of the first */
	unsigned int full;		/* how often the ring was full, */
	u64 head;			/* where its head was the last time, */
	unsigned long full_at;		/* and when that was: jiffies */
	unsigned long hold_until;	/* jiffies; it does not grow before */
};

/* The callbacks when they changed last, and the bytes read until then. */
struct hall_callbacks {
	void (*data_ready)(struct sock *sk);
	u64 bytes;			/* through us, over TCP */
	u32 seq;			/* copied_seq less those */
};

/* The events of a stream's channel, besides those of hall_channel_event. */
enum hall_sock_event {
	HALL_EVENT_DETACH = HALL_EVENT_KIND, /* for detach_reason */
	HALL_EVENT_SPARE,	/* other connections need the memory of our ring */
	HALL_EVENT_SMALL,	/* the reader waits for more than its ring holds */
	HALL_EVENT_UNANSWERED,	/* an offer has waited for long */
	HALL_EVENT_LOOK,	/* marks or TCP's state may have changed */
	HALL_EVENT_BROKEN,	/* corrupt, or bytes are lost: reset the socket */
};

/* What sk->sk_socket->ops points to: one for each native table, until the module goes. */
struct hall_ops {
	struct proto_ops ops;
	const struct proto_ops *native;
};

struct hall_sock {
	/*
	 * What sk->sk_prot points to, and what it pointed to. Neither changes, though the
	 * next socket may get the hall_sock when it is free: see life.c.
	 */
	struct proto prot;
	struct proto *native;		/* NULL: prot is not filled yet */

	/* Idle while the hall_sock is free; the gate is closed. */
	struct mutex rx_mutex;
	atomic_t gate;			/* see lock.h */
	struct delayed_work work;
	struct work_struct reset;

	/* All that follows is of one attachment. */
	struct sock *sk;		/* referenced; NULL: see hall_sock_orphan() */
	struct hall_channel channel;	/* holds the reference count */

	struct hlist_node hash;		/* attached ones by addresses; lookup.c's lock */
	struct list_head ringed;	/* those with an endpoint, under the same */
	struct in6_addr local, remote;	/* IPv4 mapped; set once */
	u16 local_port, remote_port;

	bool detached;			/* sk_prot is native again */
	bool had_endpoint;		/* see life.c */
	int disconnects;		/* sk_disconnects when it was attached */
	unsigned long detached_at;	/* jiffies */
	bool detaching;			/* until then: both directions are demoted */
	bool quiet;			/* no foreign call is in the socket */
	bool watched;			/* foreign calls are watched for, */
	bool grace_over;		/* and a grace period of tasks has passed */
	bool signals;			/* SOCK_FASYNC, at the last hall_release_cb() */
	bool ulp_refused;		/* until the next one: see switch/ulp.c */
	int rcvlowat;			/* SO_RCVLOWAT, at the last one */
	u32 detach_reason;		/* of HALL_EVENT_DETACH */
	u32 pinned;			/* reason to stay on TCP for good, or 0 */
	u32 reason;			/* why not on a ring, as users see it */
	unsigned long retry_at;		/* jiffies; promotion is tried from then */
	unsigned long backoff;		/* jiffies until the try after that */
	unsigned long active_since;	/* jiffies; in use without a pause */
	u64 active_bytes;		/* moved over TCP until then */
	unsigned long look_at;		/* jiffies; no send earns a ring before, */
	u64 look_bytes;			/* with fewer bytes moved over TCP than these */
	int lost_error;			/* errno: the peer has left bytes in our ring; or 0 */
	unsigned long reset_by;		/* jiffies; the peer's RST is due by then */
	unsigned long demote_by;	/* jiffies; the peer's end mark is due */
	unsigned long give_up_at;	/* jiffies, or 0; see switch/timeout.c */
	unsigned long requeue_at;	/* jiffies; memory was short before */
	unsigned long look_after;	/* jiffies; between two looks for TCP's bytes */
	u32 looked_at;			/* what TCP had got at the last one */
	unsigned long requeue_by;	/* jiffies, or 0; a departed peer's bytes wait */
	struct rcu_head grace;
	struct list_head calls;		/* hall_call, until quiet; channel.lock */
	const void *foreign;		/* the task in one, if watched; channel.lock */

	bool awaited;			/* the work item waits for rx_mutex, */
	struct hall_turn turn;		/* or lock_sock(); see lock.c */
	atomic_t rx_waiters;		/* of ours, asleep on the socket */
	unsigned int tx_waiters;
	unsigned int spin_credit;	/* see spin.c */
	struct hall_tx tx;
	struct hall_rx rx;
	struct hall_callbacks callbacks;
	struct hall_demand demand;

	u64 checked_head, checked_tail;	/* see watchdog.c */

	int reset_error;		/* of a reset that is due, or 0 */
	union {				/* after its release */
		struct hall_sock *next;	/* of the free ones */
		struct rcu_head rcu;
	};
};

/* Calls into switch/, which sets them. */
struct hall_sock_handler {
	/*
	 * Within a call, under lock_sock(): may this socket be promoted now?
	 * sending: bytes about to be sent, 0 in a call that reads.
	 */
	void (*policy)(struct hall_sock *hs, size_t sending);
	/*
	 * Within a call, under lock_sock(): a writer finds its ring full. True:
	 * the ring was ended, for a larger one.
	 */
	bool (*full)(struct hall_sock *hs);
	/* Events of the channel: in the work item, no lock held. */
	void (*work)(struct hall_sock *hs);
	/* Restores the socket's native tables. lock_sock() or slock. */
	void (*detach)(struct hall_sock *hs, u32 reason);
	/*
	 * Demotes both directions and detaches; waits for the peer if there is a
	 * ring. Process context, no lock held. 0, or -ETIMEDOUT (the socket was reset).
	 */
	int (*detach_sync)(struct hall_sock *hs, u32 reason);
	/*
	 * The same without waiting for the peer, and without sleeping: under
	 * lock_sock() in process context. 0, -EAGAIN if it is not possible now,
	 * or another error.
	 */
	int (*detach_now)(struct hall_sock *hs, u32 reason);
};

extern struct hall_sock_handler hall_sock_handler;

static inline u64 hall_sock_count_tcp(const struct hall_sock *hs)
{
	return hs->tx.bytes_tcp + atomic64_read(&hs->rx.bytes_tcp);
}

/* May a send over TCP earn a ring? lock_sock() or slock. */
static inline bool hall_sock_may_earn(const struct hall_sock *hs, size_t sending)
{
	return time_after_eq(jiffies, hs->look_at) ||
	       hall_sock_count_tcp(hs) + sending >= hs->look_bytes;
}

/* Cheap where there is nothing to decide. Within a call, under lock_sock(). */
static inline void hall_sock_apply_policy(struct hall_sock *hs, size_t sending)
{
	if (!hs->quiet ||
	    (sending && hs->tx.state == HALL_TX_TCP && hall_sock_may_earn(hs, sending)))
		hall_sock_handler.policy(hs, sending);
}

static inline struct hall_sock *hall_sock_of(struct hall_channel *channel)
{
	return container_of(channel, struct hall_sock, channel);
}

/*
 * Does the program need packets, for their times or for a filter? A ring has
 * none. The socket layer calls nothing of ours when that is set, so each call
 * looks, and once there was a ring each release of the lock. The reason, or 0.
 */
static inline u32 hall_sock_needs_packets(const struct sock *sk)
{
	if (sock_flag(sk, SOCK_RCVTSTAMP) || READ_ONCE(sk->sk_tsflags))
		return HALLWAY_REASON_TIMESTAMP;
	if (rcu_access_pointer(sk->sk_filter))
		return HALLWAY_REASON_FILTERED;
	return 0;
}

/* Has the work item demote both directions and detach. Any context. */
static inline void hall_sock_request_detach(struct hall_sock *hs, u32 reason)
{
	WRITE_ONCE(hs->detach_reason, reason);
	hall_channel_raise(&hs->channel, HALL_EVENT_DETACH);
}

/*
 * Has its program disconnected the socket since it was attached? Then it may be
 * another connection, with which the peer of this one has nothing to do. Any context.
 */
static inline bool hall_sock_is_disconnected(const struct hall_sock *hs)
{
	return READ_ONCE(hs->sk->sk_disconnects) != hs->disconnects;
}

/* Do bytes go into a ring, or may they come from one? lock_sock() or slock. */
static inline bool hall_sock_has_ring(const struct hall_sock *hs)
{
	return hs->tx.state == HALL_TX_RING || hs->rx.state == HALL_RX_MAPPED;
}

/* Did a writer or poller find no space? As in tcp_check_space(). */
static inline bool hall_sock_wants_space(const struct sock *sk)
{
	const struct socket *socket = READ_ONCE(sk->sk_socket);

	return socket && test_bit(SOCK_NOSPACE, &socket->flags);
}

/*
 * A call that finds its socket detached goes on in the native one, if it has
 * moved no byte. Otherwise it goes on, since a short count is unexpected, until
 * the module has waited long enough to be unloaded.
 */
extern bool hall_sock_return_short;

static inline bool hall_sock_may_return(int moved)
{
	return !moved || READ_ONCE(hall_sock_return_short);
}

#endif /* HALL_SOCK_H */
