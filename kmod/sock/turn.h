/* SPDX-License-Identifier: GPL-2.0-only */
/* lock_sock() for work items, which must not wait for it: see turn.c. */
#ifndef HALL_TURN_H
#define HALL_TURN_H

#include <linux/wait.h>
#include <net/sock.h>

#include "../channel/channel.h"

/* A channel's place among those that wait for the lock of a socket. */
struct hall_turn {
	struct wait_queue_entry entry;
	struct hall_channel *channel;	/* referenced while it waits */
};

void hall_turn_init(struct hall_turn *turn, struct hall_channel *channel);
/*
 * Is the lock taken? Its release has the channel's work item run then, by the kind's
 * raised(). Any context, with sk_lock.slock and a reference to the socket.
 */
bool hall_turn_is_taken(struct hall_turn *turn, struct sock *sk);
/*
 * Takes the lock, which is free, for release_sock(); releases slock. Process context, with
 * slock.
 */
static inline void hall_turn_take(struct sock *sk)
{
	sk->sk_lock.owned = 1;
	spin_unlock_bh(&sk->sk_lock.slock);
	/* For lockdep: release_sock() releases it, as after lock_sock(). */
	mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
}

/*
 * Takes the lock, for release_sock(); or false, and as above. Process context, with a
 * reference to the socket.
 */
bool hall_turn_trylock(struct hall_turn *turn, struct sock *sk);

#endif /* HALL_TURN_H */
