/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Outsourced connections, one after another: connect, given up or not, or with ACCEPT
 * connections that arrive at a listener, accepted or not; bytes both ways, ends, resets
 * and the death of the outsourcer, at any moment. The model checks section 7 of
 * ../protocol.md.
 *
 * Both sides have one endpoint number and one piece of ring memory, which the next
 * connection uses at once. Messages and accesses name the connection that they are
 * about, which real ones do not: each end asserts that it is its own. Bytes are
 * counted, for rings keep their order: channel.pml and wake.pml check that.
 *
 * A patient program closes its socket only once it has read the end of the stream or
 * an error: it must get one of them. Every run ends, and Watch() judges what is left.
 */

#ifndef BYTES
#define BYTES	2	/* each way, at most */
#endif
#ifndef CONNECTIONS
#define CONNECTIONS	2
#endif

mtype = { NONE, CALLING, CONNECTED, REFUSED };		/* of a side */
mtype = { OFFERED };						/* of the outsourcer */
mtype = { CALL, GIVE_UP, ARRIVE, ANSWER, DECLINE, DONE };	/* messages */

/* Message, connection, position, and whether the reason is an errno. */
chan to_host = [4] of { mtype, byte, byte, bool };
chan to_guest = [3] of { mtype, byte, byte, bool };

/* Rings. owner: the connection; 0: free. */
byte g_owner, g_head, h_owner, h_head;
bool g_end, h_end;

/* The guest. */
byte connections;
mtype g_state = NONE;
byte g_conn, g_read;
bool g_mapped, g_ended, g_closed, g_failed, g_eof, patient;
bool g_shut;			/* its program ended the stream in order */
bool g_resets;			/* it closed with bytes unread, or SO_LINGER 0 */

/* The outsourcer, and its socket. */
mtype h_state = NONE;
byte h_conn, h_read;
bool h_maps;			/* the guest's ring, until DONE is sent */
bool net_in_ended, net_failed;	/* FIN, RST arrived */
bool net_fin, net_reset;	/* FIN, RST sent */
bool declined;
bool dead, departed;		/* the outsourcer; the guest knows */

inline free_number()
{
	/* hall_out_close_channel() */
	if
	:: g_owner == 0 && !g_mapped && (g_closed || g_state == REFUSED) ->
		/* All that an orderly program sent has left, unless the network failed. */
		assert(!g_ended || g_resets || net_failed || net_reset || declined ||
		       dead || g_state == REFUSED || (net_fin && h_read == g_head));
		g_state = NONE
	:: else
	fi
}

inline close_socket(reset)
{
	g_closed = true;
	if
	:: g_state == CONNECTED ->
		g_resets = reset;
#ifdef END_BEFORE_RESET
		if :: g_owner -> g_end = true; g_ended = true :: else fi;
#else
		if
		:: g_owner && !reset -> g_end = true; g_ended = true; g_shut = true
		:: else
		fi;
#endif
		if
		:: g_mapped -> to_host!DONE, g_conn, g_read, reset; g_mapped = false
		:: else
		fi
	:: else
	fi;
#ifdef FREE_AT_CLOSE
	if :: g_state == CONNECTED -> g_owner = 0 :: else fi;
#endif
	free_number()
}

inline begin_socket(conn)
{
	g_conn = conn;
	g_read = 0; g_mapped = false; g_ended = false; g_closed = false;
	g_failed = false; g_eof = false; g_shut = false; g_resets = false;
	declined = false;
	if :: patient = true :: patient = false fi;
	g_state = CALLING
}

inline make_ring()
{
	assert(g_owner == 0);
	g_owner = g_conn; g_head = 0; g_end = false
}

