/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * UDP sockets of a guest that have a socket of the host beside them, one after another:
 * opened or refused, records both ways, returned ones, idle or closed at any moment, with a
 * published port that the policy takes away, and the death of the outsourcer. The model
 * checks the DATAGRAM of section 7 of ../protocol.md.
 *
 * Both sides have one endpoint number and one piece of ring memory, as in outsource.pml.
 * Of what comes from the network nothing is modelled: it may be lost. What the program
 * sends is counted: unless the outsourcer dies, or ends the socket itself, each datagram is
 * sent, by the host or natively.
 */

#ifndef SOCKETS
#define SOCKETS	2
#endif
#ifndef RECORDS
#define RECORDS	3	/* of the guest, at most */
#endif
#define SPACE	1	/* records in the outsourcer's ring */

mtype = { NONE, CALLING, CONNECTED, REFUSED };	/* of the guest */
mtype = { CALL, ANSWER, DECLINE, DONE };		/* messages */

/* Message, socket, position, and whether the reason is an errno. */
chan to_host = [4] of { mtype, byte, byte, bool };
chan to_guest = [3] of { mtype, byte, byte, bool };

/* Rings. owner: the socket; 0: free. The outsourcer's has returned records alone. */
byte g_owner, g_head, h_owner, h_head;
bool g_end;

/* The guest. */
mtype g_state = NONE;
byte sockets, g_conn, g_read;
bool g_mapped, g_closed;
byte written, native;		/* datagrams of this socket; sent natively */
bool lost;			/* some may be lost: the outsourcer has ended it */

/* The outsourcer. */
bool h_reads;			/* the guest's ring, until DONE is sent */
byte h_conn, h_read, sent;
bool h_socket;			/* of the host: a published port is taken by it */
bool dead, departed;

inline free_number()
{
	/* hall_out_close_channel() */
	if
	:: g_owner == 0 && !g_mapped && g_closed ->
		assert(written == sent + native || lost || dead);
		g_state = NONE
	:: else
	fi
}

inline finish_rx(error)
{
	if
	:: g_mapped -> g_mapped = false; to_host!DONE, g_conn, g_read, error
	:: else
	fi
}

/* hall_datagram_close() */
inline close_datagram()
{
	if
	:: !g_closed ->
		g_closed = true;
		if :: g_owner -> g_end = true :: else fi;
#ifdef DONE_AT_CLOSE
		finish_rx(false);
#else
		if :: !g_owner -> finish_rx(false) :: else fi;
#endif
#ifdef FREE_AT_CLOSE
		g_owner = 0;
#endif
		free_number()
	:: else
	fi
}

/* What has come back is sent natively. */
inline take_returned()
{
	if
	:: g_mapped && g_read < h_head ->
		assert(departed || h_owner == g_conn);
		native = native + h_head - g_read;
		g_read = h_head
	:: else
	fi
}

active proctype Guest()
{
	byte c, position;
	bool error;

	do
	:: atomic { g_state == NONE && sockets < SOCKETS && !departed ->
		sockets++;
		assert(g_owner == 0);
		g_conn = sockets;
		g_owner = g_conn; g_head = 0; g_end = false;
		g_read = 0; g_closed = false; written = 0; native = 0; sent = 0; lost = false;
		g_state = CALLING;
		to_host!CALL, g_conn, 0, false }
	:: atomic { g_state == NONE && (sockets == SOCKETS || departed) -> break }

	/* The program. It writes before the answer, too, unless the port is published. */
#ifdef PUBLISHED
	:: atomic { g_state == CONNECTED && !g_closed && g_owner && g_head < RECORDS ->
#else
	:: atomic { (g_state == CALLING || g_state == CONNECTED) && !g_closed && g_owner &&
		    g_head < RECORDS ->
#endif
		g_head++; written++ }
	/* close(), or nothing was sent for a while. */
	:: atomic { (g_state == CALLING || g_state == CONNECTED) && !g_closed ->
		close_datagram() }
	:: atomic { g_mapped && g_read < h_head -> take_returned() }

	/* The work item. */
	:: atomic { !dead && to_guest?[ANSWER] ->
		to_guest?ANSWER, c, position, error;
		assert(g_state == CALLING && c == g_conn);
		g_mapped = true;
		g_state = CONNECTED }
	:: atomic { !dead && to_guest?[DECLINE] ->
		to_guest?DECLINE, c, position, error;
		assert(g_state == CALLING && c == g_conn);
#ifndef FORGET_REFUSED
		native = native + g_head;
#endif
		g_state = REFUSED;
		g_owner = 0;
		close_datagram();
		free_number() }
	:: atomic { !dead && to_guest?[DONE] ->
		to_guest?DONE, c, position, error;
		assert(g_state == CONNECTED && c == g_conn && g_owner == g_conn);
		g_owner = 0;
		if :: error -> lost = true :: else fi;
#ifndef FORGET_RETURNED
		take_returned();
#endif
		finish_rx(false);
		close_datagram();
		free_number() }
	:: atomic { dead && !departed ->
		departed = true;
		g_owner = 0;
		g_mapped = false;
		if
		:: g_state != NONE -> close_datagram(); free_number()
		:: else
		fi }
	od
}

/* Datagrams::close() */
inline close_on_host(error)
{
	h_socket = false;
	if
	:: h_reads -> h_reads = false; to_guest!DONE, h_conn, h_read, error
	:: else
	fi
}

active proctype Outsourcer()
{
	byte c, position;
	bool error;

end:	do
	:: dead -> break
#ifdef DEATH
	:: atomic { !dead -> dead = true; h_socket = false }
#endif
	:: atomic { !dead && to_host?[CALL] ->
		to_host?CALL, c, position, error;
		assert(!h_socket && !h_reads && h_owner == 0);
		h_conn = c; h_read = 0;
		if
		:: to_guest!DECLINE, h_conn, 0, true
		:: h_reads = true; h_socket = true;
		   h_owner = h_conn; h_head = 0;
		   to_guest!ANSWER, h_conn, 0, false
		fi }
	:: atomic { !dead && to_host?[DONE] ->
		to_host?DONE, c, position, error;
		assert(c == h_conn && h_owner == h_conn);
#ifndef KEEP_RING
		h_owner = 0;
#endif
		if
		:: error || !g_end -> close_on_host(false)
		:: else
		fi }

	/* A record is sent, or comes back: that waits for space. */
	:: atomic { !dead && h_reads && h_read < g_head ->
		assert(g_owner == h_conn);
		h_read++; sent++ }
#ifndef PUBLISHED
	:: atomic { !dead && h_reads && h_read < g_head && h_owner && h_head < g_read + SPACE ->
		assert(g_owner == h_conn);
		h_read++; h_head++ }
#endif
#ifdef CLOSE_AT_MARK
	:: atomic { !dead && h_reads && g_end ->
#else
	:: atomic { !dead && h_reads && g_end && h_read == g_head ->
#endif
		assert(g_owner == h_conn);
		close_on_host(false) }
#ifdef PUBLISHED
	/* The policy publishes the port no more. */
	:: atomic { !dead && h_reads -> close_on_host(true) }
#endif
	od
}

active proctype Watch()
{
	timeout ->
	assert(g_state == NONE && g_owner == 0 && !g_mapped);
	assert(dead || (!h_reads && !h_socket && h_owner == 0));
	assert(dead || (empty(to_host) && empty(to_guest)))
}
