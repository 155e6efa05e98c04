// SPDX-License-Identifier: GPL-2.0
/*
 * Ring memory is a budget, not a cost per connection.
 *
 * A ring has ring_bytes while there is plenty of memory, less where SO_SNDBUF
 * asks for less, and the less there is the less it gets, so that there is a ring
 * for many before there is a large one for few. A small ring whose writer keeps
 * filling it, while its reader keeps up, is followed by a larger one once there
 * is room. Each change of size is a way through TCP, for a ring is ended as any
 * other is and the next one is another carrier. So it must be worth it, and those
 * who compete for memory don't take it from each other for a moment: see SETTLED
 * and UNFILLED.
 *
 * A ring whose connection sends nothing goes back after idle_ms; while memory
 * is wanted after pause_ms already, and then large ones that don't fill become
 * smaller, too. The connection has to earn the next one by being in use again:
 * sends that are further apart than pause_ms do not add up (policy.c), so that
 * none gets a ring for what loses it one.
 *
 * Nothing of this costs a send anything that finds space in its ring: when a
 * connection was used last is what TCP notes of it (lsndtime).
 */
#include "switch.h"

#include <linux/log2.h>
#include <linux/moduleparam.h>

#include <hallway/reason.h>

#include "../obs/counters.h"
#include "../sock/carrier.h"

static unsigned int ring_bytes = 256 << 10;

static int set_ring_bytes(const char *text, const struct kernel_param *param)
{
	unsigned int bytes;
	int err = kstrtouint(text, 0, &bytes);

	if (err)
		return err;
	if (!hall_ring_is_valid_size(bytes)) {
		pr_err("hallway: ring_bytes=%u: want a power of two from %u to %u\n",
		       bytes, HALLWAY_RING_MIN, HALLWAY_RING_MAX);
		return -EINVAL;
	}
	WRITE_ONCE(ring_bytes, bytes);
	return 0;
}

static const struct kernel_param_ops ring_bytes_ops = {
	.set = set_ring_bytes,
	.get = param_get_uint,
};
module_param_cb(ring_bytes, &ring_bytes_ops, &ring_bytes, 0644);
MODULE_PARM_DESC(ring_bytes, "bytes of each ring while there is plenty of memory, a power of two (default: 262144)");

static unsigned int idle_ms = 30000;
module_param(idle_ms, uint, 0644);
MODULE_PARM_DESC(idle_ms, "a connection that sends nothing for so many milliseconds gives its ring back (default: 30000)");

static unsigned int pause_ms = 1000;
module_param(pause_ms, uint, 0644);
MODULE_PARM_DESC(pause_ms, "the same, while memory is wanted; sends further apart don't earn a ring (default: 1000)");

#define LEAST		(16u << 10)	/* bytes that who is short of memory gets */
#define STEP		4		/* between sizes */
/* A ring larger than that takes at most such a part of what is left. */
#define PART		8

/* Full so often: it should be larger. */
#define FULL		4
/* A ring has its size for so long before it grows; */
#define SETTLED		HZ
/* and a large one that was not full for so long is larger than need be. */
#define UNFILLED	(5 * HZ)
/* Nobody who was refused has sent for so long: memory is wanted no more. */
#define WANTED		(2 * HZ)

static u32 least_bytes(void)
{
	return min(LEAST, READ_ONCE(ring_bytes));
}

/*
 * A program that sets SO_SNDBUF wants to be stopped once so much is on its way,
 * and what the peer's window takes: its ring holds no more than both.
 */
static u32 most_bytes(const struct sock *sk)
{
	u64 buffers = (u64)READ_ONCE(sk->sk_sndbuf) + tcp_sk(sk)->snd_wnd;
	u32 most = READ_ONCE(ring_bytes);

	if (!(sk->sk_userlocks & SOCK_SNDBUF_LOCK) || buffers >= most)
		return most;
	return max_t(u32, roundup_pow_of_two(buffers), HALLWAY_RING_MIN);
}

static u32 smaller(u32 bytes)
{
	return max(bytes / STEP, least_bytes());
}

