/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The pending bits of one word of a mailbox, and the doorbell. Threads of its sender set
 * the bit of an endpoint each, and ring only if the word had no bit before: the reader takes
 * all bits of a word at once. A bit is set, and bits are taken, by bus-locked instructions,
 * which are full barriers: no store buffer is needed here.
 *
 * A thread may stand still between its bit and its doorbell for as long as it likes; in the
 * kernel that is short, since it can't be preempted.
 *
 * LOSS: a doorbell is lost, and another member sets a bit that rings nothing. The sender
 * looks now and then, and rings again for bits that are still there.
 */

#ifndef THREADS
#define THREADS	3
#endif
#ifndef TURNS
#define TURNS	2	/* bits that each thread sets */
#endif
#define FOREIGN	(1 << THREADS)	/* a bit of no thread */

byte word;			/* pending */
bool doorbell;			/* rung, and not heard: doorbells merge */
byte posted[THREADS], seen[THREADS];
bool arrived;

active [THREADS] proctype Thread()
{
	byte turn, before;

	arrived;
	do
	:: turn < TURNS ->
		turn++;
		posted[_pid]++;
		/* hall_mailbox_mark */
#ifdef LOOK_AND_SET
		before = word;
		word = word | (1 << _pid);
#else
		atomic { before = word; word = word | (1 << _pid) };
#endif
		atomic {
			if
			:: before == 0 -> doorbell = 1
			:: else
			fi;
			before = 0
		}
	:: else -> break
	od
}

active proctype Reader()
{
	byte taken, i;

end_idle:
	do
	:: doorbell ->
#ifdef HEAR_LATE
		skip;
#else
		doorbell = 0;
#endif
		/* take_word */
#ifdef WAKE_AND_TAKE
		taken = word;
#else
		atomic { taken = word; word = 0 };
#endif
		i = 0;
		do
		:: i < THREADS ->
			if
			:: taken & (1 << i) -> seen[i] = posted[i]
			:: else
			fi;
			i++
		:: else -> break
		od;
#ifdef WAKE_AND_TAKE
		word = 0;
#endif
#ifdef HEAR_LATE
		doorbell = 0;
#endif
		taken = 0
	od
}

/* Arrival: the former peer may have left a bit, for which no doorbell comes. */
active proctype World()
{
	bool lost, written;

	if
	:: word = FOREIGN
	:: skip
	fi;
#ifndef KEEP_BITS
	/* hall_mailbox_init */
	word = 0;
#endif
	arrived = 1;
end_idle:
	do
#ifdef LOSS
	:: atomic { !lost && doorbell -> lost = 1; doorbell = 0 }
	:: atomic { !written -> written = 1; word = word | FOREIGN }
#else
	:: false
#endif
	od
}

/* No process can move. */
active proctype Watch()
{
	byte i;

end_idle:
	do
	:: timeout ->
#if defined(LOSS) && !defined(NO_REPEAT)
		/* hall_mailbox_check */
		if
		:: word != 0 -> doorbell = 1; goto end_idle
		:: else
		fi;
#endif
		i = 0;
		do
		:: i < THREADS ->
			assert(posted[i] == TURNS && seen[i] == TURNS);
			i++
		:: else -> break
		od;
		break
	od
}
