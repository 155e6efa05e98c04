// SPDX-License-Identifier: GPL-2.0-only
/*
 * The socket's work item: the peer's messages, and all steps that change a
 * carrier, except the decision to offer (policy.c) and the end mark that a reader
 * finds (sock/rx.c).
 *
 * Each event is handled once and checked against the state: a message about
 * another carrier than the present one is late, or of a peer that breaks the
 * rules, and has no effect. All events are taken at once, for the messages have
 * an order: a DEMOTE without the ACCEPT before it would be lost.
 */
#include "switch.h"

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/callbacks.h"
#include "../sock/carrier.h"
#include "../sock/info.h"
#include "../sock/life.h"
#include "../sock/lock.h"
#include "../sock/lookup.h"
#include "../sock/quiet.h"
#include "../sock/requeue.h"
#include "../sock/stream.h"
#include "../sock/wake.h"

/*
 * How soon to look again for bytes below the mark. It doubles where none come, up to the
 * maximum: the mark is the peer's.
 */
#define RETRY		msecs_to_jiffies(5)
#define RETRY_MAX	HZ

/* How soon to try again where memory was short: each try copies what is unread. */
#define MEMORY		(HZ / 10)

/* For which the bytes of a departed peer wait for memory of TCP's. */
#define REQUEUE		(10 * HZ)

/* How long a socket waits for the RST of a peer that has left bytes in the ring. */
#define RESET		HZ

static void copy_answer(struct hall_sock *hs, const struct hall_answer *answer,
			struct hall_answer *copy)
{
	spin_lock_bh(&hs->channel.lock);
	*copy = *answer;
	spin_unlock_bh(&hs->channel.lock);
}

/* Time between two looks at a detached socket with an undrained ring. */
#define LOOK		HZ

/* The sender can send no more: its FIN is here, or the connection is over. */
static bool is_stream_over(const struct sock *sk)
{
	return sock_flag(sk, SOCK_DONE) || sk->sk_state == TCP_CLOSE;
}

/*
 * Requeues the rest of the ring, if it has ended. False: try again soon.
 * rest: requeues in any case.
 */
static bool finish_rx(struct hall_sock *hs, bool rest)
{
	u32 n;

	if (hs->rx.state != HALL_RX_MAPPED)
		return true;
	if (hall_rx_find_source(hs, &n) == HALL_RX_CORRUPT) {
		hall_sock_break(hs);
		return true;
	}
	if (!rest && !hs->rx.ring.ended && !is_stream_over(hs->sk))
		return true;
	if (time_before(jiffies, hs->requeue_at))
		return false;
	switch (hall_rx_requeue(hs, GFP_KERNEL)) {
	case 0:
		hall_rx_release(hs, HALLWAY_REASON_NONE);
		return true;
	case -EPROTO:
		hall_sock_break(hs);
		return true;
	case -EAGAIN:
		if (hs->sk->sk_state != TCP_CLOSE)
			return false;
		/* The bytes before the ring's will never come. */
		hall_rx_release(hs, HALLWAY_REASON_STATE);
		return true;
	default:
		hs->requeue_at = jiffies + MEMORY;
		return false;
	}
}

/*
 * Jiffies until the next look for bytes that come before an ended ring, or for memory to
 * requeue that.
 */
static unsigned long back_off_looks(struct hall_sock *hs)
{
	u32 arrived = hall_rx_get_arrived(hs->sk);
	unsigned long now = jiffies;

	if (time_before(now, hs->requeue_at))
		return hs->requeue_at - now;
	if (!hall_rx_lacks_tcp(hs))
		return RETRY;
	hs->look_after = arrived == hs->looked_at ?
				 clamp_t(unsigned long, 2 * hs->look_after, RETRY,
					 RETRY_MAX) :
				 RETRY;
	hs->looked_at = arrived;
	return hs->look_after;
}

/* Events */

/*
 * More unread bytes than TCP and one ring may leave? A peer that sends ring after
 * ring to a socket that does not read would fill our memory: requeued bytes have
 * no window.
 */
static bool has_much_unread(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return tp->rcv_nxt - tp->copied_seq >
	       (u32)READ_ONCE(sk->sk_rcvbuf) + HALLWAY_RING_MAX;
}

