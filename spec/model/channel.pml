/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * One direction of one connection: promote, demote, close and sleep. Both sides
 * act at any moment. The model checks the text of ../protocol.md.
 *
 * Bytes are numbered as they are sent; every delivery asserts the number. One
 * piece of ring memory serves all carriers: a ring that is freed too early soon
 * belongs to another carrier, and every access asserts the carrier it belongs to.
 *
 * A step lies between two loads of words that the other side writes. Steps of one
 * side that hold its socket lock exclude each other; they never exclude steps of
 * the other side. Loads and stores are in program order here: wake.pml checks
 * store buffers, and release/acquire pairs order the rest.
 *
 * Every run ends: the policies may stop at any moment, and then nothing hides a
 * lost wake-up. Watch() checks the state when no process can move.
 *
 * TCP is an array of bytes by sequence number: write_seq, arrived (rcv_nxt
 * without the FIN) and copied (copied_seq) are as in struct tcp_sock. TCP reaches
 * the receiver only while its socket is not locked, as with the backlog.
 */

#ifndef BYTES
#define BYTES		4	/* bytes that the program may send */
#endif
#ifndef CARRIERS
#define CARRIERS	2	/* rings that the sender may offer */
#endif
#ifndef SLOTS
#define SLOTS		2	/* bytes in the first ring */
#endif
#ifndef SECOND
#define SECOND		SLOTS	/* bytes in the next ones */
#endif
#if SECOND > SLOTS
#define MOST		SECOND
#else
#define MOST		SLOTS
#endif
#define BASE		MOST	/* first sequence number: room to requeue */
#define JUNK		255	/* a byte of another member */

#define ABOUT		(carrier == s_carrier)
#define ONLY_IF(what)	if :: what :: else -> carrier = 0; position = 0; goto end_idle fi
#if defined(REPEATED)
#define ANSWERS		7
/* A message without a row in this state, or about another carrier, is stale. */
#ifdef STALE_MESSAGE
#define EXPECT(state)	ONLY_IF(state)
#else
#define EXPECT(state)	ONLY_IF(state && ABOUT)
#endif
#elif defined(REJOIN)
#define ANSWERS		6
/*
 * A message of another generation does not exist. Each generation numbers its
 * carriers from the start; the numbers here include the generation, so that each
 * is unique.
 */
#ifdef STALE_GENERATION
#define EXISTS(known)	true
#define EXPECT(state)	ONLY_IF(state && carrier % 16 == s_carrier % 16)
#else
#define EXISTS(known)	(carrier / 16 == known)
#define EXPECT(state)	ONLY_IF(EXISTS(s_knows)); assert(state && ABOUT)
#endif
#else
#define ANSWERS		5
#define EXPECT(state)	assert(state && ABOUT)
#endif

mtype = { TCP, OFFERED, RING, DRAINING, CONSENTED };	/* states of a side */
mtype = { OFFER, ACCEPT, DECLINE, DEMOTE, DONE };	/* messages */

/* The ring, in the sender's slice. owner: its carrier; 0: free. */
byte ring_owner;
byte ring_head, head_event;
byte ring_tail, tail_event;
bool start_set, end_set;
bool truncation_set;			/* end, written by the receiver */
byte start_seq, truncation_at;
byte ring_data[MOST];
#ifdef BOOLEAN_NOTIFY
bool head_notify;
#endif

/*
 * The mailboxes: in order, asynchronous to ring and TCP. A message is taken at any
 * moment after it was written, so that in some runs it is later than all else.
 */
chan offers = [2] of { mtype, byte };
chan answers = [ANSWERS] of { mtype, byte, byte };
#ifdef REPEATED
/*
 * A message that arrives a second time: an answer at any later moment, an OFFER
 * until its ring has ended. After that only the mailbox distinguishes it from a new
 * one: the receiver keeps its position privately, and advances it first.
 */
byte repeated;				/* 0: not sent; 1: to be sent again; 2: over */
mtype again_what;
byte again_carrier, again_position;
#ifdef OFFER_AFTER_END
#define AGAIN	(r_state == TCP && r_carrier != 0 && !r_closed && !fin_in)
#else
#define AGAIN	(r_state != TCP && !end_set && !truncation_set)
#endif
#endif

