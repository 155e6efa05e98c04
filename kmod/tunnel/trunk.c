// SPDX-License-Identifier: GPL-2.0-only
/*
 * Trunks: SOCK_DGRAM.
 *
 * All datagrams to a peer go through one ring, whatever their sockets are: a thousand
 * programs need no more memory than one. The writer opens its trunk with its first
 * datagram, and writes on before that is answered. Each direction has a trunk of its own.
 *
 * Writers that find the ring full copy their datagram, and wait in a queue. The work item
 * writes the copies, in their order, as space comes: no writer waits for another one that
 * gets no CPU. All get the same number. Bytes are copied to the ring under a spinlock, and
 * without page faults: no program keeps the ring from others.
 *
 * A multicast datagram is copied into the trunk to each other VM, and waits for none. Its
 * group is its port: it reaches the sockets that are bound there.
 *
 * The reader moves each datagram to the queue of its socket at once, or drops it there,
 * so a program that does not read loses its own alone.
 *
 * Trunks pin the module: a VM has none without a socket of SOCK_DGRAM.
 */
#include "tunnel.h"

#include <linux/completion.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/xarray.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "frame.h"

#define TRUNK_BYTES	(256 << 10)
/*
 * After a refusal there is no other offer for this time, in jiffies. A VM that takes no
 * datagrams may be sent multicasts for ever, each of which could cost a ring.
 */
#define REFUSED			(HZ / 10)
#define REFUSED_MULTICAST	HZ
/* Trunks that a peer writes: one, and one before that which is not read to its end. */
#define TRUNKS_MAX	2
/* Datagrams that the reader takes at once, and the work item of the writer writes. */
#define TAKEN_MAX	64
#define WRITTEN_MAX	64
/* Page faults of one datagram, while its pages are taken away again. */
#define FAULTS_MAX	16

/* Opening and closing; and all of the next three. Outside of trunk.mutex. */
static DEFINE_MUTEX(opening);
static unsigned int sockets;
static LIST_HEAD(read_trunks);		/* those that peers write */
/*
 * By the peer's CID: the trunk that we write, referenced; or a value, the jiffies when it
 * was refused. Readers under RCU.
 */
static DEFINE_XARRAY(written);

/* A datagram that waits for space in the ring. On its writer's stack. */
struct waiting {
	struct list_head list;		/* of trunk.queue; empty: it is decided */
	struct completion decided;
	int err;
	const struct hallway_letter *letter;
	struct iov_iter from;		/* a copy */
};

/* opening, or any: it changes soon */
static bool are_wanted(void)
{
	return READ_ONCE(sockets) && READ_ONCE(hall_tunnels_enabled);
}

static struct hall_trunk *make_trunk(struct hall_tunnel *tunnel, u32 cid, bool reads)
{
	struct hall_trunk *trunk = kzalloc(sizeof(*trunk), GFP_KERNEL);

	if (!trunk)
		return NULL;
	trunk->tunnel = tunnel;
	trunk->reads = reads;
	trunk->cid = cid;
	INIT_LIST_HEAD(&trunk->list);
	mutex_init(&trunk->mutex);
	spin_lock_init(&trunk->lock);
	INIT_LIST_HEAD(&trunk->queue);
	return trunk;
}

/* Writing */

/* lock; it is not in the table any more, or the caller takes it out. */
static void end_trunk(struct hall_tunnel *tunnel)
{
	tunnel->state = HALL_TUNNEL_ENDED;
	hall_tunnel_end(tunnel);
	hall_channel_notify_receiver(&tunnel->channel);
}

/* lock. -EAGAIN: the ring is full, and its doorbell is armed. */
static int write_letter(struct hall_tunnel *tunnel, const struct hallway_letter *letter,
			struct iov_iter *from)
{
	u32 need = hall_letter_size(letter->length);
	struct hall_tx_ring *tx = &tunnel->tx;
	int err;

