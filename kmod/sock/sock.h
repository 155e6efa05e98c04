/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A socket of ours: the byte stream with its carriers and marks.
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
 *     MAPPED   we accepted a ring: hall_rx_where() tells where bytes come from
 *
 * Locks, outermost first:
 *   rx_mutex      one reader at a time, and consent: nobody may be inside a
 *                 native read without a limit when the peer may start a ring
 *   lock_sock()   everything here, unless it says otherwise
 *   channel.lock  the rings' private ends, so that poll and the doorbell, which
 *                 run without lock_sock(), can look at them
 *
 * A socket stays alive as long as its hall_sock. The hall_sock can outlive its
 * attachment (detached is set then): ring memory that the peer has not drained
 * yet hangs on it.
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
#include "../compat/recvmsg.h"
#include "../ring/ring.h"

/*
 * So many bytes are in a ring of that size at least, if its reader takes none: its
 * writer may poll, and find less than the rest too little to write to.
 */
#define HALL_RING_FILLS(size)	((size) - (size) / 16)

/* Spins of a reader that may miss in a row: see rx.c. */
#define HALL_SPIN_CREDIT	16

enum hall_tx_state { HALL_TX_TCP, HALL_TX_OFFERED, HALL_TX_RING, HALL_TX_ENDED };
enum hall_rx_state { HALL_RX_NATIVE, HALL_RX_MAPPED };

struct hall_tx {
	enum hall_tx_state state;
	u32 carrier;			/* of the bytes sent now */
	u32 offered;			/* of the ring, while there is one */
	u32 next;			/* of the next ring */
	bool lost;			/* bytes that could not be repeated */
	struct hall_tags tags;		/* of the offer: who accepts shows the peer's */
	struct hall_tx_ring ring;
	struct hall_memory memory;
	u64 bytes_tcp, bytes_ring;
	u64 bytes_before;		/* of bytes_ring, in rings before this one */
};

struct hall_rx {
	enum hall_rx_state state;
	u32 carrier;			/* of the ring, while MAPPED; else even */
	bool awaits_tcp;		/* see hall_rx_await_tcp() */
	bool small;			/* the peer was asked to end the ring */
	struct hall_rx_ring ring;
	u64 bytes_tcp, bytes_ring;
	u64 bytes_before;		/* of bytes_ring, in rings before this one */
};

/* What the connection asks of the budget of ring memory; see switch/budget.c. */
struct hall_demand {
	u32 bytes;			/* of the next ring at most; 0: no matter */
	unsigned int full;		/* how often the ring was, */
	u64 head;			/* at which place the last time, */
	unsigned long full_at;		/* and when: jiffies */
	unsigned long settled_at;	/* jiffies; not larger before */
};

/* Who owned the callbacks when we looked last, and what had been read then. */
struct hall_owner {
	void (*data_ready)(struct sock *sk);
	u64 bytes;			/* through us, over TCP */
	u32 seq;			/* copied_seq less those */
};

struct hall_sock {
	struct proto prot;		/* what sk->sk_prot points to */
	struct proto *native;		/* what it pointed to */
	struct proto_ops ops;		/* what sk->sk_socket->ops points to */
	const struct proto_ops *native_ops; /* what it pointed to; NULL: not ours yet */
	struct sock *sk;		/* referenced */
	struct hall_channel channel;	/* holds the reference count */

	struct hlist_node hash;		/* by addresses; RCU */
	struct list_head list;		/* all of ours, under the list's lock */
	struct in6_addr local, remote;	/* IPv4 mapped; set once */
	u16 local_port, remote_port;