active proctype Guest()
{
	byte c, position;
	bool error;

	do
#ifndef ACCEPT
	:: atomic { g_state == NONE && connections < CONNECTIONS && !departed ->
		connections++;
		begin_socket(connections);
		make_ring();
		to_host!CALL, g_conn, 0, false }
	:: atomic { g_state == CALLING && !g_closed && !patient ->
		g_closed = true;
		to_host!GIVE_UP, g_conn, 0, false }
	:: g_state == NONE && (connections == CONNECTIONS || departed) -> break
#else
	/* It waits for accept() then. */
	:: atomic { !dead && to_guest?[ARRIVE] ->
		to_guest?ARRIVE, c, position, error;
		assert(g_state == NONE);
		begin_socket(c);
		g_mapped = true }
	:: atomic { g_state == CALLING && !departed ->
		make_ring();
		g_state = CONNECTED;
		to_host!ANSWER, g_conn, 0, false }
	/* The listener is closed, or full. */
	:: atomic { g_state == CALLING && !departed ->
		g_closed = true;
#ifndef DECLINE_AND_READ
		g_mapped = false;
#endif
		g_state = REFUSED;
		to_host!DECLINE, g_conn, 0, true;
		free_number() }
	:: atomic { g_state == NONE &&
		    (departed || (connections == CONNECTIONS && empty(to_guest))) -> break }
#endif

	/* The program. */
	:: atomic { g_state == CONNECTED && !g_closed && !g_failed && !g_ended &&
		    g_owner && g_head < BYTES -> g_head++ }
	:: atomic { g_state == CONNECTED && !g_closed && !g_failed && !g_ended &&
		    g_owner -> g_end = true; g_ended = true; g_shut = true }
	:: atomic { g_state == CONNECTED && !g_closed && g_mapped && g_read < h_head ->
		assert(departed || h_owner == g_conn);
		g_read++ }
	:: atomic { g_state == CONNECTED && !g_closed && g_mapped && !g_eof &&
		    h_end && g_read == h_head ->
		assert(departed || net_in_ended);
		g_eof = true }
	:: atomic { g_state == CONNECTED && !g_closed &&
		    (!patient || g_eof || (g_failed && (!g_mapped || g_read == h_head))) ->
		if
		:: g_mapped && g_read < h_head -> error = true
		:: else -> if :: error = true :: error = false fi
		fi;
		close_socket(error) }

	/* The work item. */
	:: atomic { !dead && to_guest?[ANSWER] ->
		to_guest?ANSWER, c, position, error;
		assert(g_state != NONE && c == g_conn);
		if
		:: g_state == CALLING && !g_closed -> g_mapped = true; g_state = CONNECTED
#ifdef IGNORE_ANSWER
		:: else
#else
		:: else -> declined = true; to_host!DECLINE, g_conn, 0, true
#endif
		fi }
	:: atomic { !dead && to_guest?[DECLINE] ->
		to_guest?DECLINE, c, position, error;
		assert(g_state == CALLING && c == g_conn);
		g_owner = 0;
		g_state = REFUSED;
		free_number() }
	:: atomic { !dead && to_guest?[DONE] ->
		to_guest?DONE, c, position, error;
		assert(g_state != NONE && c == g_conn && g_owner == g_conn);
		g_owner = 0;
		if
		:: g_state == CONNECTED && !g_closed &&
		   (error || position < g_head || !g_ended) -> g_failed = true
		:: g_state == CALLING -> g_state = REFUSED
		:: else
		fi;
		free_number() }
	:: atomic { dead && !departed ->
		departed = true;
		g_owner = 0;
		if
		:: g_state == CALLING -> g_state = REFUSED; g_mapped = false
		:: g_state == CONNECTED && !g_closed -> g_failed = true
		:: else
		fi;
		if :: g_closed -> g_mapped = false :: else fi;
		free_number() }
	od
}

inline end_socket()
{
	if :: !h_maps && h_owner == 0 -> h_state = NONE :: else fi
}

inline reset_network()
{
	net_reset = true;
	if
	:: h_maps -> to_guest!DONE, h_conn, h_read, true; h_maps = false
	:: else
	fi
}

inline take_socket(conn)
{
	h_conn = conn; h_read = 0;
	net_in_ended = false; net_failed = false; net_fin = false; net_reset = false
}

inline make_own_ring()
{
	assert(h_owner == 0);
	h_owner = h_conn; h_head = 0; h_end = false
}