/* TCP. */
byte stream[BASE + BYTES];
byte write_seq = BASE, arrived = BASE;
bool fin_sent, fin_in;			/* sent; arrived */
bool rst_sent, rst_in;			/* by the sender of the bytes */
bool rst_back;				/* by their receiver */

/* The sender's socket. */
bool s_lock, s_sleep, s_doorbell, s_err, s_out;
mtype s_state = TCP;
byte s_carrier, s_head, sent, offered;
byte s_i;				/* used within one step: no state */

/* The receiver's socket. */
bool r_lock, r_sleep, r_doorbell, r_work, r_closed, r_early, r_out;
mtype r_state = TCP;
byte r_carrier, r_tail, copied = BASE, delivered;

#ifdef REJOIN
bool r_again;				/* generation of the receiver's member */
bool s_knows;				/* the one that the sender knows */
#define NAMED(number)	(16 * s_knows + (number))
#else
#define NAMED(number)	(number)
#endif

#ifdef DEATH
bool s_dead, r_dead;			/* the whole VM */
bool s_departed, r_departed;		/* PEER_LEFT was handled */
bool s_given;				/* the dead sender's slot has another member */
#define S_ALIVE	provided (!s_dead)
#define R_ALIVE	provided (!r_dead)
#ifdef OFFER_TO_DEPARTED
#define NOT_DEPARTED	true
#else
#define NOT_DEPARTED	!s_departed
#endif
/* Departure is the daemon's word; an unresponsive peer may still read. */
#ifdef UNRESPONSIVE_IS_DEPARTED
#define PEER_LEFT	true
#else
#define PEER_LEFT	r_dead
#endif
/*
 * hall_rx_is_intact: were the copied bytes those of another member? Checked in the
 * step that copies them: a later check finds more, never less.
 */
#ifdef CHECK_BEFORE_COPY
#define CHECK		given = s_given STEP
#define FOREIGN		(given && r_tail < head)
#else
#define CHECK
#define FOREIGN		(s_given && r_tail < head)
#endif
#else
#define S_ALIVE
#define R_ALIVE
#define NOT_DEPARTED	true
#define CHECK
#define FOREIGN		false
#endif

/* Freed memory is neither read nor written. */
#define S_OWNS	assert(ring_owner == s_carrier && ring_owner != 0)
#define R_OWNS	assert(ring_owner == r_carrier && ring_owner != 0)

/* The OFFER states the size, once; each side keeps its own copy. */
#define SIZE(carrier)	(carrier <= 1 -> SLOTS : SECOND)
#ifdef GROW_IN_PLACE
bool s_grown;
#define S_SIZE		(s_grown -> SECOND : SIZE(s_carrier))
#else
#define S_SIZE		SIZE(s_carrier)
#endif
#ifdef SIZE_OF_PREDECESSOR
#define R_SIZE		SLOTS
#else
#define R_SIZE		SIZE(r_carrier)
#endif

#define HAS_RING(state)	(state == RING || state == DRAINING)

inline ring_free()
{
	ring_owner = 0;
	ring_head = 0; head_event = 0; ring_tail = 0; tail_event = 0;
	start_set = 0; end_set = 0; start_seq = 0;
	truncation_set = 0; truncation_at = 0;
	ring_data[0] = 0; ring_data[MOST - 1] = 0;
	s_head = 0; s_carrier = 0
}

/*
 * ---- The sender ----
 */

/* hall_tx_resend: bytes that the receiver did not take go over TCP, first. */
inline tx_resend()
{
	s_i = truncation_at;
	do
	:: s_i < s_head ->
		stream[write_seq] = ring_data[s_i % S_SIZE];
		write_seq++;
		s_i++
	:: else -> break
	od;
	s_i = 0
}

/*
 * hall_tx_demote: sets the end mark, unless the receiver was first and truncated it.
 * head is final; the lock is held.
 */
inline tx_end()
{
	S_OWNS;
	if
#ifndef END_WITHOUT_EXCHANGE
	:: truncation_set -> tx_resend()
#endif
	:: else -> end_set = 1
	fi;
	s_state = DRAINING;
#ifndef END_WITHOUT_WAKE
	s_sleep = 0
#endif
}

inline tx_demote()
{
	atomic {
		tx_end();
#ifdef FREE_BEFORE_DONE
		ring_free();
#endif
	};
#ifndef END_WITHOUT_DOORBELL
	r_doorbell = 1;
#endif
	s_lock = 0
}

