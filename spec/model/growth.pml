/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A ring that grows: its sender writes on in a larger area at any moment, once. Each
 * access to shared memory is a step of its own, in the order of hall_ring_grow(),
 * hall_ring_publish() and hall_ring_count_used(). The receiver must find every byte
 * where it was written. wake.pml has sleep and wake-up: growth leaves positions alone.
 */

#ifndef BYTES
#define BYTES	7
#endif
#ifndef FIRST
#define FIRST	2	/* slots of the data before */
#endif
#define AREA	3

/* Shared memory. Byte p has the value p + 1; grown is 0, or the position + 1. */
byte head, tail, grown, area_size;
byte first[FIRST], area[AREA];

active proctype Sender()
{
	byte own, seen, at, size = FIRST, ahead;
	bool has_grown;

	do
	:: !has_grown ->
#ifdef SIZE_LATE
		grown = own + 1;
		area_size = AREA;
#else
		area_size = AREA;
#ifndef MARK_LATE
		grown = own + 1;
#endif
#endif
		has_grown = true; at = own; size = AREA;
#ifdef FREE_FORMER
		first[0] = 0;
#endif
	:: own < BYTES ->
		seen = tail;
		ahead = own;
		do
		:: d_step {
#ifdef COUNT_FORMER
			ahead < BYTES && ahead - seen < (has_grown -> FIRST + AREA : FIRST) ->
#else
			ahead < BYTES && ahead - (at > seen -> at : seen) < size ->
#endif
				if
				:: has_grown -> area[ahead % AREA] = ahead + 1
				:: else -> first[ahead % FIRST] = ahead + 1
				fi;
				ahead++ }
		:: break
		od;
		own = ahead;
		head = own;
#ifdef MARK_LATE
		if
		:: has_grown && !grown -> grown = at + 1
		:: else
		fi
#endif
	:: own == BYTES && has_grown -> break
	od
}

active proctype Receiver()
{
	byte own, found, seen, at, mark, size, value;
	bool has_grown;

	do
	:: own < BYTES ->
#ifdef LOOK_EARLY
		mark = grown;
		found = head;
#else
		found = head;
		mark = grown;
#endif
		if
		:: mark && !has_grown ->
			size = area_size;
			assert(size == AREA);
			has_grown = true; at = mark - 1;
			/* take_area() finds it possible. */
			assert(at >= seen && at - own <= FIRST)
		:: else
		fi;
		d_step {
			/* As hall_ring_count_used() finds it. */
			assert(found >= seen &&
			       found <= (has_grown -> (at > own -> at : own) + AREA : own + FIRST));
			seen = found
		};
		do
		:: own < seen ->
			if
			:: has_grown && own >= at -> value = area[own % AREA]
			:: else -> value = first[own % FIRST]
			fi;
			assert(value == own + 1);
			own++
		:: break
		od;
		tail = own
	:: own == BYTES -> break
	od
}