	bool detached;			/* sk_prot is native again */
	bool leaving;			/* on its way there */
	bool settled;			/* no call can still load native tables */
	bool settling;
	bool clean;			/* and none is inside them any more */
	bool threaded;			/* its user has several threads, or may have */
	bool signals;			/* SOCK_FASYNC, when the lock was let go of last */
	u32 pinned;			/* reason to stay on TCP for good, or 0 */
	u32 reason;			/* why not on a ring, for people */
	unsigned long retry_at;		/* jiffies; promotion is tried from then */
	unsigned long backoff;		/* jiffies until the try after that */
	unsigned long active_since;	/* jiffies; in use without a pause */
	u64 active_bytes;		/* moved over TCP until then */
	unsigned long leave_by;		/* jiffies; the peer's end mark is due */
	unsigned long give_up_at;	/* jiffies, or 0; see switch/silent.c */
	struct rcu_head settle;

	struct mutex rx_mutex;
	bool awaited;			/* the work item wants rx_mutex, */
	struct wait_queue_entry turn;	/* or lock_sock(); see lock.c */
	unsigned int rx_waiters;	/* of ours, asleep on the socket */
	unsigned int tx_waiters;
	unsigned int spin_credit;	/* see rx.c */
	struct hall_tx tx;
	struct hall_rx rx;
	struct hall_owner owner;
	struct hall_demand demand;

	u64 watched_head, watched_tail;	/* see watchdog.c */

	struct delayed_work work;
	struct rcu_head rcu;
};

/* What the switch room does for this one. */
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
	/* Gives the socket its native tables back. lock_sock() or slock. */
	void (*detach)(struct hall_sock *hs, u32 reason);
	/*
	 * Leaves every ring and detaches; waits for the peer. Process context,
	 * no lock held. 0, or -ETIMEDOUT (the socket was reset).
	 */
	int (*leave)(struct hall_sock *hs, u32 reason);
	/*
	 * The same without waiting for the peer, and without sleeping: under
	 * lock_sock() in process context. 0, -EAGAIN if it is not possible now,
	 * or another error.
	 */
	int (*leave_at_once)(struct hall_sock *hs, u32 reason);
};

extern struct hall_sock_handler hall_sock_handler;

/* Cheap where there is nothing to decide. Within a call, under lock_sock(). */
static inline void hall_sock_policy(struct hall_sock *hs, size_t sending)
{
	if (!hs->clean || (sending && hs->tx.state == HALL_TX_TCP))
		hall_sock_handler.policy(hs, sending);
}

/* sock.c: life, look-up, and what all directions share */

/* From sk_prot alone, without a lock; NULL: the socket is not ours. */
struct hall_sock *hall_sock_get(const struct sock *sk);
void hall_sock_put(struct hall_sock *hs);
/* A new context, not yet published. Atomic. NULL: no memory. */
struct hall_sock *hall_sock_new(struct sock *sk, struct hall_member *member);
void hall_sock_publish(struct hall_sock *hs);
void hall_sock_unpublish(struct hall_sock *hs);
/* As offer of struct hall_channel_kind. */
struct hall_channel *hall_sock_find(struct hall_member *member,
				    const struct hallway_message *offer);
/* Addresses of a socket in one form: IPv4 mapped. */
void hall_sock_remote(const struct sock *sk, struct in6_addr *address);
/* Calls fn for each attached socket, with a reference and no lock held. */
void hall_sock_walk(void (*fn)(struct hall_sock *hs, void *data), void *data);
/* Sockets that exist, detached ones that wait for the peer included. */
unsigned int hall_sock_count(void);
/* Runs the work item: now, or after a delay in jiffies. */
void hall_sock_work(struct hall_sock *hs, unsigned long delay);
/*
 * The names under which both ends know the connection; drained: see
 * hall_info_own_isn(). lock_sock().
 */
void hall_sock_tags(const struct hall_sock *hs, bool drained,
		    struct hall_tags *tags);
/*
 * Is no native call inside the socket any more? lock_sock(). calling: within a
 * call of its user. Where that can't be told at once, and earned says that it is
 * worth it, a later call can.
 */