	if (tunnel->state == HALL_TUNNEL_ENDED)
		return READ_ONCE(hall_tunnels_enabled) ? -ECONNREFUSED : -ENODEV;
	if (need > tx->size)
		return -EMSGSIZE;
	if (!hall_ring_arm_tail(tx, need, max(need, HALL_RING_WAKE_SPACE(tx->size))))
		return -EAGAIN;
	pagefault_disable();
	err = hall_letter_write(tx, letter, from);
	pagefault_enable();
	if (tx->broken) {
		hall_count(HALL_CORRUPT_RINGS);
		end_trunk(tunnel);
		hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
		return -ECONNREFUSED;
	}
	if (err)
		return err;
	hall_tunnel_publish(tunnel, need, letter->length);
	hall_count(HALL_TUNNEL_DATAGRAMS_SENT);
	return 0;
}

/* lock. The same; -EAGAIN, too, while datagrams wait: for the first the doorbell is armed. */
static int write_in_turn(struct hall_tunnel *tunnel, const struct hallway_letter *letter,
			 struct iov_iter *from)
{
	return list_empty(&tunnel->trunk->queue) ? write_letter(tunnel, letter, from) :
						   -EAGAIN;
}

/* False: nothing waits, or the ring is full. */
static bool write_first(struct hall_tunnel *tunnel)
{
	struct hall_trunk *trunk = tunnel->trunk;
	struct waiting *one;
	int err = -EAGAIN;

	spin_lock(&trunk->lock);
	one = list_first_entry_or_null(&trunk->queue, struct waiting, list);
	if (one)
		err = write_letter(tunnel, one->letter, &one->from);
	if (err != -EAGAIN) {
		list_del_init(&one->list);
		one->err = err;
		complete(&one->decided);
	}
	spin_unlock(&trunk->lock);
	return err != -EAGAIN;
}

/* What waits is written, as far as there is space; or fails, if the trunk has ended. */
static void write_queue(struct hall_tunnel *tunnel)
{
	unsigned int turns;

	for (turns = 0; turns < WRITTEN_MAX; turns++) {
		if (!write_first(tunnel))
			return;
		cond_resched();
	}
	hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
}

/* For what follows the work item looks, and arms the doorbell again. */
static int leave_queue(struct hall_tunnel *tunnel, struct waiting *one, int err)
{
	struct hall_trunk *trunk = tunnel->trunk;

	spin_lock(&trunk->lock);
	if (list_empty(&one->list)) {
		err = one->err;
	} else {
		list_del(&one->list);
		hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
	}
	spin_unlock(&trunk->lock);
	return err;
}

static int wait_for_turn(struct hall_tunnel *tunnel, struct waiting *one, long timeo)
{
	long left;
	int err;

	spin_lock(&tunnel->trunk->lock);
	err = write_in_turn(tunnel, one->letter, &one->from);
	if (err == -EAGAIN)
		list_add_tail(&one->list, &tunnel->trunk->queue);
	spin_unlock(&tunnel->trunk->lock);
	if (err != -EAGAIN)
		return err;
	left = wait_for_completion_interruptible_timeout(&one->decided, timeo);
	if (left > 0)
		return one->err;
	return leave_queue(tunnel, one, left ? sock_intr_errno(timeo) : -EAGAIN);
}

/*
 * Without lock_sock(): another thread of the program may hold it for as long as it likes,
 * in a page fault, and this one waits for memory and space.
 */
static int copy_and_wait(struct hall_tunnel *tunnel, const struct hallway_letter *letter,
			 struct iov_iter *from, long timeo)
{
	struct waiting one = { .letter = letter };
	struct kvec copy = { .iov_len = letter->length };
	int err = -EFAULT;

	/* For no bytes it is not NULL. */
	copy.iov_base = kvmalloc(letter->length, GFP_KERNEL_ACCOUNT);
	if (!copy.iov_base)
		return -ENOMEM;
	init_completion(&one.decided);
	INIT_LIST_HEAD(&one.list);
	iov_iter_kvec(&one.from, WRITE, &copy, 1, copy.iov_len);
	if (copy_from_iter_full(copy.iov_base, copy.iov_len, from)) {
		err = wait_for_turn(tunnel, &one, timeo);
		if (err)
			iov_iter_revert(from, copy.iov_len);
	}
	kvfree(copy.iov_base);
	return err;
}

