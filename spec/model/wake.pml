/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Sleep and wake-up on one ring, with the store buffers of x86 (TSO). A store
 * waits in its processor's buffer, in order, and becomes visible at any later
 * moment: a later load of the same processor may overtake it. Only the full
 * barriers of hall_ring_publish, hall_ring_consume, hall_ring_arm_head and
 * hall_ring_arm_tail keep the two sides from missing each other: each side
 * stores its own word, then looks at the other's.
 *
 * The writer sends BYTES bytes through SLOTS slots and then stops: no FIN, no end
 * mark and no TCP byte hides a lost wake-up.
 */

#ifndef BYTES
#define BYTES	6
#endif
#ifndef SLOTS
#define SLOTS	2
#endif
#ifndef STALE
#define STALE	1	/* doorbells without a cause, for each side */
#endif

mtype = { HEAD, TAIL, HEAD_EVENT, TAIL_EVENT };

/* Shared memory. With BOOLEAN_NOTIFY an event word of 1 asks for a doorbell. */
byte head, tail;
byte data[SLOTS];
byte head_event, tail_event;

/* Store buffers. */
chan w_stores = [2] of { mtype, byte };
chan r_stores = [2] of { mtype, byte };

bool w_doorbell, r_doorbell;		/* rung, not yet handled */
bool w_sleep, r_sleep;		/* on the wait queue */
bool w_out;
byte received;

#ifdef NO_BARRIER
#define BARRIER(stores)	true
#else
#define BARRIER(stores)	empty(stores)
#endif

/* head_event or tail_event asks for a doorbell at the step from old to new. */
#ifdef BOOLEAN_NOTIFY
#define ASKED(event, old, new)	(event != 0)
#define ARMED(position)		1
#else
#define ASKED(event, old, new)	(old <= event && event < new)
#define ARMED(position)		(position)
#endif

active proctype Writer()
{
	byte own, seen, before;

	/* hall_sendmsg: one byte or more before it publishes */
	do
	:: own < BYTES ->
check:		seen = tail;
		if
		:: own - seen < SLOTS
		:: else ->
			/* hall_ring_arm_tail */
			w_sleep = 1;
			w_stores!TAIL_EVENT, ARMED(seen);
			BARRIER(w_stores);
#ifndef NO_RECHECK
			atomic {
				if
				:: tail != seen -> w_sleep = 0; goto check
				:: else
				fi
			};
#endif
			/* Woken in vain: sleeps again, without arming again. */
sleep:			atomic { !w_sleep -> w_sleep = 1 };
			atomic {
				if
				:: own - tail < SLOTS -> w_sleep = 0; goto check
				:: else -> goto sleep
				fi
			}
		fi;
		atomic {
			before = own;
			do
			:: own < BYTES && own - seen < SLOTS ->
				data[own % SLOTS] = own;
				own++;
				if
				:: break
				:: skip
				fi
			:: else -> break
			od;
			seen = 0
		};
		/* hall_ring_publish */
		w_stores!HEAD, own;
		BARRIER(w_stores);
		atomic {
			if
			:: ASKED(head_event, before, own) -> r_doorbell = 1
			:: else
			fi;
			before = 0
		}
	:: else -> break
	od;
	w_out = 1
}

active proctype Reader()
{
	byte own, seen, before;

	/* hall_recvmsg */
end_idle:
	do
	:: true ->
check:		seen = head;
		if
		:: own < seen
		:: else ->
			/* hall_ring_arm_head */
			r_sleep = 1;
			r_stores!HEAD_EVENT, ARMED(own);
			BARRIER(r_stores);
#ifndef NO_RECHECK
			atomic {
				if
				:: head != own -> r_sleep = 0; goto check
				:: else
				fi
			};
#endif
end_sleep:		atomic { !r_sleep -> r_sleep = 1 };
			atomic {
				if
				:: head != own -> r_sleep = 0; goto check
				:: else -> goto end_sleep
				fi
			}
		fi;
		atomic {
			before = own;
			do
			:: own < seen ->
				assert(data[own % SLOTS] == own);
				own++;
				received++;
				if
				:: break
				:: skip
				fi
			:: else -> break
			od;
			seen = 0
		};
		/* hall_ring_consume */
		r_stores!TAIL, own;
		BARRIER(r_stores);
		atomic {
			if
			:: ASKED(tail_event, before, own) -> w_doorbell = 1
			:: else
			fi;
			before = 0
		}
	od
}

/* Store buffers drain; doorbells arrive, some late or stale. */
active proctype World()
{
	mtype word;
	byte value, stale_w, stale_r;

end_idle:
	do
	:: atomic {
		w_stores?word, value ->
		if
		:: word == HEAD -> head = value
		:: else -> tail_event = value
		fi;
		word = 0;
		value = 0
	   }
	:: atomic {
		r_stores?word, value ->
		if
		:: word == TAIL -> tail = value
		:: else -> head_event = value
		fi;
		word = 0;
		value = 0
	   }
	/* Doorbells. */
	:: atomic {
		w_doorbell ->
		w_doorbell = 0;
#ifdef BOOLEAN_NOTIFY
		tail_event = 0;
#endif
		w_sleep = 0
	   }
	:: atomic {
		r_doorbell ->
		r_doorbell = 0;
#ifdef BOOLEAN_NOTIFY
		head_event = 0;
#endif
		r_sleep = 0
	   }
	:: atomic { stale_w < STALE && !w_doorbell -> stale_w++; w_doorbell = 1 }
	:: atomic { stale_r < STALE && !r_doorbell -> stale_r++; r_doorbell = 1 }
	od
}

active proctype Watch()
{
end_idle:
	timeout ->
	assert(w_out);
	assert(received == BYTES)
}