bool hall_sock_quiet(struct hall_sock *hs, bool calling, bool earned);
/* Without a ring either way no number is needed either. lock_sock(). */
void hall_sock_rest(struct hall_sock *hs);
/* The peer broke the rules: leave the ring for good and reset. lock_sock(). */
void hall_sock_break(struct hall_sock *hs);
/*
 * Are packets wanted, for their times, or to be filtered? A ring has none. Nobody
 * tells us when that is asked for, so each call looks, and each one who lets go
 * of the lock. The reason, or 0.
 */
static inline u32 hall_sock_packets(const struct sock *sk)
{
	if (sock_flag(sk, SOCK_RCVTSTAMP) || READ_ONCE(sk->sk_tsflags))
		return HALLWAY_REASON_TIMESTAMP;
	if (rcu_access_pointer(sk->sk_filter))
		return HALLWAY_REASON_FILTERED;
	return 0;
}

/* Has the work item leave the rings and give the socket back. Any context. */
static inline void hall_sock_want_tcp(struct hall_sock *hs, u32 reason)
{
	WRITE_ONCE(hs->channel.leave_reason, reason);
	hall_channel_raise(&hs->channel, HALL_EVENT_LEAVE);
}

/* Resets the connection, as an RST from the peer would. No lock held. */
void hall_sock_reset(struct hall_sock *hs, int err);

int hall_sock_init(void);
void hall_sock_uninit(void);

/*
 * Sleeps until the entry, which is on the socket's wait queue, is woken.
 * lock_sock(), let go of meanwhile. *timeo in jiffies counts down.
 */
void hall_sock_sleep(struct hall_sock *hs, struct wait_queue_entry *entry,
		     long *timeo);
/*
 * A call that finds its socket detached leaves for the native one, if it has
 * moved nothing. Otherwise it goes on, since nobody expects a short count, but
 * when the module has waited long enough to be unloaded.
 */
extern bool hall_sock_hurry;

/*
 * What the inner half of a call returns that leaves for the native one. The
 * outer half jumps there, as the last thing that it does: a thread that blocks
 * natively has nothing of the module on its stack, and the module can go. For
 * the compiler to make it a jump the outer half may have no variable in memory,
 * so the inner one is never inlined; `make check` looks at the code.
 */
#define HALL_NATIVE	INT_MIN

static inline bool hall_sock_ends(int moved)
{
	return !moved || READ_ONCE(hall_sock_hurry);
}

/* lock.c */
void hall_sock_lock_init(struct hall_sock *hs);
/*
 * Takes rx_mutex and lock_sock(). False: somebody has one of them, and the work
 * item runs again when they let go. The work item alone.
 */
bool hall_sock_trylock(struct hall_sock *hs);
void hall_sock_unlock(struct hall_sock *hs);
/* Lets go of rx_mutex, which a reader has. */
void hall_rx_unlock(struct hall_sock *hs);

/* tx.c */
int hall_sendmsg(struct sock *sk, struct msghdr *msg, size_t size);
#ifdef HALL_HAS_SENDPAGE
int hall_sendpage(struct sock *sk, struct page *page, int offset, size_t size,
		  int flags);
#endif
/* All under lock_sock(). Offer: 0 or -ENOMEM, -EUSERS. */
int hall_tx_offer(struct hall_sock *hs, const struct hall_tags *tags, u32 bytes);
/* The peer accepted: set the start mark. */
void hall_tx_promote(struct hall_sock *hs);
/* Set the end mark, or find the ring cut; bytes go over TCP from here. */
void hall_tx_demote(struct hall_sock *hs);
/* Nobody will look at the ring any more: give its memory back. */
void hall_tx_release(struct hall_sock *hs);
/* Bytes in the ring that the peer did not take. */
u32 hall_tx_unread(struct hall_sock *hs);

/* resend.c */
/* Send the bytes over TCP that the peer cut off. lock_sock(). False: no memory. */
bool hall_tx_repeat(struct hall_sock *hs, u32 left);

/* rx.c */
int hall_recvmsg(struct sock *sk, struct msghdr *msg, size_t len,
		 int flags HALL_RECVMSG_LAST);