/* hall_sendmsg, hall_close: the program. */
proctype Writer() S_ALIVE
{
	byte tail;

again:	if
	:: sent < BYTES
	:: goto out		/* leaves it open: no FIN hides a lost wake-up */
	:: goto finish
#ifndef NO_ABORT
	:: goto abort
#endif
	fi;

	/* hall_sendmsg */
send:	atomic {
		!s_lock -> s_lock = 1;
		if
		:: s_err ->
			s_lock = 0;
			goto out
		:: !s_err && s_state != RING ->
			stream[write_seq] = sent;
			write_seq++;
			sent++;
			s_lock = 0;
			goto again
		:: else ->
			S_OWNS;
			tail = ring_tail;
			if
			:: s_head - tail == S_SIZE -> goto filled
			:: else -> tail = 0
			fi
		fi
	}

put:	/* hall_ring_publish: bytes, release, head */
	atomic {
		S_OWNS;
		ring_data[s_head % S_SIZE] = sent;
		s_head++;
		sent++;
#ifdef FIN_BEFORE_HEAD
		if
		:: fin_sent = 1
		:: ring_head = s_head
		fi
#else
		ring_head = s_head
#endif
	};
	/* hall_ring_publish: full barrier, then head_event */
	atomic {
		S_OWNS;
#ifdef FIN_BEFORE_HEAD
		ring_head = s_head;
#endif
		if
#ifdef BOOLEAN_NOTIFY
		:: head_notify -> r_doorbell = 1
#else
		:: head_event == s_head - 1 -> r_doorbell = 1
#endif
		:: else
		fi;
		s_lock = 0;
#ifdef FIN_BEFORE_HEAD
		if
		:: fin_sent -> goto out
		:: else
		fi;
#endif
		goto again
	}

filled:
#ifdef RESIZE
	/* hall_policy_grow: ends it for a larger one */
	if
#ifdef GROW_IN_PLACE
	:: s_carrier == 1 && !s_grown -> s_grown = 1; goto put
#else
	:: tail = 0;
		tx_demote();
		goto send
#endif
	:: true
	fi;
#endif
	/* hall_ring_arm_tail: on the wait queue, tail_event, full barrier */
	atomic {
		S_OWNS;
		s_sleep = 1;
		tail_event = tail
	};
	/* hall_ring_arm_tail: once more, then sleep */
	atomic {
		S_OWNS;
		tail = ring_tail;
		if
		:: s_head - tail != S_SIZE -> s_sleep = 0; tail = 0; goto put
		:: else -> s_lock = 0; tail = 0
		fi
	};
	/* Woken: check for space, without arming again. */
wait:	atomic {
		!s_sleep && !s_lock -> s_lock = 1;
		if
		:: s_err || s_state != RING ->
			s_lock = 0;
			goto send
		:: else ->
			S_OWNS;
			tail = ring_tail;
			if
			:: s_head - tail != S_SIZE -> tail = 0; goto put
			:: else -> tail = 0; s_sleep = 1; s_lock = 0; goto wait
			fi
		fi
	}

	/* hall_close, or shutdown: head is published; end mark, then FIN */
finish:	atomic {
		!s_lock ->
#ifndef FIN_WITHOUT_END
		if
		:: !s_err && s_state == RING -> tx_end()
		:: else
		fi;
#endif
		if
		:: !s_err -> fin_sent = 1
		:: else
		fi;
		goto out
	}

	/* hall_close with bytes unread in the other direction, or linger 0 */
abort:	atomic {
		!s_lock ->
		if
		:: !s_err -> rst_sent = 1; s_err = 1
		:: else
		fi
	};

out:	s_out = 1
}

#ifdef OFFER_BEFORE_DONE
#define MAY_OFFER	(s_state == TCP || s_state == DRAINING)
#else
#define MAY_OFFER	(s_state == TCP)
#endif

/* The policy offers, demotes and stops at any moment. */
proctype SenderPolicy() S_ALIVE
{
	do
	:: atomic {
		/* hall_channel_offer */
		offered < CARRIERS && MAY_OFFER && !s_lock &&
		!s_err && !fin_sent && NOT_DEPARTED ->
		assert(ring_owner == 0);
		s_carrier = NAMED(2 * offered + 1);
		offered++;
		ring_owner = s_carrier;
#ifdef BOOLEAN_NOTIFY
		head_notify = 1;
#endif
		s_head = 0;
		s_state = OFFERED;
		offers!OFFER, s_carrier
	   }
	:: atomic { s_state == RING && !s_lock -> s_lock = 1 };
		tx_demote()
	:: break
	od
}