/* 0, with the tokens of the acceptance; or a reason against. */
static u32 check_offer(struct hall_sock *hs,
		       const struct hallway_message *offer,
		       struct hall_tokens *tokens)
{
	u32 reason;

	if (hs->detached)
		return HALLWAY_REASON_CLOSED;
	reason = hall_policy_find_reason(hs, false);
	if (reason)
		return reason;
	hall_sock_make_tokens(hs, false, tokens);
	if (!hall_tokens_match(tokens, offer->offer.token)) {
		/* The peer may have drained our ring, and its DONE be on the way. */
		hall_sock_make_tokens(hs, true, tokens);
		if (!hall_tokens_match(tokens, offer->offer.token))
			return HALLWAY_REASON_NO_MATCH;
	}
	/* The ring before this one may have ended: requeue its rest. */
	finish_rx(hs, false);
	if (hs->pinned)
		return hs->pinned;
	if (hs->rx.state != HALL_RX_NATIVE || has_much_unread(hs->sk))
		return HALLWAY_REASON_BUSY;
	reason = hall_rx_accept(hs, offer);
	if (reason == HALLWAY_REASON_NO_ENDPOINT)
		hall_budget_want(hs);
	return reason;
}

/* Another namespace may have a connection between the same addresses and ports. */
static bool pass_offer(struct hall_sock *hs, const struct hallway_message *offer)
{
	struct hall_channel *next = hall_sock_find_next_offered(hs, offer);
	bool passed;

	if (!next)
		return false;
	passed = hall_channel_pass_offer(next, offer);
	hall_channel_put(next);
	return passed;
}

static void on_offer(struct hall_sock *hs)
{
	struct hallway_message *offer = hall_channel_take_offer(&hs->channel);
	struct hall_tokens tokens;
	u32 reason;

	if (!offer)
		return;
	reason = check_offer(hs, offer, &tokens);
	if (!reason)
		hall_channel_accept(&hs->channel, offer->carrier, &tokens);
	else if (reason != HALLWAY_REASON_NO_MATCH || !pass_offer(hs, offer))
		hall_channel_decline(hs->channel.member, offer, reason);
	kfree(offer);
}

/*
 * Bytes held back by Nagle or a cork would stay below the mark and keep the
 * reader from the ring: TCP sends them when the lock is released, as for a sender
 * that was throttled. Setting TCP_NODELAY instead would release the lock, and
 * wait for it.
 */
static void flush_cork(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;

	if (!tcp_send_head(sk))
		return;
	/* Goes with the next packet that is queued. */
	tcp_sk(sk)->nonagle |= TCP_NAGLE_PUSH;
	/* tcp_release_cb() puts the reference. */
	if (!test_and_set_bit(TCP_TSQ_DEFERRED, &sk->sk_tsq_flags))
		sock_hold(sk);
}

/* The member is not the connection's other end, or hides it: is another one? */
static void doubt_member(struct hall_sock *hs)
{
	if (hs->detached)
		return;
	if (hall_members_doubt(hs->channel.member, &hs->remote))
		hall_sock_request_detach(hs, HALLWAY_REASON_NO_MATCH);
	rcu_read_lock();
	hall_candidates_meet(&hs->remote);
	rcu_read_unlock();
}

static void on_accept(struct hall_sock *hs)
{
	struct hall_answer answer;

	copy_answer(hs, &hs->channel.accept, &answer);
	if (hs->tx.state != HALL_TX_OFFERED || answer.carrier != hs->tx.offered)
		return;
	/* The member publishes an address that belongs to another. */
	if (!hall_tokens_match(&hs->tx.tokens, answer.token)) {
		hall_count(HALL_CORRUPT_MESSAGES);
		hall_tx_release(hs);
		hall_policy_back_off(hs, HALLWAY_REASON_NO_MATCH);
		doubt_member(hs);
		return;
	}
	WRITE_ONCE(hs->channel.receiver, answer.from);
	if (!hs->detached)
		flush_cork(hs);
	/* Closed since the offer: the FIN makes the peer release the ring. */
	if (!hs->sk || hall_sock_is_disconnected(hs) ||
	    hs->sk->sk_shutdown & SEND_SHUTDOWN) {
		hs->tx.state = HALL_TX_ENDED;
		return;
	}
	hall_tx_promote(hs);
	hs->backoff = 0;
	if (!hs->detached)
		hs->reason = HALLWAY_REASON_NONE;
	if (hs->detaching || hs->pinned || hs->detached)
		hall_tx_demote(hs, hs->detaching ? READ_ONCE(hs->detach_reason) :
						   hs->reason);
}