/*
 * The inner half of it: HALL_NATIVE if the socket is detached. It waits until
 * target bytes are there.
 */
int hall_receive(struct hall_sock *hs, struct msghdr *msg, size_t len,
		 int target, int flags HALL_RECVMSG_LAST);
/* Accept the peer's ring. rx_mutex and lock_sock(). 0, or a reason against. */
u32 hall_rx_consent(struct hall_sock *hs, const struct hallway_message *offer);
/* Where the next bytes come from. lock_sock(), state MAPPED. */
enum hall_rx_source hall_rx_source(struct hall_sock *hs, u32 *n);
/* Bytes of the ring that are not read yet. lock_sock(). */
u32 hall_rx_unread(struct hall_sock *hs);
/* Is urgent data the next byte to be read, or the one that would be? lock_sock(). */
bool hall_rx_at_mark(struct hall_sock *hs);
/* Is what was just copied from the ring the peer's? lock_sock(). */
static inline bool hall_rx_intact(struct hall_sock *hs)
{
	struct hall_member *member = hs->channel.member;

	return likely(member->transport->intact(member));
}

/*
 * Read nothing of the ring past what is there now, and nothing at all while
 * bytes before it are on their way: the peer repeats the rest over TCP. Without
 * effect on a ring that has ended. lock_sock(), state MAPPED.
 */
void hall_rx_cut(struct hall_sock *hs);
/*
 * Leave the ring without waiting or sleeping: what can be read is saved, what
 * comes later is the peer's to repeat. lock_sock(). 0, or an error of
 * hall_rx_save().
 */
int hall_rx_leave(struct hall_sock *hs, u32 reason);

/* Have the doorbell rung for whatever comes next. channel.lock, MAPPED. */
static inline void hall_rx_arm_edge(struct hall_sock *hs)
{
	struct hall_rx_ring *ring = &hs->rx.ring;

	/* Until nothing came in between; a full ring is the end of that. */
	while (hall_ring_arm_head(ring, hall_ring_used(ring) + 1) &&
	       !ring->broken)
		;
}

/* The ring is of no more use: unmap it and say DONE. lock_sock(). */
void hall_rx_release(struct hall_sock *hs, u32 reason);
/*
 * woken_wake_function() for our readers: by its name they are told from writers
 * and from the kernel's own sleepers.
 */
int hall_rx_woken(struct wait_queue_entry *entry, unsigned int mode, int sync,
		  void *key);
/* The sequence number after the last byte that arrived over TCP, less a FIN. */
static inline u32 hall_rx_arrived(const struct sock *sk)
{
	return tcp_sk(sk)->rcv_nxt - (sock_flag(sk, SOCK_DONE) ? 1 : 0);
}

/*
 * Bytes of a ring are lost: what TCP has behind them is not to take their place. As
 * in tcp_disconnect(). lock_sock(), and the socket is about to be reset.
 */
void hall_rx_forget(struct sock *sk);

/* Somebody waits for more bytes than the ring ever has at once. Any context. */
void hall_rx_small(struct hall_sock *hs);

/*
 * TCP tells nobody of fewer bytes than SO_RCVLOWAT wants, though they may be enough
 * with those of the ring that they come before: the work looks, and tells. Any
 * context. Then, lock_sock(): has TCP brought all that anyone awaits?
 */
void hall_rx_await_tcp(struct hall_sock *hs);
bool hall_rx_caught_up(struct hall_sock *hs);

/* Has TCP yet to bring bytes that come before a ring that began? lock_sock(). */
static inline bool hall_rx_behind(const struct hall_sock *hs)
{
	return hs->rx.ring.started &&
	       after(hs->rx.ring.start_seq, hall_rx_arrived(hs->sk));
}

/* requeue.c */
/*
 * Moves the rest of the ring to the head of TCP's receive queue, so that any
 * native reader finds it. lock_sock(), state MAPPED. 0, -EAGAIN (bytes below
 * the start mark are still on their way), -ENOMEM, -EPROTO (corrupt).
 */
