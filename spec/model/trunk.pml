/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Trunks: datagrams of one VM to another. Sockets of either VM come and go at any moment;
 * trunks are offered, accepted, declined and ended, one after another, and a second one
 * while the first is still read; and either VM dies. The model checks the trunks of section
 * 8 of ../protocol.md.
 *
 * The writer has RINGS pieces of ring memory, each with an endpoint number. Messages and
 * accesses name the trunk that they are about, which real ones do not: each end asserts
 * that it is its own. Datagrams are numbered in the order in which they are sent. The
 * doorbell is armed always, for wake.pml is about the event index.
 *
 * Every run ends, and Watch() judges what is left.
 */

#ifndef TRUNKS
#define TRUNKS	3
#endif
#ifndef LETTERS
#define LETTERS	3	/* of all trunks */
#endif
#define RINGS	2
#define OPENED	2	/* times that a VM opens its first socket */

mtype = { ACCEPT, DECLINE, DONE };

chan to_reader = [TRUNKS] of { byte, byte };		/* OFFER: trunk, ring */
chan to_writer = [5] of { mtype, byte, byte, byte };	/* message, trunk, ring, position */

typedef Ring {
	byte owner;	/* the trunk; 0: free */
	byte head;
	bool end;
	byte first;	/* number of its first datagram */
	byte opening;	/* of the writer's sockets */
};
Ring ring[RINGS];

/* The writer. */
bool w_socket, w_stays;	/* stays: it is not closed */
byte w_opened, trunks, letters;
byte table = RINGS;	/* ring of the trunk that is written; RINGS: none */
bool known[RINGS];	/* the number of the reader's endpoint */

/* The reader. */
bool r_socket, r_stays;
byte r_opened;
byte mapped[RINGS];	/* the trunk; 0: none */
byte read[RINGS];
bool due[RINGS];	/* a doorbell, or an event */
byte latest[OPENED + 1];	/* number of the latest datagram of each opening */
byte taken;
bool refused;		/* datagrams may be lost */

bool dead, departed;	/* one of the two; the other one knows */
#ifdef READER_DIES
#define W_LIVES	true
#define R_LIVES	!dead
#else
#define W_LIVES	!dead
#define R_LIVES	true
#endif

#define NOTIFY(r) \
	if \
	:: known[r] -> due[r] = true \
	:: else \
	fi

/* A trunk may be read while the one before it is not read to its end. */
#ifdef ORDER_OF_ALL
#define ORDER(r)	0
#else
#define ORDER(r)	ring[r].opening
#endif

/* hall_tunnel_free_tx(), forget() */
inline free_ring(r)
{
	ring[r].owner = 0;
#ifndef WRITE_ON
	if
	:: table == r -> table = RINGS
	:: else
	fi
#endif
}

proctype Writer()
{
	byte r;

end_idle:
	do
	/* hall_trunks_open() */
	:: atomic { W_LIVES && !w_socket && w_opened < OPENED ->
		w_socket = true; w_opened++;
		if :: w_stays = true :: w_stays = false fi }
	/* open_trunk() */
	:: atomic { W_LIVES && w_socket && table == RINGS && trunks < TRUNKS && !departed &&
		    (ring[0].owner == 0 || ring[1].owner == 0) ->
		r = (ring[0].owner == 0 -> 0 : 1);
		trunks++;
		ring[r].owner = trunks; ring[r].head = 0; ring[r].end = false;
		ring[r].first = letters + 1; ring[r].opening = w_opened;
		known[r] = false;
		table = r;
		to_reader!trunks, r }
	/* write_letter() */
	:: atomic { W_LIVES && w_socket && table < RINGS && letters < LETTERS ->
		assert(ring[table].owner && !ring[table].end);
		letters++; ring[table].head++;
		NOTIFY(table) }
	/* hall_trunks_close() */
	:: atomic { W_LIVES && w_socket && !w_stays ->
		w_socket = false;
		if
		:: table < RINGS ->
			ring[table].end = true;
#ifndef END_WITHOUT_DOORBELL
			NOTIFY(table);
#endif
#ifdef FREE_AT_END
			ring[table].owner = 0;
#endif
			table = RINGS
		:: else
		fi }
	od
}