/* lock_sock(), released while it waits. */
static int send_letter(struct hall_tunnel *tunnel, struct sock *sk,
		       const struct hallway_letter *letter, struct msghdr *msg)
{
	long timeo = sock_sndtimeo(sk, msg->msg_flags & MSG_DONTWAIT);
	struct hall_trunk *trunk = tunnel->trunk;
	unsigned int faults = 0;
	int err;

	do {
		spin_lock(&trunk->lock);
		err = write_in_turn(tunnel, letter, &msg->msg_iter);
		spin_unlock(&trunk->lock);
	} while (err == -EFAULT && ++faults < FAULTS_MAX &&
		 !fault_in_iov_iter_readable(&msg->msg_iter, letter->length));
	if (err != -EAGAIN || !timeo)
		return err;
	release_sock(sk);
	err = copy_and_wait(tunnel, letter, &msg->msg_iter, timeo);
	lock_sock(sk);
	return err;
}

/*
 * A peer can be one new VM after another, each of which refuses and departs: refusals
 * that count no more go. opening
 */
static void forget_refusals(void)
{
	unsigned long cid;
	void *entry;

	xa_for_each(&written, cid, entry)
		if (xa_is_value(entry) &&
		    time_after(jiffies, xa_to_value(entry) + REFUSED_MULTICAST))
			xa_erase(&written, cid);
}

/* The peer reads no more: a new trunk is offered later, if it is there. */
static void forget(struct hall_tunnel *tunnel, bool departed)
{
	u32 cid = tunnel->trunk->cid;
	bool found;

	/* A doorbell that is rung for an ended one is cheap. */
	if (xa_load(&written, cid) != tunnel)
		return;
	mutex_lock(&opening);
	forget_refusals();
	found = xa_load(&written, cid) == tunnel;
	if (found && departed)
		xa_erase(&written, cid);
	else if (found)
		/* No memory is needed to replace an entry. */
		xa_store(&written, cid, xa_mk_value(jiffies), GFP_KERNEL);
	mutex_unlock(&opening);
	if (found)
		hall_channel_put(&tunnel->channel);
}

/* The arrival of a VM that hallwayd vouches for changes the owner of a CID. */
static bool is_of_owner(const struct hall_tunnel *tunnel)
{
	const struct hall_member *member = tunnel->channel.member;

	return !READ_ONCE(member->departed) && hall_member_has_cid(member);
}

static struct hall_tunnel *find_trunk(u32 cid)
{
	struct hall_tunnel *tunnel;

	rcu_read_lock();
	tunnel = xa_load(&written, cid);
	if (xa_is_value(tunnel) || (tunnel && !hall_channel_tryget(&tunnel->channel)))
		tunnel = NULL;
	rcu_read_unlock();
	if (!tunnel || is_of_owner(tunnel))
		return tunnel;
	hall_channel_put(&tunnel->channel);
	return NULL;
}

/* Ends the trunk to a CID, if there is one, and takes it out of the table. opening */
static void drop_trunk(u32 cid)
{
	struct hall_tunnel *tunnel = xa_load(&written, cid);

	if (!tunnel || xa_is_value(tunnel))
		return;
	xa_erase(&written, cid);
	mutex_lock(&tunnel->trunk->mutex);
	spin_lock(&tunnel->trunk->lock);
	end_trunk(tunnel);
	spin_unlock(&tunnel->trunk->lock);
	mutex_unlock(&tunnel->trunk->mutex);
	/* For what waits. */
	hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
	hall_channel_put(&tunnel->channel);
}

/* opening, mutex: once it has a number the peer may say anything of it. */
static int set_up(struct hall_tunnel *tunnel, u32 cid)
{
	int err = hall_tunnel_open(tunnel) ?: hall_tunnel_alloc(tunnel, TRUNK_BYTES, false) ?:
		  xa_err(xa_store(&written, cid, tunnel, GFP_KERNEL));

	if (err) {
		tunnel->state = HALL_TUNNEL_ENDED;
		hall_tunnel_free_tx(tunnel);
		hall_channel_close(&tunnel->channel);
		return err;
	}
	/* For the table. */
	refcount_inc(&tunnel->channel.refs);
	hall_count(HALL_TRUNKS);
	hall_tunnel_offer(tunnel, &(struct hallway_tunnel){ .type = HALLWAY_TUNNEL_DGRAM });
	return 0;
}