/* The message worker of the sender's member. */
proctype SenderWorker() S_ALIVE
{
	byte carrier, position;

end_idle:
	do
	:: atomic {
		!s_lock && answers?[ACCEPT, carrier, position] ->
		answers?ACCEPT, carrier, position;
		EXPECT(s_state == OFFERED);
		carrier = 0; position = 0;
		s_lock = 1
	   };
		atomic {
			if
			/* FIN or RST tells the receiver that the ring stays empty. */
			:: fin_sent || s_err ->
				s_state = DRAINING;
				s_lock = 0;
				goto end_idle
			:: else
			fi;
			/* hall_tx_promote: all earlier bytes went over TCP */
			S_OWNS;
			start_seq = write_seq;
			start_set = 1;
			s_state = RING;
			if
			/* No longer wanted: both marks at once. */
			:: goto withdraw
			:: s_lock = 0; goto end_idle
			fi
		};
withdraw:	tx_demote()
	:: atomic {
		/* on_decline */
		!s_lock && answers?[DECLINE, carrier, position] ->
		answers?DECLINE, carrier, position;
		EXPECT(s_state == OFFERED);
		carrier = 0; position = 0;
		S_OWNS;
		ring_free();
		s_state = TCP
	   }
	:: atomic {
		!s_lock && answers?[DEMOTE, carrier, position] ->
		answers?DEMOTE, carrier, position;
		EXPECT(true);
		carrier = 0; position = 0;
		if
		:: s_state == RING -> s_lock = 1
		:: else -> goto end_idle	/* late: ignored */
		fi
	   };
		tx_demote()
	:: atomic {
		/* on_done: the only place that frees a used ring */
		!s_lock && answers?[DONE, carrier, position] ->
		answers?DONE, carrier, position;
		EXPECT(HAS_RING(s_state));
		if
		:: s_state == RING -> tx_end()
		:: else
		fi;
		/* Bytes that stay unread: a reset, as in TCP. */
		if
		:: position != (truncation_set -> truncation_at : s_head) -> s_err = 1
		:: else
		fi;
		carrier = 0; position = 0;
#ifndef FREE_BEFORE_DONE
		S_OWNS;
		ring_free();
#endif
		s_state = TCP
	   }
#ifdef DEATH
	:: atomic {
		/* PEER_LEFT, after the departed peer's mailbox was emptied */
		PEER_LEFT && !s_departed && !s_lock && empty(answers) ->
		s_departed = 1;
		if
		:: s_state != TCP ->
			S_OWNS;
			ring_free();
			s_state = TCP
		:: else
		fi;
		s_sleep = 0
	   }
#endif
#ifdef REJOIN
	:: atomic {
		/* on_departed: tail tells what was read; then a fresh start */
		s_knows != r_again && !s_lock ->
		s_knows = r_again;
		offered = 0;
		if
		:: s_state == RING -> tx_end()
		:: else
		fi;
		if
		:: s_state != TCP ->
			S_OWNS;
			if
			:: ring_tail != (truncation_set -> truncation_at : s_head) -> s_err = 1
			:: else
			fi;
			ring_free();
			s_state = TCP
		:: else
		fi;
		s_sleep = 0
	   }
#endif
	od
}

/*
 * ---- The receiver ----
 */

/*
 * hall_ring_find_source: which carrier the next byte comes by. The lock is held and
 * nxt, fin, rst were sampled before; then start, then end, then head.
 *
 * FUSED makes one step of it. That loses no run while the order is this one: nxt
 * is frozen, start and end are set once, and head is final once end is set, so
 * fused loads at the moment of one of the split loads find the same. Runs with
 * more bytes are fused; smaller ones and the broken orders are not.
 */
#ifdef FUSED
#define STEP	;
#else
#define STEP	}; atomic {
#endif

#define LOAD_START \
	if \
	:: r_state != TCP -> R_OWNS; started = start_set; mark = start_seq \
	:: else -> started = 0; mark = 0 \
	fi
#define LOAD_END \
	if \
	:: started -> R_OWNS; ended = end_set || truncation_set \
	:: else \
	fi