/* run_writer() */
proctype WriterWorker()
{
	byte trunk, r, position;

end_idle:
	do
	:: atomic { W_LIVES && to_writer?[ACCEPT, trunk, r, position] ->
		to_writer?ACCEPT, trunk, r, position;
		assert(ring[r].owner == trunk);
		known[r] = true;
#ifndef NO_LOOK_AT_ACCEPT
		due[r] = true
#endif
		}
	:: atomic { W_LIVES && to_writer?[DECLINE, trunk, r, position] ->
		to_writer?DECLINE, trunk, r, position;
		assert(ring[r].owner == trunk);
#ifndef KEEP_DECLINED
		free_ring(r)
#endif
		}
	:: atomic { W_LIVES && to_writer?[DONE, trunk, r, position] ->
		to_writer?DONE, trunk, r, position;
		assert(ring[r].owner == trunk && position <= ring[r].head);
		free_ring(r) }
#ifdef READER_DIES
	:: atomic { dead && !departed && empty(to_writer) ->
		departed = true;
		free_ring(0); free_ring(1) }
#endif
	od
}

/* finish_reading() */
inline finish_reading(r)
{
	to_writer!DONE, mapped[r], r, read[r];
	mapped[r] = 0
}

/* hall_letter_deliver() */
inline take_letter(r)
{
	assert(ring[r].owner == mapped[r]);
	assert(latest[ORDER(r)] < ring[r].first + read[r]);
	latest[ORDER(r)] = ring[r].first + read[r];
	read[r]++;
	if
	:: r_socket -> taken++
	:: else -> refused = true
	fi
}

/* read_trunk(), run_reader() */
inline look(r)
{
	if
	:: mapped[r] == 0 -> due[r] = false
	:: mapped[r] && !r_socket -> refused = true; finish_reading(r)
	:: mapped[r] && r_socket ->
		assert(ring[r].owner == mapped[r]);
		if
		:: read[r] < ring[r].head -> take_letter(r)
		:: read[r] == ring[r].head && ring[r].end -> finish_reading(r)
		:: else -> due[r] = false
		fi
	fi
}

proctype Reader()
{
	byte trunk, r;

end_idle:
	do
	:: atomic { R_LIVES && !r_socket && r_opened < OPENED ->
		r_socket = true; r_opened++;
		if :: r_stays = true :: r_stays = false fi }
	/* end_all() */
	:: atomic { R_LIVES && r_socket && !r_stays ->
		r_socket = false;
#ifndef KEEP_MAPPED
		due[0] = due[0] || mapped[0];
		due[1] = due[1] || mapped[1]
#endif
		}
	/* hall_trunk_serve() */
	:: atomic { R_LIVES && to_reader?[trunk, r] ->
		to_reader?trunk, r;
		if
		:: !r_socket -> refused = true; to_writer!DECLINE, trunk, r, 0
		/* No memory. */
		:: refused = true; to_writer!DECLINE, trunk, r, 0
		:: r_socket ->
			assert(mapped[r] == 0);
			mapped[r] = trunk; read[r] = 0; due[r] = true;
			to_writer!ACCEPT, trunk, r, 0
		fi }
	:: atomic { R_LIVES && due[0] -> look(0) }
	:: atomic { R_LIVES && due[1] -> look(1) }
#ifdef WRITER_DIES
	/* end_at_head(): all that was sent is taken before the memory is given away. */
	:: atomic { dead && !departed && empty(to_reader) ->
		r = 0;
		do
		:: r < RINGS ->
#ifndef FORGET_SENT
			do
			:: mapped[r] && read[r] < ring[r].head -> take_letter(r)
			:: else -> break
			od;
#endif
#ifndef READ_ON
			mapped[r] = 0;
#endif
			ring[r].owner = 0;
			r++
		:: else -> break
		od;
		departed = true }
#endif
	od
}

#if defined(READER_DIES) || defined(WRITER_DIES)
proctype Death()
{
	if
	:: dead = true
	:: true
	fi
}
#endif

#define IDLE(r)	(ring[r].owner == 0 || (table == r && w_socket))
#define READ(r)	(mapped[r] == 0 || (r_socket && read[r] == ring[r].head))

/* What must hold when no process can move. */
proctype Watch()
{
end_idle:
	timeout ->
	/* No memory is left but that of a trunk which is written. */
	assert(IDLE(0) && IDLE(1));
#ifdef READER_DIES
	assert(!dead || (ring[0].owner == 0 && ring[1].owner == 0));
	assert(dead || (READ(0) && READ(1) && empty(to_reader)));
#else
	assert(READ(0) && READ(1) && empty(to_reader));
	/* Each datagram has arrived, if no trunk was refused. */
	assert(refused || taken == letters);
#endif
	assert(dead || empty(to_writer))
}

init
{
	atomic {
		run Writer(); run WriterWorker(); run Reader();
#if defined(READER_DIES) || defined(WRITER_DIES)
		run Death();
#endif
		run Watch()
	}
}