/* Returns with a reference for the caller. opening */
static struct hall_tunnel *open_trunk(u32 cid, unsigned long refused)
{
	struct hall_member *member = hall_members_get_by_cid(cid);
	struct hall_tunnel *tunnel;
	void *entry;
	int err;

	drop_trunk(cid);
	if (!member)
		return ERR_PTR(-EHOSTUNREACH);
	if (!READ_ONCE(hall_tunnels_enabled)) {
		hall_member_put(member);
		return ERR_PTR(-ENODEV);
	}
	entry = xa_load(&written, cid);
	if (xa_is_value(entry) && time_before(jiffies, xa_to_value(entry) + refused)) {
		hall_member_put(member);
		return ERR_PTR(-ECONNREFUSED);
	}
	tunnel = hall_tunnel_new(member, GFP_KERNEL);
	hall_member_put(member);
	if (IS_ERR(tunnel))
		return tunnel;
	tunnel->state = HALL_TUNNEL_CALLING;
	tunnel->trunk = make_trunk(tunnel, cid, false);
	if (!tunnel->trunk) {
		hall_channel_put(&tunnel->channel);
		return ERR_PTR(-ENOMEM);
	}
	mutex_lock(&tunnel->trunk->mutex);
	err = set_up(tunnel, cid);
	mutex_unlock(&tunnel->trunk->mutex);
	if (!err)
		return tunnel;
	hall_channel_put(&tunnel->channel);
	return ERR_PTR(err);
}

/*
 * The trunk to a CID, with a reference. Or -EHOSTUNREACH: no member has it; -ENODEV:
 * tunnels are switched off; -ECONNREFUSED: its owner has not taken the ring in that time;
 * -EUSERS, -ENOMEM.
 */
static struct hall_tunnel *get_trunk(u32 cid, unsigned long refused)
{
	struct hall_tunnel *tunnel = find_trunk(cid);

	if (tunnel)
		return tunnel;
	mutex_lock(&opening);
	tunnel = find_trunk(cid) ?: open_trunk(cid, refused);
	mutex_unlock(&opening);
	return tunnel;
}

static int send_copy(u32 cid, struct sock *sk, const struct hallway_letter *letter,
		     const struct msghdr *msg)
{
	struct msghdr copy = { .msg_flags = MSG_DONTWAIT, .msg_iter = msg->msg_iter };
	struct hall_tunnel *tunnel = get_trunk(cid, REFUSED_MULTICAST);
	int err;

	if (IS_ERR(tunnel))
		return PTR_ERR(tunnel);
	err = send_letter(tunnel, sk, letter, &copy);
	hall_channel_put(&tunnel->channel);
	return err;
}

/* A VM that can take no copy now loses its own. lock_sock() */
static int send_copies(struct sock *sk, const struct hallway_letter *letter,
		       const struct msghdr *msg)
{
	u32 cid = 0;
	int err;

	while ((cid = hall_members_next_cid(cid))) {
		err = send_copy(cid, sk, letter, msg);
		if (err == -EFAULT || err == -ENODEV)
			return err;
		if (err && err != -ECONNREFUSED)
			hall_count(HALL_TUNNEL_COPIES_DROPPED);
		cond_resched();
	}
	return 0;
}

int hall_letter_enqueue(struct vsock_sock *vsk, struct sockaddr_vm *to,
			struct msghdr *msg, size_t len)
{
	struct hallway_letter letter = {
		.length = len,
		.local_port = vsk->local_addr.svm_port,
		.remote_port = to->svm_port,
	};
	struct hall_tunnel *tunnel;
	int err;

	if (!READ_ONCE(hall_tunnels_enabled))
		return -ENODEV;
	if (len > HALLWAY_LETTER_MAX)
		return -EMSGSIZE;
	if (to->svm_cid == HALLWAY_CID_MULTICAST)
		return send_copies(sk_vsock(vsk), &letter, msg) ?: len;
	tunnel = get_trunk(to->svm_cid, REFUSED);
	if (IS_ERR(tunnel))
		return PTR_ERR(tunnel);
	err = send_letter(tunnel, sk_vsock(vsk), &letter, msg);
	hall_channel_put(&tunnel->channel);
	return err ?: len;
}