int hall_rx_save(struct hall_sock *hs, gfp_t gfp);

/* poll.c */
/* What wakes pollers; by polling a fresh socket's file. */
void hall_poll_learn(struct file *file, struct sock *fresh);
bool hall_sock_is_readable(struct sock *sk);
bool hall_stream_memory_free(const struct sock *sk, int wake);
/* Finds out whether signals are wanted for arrivals (O_ASYNC), or times. slock. */
void hall_release_cb(struct sock *sk);
/*
 * Does anyone wait for edges, as epoll and io_uring may? They want one for all
 * that comes, not only for what comes to an empty ring. unpolled: and does not
 * poll before the next edge? io_uring may not; epoll, which does, leaves the
 * private of its entries alone.
 */
bool hall_sock_wants_edges(struct sock *sk, bool unpolled);
/* The doorbell rang: wake whom it concerns. Softirq. */
void hall_sock_wake(struct hall_sock *hs);

/* Did a writer or poller find no space? As in tcp_check_space(). */
static inline bool hall_sock_wants_space(const struct sock *sk)
{
	const struct socket *socket = READ_ONCE(sk->sk_socket);

	return socket && test_bit(SOCK_NOSPACE, &socket->flags);
}

/* info.c; all under lock_sock() */
/* Bytes went into a ring, or left one: every counter that shows them. */
void hall_info_sent(struct hall_sock *hs, u32 n);
void hall_info_received(struct hall_sock *hs, u32 n);
/* Of those that went into a ring, n were sent again over TCP. */
void hall_info_repeated(struct hall_sock *hs, u32 n);
/*
 * The initial sequence numbers, less what went through rings that are gone; our
 * own may be too small by one: see tag.c. drained: as it will be when the peer's
 * word comes that it has drained our ring.
 */
u32 hall_info_own_isn(const struct hall_sock *hs, bool drained);
u32 hall_info_peer_isn(const struct hall_sock *hs);

/* callbacks.c */
/* Do the socket's callbacks belong to the socket layer itself? Any context. */
bool hall_owner_native(const struct sock *sk);
/* Begin to watch how the present owner reads. slock or lock_sock(). */
void hall_owner_take(struct hall_sock *hs);
/* May the owner be given a ring? lock_sock(). */
bool hall_owner_suits(struct hall_sock *hs);
/* Call a foreign owner for what there is in the rings. slock or lock_sock(). */
void hall_owner_tell(struct hall_sock *hs);
/* The same, or later if the socket is in use. No lock of the socket held. */
void hall_owner_wake(struct hall_sock *hs);
/* What the socket layer's own callbacks are; from a fresh socket. */
void hall_owner_learn(const struct sock *fresh);

/* splice.c */
ssize_t hall_splice_read(struct socket *sock, loff_t *ppos,
			 struct pipe_inode_info *pipe, size_t len,
			 unsigned int flags);

/* close.c */
void hall_close(struct sock *sk, long timeout);
void hall_shutdown(struct sock *sk, int how);
void hall_destroy(struct sock *sk);
int hall_disconnect(struct sock *sk, int flags);
/* What closing means for the rings. lock_sock(). True: bytes were lost. */
bool hall_sock_shut(struct hall_sock *hs);

/* options.c */
int hall_setsockopt(struct sock *sk, int level, int optname, sockptr_t optval,
		    unsigned int optlen);
int hall_getsockopt(struct sock *sk, int level, int optname,
		    char __user *optval, int __user *option);
#ifdef HALL_IOCTL_INT
int hall_ioctl(struct sock *sk, int cmd, int *karg);
#else
int hall_ioctl(struct sock *sk, int cmd, unsigned long arg);
#endif
int hall_psock_update_sk_prot(struct sock *sk, struct sk_psock *psock,
			      bool restore);

static inline struct hall_sock *hall_sock_of(struct hall_channel *channel)
{
	return container_of(channel, struct hall_sock, channel);
}

#endif /* HALL_SOCK_H */