static void on_decline(struct hall_sock *hs)
{
	struct hall_answer answer;

	copy_answer(hs, &hs->channel.decline, &answer);
	if (hs->tx.state != HALL_TX_OFFERED || answer.carrier != hs->tx.offered)
		return;
	hall_tx_release(hs);
	hall_policy_back_off(hs, answer.reason);
	if (answer.reason == HALLWAY_REASON_NO_MATCH)
		doubt_member(hs);
}

/*
 * The ring can't be freed: an acceptance may be on its way. The connection may have
 * another one with another member.
 */
static void on_unanswered(struct hall_sock *hs)
{
	if (hs->tx.state != HALL_TX_OFFERED)
		return;
	WRITE_ONCE(hs->tx.answer_by, jiffies + HALL_ANSWER);
	doubt_member(hs);
}

static void on_demote(struct hall_sock *hs)
{
	struct hall_answer answer;

	copy_answer(hs, &hs->channel.demote, &answer);
	if (hs->tx.state == HALL_TX_OFFERED || answer.carrier != hs->tx.offered)
		return;
	/* Where the truncation was found first, this has the reason. */
	hall_tx_demote(hs, answer.reason);
	hall_policy_back_off(hs, answer.reason);
}

/*
 * The reader leaves bytes in the ring if it closed its socket, where TCP sends an RST, or if
 * it can't go on: later bytes must not take their place, not after the end mark either. That
 * RST comes behind what the reader has sent over TCP before; DONE may overtake both.
 */
static void on_done(struct hall_sock *hs)
{
	struct hall_answer answer;
	bool possible;
	u32 lost;

	copy_answer(hs, &hs->channel.done, &answer);
	/* Before a ring is accepted, with its token, the peer may not be the other end at all. */
	if (!hs->tx.memory.ring || hs->tx.state == HALL_TX_OFFERED ||
	    answer.carrier != hs->tx.offered)
		return;
	/* First: if the peer has truncated the ring, no byte is lost: we resend. */
	if (hs->tx.state == HALL_TX_RING)
		hall_tx_demote(hs, answer.reason);
	spin_lock_bh(&hs->channel.lock);
	possible = hall_ring_finish(&hs->tx.ring, answer.position, &lost);
	spin_unlock_bh(&hs->channel.lock);
	if (!possible && hs->sk)
		hall_sock_break(hs);
	hall_tx_release(hs);
	if (!lost || !hs->sk)
		return;
	hs->lost_error = hs->sk->sk_state == TCP_CLOSE_WAIT ? EPIPE : ECONNRESET;
	hs->reset_by = jiffies;
	/* For other reasons the RST may come later, and no byte may follow the lost ones. */
	if (possible && answer.reason == HALLWAY_REASON_CLOSED)
		hs->reset_by += RESET;
}

/* The errno of a reset that is due, or 0; *later: jiffies until it is, if that is sooner. */
static int check_lost(struct hall_sock *hs, unsigned long *later)
{
	long left = hs->reset_by - jiffies;

	if (!hs->lost_error || hs->sk->sk_state == TCP_CLOSE)
		return 0;
	if (left <= 0)
		return hs->lost_error;
	*later = min_not_zero(*later, (unsigned long)left);
	return 0;
}

/*
 * May the socket be attached again at once? These reasons may be over. Not while
 * the socket has a filter of its own: each call would detach it again.
 */
