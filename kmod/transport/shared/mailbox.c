// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mailboxes: messages and pending bits from the owner of a slice to one peer.
 *
 * Pending bits are the only words here with two writers. They are set and taken
 * with instructions that lock the bus also in a kernel that was booted with one
 * CPU, where ordinary atomics lose their LOCK prefix.
 */
#include "shared.h"

#include <linux/bitmap.h>
#include <linux/preempt.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <asm/sync_bitops.h>

#include "../../obs/counters.h"
#include "bounds.h"

/* Between two tries to send the backlog: longer while nothing can be sent. */
#define RETRY_MIN	msecs_to_jiffies(1)
#define RETRY_MAX	msecs_to_jiffies(100)

/* Endpoints of one peer that one look wakes, or up to 63 more. */
#define LOOK_BUDGET	128

/* How often a look takes the words of endpoints that are not in use, too. */
#define SWEEP		HZ

#define WORDS		(HALLWAY_ENDPOINTS_MAX / 64)
static_assert(WORDS == 64 && HALL_BLOCK == 64, "the words of pending are the blocks");

/* Members may change a word of pending bits without end. */
#define MARK_TRIES	16

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

/* The generations, too: a third member of the region may have overwritten them. */
static void write_index(struct hallway_mailbox_index *shared, u32 sender,
			u32 receiver, u32 index)
{
	WRITE_ONCE(shared->sender_generation, sender);
	WRITE_ONCE(shared->receiver_generation, receiver);
	virt_store_release(&shared->index, index);
}

bool hall_mailbox_mark(struct hallway_mailbox *mailbox, u32 endpoint)
{
	__u64 *pending, bit, before, found;
	unsigned int i;

	lockdep_assert_preemption_disabled();
	if (endpoint >= HALLWAY_ENDPOINTS_MAX)
		return false;
	pending = &mailbox->pending[endpoint / 64];
	bit = 1ull << (endpoint % 64);
	before = READ_ONCE(*pending);
	for (i = 0; i < MARK_TRIES; i++) {
		/* Also where the bit is there: it is a full barrier, and it is there yet. */
		found = sync_cmpxchg(pending, before, before | bit);
		if (found == before)
			return !before;
		before = found;
	}
	sync_set_bit(endpoint, (unsigned long *)mailbox->pending);
	return true;
}

void hall_mailbox_notify(struct hall_member *member, u32 endpoint)
{
	/* Other threads with a bit in the same word rely on this doorbell: it comes soon. */
	preempt_disable();
	if (hall_mailbox_mark(hall_peer_of(member)->out, endpoint)) {
		hall_count(HALL_DOORBELLS_SENT);
		member->transport->ring(member);
	} else {
		hall_count(HALL_DOORBELLS_MERGED);
	}
	preempt_enable();
}

void hall_mailbox_check(struct hall_peer *peer)
{
	u64 words = 0;
	unsigned int i;

	for (i = 0; i < WORDS; i++)
		words |= (u64)!!READ_ONCE(peer->out->pending[i]) << i;
	if (words & peer->untaken) {
		hall_count(HALL_DOORBELLS_REPEATED);
		peer->member.transport->ring(&peer->member);
	}
	peer->untaken = words;
}

static void notify(struct hall_peer *peer)
{
	hall_mailbox_notify(&peer->member, 0);
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
	/*
	 * Overwritten, here or where the peer read the head: go on where the peer
	 * says that it is. It takes no message twice, since it never goes back.
	 */
	if (messages < 0) {
		hall_count(HALL_CORRUPT_MESSAGES);
		peer->out_head = tail;
	}
	if (messages == HALLWAY_MAILBOX_MESSAGES)
		return false;
	memcpy(peer->out->message[peer->out_head % HALLWAY_MAILBOX_MESSAGES],
	       message, sizeof(*message));
	peer->out_head++;
	write_index(&peer->out->head, peer->own->slice.generation,
		    peer->slice.generation, peer->out_head);
	return true;
}

static bool put_declined(struct hall_peer *peer, u32 endpoint)
{
	struct hallway_message message = {
		.type = HALLWAY_DECLINE,
		.to = endpoint,
		.carrier = peer->declined[endpoint].carrier,
		.other = { .reason = peer->declined[endpoint].reason },
	};

	return put(peer, &message);
}

static bool is_waiting(const struct hall_peer *peer)
{
	return peer->backlogged || peer->declines;
}

/* Under peer->lock. Sends what there is space for; true: some. */
static bool send_backlog(struct hall_peer *peer)
{
	struct queued *queued, *next;
	unsigned int endpoint;
	bool sent = false;

	list_for_each_entry_safe(queued, next, &peer->backlog, list) {
		if (!put(peer, &queued->message))
			return sent;
		list_del(&queued->list);
		kfree(queued);
		peer->backlogged--;
		sent = true;
	}
	for_each_set_bit(endpoint, peer->declining, HALLWAY_ENDPOINTS_MAX) {
		if (!put_declined(peer, endpoint))
			return sent;
		__clear_bit(endpoint, peer->declining);
		peer->declines--;
		sent = true;
	}
	return sent;
}

static void retry(struct work_struct *work)
{
	struct hall_peer *peer = container_of(to_delayed_work(work),
					      struct hall_peer, retry);
	bool sent, left;

	spin_lock_bh(&peer->lock);
	sent = send_backlog(peer);
	left = is_waiting(peer);
	spin_unlock_bh(&peer->lock);
	notify(peer);
	peer->retry_after = sent ? RETRY_MIN :
				   min(2 * peer->retry_after, RETRY_MAX);
	if (left && !READ_ONCE(peer->member.departed))
		queue_delayed_work(hall_control_queue, &peer->retry,
				   peer->retry_after);
}

