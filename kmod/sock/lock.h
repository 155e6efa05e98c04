/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The locks of a socket, for the work item: see lock.c.
 *
 * And the gate of plain reads: native ones on a connection without a ring, which take
 * neither rx_mutex nor a reference. The gate is their number. The work item closes it, so
 * that none begins; it accepts a ring only where none is under way. A hall_sock whose last
 * reference goes meanwhile is freed by the last of them.
 */
#ifndef HALL_LOCK_H
#define HALL_LOCK_H

#include "idle.h"
#include "sock.h"

#define HALL_GATE_CLOSED	INT_MIN		/* the sign: no read begins */
#define HALL_GATE_RELEASED	(1 << 30)	/* and there is no reference any more */

/* After a read has left a closed gate; life.c. The caller has not slept since. */
void hall_gate_leave_closed(struct hall_sock *hs, int gate);

static inline void hall_gate_leave(struct hall_sock *hs)
{
	int gate = atomic_dec_return(&hs->gate);

	if (unlikely(gate < 0))
		hall_gate_leave_closed(hs, gate);
}

/*
 * Begins a plain read of what hall_sock_peek() returned, without a sleep since; process
 * context. False: the gate is closed, or it is another socket's.
 */
static inline bool hall_gate_enter(struct hall_sock *hs, const struct sock *sk)
{
	if (unlikely(!atomic_inc_unless_negative(&hs->gate)))
		return false;
	if (likely(hall_sock_is_of(hs, sk)))
		return true;
	hall_gate_leave(hs);
	return false;
}

/*
 * Takes rx_mutex and lock_sock(), and closes the gate. False: one of them is taken; the
 * work item runs again when it is released. For the work item alone.
 */
bool hall_sock_trylock(struct hall_sock *hs);
void hall_sock_unlock(struct hall_sock *hs);
/* Is lock_sock() taken? The work item runs again when it is released. No lock held. */
bool hall_sock_is_taken(struct hall_sock *hs);
/* Releases the rx_mutex of a reader. */
void hall_rx_unlock(struct hall_sock *hs);

#endif /* HALL_LOCK_H */