static bool may_reattach(struct hall_sock *hs, u32 reason)
{
	bool found;

	if (!READ_ONCE(hall_enabled))
		return false;
	switch (reason) {
	case HALLWAY_REASON_NO_MATCH:
	case HALLWAY_REASON_UNRESPONSIVE:
	case HALLWAY_REASON_OFF:
	case HALLWAY_REASON_PEER_LEFT:
	/* The kernel's user that has come may read by calls of ours. */
	case HALLWAY_REASON_FOREIGN:
		break;
	case HALLWAY_REASON_FILTERED:
		if (!hall_sock_needs_packets(hs->sk))
			break;
		return false;
	default:
		return false;
	}
	/*
	 * After NO_MATCH it may be the same member again, if another connection
	 * came to doubt the other holder meanwhile. Doubts take turns, and are rare.
	 */
	rcu_read_lock();
	found = hall_members_find(&hs->remote);
	rcu_read_unlock();
	return found;
}

/*
 * Has TCP no memory for the bytes that came? A departed peer's memory stays as it
 * was until another member has its place. So the bytes wait in the ring for a while,
 * where the program may read them.
 */
static bool may_wait_for_memory(struct hall_sock *hs)
{
	if (hall_rx_lacks_tcp(hs))
		return false;
	if (!hs->requeue_by)
		hs->requeue_by = jiffies + REQUEUE;
	return time_before(jiffies, hs->requeue_by);
}

static int on_departed(struct hall_sock *hs)
{
	bool lost;

	hall_tx_demote(hs, HALLWAY_REASON_PEER_LEFT);
	lost = hall_tx_count_unread(hs);
	/* Bytes that came are delivered; those that can't be put in order are lost. */
	if (!finish_rx(hs, true)) {
		if (!lost && may_wait_for_memory(hs))
			return 0;
		lost = true;
		if (!hall_rx_lacks_tcp(hs))
			hall_rx_discard_queue(hs->sk);
	}
	hs->requeue_by = 0;
	hall_rx_release(hs, HALLWAY_REASON_PEER_LEFT);
	hall_tx_release(hs);
	hall_detach(hs, HALLWAY_REASON_PEER_LEFT);
	if (may_reattach(hs, HALLWAY_REASON_PEER_LEFT))
		hall_scan();
	return lost ? ETIMEDOUT : 0;
}

/* Asks the sender to end the ring that we read. */
static void request_demote(struct hall_sock *hs, u32 reason)
{
	hall_count(HALL_DEMOTE_REQUESTS);
	hall_channel_send(&hs->channel, HALLWAY_DEMOTE, hs->rx.carrier, reason, 0);
}

/*
 * A later request may bring another reason. It is the later one that is shown, and
 * that may_reattach() asks: both are looked at again before the next ring.
 */
static void on_detach(struct hall_sock *hs)
{
	u32 reason = READ_ONCE(hs->detach_reason);
	u32 n;

	if (hs->detaching)
		return;
	hs->detaching = true;
	/* An unresponsive peer has had its time. */
	hs->demote_by = jiffies + (reason == HALLWAY_REASON_UNRESPONSIVE ? 0 : HZ);
	hall_tx_demote(hs, reason);
	if (hs->rx.state == HALL_RX_MAPPED) {
		/* An end mark does not help where the ring has to wait for TCP. */
		hall_rx_find_source(hs, &n);
		if (hall_rx_lacks_tcp(hs))
			hall_rx_truncate(hs);
		request_demote(hs, reason);
	}
}

/* A reader waits for more bytes than the ring holds: only TCP's queue can. */
static void on_small(struct hall_sock *hs)
{
	if (hs->rx.state != HALL_RX_MAPPED || hs->rx.end_requested)
		return;
	/* A kernel user does not say how many it waits for. */
	if (!hall_callbacks_are_native(hs->sk) &&
	    hall_rx_count_unread(hs) < HALL_RING_FILLS(hs->rx.ring.size)) {
		hall_channel_notify_sender(&hs->channel);
		return;
	}
	WRITE_ONCE(hs->rx.end_requested, true);
	request_demote(hs, HALLWAY_REASON_SMALL);
}

/*
 * Detaches if no byte is on a ring. If the peer sets no end mark in time, the ring
 * is truncated. If it did, and TCP lacks bytes that come before the ring, detaching
 * has to wait until TCP brings them or gives up.
 */
