// SPDX-License-Identifier: GPL-2.0-only
/*
 * Both locks of a socket, and its gate, for the work item, which must not wait for them:
 * see turn.c. It ends where one of them is taken, and runs again when that is released.
 */
#include "lock.h"
#include "lookup.h"
#include "wake.h"

bool hall_sock_is_taken(struct hall_sock *hs)
{
	bool taken;

	spin_lock_bh(&hs->sk->sk_lock.slock);
	taken = hall_turn_is_taken(&hs->turn, hs->sk);
	spin_unlock_bh(&hs->sk->sk_lock.slock);
	return taken;
}

/*
 * False: reads are under way. The gate is closed nonetheless, and the last of them has the
 * work item run, for which it has a reference.
 */
static bool close_gate(struct hall_sock *hs)
{
	int gate;

	refcount_inc(&hs->channel.refs);
	gate = atomic_fetch_or(HALL_GATE_CLOSED, &hs->gate);
	if (unlikely(gate > 0))
		return false;
	hall_sock_put(hs);
	return gate == 0 || gate == HALL_GATE_CLOSED;
}

static void open_gate(struct hall_sock *hs)
{
	/* What was decided comes first: a read looks behind the gate. */
	atomic_set_release(&hs->gate, 0);
}

bool hall_sock_trylock(struct hall_sock *hs)
{
	if (!mutex_trylock(&hs->rx_mutex)) {
		WRITE_ONCE(hs->awaited, true);
		/* Pairs with the one of hall_rx_unlock(). */
		smp_mb();
		if (!mutex_trylock(&hs->rx_mutex))
			return false;
	}
	WRITE_ONCE(hs->awaited, false);
	if (close_gate(hs)) {
		if (hall_turn_trylock(&hs->turn, hs->sk))
			return true;
		open_gate(hs);
	}
	mutex_unlock(&hs->rx_mutex);
	return false;
}

void hall_sock_unlock(struct hall_sock *hs)
{
	release_sock(hs->sk);
	open_gate(hs);
	/* The work item may wait for its caller, which is another thread at times. */
	hall_rx_unlock(hs);
}

void hall_rx_unlock(struct hall_sock *hs)
{
	mutex_unlock(&hs->rx_mutex);
	/* Released first, loaded then: one of the two sees the other. */
	smp_mb();
	if (unlikely(READ_ONCE(hs->awaited)) && xchg(&hs->awaited, false))
		hall_sock_queue_work(hs, 0);
}