/*
 * A peer that reads nothing may still offer without end. It knows one offer for
 * each endpoint, so the last answer is enough, and its place is there already.
 */
static void keep_declined(struct hall_peer *peer,
			  const struct hallway_message *message)
{
	struct hall_declined *declined = &peer->declined[message->to];

	declined->carrier = message->carrier;
	declined->reason = message->other.reason;
	peer->declines += !__test_and_set_bit(message->to, peer->declining);
}

/*
 * A peer that stands still is owed a few of the other messages for each of its
 * endpoints.
 */
static bool keep_message(struct hall_peer *peer,
			 const struct hallway_message *message)
{
	struct queued *queued = NULL;

	if (peer->backlogged < 4 * HALLWAY_ENDPOINTS_MAX)
		queued = kmalloc(sizeof(*queued), GFP_ATOMIC);
	if (!queued)
		return false;
	queued->message = *message;
	list_add_tail(&queued->list, &peer->backlog);
	peer->backlogged++;
	return true;
}

void hall_mailbox_send(struct hall_member *member,
		       const struct hallway_message *message)
{
	struct hall_peer *peer = hall_peer_of(member);
	bool waits = false;

	/* A departure waits for readers that saw none, then ends the retry. */
	rcu_read_lock();
	if (READ_ONCE(member->departed))
		goto unlock;
	spin_lock_bh(&peer->lock);
	if (is_waiting(peer) || !put(peer, message)) {
		/* One to endpoint 0 is about an OFFER of ours. */
		if (message->type == HALLWAY_DECLINE && message->to)
			keep_declined(peer, message);
		else if (!keep_message(peer, message))
			hall_count(HALL_MESSAGES_LOST);
		waits = is_waiting(peer);
	}
	spin_unlock_bh(&peer->lock);
	if (waits)
		queue_delayed_work(hall_control_queue, &peer->retry, RETRY_MIN);
	else
		notify(peer);
unlock:
	rcu_read_unlock();
}

static void receive(struct hall_peer *peer)
{
	u32 own = peer->own->slice.generation, its = peer->slice.generation;
	struct hallway_message message;
	u32 head;

	/* A peer that is about to leave, or to arrive. */
	if (!read_index(&peer->in->head, its, own, &head))
		return;
	if (hall_mailbox_messages(head, peer->in_tail) < 0) {
		hall_count(HALL_CORRUPT_MESSAGES);
		head = peer->in_tail;
	}
	/* Also if there is none: the sender goes on from there. */
	write_index(&peer->in->tail, its, own, peer->in_tail);
	while (peer->in_tail != head) {
		memcpy(&message,
		       peer->in->message[peer->in_tail % HALLWAY_MAILBOX_MESSAGES],
		       sizeof(message));
		peer->in_tail++;
		write_index(&peer->in->tail, its, own, peer->in_tail);
		hall_transport_handler.message(&peer->member, &message);
	}
}

/* Takes the bits of one word. Returns the number of endpoints. */
static unsigned int take_word(struct hall_peer *peer, unsigned int word,
			      unsigned int *found)
{
	__u64 *pending = &peer->in->pending[word];
	unsigned int bit, woken = 0;
	unsigned long set;

	if (!READ_ONCE(*pending))
		return 0;
	set = xchg(pending, 0);
	for_each_set_bit(bit, &set, 64) {
		if (word == 0 && bit == 0) {
			receive(peer);
			*found |= HALL_LOOK_MESSAGES;
		} else {
			hall_transport_handler.wake(&peer->member,
						    word * 64 + bit);
			woken++;
		}
	}
	return woken;
}

unsigned int hall_mailbox_look(struct hall_peer *peer)
{
	unsigned int word, woken = 0, found = 0;
	u64 words = READ_ONCE(peer->member.blocks);

	/* The peer rings again and again for bits of endpoints that closed meanwhile. */
	if (time_after_eq(jiffies, peer->sweep_at)) {
		peer->sweep_at = jiffies + SWEEP;
		words = ~0ull;
	}
	/* From in_word on: bit 0 is that word. */
	for (words = ror64(words, peer->in_word); words; words &= words - 1) {
		word = (peer->in_word + __ffs64(words)) % WORDS;
		if (woken >= LOOK_BUDGET) {
			peer->in_word = word;
			return found | HALL_LOOK_MORE;
		}
		woken += take_word(peer, word, &found);
	}
	return found;
}

void hall_mailbox_forget(struct hall_member *member, u32 endpoint)
{
	/* A full barrier: the next bit rings, and its word is looked at. */
	xchg(&hall_peer_of(member)->in->pending[endpoint / 64], 0);
}

int hall_mailbox_create(struct hall_peer *peer)
{
	INIT_LIST_HEAD(&peer->backlog);
	peer->declined = kcalloc(HALLWAY_ENDPOINTS_MAX,
				 sizeof(*peer->declined), GFP_KERNEL);
	return peer->declined ? 0 : -ENOMEM;
}

void hall_mailbox_init(struct hall_peer *peer)
{
	u32 own = peer->own->slice.generation, its = peer->slice.generation;

	spin_lock_init(&peer->lock);
	INIT_DELAYED_WORK(&peer->retry, retry);
	peer->retry_after = RETRY_MIN;
	peer->sweep_at = jiffies + SWEEP;
	/* What a former peer has not taken: no doorbell is on its way for it. */
	memset(peer->out->pending, 0, sizeof(peer->out->pending));
	reset_index(&peer->in->tail, its, own);
	reset_index(&peer->out->head, own, its);
	/*
	 * One that looked meanwhile has taken the bit, and left messages that are not its own.
	 * The caller has to look soon: until then the peer rings no bit of this word.
	 */
	sync_set_bit(0, (unsigned long *)peer->in->pending);
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
	kfree(peer->declined);
}