static void on_accept(struct hall_tunnel *tunnel)
{
	struct hall_channel *channel = &tunnel->channel;
	struct hall_answer accept;

	spin_lock_bh(&channel->lock);
	accept = channel->accept;
	spin_unlock_bh(&channel->lock);
	/* Without an endpoint the channel is closed, and its memory may be gone. */
	if (accept.carrier != HALL_TUNNEL_CARRIER || channel->receiver || !channel->endpoint)
		return;
	WRITE_ONCE(channel->receiver, accept.from);
	/* What was written since the peer looked rang no doorbell. */
	hall_channel_notify_receiver(channel);
}

static void run_writer(struct hall_tunnel *tunnel, unsigned long events)
{
	bool unread = events & (BIT(HALL_EVENT_DECLINE) | BIT(HALL_EVENT_DEPARTED));
	struct hall_trunk *trunk = tunnel->trunk;
	bool ended;
	u32 reason;

	mutex_lock(&trunk->mutex);
	if (events & BIT(HALL_EVENT_ACCEPT))
		on_accept(tunnel);
	spin_lock(&trunk->lock);
	if (events & BIT(HALL_EVENT_DONE))
		unread |= hall_tunnel_finish_tx(tunnel, &reason);
	if (unread)
		tunnel->state = HALL_TUNNEL_ENDED;
	ended = tunnel->state == HALL_TUNNEL_ENDED;
	spin_unlock(&trunk->lock);
	if (unread)
		hall_tunnel_free_tx(tunnel);
	hall_tunnel_close_channel(tunnel);
	mutex_unlock(&trunk->mutex);
	if (ended)
		forget(tunnel, events & BIT(HALL_EVENT_DEPARTED));
	write_queue(tunnel);
}

/* Reading */

enum taken {
	TAKEN_ALL,		/* and the doorbell is armed */
	TAKEN_SOME,
	TAKEN_LAST,		/* the peer writes no more */
	TAKEN_CORRUPT,
};

/* channel.lock */
static enum taken take_datagrams(struct hall_tunnel *tunnel)
{
	struct hall_rx_ring *rx = &tunnel->rx;
	struct hallway_letter letter;
	unsigned int turns;
	u32 unread;

	for (turns = 0; turns < TAKEN_MAX; turns++) {
		switch (hall_ring_find_source(rx, 0, 0, &unread)) {
		case HALL_RX_RING:
			break;
		case HALL_RX_EMPTY:
			if (!hall_ring_arm_head(rx, 1))
				return TAKEN_ALL;
			continue;
		case HALL_RX_ENDED:
			return TAKEN_LAST;
		default:
			return TAKEN_CORRUPT;
		}
		if (hall_letter_find(rx, unread, &letter) < 0 ||
		    !hall_letter_deliver(tunnel, &letter))
			return TAKEN_CORRUPT;
		if (hall_ring_consume(rx, hall_letter_size(letter.length)))
			hall_channel_notify_sender(&tunnel->channel);
	}
	return TAKEN_SOME;
}

/*
 * What comes later is not read: the writer may not know yet that it has departed, or that
 * its CID is another VM's.
 */
static void end_at_head(struct hall_tunnel *tunnel)
{
	spin_lock_bh(&tunnel->channel.lock);
	if (tunnel->mapped)
		hall_ring_count_used(&tunnel->rx);
	tunnel->rx.ended = true;
	spin_unlock_bh(&tunnel->channel.lock);
}

static enum taken read_trunk(struct hall_tunnel *tunnel)
{
	enum taken taken = TAKEN_LAST;

	if (!hall_member_has_cid(tunnel->channel.member))
		end_at_head(tunnel);
	spin_lock_bh(&tunnel->channel.lock);
	if (tunnel->mapped)
		taken = take_datagrams(tunnel);
	spin_unlock_bh(&tunnel->channel.lock);
	return taken;
}

void hall_trunk_wake(struct hall_tunnel *tunnel)
{
	if (!tunnel->trunk->reads || read_trunk(tunnel) != TAKEN_ALL)
		hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
}