#define LOAD_HEAD \
	if \
	:: started -> R_OWNS; head = (truncation_set -> truncation_at : ring_head) \
	:: else \
	fi
#ifdef HEAD_BEFORE_END
#define LOAD_REST	LOAD_HEAD STEP LOAD_END
#else
#define LOAD_REST	LOAD_END STEP LOAD_HEAD
#endif
#define SAMPLE		nxt = arrived; fin = fin_in; rst = rst_in
#ifdef MARK_BEFORE_SAMPLE
#define LOOK	LOAD_START STEP SAMPLE STEP LOAD_REST
#else
#define LOOK	CHECK SAMPLE STEP LOAD_START STEP LOAD_REST
#endif
/* Before payload beyond the mark an honest sender sets the end mark. */
#define NOT_BEYOND	assert(!started || copied <= mark && (nxt <= mark || ended))
/*
 * TCP advances only while the socket is not locked. The order of the loads
 * suffices without that (UNFROZEN); the broken order does not.
 */
#if defined(UNFROZEN) || defined(MARK_BEFORE_SAMPLE)
#define THAWED	true
#else
#define THAWED	!r_lock
#endif
/* For the search alone: dead values make no new states. */
#define FORGET	nxt = 0; mark = 0; head = 0; fin = 0; rst = 0; started = 0; ended = 0

#define AT_MARK		(started && copied == mark)
#define TCP_HAS		(copied < nxt && (!started || copied < mark))
#define RING_HAS	(AT_MARK && r_tail < head)
/* No byte of the ring is left to read, or none can be reached any more. */
#define RING_OVER	(r_state != TCP && !TCP_HAS && !RING_HAS && \
			 ((AT_MARK && ended) || fin || rst))
#define AT_EOF		(r_state == TCP && !TCP_HAS && (fin || rst))

/* Finish: unmap, then DONE. */
inline rx_finish()
{
	r_state = TCP;
	answers!DONE, r_carrier, r_tail
}

/* hall_sock_break: a reset, and no byte of TCP in place of the lost ones. */
inline rx_break()
{
	rx_finish();
#ifndef READ_TCP_ON
	copied = arrived;
#endif
	rst_in = 1;
	r_sleep = 0
}

/* hall_recvmsg, hall_close: the program. */
proctype Reader() R_ALIVE
{
	byte nxt, mark, head;
	bool fin, rst, started, ended, armed;
#ifdef CHECK_BEFORE_COPY
	bool given;
#endif

again:	if
	:: armed = 0
#ifndef NO_CLOSE
	:: goto close
#endif
	fi;

	/* hall_recvmsg */
read:
	atomic {
		!r_lock && !r_sleep -> r_lock = 1;
		if
		:: armed -> r_sleep = 1		/* before the next look */
		:: else
		fi;
		LOOK;
		NOT_BEYOND;
look:
		if
		:: TCP_HAS ->
			r_sleep = 0;
			assert(stream[copied] == delivered);
			stream[copied] = 0;
			delivered++;
			copied++;
			FORGET;
			r_lock = 0;
			goto again
#ifdef DEATH
		:: RING_HAS && FOREIGN ->
			armed = 0;
			rx_break();
			FORGET;
			r_lock = 0;
			goto read
#endif
		:: RING_HAS && !FOREIGN ->
			/* hall_ring_consume: bytes, release, tail */
			r_sleep = 0;
			R_OWNS;
			assert(ring_data[r_tail % R_SIZE] == delivered);
			delivered++;
			r_tail++;
			ring_tail = r_tail;
			FORGET
		:: RING_OVER ->
			r_sleep = 0;
			armed = 0;
			rx_finish();
			FORGET;
			r_lock = 0;
			goto read
		:: AT_EOF ->
			r_sleep = 0;
			/* EOF: every byte came. */
			assert(rst || delivered == sent);
			r_lock = 0;
			r_early = rst;
			FORGET;
			goto shut
		:: else ->
			if
			:: armed ->
				FORGET;
				r_lock = 0;
				goto read
			:: else -> goto sleep
			fi
		fi
	};
	/* hall_ring_consume: full barrier, then tail_event */
	atomic {
		R_OWNS;
		if
		:: tail_event == r_tail - 1 -> s_doorbell = 1
		:: else
		fi;
		r_lock = 0;
		goto again
	}

sleep:	/* hall_ring_arm_head: on the wait queue, head_event, full barrier */
	atomic {
		armed = 1;
		r_sleep = 1;
		if
		:: r_state != TCP ->
			R_OWNS;
#ifdef BOOLEAN_NOTIFY
			head_notify = 1
#else
			head_event = r_tail
#endif
		:: else
		fi
	};
	/* hall_ring_arm_head: once more, with all the marks, then sleep */
	atomic {
#ifdef NO_RECHECK
		FORGET;
		r_lock = 0;
		goto read
#else
		LOOK;
		goto look
#endif
	};

	/* hall_close */
close:	r_early = 1;
shut:	atomic {
		!r_lock -> r_lock = 1;
		r_closed = 1;
		SAMPLE;
		/* As in TCP: bytes unread at close cause a reset. */
		if
		:: copied < nxt -> rst_back = 1
		:: else
		fi
		STEP LOAD_START STEP LOAD_REST;
		NOT_BEYOND;
		if
		:: r_state != TCP ->
			if
			:: started && r_tail < head -> rst_back = 1
			:: else
			fi;
			rx_finish()
		:: else
		fi;
		FORGET;
		armed = 0;
		r_lock = 0;
		r_out = 1
	}
}

