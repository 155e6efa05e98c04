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
#include "../sock/lookup.h"
#include "../sock/wake.h"

static void look(struct work_struct *work);
static DECLARE_DELAYED_WORK(look_work, look);

/*
 * Was it due at the last look, too, and our index the same? Busy connections
 * always have something on its way. *watched is 0, or that index + 1.
 */
static bool again(u64 *watched, bool due, u64 index)
{
	bool before = *watched == index + 1;

	*watched = due ? index + 1 : 0;
	return due && before;
}

/*
 * Does a reader, or else a writer, sleep whom nobody has woken? On a busy machine
 * one who was woken may take seconds to run.
 */
static bool asleep(struct sock *sk, bool reader)
{
	struct wait_queue_entry *entry;
	struct socket_wq *wq;
	unsigned long flags;
	bool asleep = false;

	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (wq) {
		spin_lock_irqsave(&wq->wait.lock, flags);
		list_for_each_entry(entry, &wq->wait.head, entry)
			asleep |= !(entry->flags & WQ_FLAG_WOKEN) &&
				  entry->func == (reader ?
						  hall_rx_wake_function :
						  woken_wake_function);
		spin_unlock_irqrestore(&wq->wait.lock, flags);
	}
	rcu_read_unlock();
	return asleep;
}

/*
 * Twice: asleep on the ring, with something to do and no doorbell asked for; or
 * one that was asked for was due, and was not heard? While TCP owes bytes that
 * come before the ring's, its timers are the ones that count.
 */
static bool stuck(struct hall_sock *hs)
{
	u32 copied = READ_ONCE(tcp_sk(hs->sk)->copied_seq);
	struct hall_tx_ring *tx = &hs->tx.ring;
	struct hall_rx_ring *rx = &hs->rx.ring;
	bool stuck = false;

	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED && rx->started)
		stuck |= again(&hs->watched_tail, hall_ring_is_rx_due(rx) ||
			       (READ_ONCE(hs->rx_waiters) && !rx->armed &&
				!before(copied, rx->start_seq) &&
				hall_ring_count_used(rx) && asleep(hs->sk, true)),
			       rx->tail);
	if (hs->tx.state == HALL_TX_RING)
		stuck |= again(&hs->watched_head, hall_ring_is_tx_due(tx) ||
			       (READ_ONCE(hs->tx_waiters) &&
				hall_ring_count_space(tx) > tx->size / 2 &&
				asleep(hs->sk, false)), tx->head);
	spin_unlock_bh(&hs->channel.lock);
	return stuck;
}

static void look_at(struct hall_sock *hs, void *data)
{
	struct socket_wq *wq;

	hall_budget_look(hs);
	hall_filters_check(hs);
	if (!stuck(hs) || READ_ONCE(hs->detached))
		return;
	/* As the doorbell does, and without lock_sock(): it may be taken for long. */
	hall_count(HALL_WATCHDOG_WAKES);
	rcu_read_lock();
	hall_sock_wake(hs);
	wq = rcu_dereference(hs->sk->sk_wq);
	if (wq)
		wake_up_all(&wq->wait);
	rcu_read_unlock();
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
