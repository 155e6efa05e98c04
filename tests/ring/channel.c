// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kinds of channels: kmod/channel/channel.c as it is, on a little of a kernel
 * (shim/kernel.h). Two kinds are registered: one finds a channel that exists,
 * the other makes a channel for each OFFER.
 */
#include "check.h"
#include "kernel.h"

#include <hallway/message.h>

/* The second kind, and one in the table that is not registered. */
enum {
	FINDS = HALLWAY_KIND_STREAM,
	MAKES = HALLWAY_KIND_MAX + 1,
	UNREGISTERED,
};

#undef HALLWAY_KIND_MAX
#define HALLWAY_KIND_MAX UNREGISTERED

#include "../../kmod/channel/channel.c"

bool shim_no_memory;
struct hall_counters hall_counters;
struct hall_transport_handler hall_transport_handler;

static struct hall_member member;
static struct hall_channel existing;
static struct hall_channel *made;
static struct hallway_message sent;
/* Calls since the last fresh(); of each kind by its number. */
static unsigned int messages, looked_up[UNREGISTERED], raised[UNREGISTERED], woken[UNREGISTERED],
		released[UNREGISTERED], forgot[HALLWAY_ENDPOINTS_MAX / HALL_BLOCK];

void hall_member_put(struct hall_member *m)
{
	refcount_dec_and_test(&m->refs);
}

void shim_wait(void)
{
}

static void transport_send(struct hall_member *m,
			   const struct hallway_message *message)
{
	sent = *message;
	messages++;
}

static void transport_forget(struct hall_member *m, u32 endpoint)
{
	/* Looked at already, and nobody else has a number of this block yet. */
	CHECK(m->blocks & 1ull << endpoint / HALL_BLOCK && m->endpoints.locked);
	forgot[endpoint / HALL_BLOCK]++;
}

static const struct hall_transport transport = {
	.send = transport_send,
	.forget = transport_forget,
};

static void on_raised(struct hall_channel *channel)
{
	raised[channel->kind->number]++;
}

static void on_wake(struct hall_channel *channel)
{
	woken[channel->kind->number]++;
}

static void on_release(struct hall_channel *channel)
{
	released[channel->kind->number]++;
}

static struct hall_channel *find_existing(struct hall_member *m,
					  const struct hallway_message *offer)
{
	looked_up[FINDS]++;
	return existing.kind && hall_channel_tryget(&existing) ? &existing : NULL;
}

static struct hall_channel *make(struct hall_member *m,
				 const struct hallway_message *offer);

static const struct hall_channel_kind finds = {
	.number = FINDS,
	.offer = find_existing,
	.raised = on_raised,
	.wake = on_wake,
	.release = on_release,
}, makes = {
	.number = MAKES,
	.offer = make,
	.raised = on_raised,
	.wake = on_wake,
	.release = on_release,
};

/* The kind keeps a reference; numbers are taken in process context, later. */
static struct hall_channel *make(struct hall_member *m,
				 const struct hallway_message *offer)
{
	looked_up[MAKES]++;
	made = calloc(1, sizeof(*made));
	hall_channel_setup(made, &makes, m);
	CHECK(hall_channel_tryget(made));
	return made;
}

static void fresh(void)
{
	memset(&sent, 0, sizeof(sent));
	memset(looked_up, 0, sizeof(looked_up));
	memset(raised, 0, sizeof(raised));
	memset(woken, 0, sizeof(woken));
	memset(released, 0, sizeof(released));
	messages = 0;
}

static unsigned int calls(void)
{
	unsigned int i, n = 0;

	for (i = 0; i < UNREGISTERED; i++)
		n += looked_up[i] + raised[i] + woken[i] + released[i];
	return n;
}

static void offer(u16 kind)
{
	struct hallway_message message = {
		.type = HALLWAY_OFFER,
		.from = 77,
		.carrier = 5,
		.offer = { .kind = kind },
	};

	fresh();
	hall_transport_handler.message(&member, &message);
}

static bool declined(u32 reason)
{
	return messages == 1 && sent.type == HALLWAY_DECLINE && sent.to == 77 &&
	       !sent.from && sent.carrier == 5 && sent.other.reason == reason;
}

static void drop_existing(void)
{
	hall_channel_close(&existing);
	hall_channel_put(&existing);
	existing = (struct hall_channel){ };
}

static void drop_made(void)
{
	free(made);
	made = NULL;
}

static void unknown_kind(void)
{
	unsigned int kind;

	for (kind = 0; kind <= 0xffff; kind++) {
		if (kind == FINDS || kind == MAKES)
			continue;
		offer(kind);
		CHECK(declined(HALLWAY_REASON_KIND), "kind %u", kind);
		CHECK(!calls(), "kind %u", kind);
	}
	CHECK(!atomic_read(&member.channels));
}