/*
 * The policy asks for the end mark and truncates the ring at any moment, each
 * once per carrier.
 */
proctype ReceiverPolicy() R_ALIVE
{
	byte asked, truncating, head;

	do
	:: atomic {
		r_state != TCP && asked != r_carrier && !r_lock ->
		asked = r_carrier;
		answers!DEMOTE, r_carrier, 0
	   }
#ifndef NO_TRUNCATE
	:: atomic {
		/* hall_ring_truncate: load head, then exchange end */
		r_state != TCP && truncating != r_carrier && !r_lock -> r_lock = 1;
		R_OWNS;
		truncating = r_carrier;
		head = ring_head
	   };
		atomic {
			R_OWNS;
			if
			:: !end_set && !truncation_set ->
				truncation_set = 1;
				truncation_at = head
			:: else
			fi;
			/* A ring without a start mark is finished at once. */
			if
			:: truncation_set && !start_set -> rx_finish()
			:: else -> r_work = 1
			fi;
			head = 0;
			r_sleep = 0;
			r_lock = 0
		}
#endif
	:: break
	od
}

/* The message worker of the receiver's member. */
proctype ReceiverWorker() R_ALIVE
{
	byte carrier, nxt, mark, head, i;
	bool fin, rst, started, ended;
#ifdef CHECK_BEFORE_COPY
	bool given;
#endif

end_idle:
	do
	:: atomic {
		/* hall_rx_accept, hall_channel_accept */
		!r_lock && offers?[OFFER, carrier] ->
		offers?OFFER, carrier;
#ifdef REJOIN
		if
		:: EXISTS(r_again)
		:: else -> carrier = 0; goto end_idle
		fi;
#endif
		assert(r_state == TCP);
		if
		:: answers!DECLINE, carrier, 0
		:: !r_closed && !fin_in && !rst_in ->
			r_state = CONSENTED;
			r_carrier = carrier;
			r_tail = 0;
			answers!ACCEPT, carrier, 0
		fi;
		carrier = 0
	   }
#ifdef REPEATED
	:: atomic {
		!repeated && AGAIN && !r_lock ->
		repeated = 2;
#if defined(OFFER_TWICE) || defined(OFFER_AFTER_END)
		r_state = CONSENTED;
		r_tail = 0;
		answers!ACCEPT, r_carrier, 0
#else
		answers!DECLINE, r_carrier, 0
#endif
	   }
#endif
	:: atomic {
		r_work && !r_lock ->
		r_work = 0;
		if
		:: r_state == TCP -> goto end_idle
		:: else
		fi;
		r_lock = 1;
		LOOK;
		NOT_BEYOND;
		/* hall_rx_requeue: the rest goes to the head of TCP's queue */
			if
#ifdef DEATH
			:: AT_MARK && (ended || fin || rst) && FOREIGN ->
				rx_break()
#endif
			:: AT_MARK && (ended || fin || rst) && !FOREIGN ->
				R_OWNS;
				i = r_tail;
				do
				:: i < head ->
					stream[mark - (head - i)] =
						ring_data[i % R_SIZE];
					i++
				:: else -> break
				od;
				copied = mark - (head - r_tail);
				r_tail = head;
				ring_tail = head;
				rx_finish();
				r_sleep = 0
			:: else
			fi;
			i = 0; carrier = 0;
			FORGET;
			r_lock = 0
	   }
	od
}

