/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Tunnels, one after another: request, answer or refusal; connects that are given up;
 * bytes both ways, ends, closed sockets and a reset, at any moment; and the death of the
 * listener's side. The model checks section 8 of ../protocol.md.
 *
 * Both sides have one endpoint number and one piece of ring memory, which the next
 * tunnel uses at once. Messages and accesses name the tunnel that they are about, which
 * real ones do not: each end asserts that it is its own. Bytes are counted, for rings
 * keep their order: wake.pml checks that.
 *
 * A patient program closes its socket only once it has read the end or an error: it must
 * get one of them. Every run ends, and Watch() judges what is left.
 */

#ifndef BYTES
#define BYTES	1	/* each way, at most */
#endif
#define TUNNELS	2

#define CALLER	0
#define SERVER	1
#define OTHER(me)	(1 - me)

mtype = { NONE, CALLING, CONNECTED, REFUSED };
mtype = { REQUEST, ANSWER, DECLINE, DONE };

/* To a side: message, tunnel, position, and whether it resets. */
chan to[2] = [4] of { mtype, byte, byte, bool };

typedef Side {
	mtype state = NONE;
	byte tunnel;		/* whose number it is; 0: free */
	byte owner;		/* of its ring; 0: free */
	byte head;
	bool end, reset, truncated;	/* marks */
	bool mapped;		/* it reads the other's ring, */
	byte read;		/* up to here */
	bool socket;
	bool patient;
	bool failed, eof;
	bool must_fail;		/* the peer has reset a stream that had not ended */
};
Side side[2];

byte tunnels;
bool was_reset;			/* one is enough */
bool dead, departed;		/* the server; the caller knows */

#define ME	side[me]
#define PEER	side[OTHER(me)]
#define LIVES(me)	!(dead && me == SERVER)

inline begin_side(number, new_state)
{
	ME.tunnel = number; ME.state = new_state;
	ME.read = 0; ME.mapped = false; ME.failed = false; ME.eof = false;
	ME.must_fail = false; ME.socket = true;
	if :: ME.patient = true :: ME.patient = false fi;
	/* hall_tunnel_alloc() */
	assert(ME.owner == 0);
	ME.owner = number; ME.head = 0; ME.end = false; ME.reset = false; ME.truncated = false
}

/* hall_tunnel_close_channel() */
inline free_number()
{
	if
#ifdef NUMBER_BEFORE_DONE
	:: !ME.mapped && ME.state != NONE && !ME.socket ->
#else
	:: ME.owner == 0 && !ME.mapped && ME.state != NONE && !ME.socket ->
#endif
		ME.state = NONE; ME.tunnel = 0
	:: else
	fi
}

/* hall_tunnel_finish_rx() */
inline finish_reading(reset)
{
	if
	:: ME.mapped -> ME.mapped = false; to[OTHER(me)]!DONE, ME.tunnel, ME.read, reset
	:: else
	fi
}

/* hall_ring_set_end(): where the reader has truncated the ring it has no effect. */
inline set_end()
{
	if
	:: ME.truncated
	:: else -> ME.end = true
	fi
}

/* on_reset() */
inline reset_tunnel()
{
	if
	:: ME.owner && !ME.end && PEER.tunnel == ME.tunnel -> PEER.must_fail = true
	:: else
	fi;
	/* hall_tunnel_truncate_rx() */
	if
	:: ME.mapped && !PEER.end -> PEER.truncated = true
	:: else
	fi;
	/* end_by_reset() */
	if
	:: !ME.mapped && ME.owner && !ME.end ->
#ifndef RESET_WITHOUT_MARK
		set_end();
#endif
#ifndef RESET_AS_END
		ME.reset = true;
#endif
		skip
	:: else
	fi;
#ifdef RESET_AS_DONE
	finish_reading(false);
#else
	finish_reading(true);
#endif
	ME.failed = true
}

/* release_socket(), hall_tunnel_cancel() */
inline close_socket()
{
	if
	:: ME.state == CONNECTED ->
		if
		:: ME.owner && !ME.failed -> set_end()
		:: else
		fi;
		finish_reading(false)
	:: else
#ifdef FREE_AT_GIVE_UP
		ME.owner = 0
#endif
	fi;
#ifdef FREE_AT_CLOSE
	ME.owner = 0;
#endif
	ME.socket = false;
	free_number()
}

