/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * A listener's port comes to be published, while its program closes it and listens
 * again, the host's policy changes and says so, and the outsourcer dies and another one
 * comes, each at any moment. The model checks the LISTENER of section 7 of
 * ../protocol.md.
 *
 * The guest has one listener at a time, and an object for each time that it asks: objects
 * of closed ones live until the outsourcer's last word. Messages arrive in order, and the
 * work on an object comes later, in its own order. Watch() judges the state when no
 * process can move: a port that is to be published is, and no other.
 */

#ifndef LISTENS
#define LISTENS		2	/* times that the program listens */
#endif
#ifndef POLICIES
#define POLICIES	2	/* changes of the policy */
#endif
#define OBJECTS		9	/* more than there can be, and 1 */

mtype = { NONE, CALLING, CONNECTED };			/* of an object */
mtype = { CALL, GIVE_UP, ACCEPT, DECLINE, DONE, QUESTION };	/* messages */

/* Message, object. */
chan to_host = [8] of { mtype, byte };
chan to_guest = [8] of { mtype, byte };

/* The guest. */
bool listening, walk;
byte objects, current;		/* current: the listener's object; 0: none */
byte policy;			/* counts questions */
byte outsourcer = 1;		/* generation; 0: none is known */
mtype g_state[OBJECTS] = NONE;
bool g_closed[OBJECTS], g_accepted[OBJECTS], g_declined[OBJECTS], g_done[OBJECTS];
bool g_departed[OBJECTS];
byte g_policy[OBJECTS], g_generation[OBJECTS];
short raised;			/* objects with work to do */

#define raise(c)	raised = raised | (1 << c)

/* The host. */
bool publishes = true, alive = true;
byte generation = 1;
bool h_known[OBJECTS], h_listens[OBJECTS];
byte sockets;			/* that listen at the port: one, at most */

/* What an object needs of its outsourcer. A message to a dead one is lost. */
inline tell_host(message, c)
{
	if
	:: alive && g_generation[c] == generation -> to_host!message, c
	:: else
	fi
}

inline close_listener(c)
{
	if
	:: !g_closed[c] ->
		g_closed[c] = true;
		if
		:: g_state[c] == CONNECTED -> tell_host(DONE, c)
#ifndef NO_GIVE_UP
		:: g_state[c] == CALLING -> tell_host(GIVE_UP, c)
#endif
		:: else
		fi
	:: else
	fi
}

inline forget(c)
{
	if :: current == c -> current = 0 :: else fi
}

inline end_listener(c)
{
	g_state[c] = NONE;
	g_closed[c] = true;
	forget(c);
#ifndef NO_SECOND_LOOK
	if :: g_policy[c] != policy -> walk = true :: else fi
#endif
}

/* make_listener() and ask_outsourcer() */
inline ask()
{
	atomic {
		if
		:: listening && !current && outsourcer ->
			objects++;
			assert(objects < OBJECTS);
			current = objects;
			ask_c = objects;
			g_generation[ask_c] = outsourcer;
			g_policy[ask_c] = policy
		:: else -> ask_c = 0
		fi
	}
	atomic {
		if
		:: ask_c && !g_closed[ask_c] ->
			/* It departed meanwhile: no event of that comes. */
			if
			:: g_generation[ask_c] != outsourcer -> end_listener(ask_c); walk = true
			:: else -> g_state[ask_c] = CALLING; tell_host(CALL, ask_c)
			fi
		:: else
		fi
	}
}

active proctype Program()
{
	byte ask_c, n;

	for (n : 1 .. LISTENS) {
		listening = true;
		ask();
		if
		:: break	/* It listens on. */
		:: atomic { listening = false;
			    if :: current -> close_listener(current); forget(current) :: else fi }
		fi
	}
}

active proctype Walk()
{
	byte ask_c;

end:	do
	:: walk -> walk = false; ask()
	od
}