static void found_channel(void)
{
	offer(FINDS);
	CHECK(declined(HALLWAY_REASON_NO_MATCH));
	CHECK(calls() == 1 && looked_up[FINDS] == 1);

	hall_channel_setup(&existing, &finds, &member);
	offer(FINDS);
	CHECK(!messages);
	CHECK(calls() == 2 && looked_up[FINDS] == 1 && raised[FINDS] == 1);
	CHECK(existing.events == 1 << HALL_EVENT_OFFER);
	CHECK(existing.offer && existing.offer->from == 77);
	CHECK(existing.refs.refs == 1);

	shim_no_memory = true;
	offer(FINDS);
	shim_no_memory = false;
	CHECK(declined(HALLWAY_REASON_NO_MEMORY));
	CHECK(!raised[FINDS] && existing.refs.refs == 1);

	/* The same one again is no other. */
	offer(FINDS);
	CHECK(!messages && raised[FINDS] == 1 && existing.offer->carrier == 5);
	/* One that is replaced gets its answer, or its ring would never be freed. */
	existing.offer->carrier = 3;
	offer(FINDS);
	CHECK(messages == 1 && sent.type == HALLWAY_DECLINE && sent.to == 77 &&
	      sent.carrier == 3 && sent.other.reason == HALLWAY_REASON_BUSY);
	CHECK(raised[FINDS] == 1 && existing.offer->carrier == 5);
	drop_existing();
}

static void made_channel(void)
{
	struct hallway_message accept = { .type = HALLWAY_ACCEPT, .from = 78 };
	struct hall_memory memory = { .size = HALLWAY_RING_HEADER };
	struct hall_tokens tokens = { };
	struct in6_addr address = { };

	offer(MAKES);
	CHECK(!messages && made);
	if (!made)
		return;
	CHECK(calls() == 2 && looked_up[MAKES] == 1 && raised[MAKES] == 1);
	CHECK(made->offer && made->offer->from == 77);
	CHECK(made->refs.refs == 1);

	/* What arrives later for its endpoint goes to its kind, too. */
	CHECK(!hall_channel_open(made));
	accept.to = made->endpoint;
	hall_transport_handler.message(&member, &accept);
	CHECK(raised[MAKES] == 2 && made->accept.from == 78);
	hall_transport_handler.wake(&member, made->endpoint);
	CHECK(woken[MAKES] == 1 && calls() == 4);

	hall_channel_offer(made, 3, &tokens, &address, 1, &address, 2, &memory);
	CHECK(sent.type == HALLWAY_OFFER && sent.offer.kind == MAKES);

	hall_channel_close(made);
	CHECK(!released[MAKES]);
	hall_channel_put(made);
	CHECK(released[MAKES] == 1 && calls() == 5);
	drop_made();
}

static void declined_made_channel(void)
{
	shim_no_memory = true;
	offer(MAKES);
	shim_no_memory = false;
	CHECK(declined(HALLWAY_REASON_NO_MEMORY) && !raised[MAKES]);
	CHECK(made->refs.refs == 1);
	hall_channel_put(made);
	CHECK(released[MAKES] == 1);
	drop_made();
}

static void unregistered_kind(void)
{
	hall_channel_unregister(&makes);
	fresh();
	offer(MAKES);
	CHECK(declined(HALLWAY_REASON_KIND) && !calls());
	hall_channel_register(&makes);
	fresh();
	offer(MAKES);
	CHECK(looked_up[MAKES] == 1);
	hall_channel_put(made);
	drop_made();
}

/* Blocks with numbers in use are looked at, and no others; each begins without late bits. */
static void blocks_in_use(void)
{
	enum { MANY = 3 * HALL_BLOCK };
	static struct hall_channel many[MANY];
	unsigned int i, turn;

	CHECK(member.blocks == 1);
	for (turn = 1; turn <= 3; turn++) {
		for (i = 0; i < MANY; i++) {
			if (many[i].endpoint)
				continue;
			hall_channel_setup(&many[i], &finds, &member);
			CHECK(!hall_channel_open(&many[i]));
			CHECK(many[i].endpoint == i + 1, "%u is %u", i, many[i].endpoint);
			CHECK(member.blocks & 1ull << many[i].endpoint / HALL_BLOCK, "%u", i);
		}
		CHECK(member.blocks == 0xf && !forgot[0], "%u", forgot[0]);
		CHECK(forgot[1] == turn && forgot[2] == 1 && forgot[3] == turn, "%u %u %u",
		      forgot[1], forgot[2], forgot[3]);
		/* One of the block 2 stays. */
		for (i = 0; i < MANY; i++) {
			if (i == 2 * HALL_BLOCK)
				continue;
			hall_channel_close(&many[i]);
			hall_channel_put(&many[i]);
		}
		CHECK(member.blocks == (1 | 1 << 2), "%llx", (unsigned long long)member.blocks);
	}
	hall_channel_close(&many[2 * HALL_BLOCK]);
	hall_channel_put(&many[2 * HALL_BLOCK]);
	CHECK(member.blocks == 1 && !atomic_read(&member.channels));
}

static void departed_member(void)
{
	struct hall_channel late = { };

	hall_channel_setup(&late, &finds, &member);
	fresh();
	member.departed = true;
	CHECK(hall_channel_open(&late) == -EUSERS);
	CHECK(late.events == 1 << HALL_EVENT_DEPARTED && raised[FINDS] == 1);
	CHECK(!late.endpoint && !atomic_read(&member.channels));
	member.departed = false;
	hall_channel_put(&late);
}

int main(void)
{
	member.transport = &transport;
	member.blocks = 1;
	refcount_set(&member.refs, 1);
	hall_channel_init();
	hall_channel_register(&finds);
	hall_channel_register(&makes);
	TEST(unknown_kind);
	TEST(found_channel);
	TEST(made_channel);
	TEST(declined_made_channel);
	TEST(unregistered_kind);
	TEST(blocks_in_use);
	TEST(departed_member);
	return tests_done();
}