static void continue_detaching(struct hall_sock *hs)
{
	bool late = time_after_eq(jiffies, hs->demote_by);
	u32 reason = READ_ONCE(hs->detach_reason);

	if (!hs->detaching || hs->detached)
		return;
	if (late && hs->rx.state == HALL_RX_MAPPED) {
		hall_rx_truncate(hs);
		finish_rx(hs, true);
	}
	/* An offer may be answered later, by marks that end it: on_accept(). */
	if (hs->rx.state == HALL_RX_MAPPED || hs->tx.state == HALL_TX_RING ||
	    (hs->tx.state == HALL_TX_OFFERED && !late))
		return;
	hall_detach(hs, reason);
	/* The scan that follows detaching may be over. */
	if (may_reattach(hs, reason))
		hall_scan();
}

/* The messages that a peer sends before a ring begins. */
static void take_answers(struct hall_sock *hs, unsigned long events)
{
	if (events & BIT(HALL_EVENT_OFFER))
		on_offer(hs);
	if (events & BIT(HALL_EVENT_ACCEPT))
		on_accept(hs);
	if (events & BIT(HALL_EVENT_DECLINE))
		on_decline(hs);
}

/* The ring waits for its reader; the socket is gone, and with it all else. */
static void run_orphan(struct hall_sock *hs)
{
	unsigned long events = xchg(&hs->channel.events, 0);

	take_answers(hs, events);
	if (events & BIT(HALL_EVENT_DONE))
		on_done(hs);
	if (events & BIT(HALL_EVENT_DEPARTED))
		hall_tx_release(hs);
	hall_sock_close_channel(hs);
}

void hall_switch_run_work(struct hall_sock *hs)
{
	struct sock *sk = hs->sk;
	unsigned long events, later;
	struct hall_call call;
	bool again, finished, put_off;
	int err = 0;

	if (!sk) {
		run_orphan(hs);
		return;
	}
	if (!hall_sock_trylock(hs))
		return;
	hall_call_begin(hs, &call);
	events = xchg(&hs->channel.events, 0);
	take_answers(hs, events);
	if (events & BIT(HALL_EVENT_UNANSWERED))
		on_unanswered(hs);
	if (events & BIT(HALL_EVENT_DEMOTE))
		on_demote(hs);
	if (events & BIT(HALL_EVENT_DONE))
		on_done(hs);
	if (events & BIT(HALL_EVENT_DETACH))
		on_detach(hs);
	if (events & BIT(HALL_EVENT_SPARE))
		hall_policy_shrink(hs);
	if (events & BIT(HALL_EVENT_SMALL))
		on_small(hs);
	finished = finish_rx(hs, false);
	finished &= hall_rx_check_tcp(hs);
	put_off = xchg(&hs->rx.put_off, false);
	if (events & BIT(HALL_EVENT_LOOK) || put_off)
		hall_callbacks_call(hs, sk, put_off);
	if (sk->sk_state == TCP_CLOSE)
		hall_tx_demote(hs, HALLWAY_REASON_STATE);
	if (events & BIT(HALL_EVENT_DEPARTED) || hs->requeue_by)
		err = on_departed(hs);
	again = hs->requeue_by;
	continue_detaching(hs);
	/* After that time only bytes of TCP can be missing. */
	again |= hs->detaching && !READ_ONCE(hs->detached) &&
		 (finished || time_before(jiffies, hs->demote_by));
	if (events & BIT(HALL_EVENT_BROKEN))
		err = ECONNRESET;
	again |= !hall_policy_replace(hs);
	if (hall_check_timeout(hs, &later))
		err = ETIMEDOUT;
	if (!finished)
		later = min_not_zero(later, back_off_looks(hs));
	err = err ?: check_lost(hs, &later);
	hall_sock_close_channel(hs);
	hall_sock_unlock(hs);
	hall_call_end(hs, &call);

	err = err ?: READ_ONCE(hs->reset_error);
	if (err)
		hall_sock_reset(hs, err);
	if (again)
		hall_sock_queue_work(hs, RETRY);
	else if (later)
		hall_sock_queue_work(hs, later);
	else if (hs->detached && hs->tx.memory.ring && !hall_sock_orphan(hs))
		hall_sock_queue_work(hs, LOOK);
}