static void finish_reading(struct hall_tunnel *tunnel, u32 reason)
{
	mutex_lock(&opening);
	list_del_init(&tunnel->trunk->list);
	mutex_unlock(&opening);
	tunnel->state = HALL_TUNNEL_ENDED;
	hall_tunnel_finish_rx(tunnel, reason);
	hall_tunnel_close_channel(tunnel);
}

static void run_reader(struct hall_tunnel *tunnel, unsigned long events)
{
	bool departed = events & BIT(HALL_EVENT_DEPARTED);
	enum taken taken;

	if (tunnel->state == HALL_TUNNEL_ENDED)
		return;
	if (departed)
		end_at_head(tunnel);
	do
		taken = read_trunk(tunnel);
	while (departed && taken == TAKEN_SOME);
	if (taken == TAKEN_CORRUPT)
		hall_count(HALL_CORRUPT_RINGS);
	if (taken == TAKEN_CORRUPT || taken == TAKEN_LAST || departed ||
	    !are_wanted())
		finish_reading(tunnel, taken == TAKEN_CORRUPT ? ECONNRESET : 0);
	else if (taken == TAKEN_SOME)
		hall_channel_raise(&tunnel->channel, HALL_EVENT_FINISH);
}

/* opening */
static unsigned int count_trunks(const struct hall_member *member)
{
	struct hall_trunk *trunk;
	unsigned int n = 0;

	list_for_each_entry(trunk, &read_trunks, list)
		n += trunk->tunnel->channel.member == member;
	return n;
}

/* 0, or the reason to decline. opening */
static u32 accept_trunk(struct hall_tunnel *tunnel, const struct hallway_message *offer)
{
	struct hall_trunk *trunk;

	if (!are_wanted())
		return HALLWAY_REASON_NO_MATCH;
	if (count_trunks(tunnel->channel.member) >= TRUNKS_MAX)
		return HALLWAY_REASON_BUSY;
	trunk = make_trunk(tunnel, 0, true);
	if (!trunk)
		return HALLWAY_REASON_NO_MEMORY;
	if (hall_tunnel_open(tunnel)) {
		kfree(trunk);
		return HALLWAY_REASON_PEER_LEFT;
	}
	/* The doorbell may ring once its number is known. */
	tunnel->trunk = trunk;
	if (hall_tunnel_map(tunnel, offer, false))
		return HALLWAY_REASON_CORRUPT;
	tunnel->state = HALL_TUNNEL_CONNECTED;
	list_add(&trunk->list, &read_trunks);
	return 0;
}

void hall_trunk_serve(struct hall_tunnel *tunnel, const struct hallway_message *offer)
{
	static const struct hall_tokens none;
	u32 reason;

	mutex_lock(&opening);
	reason = accept_trunk(tunnel, offer);
	mutex_unlock(&opening);
	if (reason) {
		hall_tunnel_refuse(tunnel, offer, reason);
		return;
	}
	hall_channel_accept(&tunnel->channel, HALL_TUNNEL_CARRIER, &none);
	run_reader(tunnel, 0);
}

void hall_trunk_run_events(struct hall_tunnel *tunnel, unsigned long events)
{
	if (tunnel->trunk->reads)
		run_reader(tunnel, events);
	else
		run_writer(tunnel, events);
}

/* The first socket, and the last */

void hall_trunks_open(void)
{
	mutex_lock(&opening);
	WRITE_ONCE(sockets, sockets + 1);
	mutex_unlock(&opening);
}

/* opening */
static void end_all(void)
{
	struct hall_tunnel *tunnel;
	struct hall_trunk *trunk;
	unsigned long cid;

	xa_for_each(&written, cid, tunnel) {
		if (xa_is_value(tunnel))
			xa_erase(&written, cid);
		else
			drop_trunk(cid);
	}
	list_for_each_entry(trunk, &read_trunks, list)
		hall_channel_raise(&trunk->tunnel->channel, HALL_EVENT_FINISH);
}

void hall_trunks_end(void)
{
	mutex_lock(&opening);
	end_all();
	mutex_unlock(&opening);
}

void hall_trunks_close(void)
{
	mutex_lock(&opening);
	WRITE_ONCE(sockets, sockets - 1);
	if (!sockets)
		end_all();
	mutex_unlock(&opening);
}