/* The softirq, and the work items. */
active proctype Guest()
{
	byte c;

end:	do
	:: atomic { to_guest?QUESTION, c -> policy++; walk = true }
	:: atomic { to_guest?ACCEPT, c -> assert(g_state[c] == CALLING); g_accepted[c] = true; raise(c) }
	:: atomic { to_guest?DECLINE, c -> assert(g_state[c] == CALLING); g_declined[c] = true; raise(c) }
	:: atomic { to_guest?DONE, c -> assert(g_state[c] != NONE); g_done[c] = true; raise(c) }
	:: atomic { raised ->
		    c = 1;
		    do
		    :: raised & (1 << c) -> break
		    :: raised >> (c + 1) -> c++
		    od;
		    raised = raised & ~(1 << c);
		    if
		    :: g_accepted[c] ->
			g_accepted[c] = false;
			g_state[c] = CONNECTED;
			if :: g_closed[c] -> tell_host(DONE, c) :: else fi
		    :: else -> skip
		    fi;
		    if
		    :: g_declined[c] -> g_declined[c] = false; end_listener(c)
		    :: else -> skip
		    fi;
		    if
		    :: g_done[c] ->
			g_done[c] = false;
#ifndef ONE_DONE
			close_listener(c);
#endif
			end_listener(c)
		    :: else -> skip
		    fi;
		    if
		    :: g_departed[c] ->
			g_departed[c] = false;
			end_listener(c);
#ifndef FORGET_DEPARTED
			walk = true
#endif
		    :: else -> skip
		    fi }
	od
}

inline close_on_host(c)
{
	if
	:: h_listens[c] -> h_listens[c] = false; sockets--; to_guest!DONE, c
	:: else
	fi
}

inline change_policy()
{
	publishes = !publishes;
	n = 1;
	do
	:: n < OBJECTS ->
		if :: !publishes -> close_on_host(n) :: else fi;
		n++
	:: else -> break
	od
}

active proctype Outsourcer()
{
	byte c, n, changes;

end:	do
	:: atomic { alive && to_host?[CALL] ->
		to_host?CALL, c;
		if
		:: publishes ->
			/* A second one would be EADDRINUSE. */
			assert(!sockets);
			h_known[c] = true; h_listens[c] = true; sockets++;
			to_guest!ACCEPT, c
		:: else -> to_guest!DECLINE, c
		fi }
	:: atomic { alive && to_host?[GIVE_UP] ->
		to_host?GIVE_UP, c; close_on_host(c) }
	:: atomic { alive && to_host?[DONE] ->
		to_host?DONE, c;
		assert(h_known[c]);
		close_on_host(c);
		h_known[c] = false }
	:: atomic { alive && changes < POLICIES ->
		changes++; change_policy(); to_guest!QUESTION, 0 }
#ifdef DEATH
	/* Its sockets are closed with it. */
	:: atomic { alive && generation == 1 ->
		alive = false;
		n = 1;
		do
		:: n < OBJECTS -> h_known[n] = false; h_listens[n] = false; n++
		:: else -> break
		od;
		sockets = 0 }
	/* The guest learns of it: nothing that it has said is looked at any more. */
	:: atomic { !alive && outsourcer ->
		do
		:: to_host?_, _
		:: to_guest?_, _
		:: empty(to_host) && empty(to_guest) -> break
		od;
		outsourcer = 0;
		n = 1;
		do
		:: n < OBJECTS ->
			if
			:: g_state[n] != NONE -> g_departed[n] = true; raise(n)
			:: else
			fi;
			n++
		:: else -> break
		od }
	:: atomic { !alive && !outsourcer ->
		alive = true; generation = 2; outsourcer = 2; walk = true }
#endif
	od
}

active proctype Watch()
{
	byte c;

	timeout ->
	assert(empty(to_host) && empty(to_guest) && !walk);
	if
	:: !alive || !outsourcer -> skip
	:: else ->
		assert((listening && publishes) == (current && g_state[current] == CONNECTED));
		assert((listening && publishes) == (sockets == 1))
	fi;
	for (c : 1 .. OBJECTS - 1) {
		assert(c == current || g_state[c] == NONE);
		assert(c == current || !h_known[c])
	}
}
