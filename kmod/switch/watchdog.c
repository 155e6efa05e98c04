// SPDX-License-Identifier: GPL-2.0
/*
 * A slow watchdog over those who wait: threads asleep in our calls, and pollers,
 * who were told "not ready" and trust in the doorbell. The event indexes leave
 * no wake-up to be lost; if one is lost all the same, by a bug of ours or a
 * doorbell that the hypervisor dropped, the sleeper gets up within two seconds,
 * and the counter watchdog_wakes says that something is wrong.
 */
#include "switch.h"

#include "../obs/counters.h"

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(look_work, look);

/*
 * Asleep on the ring, with something to do, or a doorbell that was asked for is
 * due and was not heard: the same one as at the last look, since our index has
 * not moved. Busy connections always have another one on its way.
 */
static bool stuck(struct hall_sock *hs)
{
	struct hall_channel *channel = &hs->channel;
	u64 head = hs->watched_head, tail = hs->watched_tail;
	bool stuck = false;

	spin_lock_bh(&channel->lock);
	if (hs->rx.state == HALL_RX_MAPPED && hs->rx.ring.started) {
		hs->watched_tail = hs->rx.ring.tail;
		stuck |= tail == hs->watched_tail &&
			 (hall_ring_rx_due(&hs->rx.ring) ||
			  (READ_ONCE(hs->rx_waiters) &&
			   hall_ring_used(&hs->rx.ring)));
	}
	if (hs->tx.state == HALL_TX_RING) {
		hs->watched_head = hs->tx.ring.head;
		stuck |= head == hs->watched_head &&
			 (hall_ring_tx_due(&hs->tx.ring) ||
			  (READ_ONCE(hs->tx_waiters) &&
			   hall_ring_space(&hs->tx.ring) > hs->tx.ring.size / 2));
	}
	spin_unlock_bh(&channel->lock);
	return stuck;
}

static void look_at(struct hall_sock *hs, void *data)
{
	bool before = hs->watched_stuck;

	hs->watched_stuck = stuck(hs);
	/* At the first look it may be about to get up. */
	if (!before || !hs->watched_stuck)
		return;
	lock_sock(hs->sk);
	if (!hs->detached) {
		hall_count(HALL_WATCHDOG_WAKES);
		hall_sock_wake(hs);
		wake_up_all(sk_sleep(hs->sk));
	}
	release_sock(hs->sk);
}

static void look(struct work_struct *work)
{
	hall_sock_walk(look_at, NULL);
	queue_delayed_work(hall_workqueue, &look_work, HZ);
}

void hall_watchdog_init(void)
{
	queue_delayed_work(hall_workqueue, &look_work, HZ);
}

void hall_watchdog_uninit(void)
{
	cancel_delayed_work_sync(&look_work);
}
