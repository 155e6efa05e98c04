// SPDX-License-Identifier: GPL-2.0-only
/*
 * Wakes threads asleep in our calls, and pollers, whose doorbell was lost. The event
 * indexes lose none. A bug of ours may, or the hypervisor: then the sleeper is
 * woken within two seconds, and the counter watchdog_wakes tells of it.
 */
#include "switch.h"

#include "../obs/counters.h"
#include "../sock/wake.h"

/*
 * Was a doorbell due a second ago, too, and our index the same? On a busy
 * connection one is always on its way. *checked is 0, or that index + 1.
 */
static bool check_again(u64 *checked, bool due, u64 index)
{
	bool before = *checked == index + 1;

	*checked = due ? index + 1 : 0;
	return due && before;
}

/*
 * Does a reader, or else a writer, sleep and was not woken? On a busy machine a
 * thread that was woken may take seconds to run.
 */
static bool is_asleep(struct sock *sk, bool reader)
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
 * In two checks: does a thread sleep on the ring with work to do and no doorbell
 * armed, or is an armed doorbell due that did not ring? While TCP owes bytes that
 * come before the ring's, TCP's timers wake the reader.
 */
static bool is_stuck(struct hall_sock *hs)
{
	u32 copied = READ_ONCE(tcp_sk(hs->sk)->copied_seq);
	struct hall_tx_ring *tx = &hs->tx.ring;
	struct hall_rx_ring *rx = &hs->rx.ring;
	bool due, stuck = false;

	spin_lock_bh(&hs->channel.lock);
	if (hs->rx.state == HALL_RX_MAPPED && rx->started) {
		due = hall_ring_is_rx_due(rx) ||
		      (atomic_read(&hs->rx_waiters) && !rx->armed &&
		       !before(copied, rx->start_seq) &&
		       hall_ring_count_used(rx) && is_asleep(hs->sk, true));
		stuck |= check_again(&hs->checked_tail, due, rx->tail);
	}
	if (hs->tx.state == HALL_TX_RING) {
		due = hall_ring_is_tx_due(tx) ||
		      (READ_ONCE(hs->tx_waiters) &&
		       hall_ring_count_space(tx) >
			       HALL_RING_WAKE_SPACE(tx->size) &&
		       is_asleep(hs->sk, false));
		stuck |= check_again(&hs->checked_head, due, tx->head);
	}
	spin_unlock_bh(&hs->channel.lock);
	return stuck;
}

void hall_watchdog_check(struct hall_sock *hs)
{
	struct socket_wq *wq;

	if (!is_stuck(hs) || READ_ONCE(hs->detached))
		return;
	/* As the doorbell does, without lock_sock(): a thread may hold it for long. */
	hall_count(HALL_WATCHDOG_WAKES);
	rcu_read_lock();
	hall_sock_wake(hs);
	wq = rcu_dereference(hs->sk->sk_wq);
	if (wq)
		wake_up_all(&wq->wait);
	rcu_read_unlock();
}
