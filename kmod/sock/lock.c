// SPDX-License-Identifier: GPL-2.0-only
/*
 * Both locks of a socket for the work item, which must not wait for them: see turn.c. It
 * ends where one of them is taken, and runs again when that is released.
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
	if (hall_turn_trylock(&hs->turn, hs->sk))
		return true;
	mutex_unlock(&hs->rx_mutex);
	return false;
}

void hall_sock_unlock(struct hall_sock *hs)
{
	release_sock(hs->sk);
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