static bool room(const struct hall_member *member, u32 bytes)
{
	return bytes <= least_bytes() ||
	       (s64)(HALLWAY_RING_HEADER + bytes) * PART <=
	       hall_memory_left(member);
}

void hall_budget_want(struct hall_sock *hs)
{
	hall_count(HALL_RINGS_REFUSED);
	WRITE_ONCE(hs->channel.member->pool->wanted_at, jiffies);
}

static bool wanted(const struct hall_sock *hs)
{
	return time_before(jiffies,
			   READ_ONCE(hs->channel.member->pool->wanted_at) + WANTED);
}

static bool paused(const struct hall_sock *hs, unsigned int ms)
{
	return tcp_jiffies32 - READ_ONCE(tcp_sk(hs->sk)->lsndtime) >=
	       msecs_to_jiffies(ms);
}

bool hall_budget_new_use(const struct hall_sock *hs)
{
	return paused(hs, READ_ONCE(pause_ms));
}

int hall_budget_offer(struct hall_sock *hs, const struct hall_tokens *tokens)
{
	struct hall_member *member = hs->channel.member;
	struct hall_demand *demand = &hs->demand;
	u32 bytes = most_bytes(hs->sk);
	int err;

	if (demand->bytes)
		bytes = min(bytes, demand->bytes);
	while (!room(member, bytes))
		bytes = smaller(bytes);
	/* What is left may be in pieces. */
	while ((err = hall_tx_offer(hs, tokens, bytes)) == -ENOMEM &&
	       bytes > least_bytes())
		bytes = smaller(bytes);
	if (err) {
		hall_budget_want(hs);
		return err;
	}
	demand->full = 0;
	demand->head = 0;
	demand->full_at = jiffies;
	demand->settled_at = jiffies + SETTLED;
	return 0;
}

bool hall_budget_full(struct hall_sock *hs)
{
	const struct hall_tx_ring *ring = &hs->tx.ring;
	struct hall_demand *demand = &hs->demand;
	u32 most = most_bytes(hs->sk);

	/* Once for each half of a ring: a reader that stands still is no reason. */
	if (ring->head - demand->head < ring->size / 2)
		return false;
	demand->head = ring->head;
	WRITE_ONCE(demand->full_at, jiffies);
	if (++demand->full < FULL || ring->size >= most ||
	    time_before(jiffies, demand->settled_at))
		return false;
	if (!room(hs->channel.member, min(ring->size * STEP, most))) {
		demand->settled_at = jiffies + SETTLED;
		hall_budget_want(hs);
		return false;
	}
	hall_count(HALL_RINGS_GROWN);
	demand->bytes = 0;
	hall_tx_demote(hs);
	return true;
}

/* No send for so long that the ring is better used by another. */
static bool idle(const struct hall_sock *hs)
{
	return paused(hs, READ_ONCE(idle_ms)) ||
	       (wanted(hs) && hall_budget_new_use(hs));
}

/* In use, but less would do, and others want it. */
static bool too_large(const struct hall_sock *hs)
{
	return wanted(hs) && hs->tx.ring.size > least_bytes() &&
	       time_after(jiffies, READ_ONCE(hs->demand.full_at) + UNFILLED);
}

void hall_budget_look(struct hall_sock *hs)
{
	/* Nothing is locked: the work looks again. */
	if (READ_ONCE(hs->tx.state) == HALL_TX_RING &&
	    (idle(hs) || too_large(hs)))
		hall_channel_raise(&hs->channel, HALL_EVENT_SPARE);
}

void hall_budget_spare(struct hall_sock *hs)
{
	if (hs->tx.state != HALL_TX_RING)
		return;
	if (idle(hs)) {
		/* What its reader has left in it goes to the reader's TCP. */
		hall_count(HALL_RINGS_IDLE);
		hs->demand.bytes = 0;
		hs->reason = HALLWAY_REASON_IDLE;
	} else if (too_large(hs)) {
		hall_count(HALL_RINGS_SHRUNK);
		hs->demand.bytes = smaller(hs->tx.ring.size);
	} else {
		return;
	}
	hall_tx_demote(hs);
}