proctype Program(byte me)
{
end_idle:
	do
	:: atomic { me == CALLER && ME.state == NONE && tunnels < TUNNELS && !departed ->
		tunnels++;
		begin_side(tunnels, CALLING);
		to[SERVER]!REQUEST, tunnels, 0, false }
	/* Write. */
	:: atomic { ME.state == CONNECTED && LIVES(me) && ME.socket && ME.owner && !ME.end &&
		    !ME.failed && ME.head < BYTES ->
		assert(ME.owner == ME.tunnel);
		ME.head++ }
	/* shutdown(SHUT_WR) */
	:: atomic { ME.state == CONNECTED && LIVES(me) && ME.socket && ME.owner && !ME.end && !ME.failed ->
		set_end() }
	/* Read: a byte, or the end. */
	:: atomic { ME.mapped && LIVES(me) && ME.read < PEER.head ->
		assert(PEER.owner == ME.tunnel);
		ME.read++ }
	:: atomic { ME.mapped && LIVES(me) && PEER.end && ME.read == PEER.head ->
		assert(PEER.owner == ME.tunnel);
		if
		:: PEER.reset -> ME.failed = true
		:: else -> assert(!ME.must_fail); ME.eof = true
		fi;
		finish_reading(false);
		free_number() }
	/* Or nothing more, after a reset. */
	:: atomic { ME.mapped && LIVES(me) && ME.failed && ME.read == PEER.head ->
		assert(PEER.owner == ME.tunnel);
		finish_reading(false);
		free_number() }
	/* close() */
	:: atomic { ME.socket && LIVES(me) && (!ME.patient || ME.eof || ME.failed) ->
		close_socket() }
	od
}

proctype Worker(byte me)
{
	byte number, position;
	bool reset;

end_idle:
	do
	:: atomic { LIVES(me) && to[me]?[REQUEST, number, position, reset] ->
		to[me]?REQUEST, number, position, reset;
		if
		/* hall_tunnel_serve(): no listener, or a full backlog */
		:: to[CALLER]!DECLINE, number, 0, false
		:: ME.state == NONE ->
			begin_side(number, CONNECTED);
			ME.mapped = true;
			to[CALLER]!ANSWER, number, 0, false
		fi }
	:: atomic { LIVES(me) && to[me]?[ANSWER, number, position, reset] ->
		to[me]?ANSWER, number, position, reset;
		if
		/* One that was reset meanwhile has failed. */
		:: ME.tunnel == number && ME.state == CALLING && ME.socket && !ME.failed ->
			ME.mapped = true;
			ME.state = CONNECTED
		:: else ->
#ifndef IGNORE_ANSWER
			to[SERVER]!DECLINE, number, 0, false
#endif
			skip
		fi }
	:: atomic { LIVES(me) && to[me]?[DECLINE, number, position, reset] ->
		to[me]?DECLINE, number, position, reset;
		if
		:: ME.tunnel == 0 -> goto end_idle
		:: else
		fi;
		assert(ME.tunnel == number);
		if
		:: ME.state == CALLING -> ME.state = REFUSED
		:: else -> finish_reading(true)
		fi;
		ME.owner = 0;
#ifndef DECLINE_WITHOUT_RESET
		ME.failed = true;
#endif
		free_number() }
	:: atomic { LIVES(me) && to[me]?[DONE, number, position, reset] ->
		to[me]?DONE, number, position, reset;
		if
		:: ME.tunnel == 0 -> goto end_idle
		:: else
		fi;
		assert(ME.tunnel == number && ME.owner == number);
		assert(position <= ME.head);
		ME.owner = 0;
		if
		:: ME.state == CALLING -> ME.state = REFUSED; ME.failed = true
		:: else
		fi;
		if
		:: reset -> ME.failed = true
		:: else
		fi;
		free_number() }
	/* hallway tunnels off */
	:: atomic { LIVES(me) && !was_reset && ME.state == CONNECTED ->
		was_reset = true;
		reset_tunnel();
		free_number() }
	:: atomic { LIVES(me) && !was_reset && ME.state == CALLING && ME.socket ->
		was_reset = true;
		ME.failed = true }
#ifdef DEATH
	:: atomic { me == CALLER && dead && !departed && empty(to[CALLER]) ->
		/* on_departed(): what is unread was copied */
		departed = true;
		ME.mapped = false; ME.owner = 0; ME.failed = true;
		if
		:: ME.state == CALLING -> ME.state = REFUSED
		:: else
		fi;
		free_number() }
#endif
	od
}

#ifdef DEATH
proctype Death()
{
	if
	:: dead = true
	:: true
	fi
}
#endif

/* What must hold when no process can move. */
proctype Watch()
{
end_idle:
	timeout ->
	assert(side[CALLER].state == NONE && side[CALLER].owner == 0);
	assert(!side[CALLER].socket && !side[CALLER].mapped);
	assert(dead || (side[SERVER].state == NONE && side[SERVER].owner == 0));
	assert(dead || (!side[SERVER].socket && !side[SERVER].mapped));
	assert(empty(to[CALLER]) && (dead || empty(to[SERVER])))
}

init
{
	atomic {
		run Program(CALLER); run Program(SERVER);
		run Worker(CALLER); run Worker(SERVER);
#ifdef DEATH
		run Death();
#endif
		run Watch()
	}
}