active proctype Outsourcer()
{
	byte c, position;
	bool error;

end:	do
	:: dead -> break
#ifdef DEATH
	:: atomic { !dead -> dead = true }
#endif
#ifdef ACCEPT
	/* The guest has one place. */
	:: atomic { !dead && h_state == NONE && g_state == NONE &&
		    connections < CONNECTIONS ->
		connections++;
		take_socket(connections);
		make_own_ring();
		h_state = OFFERED;
		to_guest!ARRIVE, h_conn, 0, false }
	:: atomic { !dead && to_host?[ANSWER] ->
		to_host?ANSWER, c, position, error;
		assert(h_state == OFFERED && c == h_conn);
		h_maps = true;
		h_state = CONNECTED }
#endif
	:: atomic { !dead && to_host?[CALL] ->
		to_host?CALL, c, position, error;
		assert(h_state == NONE);
		take_socket(c);
		h_maps = true;
		h_state = CALLING }
	:: atomic { !dead && h_state == CALLING ->
		h_maps = false; h_state = NONE;
		to_guest!DECLINE, h_conn, 0, true }
	:: atomic { !dead && h_state == CALLING ->
		make_own_ring();
		h_state = CONNECTED;
		to_guest!ANSWER, h_conn, 0, false }
	:: atomic { !dead && to_host?[GIVE_UP] ->
		to_host?GIVE_UP, c, position, error;
		assert(h_state == NONE || c == h_conn);
		if
#ifdef GIVE_UP_LATE
		:: h_state != NONE ->
#else
		:: h_state == CALLING ->
#endif
			h_maps = false; h_state = NONE;
			to_guest!DECLINE, h_conn, 0, true
		/* It crossed our answer, which the guest declines. */
		:: else
		fi }
	:: atomic { !dead && to_host?[DECLINE] ->
		to_host?DECLINE, c, position, error;
		assert((h_state == CONNECTED || h_state == OFFERED) && c == h_conn);
#ifndef KEEP_DECLINED
		h_owner = 0;
#endif
		h_state = CONNECTED;
		reset_network();
		end_socket() }
	:: atomic { !dead && to_host?[DONE] ->
		to_host?DONE, c, position, error;
		assert(h_state == CONNECTED && c == h_conn && h_owner == h_conn);
		h_owner = 0;
		if
		:: error || position < h_head -> reset_network()
		:: else
		fi;
		end_socket() }

	/* To the network. */
	:: atomic { !dead && h_state == CONNECTED && h_maps && !net_failed &&
		    h_read < g_head ->
		assert(g_owner == h_conn);
		h_read++ }
	:: atomic { !dead && h_state == CONNECTED && h_maps && !net_failed && !net_fin &&
		    g_end && h_read == g_head ->
		assert(g_owner == h_conn && g_shut);
		net_fin = true }

	/* From the network. */
	:: atomic { !dead && h_state == CONNECTED && !net_in_ended && !net_failed &&
		    h_owner && h_head < BYTES -> h_head++ }
	:: atomic { !dead && h_state == CONNECTED && !net_in_ended && !net_failed &&
		    !net_reset ->
		net_in_ended = true;
		if :: h_owner -> h_end = true :: else fi }
	:: atomic { !dead && h_state == CONNECTED && !net_failed && !net_reset &&
		    !(net_in_ended && net_fin) ->
#ifdef END_OF_FAILED
		if :: h_owner -> h_end = true :: else fi;
#endif
		net_failed = true }
	/* More bytes, which nothing reads any more. */
	:: atomic { !dead && h_state == CONNECTED && h_owner == 0 && !net_in_ended &&
		    !net_failed && h_maps -> reset_network(); end_socket() }

#ifdef DONE_AT_FIN
	:: atomic { !dead && h_state == CONNECTED && h_maps && net_fin ->
#else
	:: atomic { !dead && h_state == CONNECTED && h_maps && net_fin &&
		    (net_in_ended || h_owner == 0) && !net_failed ->
#endif
		to_guest!DONE, h_conn, h_read, false;
		h_maps = false;
		end_socket() }
	:: atomic { !dead && h_state == CONNECTED && h_maps && net_failed ->
		to_guest!DONE, h_conn, h_read, true;
		h_maps = false;
		end_socket() }
	od
}

active proctype Watch()
{
	timeout ->
	assert(g_state == NONE && g_owner == 0 && !g_mapped);
	assert(dead || (h_state == NONE && h_owner == 0));
	assert(dead || (empty(to_host) && empty(to_guest)))
}