/*
 * ---- The world: TCP, doorbells, the clock ----
 */

#ifdef DEATH
#define S_LIVES	!s_dead
#define R_LIVES	!r_dead
#else
#define S_LIVES	true
#define R_LIVES	true
#endif

proctype World()
{
end_idle:
	do
	/* TCP payload, FIN and RST arrive: sk_data_ready, sk_state_change */
	:: atomic {
		arrived < write_seq && !rst_in && THAWED && R_LIVES ->
		if
		:: r_closed -> rst_back = 1; arrived = write_seq
		:: else -> arrived++; r_sleep = 0
		fi
	   }
	:: atomic {
		fin_sent && !fin_in && arrived == write_seq && THAWED && R_LIVES ->
		fin_in = 1;
		r_work = 1;
		r_sleep = 0
	   }
	:: atomic {
		rst_sent && !rst_in && THAWED && R_LIVES ->
		rst_in = 1;
		r_work = 1;
		r_sleep = 0
	   }
	:: atomic {
		rst_back && !s_err && !s_lock && S_LIVES ->
		s_err = 1;
		s_sleep = 0
	   }
	/* A doorbell, late or stale, clears nothing. */
	:: atomic {
		r_doorbell && R_LIVES ->
		r_doorbell = 0;
#ifdef BOOLEAN_NOTIFY
		head_notify = 0;
#endif
		r_work = 1;
		r_sleep = 0
	   }
	:: atomic {
		s_doorbell && S_LIVES ->
		s_doorbell = 0;
		s_sleep = 0
	   }
#ifdef REPEATED
	/* A message arrives twice: in its turn, and at any moment after. */
	:: atomic {
		!repeated && nempty(answers) ->
		answers?<again_what, again_carrier, again_position>;
		repeated = 1
	   }
	:: atomic {
		repeated == 1 && nfull(answers) ->
		answers!again_what, again_carrier, again_position;
		again_carrier = 0; again_position = 0;
		repeated = 2
	   }
#endif
#ifdef REJOIN
	/* The receiver's member leaves, as it may without a ring, and joins again. */
	:: atomic { !r_again && r_state == TCP && !r_lock -> r_again = 1 }
#endif
#ifdef DEATH
	/* Its slot gets another member, which overwrites unread bytes. */
	:: atomic {
		s_dead && !s_given && ring_tail < ring_head ->
		s_given = 1;
		ring_data[0] = JUNK; ring_data[MOST - 1] = JUNK
	   }
	/* One VM dies; the other learns it; then TCP times out. */
	:: atomic { !s_dead && !r_dead -> s_dead = 1 }
	:: atomic { !s_dead && !r_dead -> r_dead = 1 }
	:: atomic {
		r_dead && s_departed && !s_err && !s_lock ->
		s_err = 1;
		s_sleep = 0
	   }
	:: atomic {
		s_dead && !r_departed && !r_lock && arrived == write_seq ->
		r_departed = 1;
		rst_in = 1;
		r_work = 1;
		r_sleep = 0
	   }
#endif
	od
}

/* What must hold when no process can move. */
proctype Watch()
{
end_idle:
	timeout ->
#ifdef DEATH
	assert(s_dead || s_out);
	assert(r_dead || r_out);
	assert(s_dead || ring_owner == 0)
#else
	assert(s_out);
	/* A reader may sleep only on an open connection. */
	assert(r_out || !(fin_sent || rst_sent || s_err));
	/* Every byte came, unless a program closed early or reset it. */
	assert(r_early || rst_sent || (!s_err && delivered == sent));
	/* No state is half-way; only a connection in use has a ring. */
	assert(s_state == TCP && r_state == TCP && ring_owner == 0 ||
	       s_state == RING && r_state == CONSENTED && !r_out && !fin_sent);
	assert(empty(offers) && empty(answers))
#endif
}

init
{
	atomic {
		run Writer(); run SenderPolicy(); run SenderWorker();
		run Reader(); run ReceiverPolicy(); run ReceiverWorker();
		run World(); run Watch()
	}
}
