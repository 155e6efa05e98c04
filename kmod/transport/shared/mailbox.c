// SPDX-License-Identifier: GPL-2.0
/*
 * Mailboxes: messages and pending bits from the owner of a slice to one peer.
 *
 * Pending bits are the only words here with two writers. They are set and taken
 * with instructions that lock the bus also in a kernel that was booted with one
 * CPU, where ordinary atomics lose their LOCK prefix.
 */
#include "shared.h"

#include <linux/rculist.h>
#include <linux/slab.h>
#include <asm/sync_bitops.h>

#include "../../obs/counters.h"
#include "bounds.h"

#define BACKLOG_RETRY	msecs_to_jiffies(1)

struct queued {
	struct list_head list;
	struct hallway_message message;
};

struct hallway_mailbox *hall_mailbox_at(const struct hall_slice *slice,
					u32 number)
{
	return (struct hallway_mailbox *)(slice->header + 1) + number;
}

/* False: the index is of another pair of generations, and means nothing. */
static bool read_index(struct hallway_mailbox_index *shared, u32 sender,
		       u32 receiver, u32 *index)
{
	if (virt_load_acquire(&shared->sender_generation) != sender ||
	    virt_load_acquire(&shared->receiver_generation) != receiver)
		return false;
	*index = virt_load_acquire(&shared->index);
	return true;
}

static void reset_index(struct hallway_mailbox_index *shared, u32 sender,
			u32 receiver)
{
	WRITE_ONCE(shared->sender_generation, 0);
	virt_wmb();
	WRITE_ONCE(shared->index, 0);
	WRITE_ONCE(shared->receiver_generation, receiver);
	virt_store_release(&shared->sender_generation, sender);
}

bool hall_mailbox_mark(struct hallway_mailbox *mailbox, u32 endpoint)
{
	if (endpoint >= HALLWAY_ENDPOINTS_MAX)
		return false;
	sync_set_bit(endpoint, (unsigned long *)mailbox->pending);
	return true;
}

static void notify(struct hall_peer *peer)
{
	peer->member.transport->notify(&peer->member, 0);
}

/* Under peer->lock. False: the mailbox is full. */
static bool put(struct hall_peer *peer, const struct hallway_message *message)
{
	u32 tail;
	int messages;

	/* Indexes of before the peer's arrival: it has taken none. */
	if (!read_index(&peer->out->tail, peer->own->slice.generation,
			peer->slice.generation, &tail))
		tail = 0;
	messages = hall_mailbox_messages(peer->out_head, tail);
	/* An impossible tail looks like a full mailbox: the peer's own loss. */
	if (messages < 0 || messages == HALLWAY_MAILBOX_MESSAGES)
		return false;
	memcpy(peer->out->message[peer->out_head % HALLWAY_MAILBOX_MESSAGES],
	       message, sizeof(*message));
	peer->out_head++;
	virt_store_release(&peer->out->head.index, peer->out_head);
	return true;
}

static void retry(struct work_struct *work)
{
	struct hall_peer *peer = container_of(to_delayed_work(work),
					      struct hall_peer, retry);
	struct queued *queued, *next;
	bool left;

	spin_lock_bh(&peer->lock);
	list_for_each_entry_safe(queued, next, &peer->backlog, list) {
		if (!put(peer, &queued->message))
			break;
		list_del(&queued->list);
		kfree(queued);
		peer->backlogged--;
	}
	left = !list_empty(&peer->backlog);
	spin_unlock_bh(&peer->lock);
	notify(peer);
	if (left && !READ_ONCE(peer->member.departed))
		queue_delayed_work(hall_workqueue, &peer->retry, BACKLOG_RETRY);
}

/*
 * A peer that reads nothing may still offer without end, and each offer is
 * declined, or accepted and finished. So DECLINE has a short backlog; for other
 * messages a peer that stands still is owed a few for each of its endpoints.
 */
static unsigned int backlog_limit(const struct hallway_message *message)
{
	return message->type == HALLWAY_DECLINE ? HALLWAY_MAILBOX_MESSAGES :
						  4 * HALLWAY_ENDPOINTS_MAX;
}

void hall_mailbox_send(struct hall_member *member,
		       const struct hallway_message *message)
{
	struct hall_peer *peer = hall_peer_of(member);
	struct queued *queued = NULL;

	/* A departure waits for readers that saw none, then ends the retry. */
	rcu_read_lock();
	if (READ_ONCE(member->departed))
		goto unlock;
	spin_lock_bh(&peer->lock);
	if (peer->backlogged || !put(peer, message)) {
		if (peer->backlogged < backlog_limit(message))
			queued = kmalloc(sizeof(*queued), GFP_ATOMIC);
		if (queued) {
			queued->message = *message;
			list_add_tail(&queued->list, &peer->backlog);
			peer->backlogged++;
		} else {
			hall_count(HALL_MESSAGES_LOST);
		}
	}
	spin_unlock_bh(&peer->lock);
	if (queued)
		queue_delayed_work(hall_workqueue, &peer->retry, BACKLOG_RETRY);
	else
		notify(peer);
unlock:
	rcu_read_unlock();
}

static void receive(struct hall_peer *peer)
{
	struct hallway_message message;
	u32 head;

	/* A peer that is about to leave, or to arrive. */
	if (!read_index(&peer->in->head, peer->slice.generation,
			peer->own->slice.generation, &head))
		return;
	if (hall_mailbox_messages(head, peer->in_tail) < 0) {
		hall_count(HALL_CORRUPT_MESSAGES);
		return;
	}
	while (peer->in_tail != head) {
		memcpy(&message,
		       peer->in->message[peer->in_tail % HALLWAY_MAILBOX_MESSAGES],
		       sizeof(message));
		peer->in_tail++;
		virt_store_release(&peer->in->tail.index, peer->in_tail);
		hall_transport_handler.message(&peer->member, &message);
	}
}

bool hall_mailbox_look(struct hall_peer *peer)
{
	unsigned int words = 1 + atomic_read(&peer->member.endpoint_high) / 64;
	__u64 *pending = peer->in->pending;
	unsigned int word, bit;
	unsigned long set;
	bool messages = false;

	for (word = 0; word < words; word++) {
		if (!READ_ONCE(pending[word]))
			continue;
		set = xchg(&pending[word], 0);
		for_each_set_bit(bit, &set, 64) {
			if (word == 0 && bit == 0) {
				receive(peer);
				messages = true;
			} else {
				hall_transport_handler.wake(&peer->member,
							    word * 64 + bit);
			}
		}
	}
	return messages;
}

void hall_mailbox_init(struct hall_peer *peer)
{
	u32 own = peer->own->slice.generation, its = peer->slice.generation;

	spin_lock_init(&peer->lock);
	INIT_LIST_HEAD(&peer->backlog);
	INIT_DELAYED_WORK(&peer->retry, retry);
	reset_index(&peer->in->tail, its, own);
	reset_index(&peer->out->head, own, its);
}

void hall_mailbox_stop(struct hall_peer *peer)
{
	cancel_delayed_work_sync(&peer->retry);
}

void hall_mailbox_free(struct hall_peer *peer)
{
	struct queued *queued, *next;

	list_for_each_entry_safe(queued, next, &peer->backlog, list)
		kfree(queued);
}
