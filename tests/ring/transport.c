// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two guests over shared pages: kmod/transport/shared as it is, in one thread, on
 * a little of a kernel (shim/pages.h). What one writes into its slice reaches the
 * other, in order and once; what cannot be is not taken.
 */
#include "check.h"
#include "guest.h"

#define PAGES 64

static const struct in6_addr no_address[1];
static struct guest a, b;
static struct hall_peer *b_of_a, *a_of_b;	/* each as the other sees it */

/* What the handlers were called for */
#define NOTED 20000
static struct {
	unsigned int messages, wakes, arrivals, departures, abandoned, detached, lists;
	struct hallway_message message[NOTED];
	u32 woken;
	u32 reason;
	unsigned int count;			/* of the last list */
	struct in6_addr address[HALLWAY_ADDRESSES_MAX];
} noted;

/* Run before each access to shared memory, if set. */
static void (*act)(void);

void shim_hook(void)
{
	if (act)
		act();
}

static void on_message(struct hall_member *member,
		       const struct hallway_message *message)
{
	noted.message[noted.messages++ % NOTED] = *message;
}

static void on_wake(struct hall_member *member, u32 endpoint)
{
	noted.woken = endpoint;
	noted.wakes++;
}

static void on_arrived(struct hall_member *member)
{
	noted.arrivals++;
}

/* What takes long is done without the mutex: arrivals of others need it. */
static void on_departed(struct hall_member *member, u32 reason)
{
	MUST(!lockdep_is_held(hall_peer_of(member)->own->mutex));
	noted.abandoned += member->departed;
	noted.departures += !member->departed;
	member->departed = true;
	noted.reason = reason;
}

static void on_detach(struct hall_member *member, u32 reason)
{
	MUST(!member->departed);
	MUST(!lockdep_is_held(hall_peer_of(member)->own->mutex));
	noted.reason = reason;
	noted.detached++;
}

static void on_addresses(struct hall_member *member,
			 const struct in6_addr *address, unsigned int count)
{
	MUST(count <= HALLWAY_ADDRESSES_MAX);
	memcpy(noted.address, address, count * sizeof(*address));
	noted.count = count;
	noted.lists++;
}

/* A program ends its call: the channels of all members close. */
void shim_wait(void)
{
	struct hall_peer *peer;

	list_for_each_entry(peer, &a.own.departed, list)
		peer->member.channels.counter = 0;
	list_for_each_entry(peer, &b.own.departed, list)
		peer->member.channels.counter = 0;
}

static struct in6_addr numbered(u8 kind, u8 number)
{
	return (struct in6_addr){ .s6_addr = { kind, [15] = number } };
}

/* Each has the other look as it arrives. */
static void look_at_arrival(void)
{
	CHECK(rung == 2 && hall_mailbox_look(a_of_b) == HALL_LOOK_MESSAGES);
	CHECK(hall_mailbox_look(b_of_a) == HALL_LOOK_MESSAGES && !noted.messages);
	rung = 0;
}

static void begin(void)
{
	const struct in6_addr address = numbered(0x20, 1);

	memset(&noted, 0, sizeof(noted));
	memset(&hall_counters, 0, sizeof(hall_counters));
	hall_transport_handler = HANDLER;
	rung = released = 0;
	MUST(!hall_heartbeat_init());
	guest_create(&a, 2, PAGES, 7);
	guest_create(&b, 2, PAGES, 9);
	MUST(!hall_own_slice_open(&a.own, &a.slice, &address, 1));
	MUST(!hall_own_slice_open(&b.own, &b.slice, &address, 1));
	b_of_a = guest_meet(&a, &b.slice, 1, 0);
	a_of_b = guest_meet(&b, &a.slice, 0, 1);
	MUST(b_of_a && a_of_b);
	look_at_arrival();
}

static void end(void)
{
	guest_close(&a, HALLWAY_REASON_PEER_LEFT);
	guest_close(&b, HALLWAY_REASON_PEER_LEFT);
	hall_heartbeat_uninit();
	MUST(!shim_queue);
	CHECK(noted.arrivals == released && noted.departures == released);
	guest_free(&a);
	guest_free(&b);
}

/* B leaves, and another member gets its place. */
static void replace_b(u32 generation)
{
	hall_peer_depart(b_of_a, HALLWAY_REASON_PEER_LEFT);
	guest_pass(100);
	guest_close(&b, HALLWAY_REASON_PEER_LEFT);
	b.occupant = b.slice.generation = generation;
	MUST(!hall_own_slice_open(&b.own, &b.slice, no_address, 0));
	b_of_a = guest_meet(&a, &b.slice, 1, 0);
	a_of_b = guest_meet(&b, &a.slice, 0, 1);
}

static void say(struct hall_peer *to, u16 type, u32 number)
{
	struct hallway_message message = { .type = type, .carrier = number };

	memset(&message.other, number, sizeof(message.other));
	hall_mailbox_send(&to->member, &message);
}

static bool said(unsigned int at, u16 type, u32 number)
{
	struct hallway_message message = { .type = type, .carrier = number };

	memset(&message.other, number, sizeof(message.other));
	return !memcmp(&message, &noted.message[at], sizeof(message));
}

static void pass_listening(unsigned int looks)
{
	while (looks--) {
		guest_pass(HALL_LISTEN);
		hall_peers_listen(&a.own);
		guest_pass(0);
	}
}

/* Slices */

static void formatted(void)
{
	const struct hallway_mailbox *unused;
	struct hall_slice other;
	unsigned int i;

	begin();
	guest_close(&b, HALLWAY_REASON_PEER_LEFT);
	CHECK(!hall_slice_is_formatted(&b.slice));
	memset(b.slice.header, 0xa5, b.slice.size);
	CHECK(!hall_slice_is_formatted(&b.slice));
	MUST(!hall_own_slice_open(&b.own, &b.slice, no_address, 0));
	other = b.slice;
	CHECK(hall_slice_is_formatted(&other) && hall_slice_is_owned(&other));
	unused = hall_mailbox_at(&b.slice, 1);
	for (i = 0; i < sizeof(*unused); i++)
		CHECK(!((const u8 *)unused)[i]);
	CHECK((const u8 *)(unused + 1) - (u8 *)b.slice.header ==
	      (long)hall_slice_overhead(2));
	CHECK(((u8 *)b.slice.header)[hall_slice_overhead(2)] == 0xa5);
	other.generation++;
	CHECK(!hall_slice_is_formatted(&other) && !hall_slice_is_owned(&other));
	end();
}

/* A slice that another member has got is not written. */
static void taken_away(void)
{
	u32 heartbeat;

	begin();
	guest_pass(HZ);
	heartbeat = b.slice.header->heartbeat;
	CHECK(heartbeat >= 2);
	b.occupant = 10;
	guest_pass(HZ);
	CHECK(b.slice.header->heartbeat == heartbeat);
	CHECK(!hall_slice_is_intact(&b_of_a->member));
	CHECK(hall_slice_is_intact(&a_of_b->member));
	guest_close(&b, HALLWAY_REASON_PEER_LEFT);
	CHECK(b.slice.header->magic == HALLWAY_SLICE_MAGIC);
	b.occupant = 9;
	MUST(!hall_own_slice_open(&b.own, &b.slice, no_address, 0));
	end();
}

/* Mailboxes */

static void messages_in_order(void)
{
	unsigned int from_a = 0, from_b = 0, i, before;

	begin();
	for (i = 0; i < 1000; i++) {
		say(b_of_a, HALLWAY_DEMOTE, i);
		if (i % 90 != 89)
			continue;
		before = noted.messages;
		while (hall_mailbox_look(a_of_b))
			guest_pass(2);
		CHECK(noted.messages == before + 90);
		for (; before < noted.messages; before++, from_a++)
			CHECK(said(before, HALLWAY_DEMOTE, from_a), "%u", from_a);
		say(a_of_b, HALLWAY_DONE, from_b);
		hall_mailbox_look(b_of_a);
		CHECK(said(noted.messages - 1, HALLWAY_DONE, from_b++));
	}
	CHECK(from_a == 990 && !hall_counters.value[HALL_MESSAGES_LOST]);
	CHECK(!hall_counters.value[HALL_CORRUPT_MESSAGES]);
	end();
}

static void backlog(void)
{
	unsigned int limit = HALLWAY_MAILBOX_MESSAGES + 4 * HALLWAY_ENDPOINTS_MAX;
	unsigned int i;

	begin();
	for (i = 0; i < limit + 5; i++)
		say(b_of_a, HALLWAY_DONE, i);
	CHECK(hall_counters.value[HALL_MESSAGES_LOST] == 5);
	guest_pass(10);
	CHECK(b_of_a->backlogged == 4 * HALLWAY_ENDPOINTS_MAX);
	for (i = 0; i < limit; i++) {
		if (noted.messages == i) {
			hall_mailbox_look(a_of_b);
			guest_pass(100);
		}
		CHECK(said(i, HALLWAY_DONE, i), "%u", i);
	}
	CHECK(!b_of_a->backlogged && noted.messages == limit);
	end();
}

/*
 * No DECLINE is lost: not for want of memory, nor however many there are. One to
 * endpoint 0 takes back an OFFER, and stays behind it.
 */
static void declines(void)
{
	struct hallway_message message = { .type = HALLWAY_DECLINE };
	const unsigned int numbers = HALLWAY_ENDPOINTS_MAX - 1;
	unsigned int i, first;

	begin();
	for (i = 0; i < HALLWAY_MAILBOX_MESSAGES; i++)
		say(b_of_a, HALLWAY_DONE, i);
	shim_no_memory = true;
	for (i = 0; i < 3 * numbers; i++) {
		message.to = 1 + i % numbers;
		message.carrier = i;
		message.other.reason = i % 7;
		hall_mailbox_send(&b_of_a->member, &message);
	}
	shim_no_memory = false;
	CHECK(!hall_counters.value[HALL_MESSAGES_LOST]);
	say(b_of_a, HALLWAY_OFFER, 3);
	say(b_of_a, HALLWAY_DECLINE, 4);
	say(b_of_a, HALLWAY_DEMOTE, 5);
	first = HALLWAY_MAILBOX_MESSAGES + 3;
	while (noted.messages < first + numbers) {
		i = noted.messages;
		hall_mailbox_look(a_of_b);
		guest_pass(100);
		MUST(noted.messages > i);
	}
	CHECK(said(first - 3, HALLWAY_OFFER, 3));
	CHECK(said(first - 2, HALLWAY_DECLINE, 4));
	CHECK(said(first - 1, HALLWAY_DEMOTE, 5));
	for (i = 0; i < numbers; i++) {
		message.to = 1 + i;
		message.carrier = 2 * numbers + i;
		message.other.reason = message.carrier % 7;
		CHECK(!memcmp(&message, &noted.message[first + i], sizeof(message)), "%u", i);
	}
	CHECK(!b_of_a->declines);
	end();
}

/* A peer that stands still is tried seldom, and not rung: it has heard the first doorbell. */
static void retries(void)
{
	unsigned int i, tries;

	begin();
	for (i = 0; i < 100; i++)
		say(b_of_a, HALLWAY_DONE, i);
	CHECK(rung == 1);
	tries = hall_counters.value[HALL_DOORBELLS_MERGED];
	guest_pass(10 * HZ);
	tries = hall_counters.value[HALL_DOORBELLS_MERGED] - tries;
	CHECK(rung == 1 && tries > 90 && tries < 130, "%u", tries);
	hall_mailbox_look(a_of_b);
	guest_pass(100);
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == 100);
	end();
}

/* A mailbox with space again takes nothing before those that wait. */
static void backlog_first(void)
{
	unsigned int i;

	begin();
	for (i = 0; i < 100; i++)
		say(b_of_a, HALLWAY_DONE, i);
	hall_mailbox_look(a_of_b);
	say(b_of_a, HALLWAY_DONE, i++);
	guest_pass(2);
	say(b_of_a, HALLWAY_DONE, i++);
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == i);
	while (i--)
		CHECK(said(i, HALLWAY_DONE, i), "%u", i);
	end();
}

/* A backlog that a departed peer leaves behind is freed, and not sent. */
static void backlog_departs(void)
{
	unsigned int i;

	begin();
	for (i = 0; i < 100; i++)
		say(b_of_a, HALLWAY_DONE, i);
	replace_b(10);
	guest_pass(10);
	hall_mailbox_look(a_of_b);
	CHECK(!noted.messages);
	say(b_of_a, HALLWAY_DONE, 5);
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == 1 && said(0, HALLWAY_DONE, 5));
	end();
}

static void no_memory(void)
{
	unsigned int i;

	begin();
	shim_no_memory = true;
	for (i = 0; i <= HALLWAY_MAILBOX_MESSAGES; i++)
		say(b_of_a, HALLWAY_DONE, i);
	CHECK(hall_counters.value[HALL_MESSAGES_LOST] == 1);
	CHECK(!hall_peer_create(&a.own, &b.slice, &guest_transport));
	hall_peers_read_addresses(&a.own);
	CHECK(!noted.lists);
	shim_no_memory = false;
	hall_peers_read_addresses(&a.own);
	CHECK(noted.lists == 1);
	end();
}

/* Indexes count only between the generations that wrote them. */
static void other_generations(void)
{
	unsigned int before;

	begin();
	say(b_of_a, HALLWAY_DONE, 1);
	say(b_of_a, HALLWAY_DONE, 2);
	replace_b(10);
	CHECK(hall_mailbox_look(a_of_b));
	CHECK(!noted.messages);
	say(b_of_a, HALLWAY_DONE, 3);
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == 1 && said(0, HALLWAY_DONE, 3));
	/* The sender has another generation than the head says. */
	say(b_of_a, HALLWAY_DONE, 4);
	before = noted.messages;
	a_of_b->in->head.sender_generation ^= 1;
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == before);
	a_of_b->in->head.sender_generation ^= 1;
	a_of_b->in->head.receiver_generation ^= 1;
	CHECK(hall_mailbox_mark(b_of_a->out, 0));
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == before);
	a_of_b->in->head.receiver_generation ^= 1;
	CHECK(hall_mailbox_mark(b_of_a->out, 0));
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == before + 1);
	end();
}

static void impossible_indexes(void)
{
	begin();
	a_of_b->in->head.index = HALLWAY_MAILBOX_MESSAGES + 1;
	CHECK(hall_mailbox_mark(b_of_a->out, 0));
	hall_mailbox_look(a_of_b);
	CHECK(!noted.messages && hall_counters.value[HALL_CORRUPT_MESSAGES] == 1);
	CHECK(!a_of_b->in_tail);
	/* The next message writes the head again. */
	say(b_of_a, HALLWAY_DONE, 1);
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == 1 && said(0, HALLWAY_DONE, 1));
	end();
}

/* Sends until a message arrives. */
static void recover(unsigned int most)
{
	unsigned int i, before;

	for (i = 0; i < most; i++) {
		before = noted.messages;
		say(b_of_a, HALLWAY_DEMOTE, i);
		guest_pass(200);
		hall_mailbox_look(a_of_b);
		if (noted.messages == before + 1 && said(before, HALLWAY_DEMOTE, i))
			break;
	}
	CHECK(i < most, "%u", i);
	before = noted.messages;
	for (i = 0; i < 1000; i++) {
		say(b_of_a, HALLWAY_DONE, i);
		hall_mailbox_look(a_of_b);
		CHECK(noted.messages == before + i + 1 &&
		      said((before + i) % NOTED, HALLWAY_DONE, i), "%u", i);
	}
}

/* A third member writes into a mailbox: it works again after a few messages. */
static void overwritten(void)
{
	struct hallway_mailbox_index *index;
	unsigned int i;
	u32 *word;

	for (i = 0; i < 8; i++) {
		begin();
		recover(1);
		index = i & 1 ? &b_of_a->out->tail : &b_of_a->out->head;
		word = i & 2 ? &index->sender_generation :
		       i & 4 ? &index->receiver_generation : &index->index;
		*word += i & 1 ? 1 : 1000;
		recover(3);
		/* The peer is made to take messages that are none. */
		b_of_a->out->head.index += 10;
		MUST(hall_mailbox_mark(b_of_a->out, 0));
		hall_mailbox_look(a_of_b);
		recover(3);
		end();
	}
}

/* A look takes a part: other peers' doorbells are on the same CPU. */
static void looks(void)
{
	unsigned int i, runs = 0, before, found;

	begin();
	a_of_b->member.blocks = ~0ull;
	for (i = 1; i < HALLWAY_ENDPOINTS_MAX; i++)
		hall_mailbox_mark(b_of_a->out, i);
	say(b_of_a, HALLWAY_DONE, 1);
	do {
		before = noted.wakes;
		found = hall_peers_look(&b.own);
		CHECK(noted.wakes - before < 200, "%u", noted.wakes - before);
		CHECK(!!(found & HALL_LOOK_MESSAGES) == !runs);
	} while ((found & HALL_LOOK_MORE) && ++runs < 1000);
	CHECK(noted.wakes == HALLWAY_ENDPOINTS_MAX - 1, "%u", noted.wakes);
	CHECK(noted.messages == 1 && runs > 20 && runs < 40, "%u", runs);
	end();
}

/* Endpoints that ring all the time, more than one look takes, do not shut out the others. */
static void looks_by_turns(void)
{
	unsigned int i, look;

	begin();
	a_of_b->member.blocks = 0xf;
	hall_mailbox_mark(b_of_a->out, 4 * 64 - 1);
	for (look = 0; look < 2; look++) {
		for (i = 1; i < 3 * 64; i++)
			hall_mailbox_mark(b_of_a->out, i);
		CHECK(hall_mailbox_look(a_of_b) == HALL_LOOK_MORE);
	}
	CHECK(!b_of_a->out->pending[3]);
	end();
}

static void marks(void)
{
	begin();
	CHECK(!hall_mailbox_mark(b_of_a->out, HALLWAY_ENDPOINTS_MAX));
	CHECK(hall_mailbox_mark(b_of_a->out, 3));
	CHECK(!hall_mailbox_mark(b_of_a->out, 63));
	CHECK(hall_mailbox_mark(b_of_a->out, 64));
	CHECK(!hall_mailbox_look(a_of_b));
	CHECK(noted.wakes == 2 && noted.woken == 63);
	/* 64 is in a block of which none is in use, until one is. */
	a_of_b->member.blocks |= 2;
	CHECK(!hall_mailbox_look(a_of_b));
	CHECK(noted.wakes == 3 && noted.woken == 64);
	CHECK(!hall_mailbox_look(a_of_b) && noted.wakes == 3);
	a_of_b->member.blocks |= 1ull << 63;
	CHECK(hall_mailbox_mark(b_of_a->out, HALLWAY_ENDPOINTS_MAX - 1));
	CHECK(hall_mailbox_mark(b_of_a->out, 0));
	CHECK(hall_peers_look(&b.own) == HALL_LOOK_MESSAGES);
	CHECK(noted.wakes == 4 && noted.woken == HALLWAY_ENDPOINTS_MAX - 1);
	end();
}

/* The mark of an endpoint that has closed: it is taken within a second. */
static void late_marks(void)
{
	unsigned int looks;

	begin();
	MUST(hall_mailbox_mark(b_of_a->out, 65));
	for (looks = 0; b_of_a->out->pending[1] && looks < 2 * HZ; looks++) {
		shim_jiffies++;
		hall_mailbox_look(a_of_b);
	}
	CHECK(looks > HZ / 2 && looks <= HZ, "%u", looks);
	CHECK(noted.wakes == 1 && noted.woken == 65);
	/* One of a block that is used again does not keep the next one from ringing. */
	MUST(hall_mailbox_mark(b_of_a->out, 65));
	CHECK(!hall_mailbox_look(a_of_b) && noted.wakes == 1);
	a_of_b->member.blocks |= 2;
	hall_mailbox_forget(&a_of_b->member, 64);
	CHECK(hall_mailbox_mark(b_of_a->out, 64));
	CHECK(!hall_mailbox_look(a_of_b));
	CHECK(noted.wakes == 2 && noted.woken == 64);
	end();
}

/* A word whose marks are not taken yet has rung already. */
static void rings_once(void)
{
	unsigned int i;

	begin();
	a_of_b->member.blocks = 3;
	for (i = 0; i < 128; i++)
		hall_mailbox_notify(&b_of_a->member, i);
	CHECK(rung == 2 && hall_counters.value[HALL_DOORBELLS_SENT] == 4);
	CHECK(hall_counters.value[HALL_DOORBELLS_MERGED] == 126);
	CHECK(hall_mailbox_look(a_of_b) == HALL_LOOK_MESSAGES && noted.wakes == 127);
	hall_mailbox_notify(&b_of_a->member, 5);
	CHECK(rung == 3);
	end();
}

/* Counted down by each access to shared memory: b looks at 0, and once more at 0. */
static int looks_at[2];

static void look_at(void)
{
	unsigned int i;

	for (i = 0; i < 2; i++) {
		if (looks_at[i]-- != 0)
			continue;
		act = NULL;
		hall_mailbox_look(a_of_b);
		act = look_at;
	}
}

/* B looks at any moment while A marks: it has taken the mark, or A rings. */
static void no_mark_is_lost(void)
{
	unsigned int wakes;
	int first, second;
	bool ringing;

	begin();
	for (first = 0; first < 8; first++) {
		for (second = first; second < 8; second++) {
			MUST(hall_mailbox_mark(b_of_a->out, 3));
			wakes = noted.wakes;
			looks_at[0] = first;
			looks_at[1] = second;
			act = look_at;
			ringing = hall_mailbox_mark(b_of_a->out, 5);
			act = NULL;
			/* The doorbell of 3 has been heard. */
			if (noted.wakes == wakes || ringing)
				hall_mailbox_look(a_of_b);
			CHECK(noted.wakes == wakes + 2, "%d %d", first, second);
			CHECK(!b_of_a->out->pending[0]);
		}
	}
	end();
}

/* Marks 7 or takes all, at each access. */
static void change_marks(void)
{
	b_of_a->out->pending[0] = b_of_a->out->pending[0] ? 0 : 1 << 7;
}

/* A member that changes the word without end does not hold A up. */
static void marks_without_end(void)
{
	begin();
	act = change_marks;
	CHECK(hall_mailbox_mark(b_of_a->out, 5));
	act = NULL;
	CHECK(b_of_a->out->pending[0] & 1 << 5);
	hall_mailbox_look(a_of_b);
	end();
}

/* A doorbell is lost, or another member has written a mark: A rings again. */
static void rings_again(void)
{
	begin();
	a_of_b->member.blocks = 3;
	b_of_a->out->pending[1] = 2;
	hall_mailbox_notify(&b_of_a->member, 64);
	CHECK(!rung);
	pass_listening(1);
	CHECK(!rung);
	pass_listening(5);
	CHECK(rung == 5 && hall_counters.value[HALL_DOORBELLS_REPEATED] == 5);
	CHECK(!hall_mailbox_look(a_of_b) && noted.wakes == 2);
	pass_listening(5);
	CHECK(rung == 5);
	/* Of another word: it is not the one of the last check. */
	hall_mailbox_notify(&b_of_a->member, 64);
	pass_listening(1);
	hall_mailbox_look(a_of_b);
	hall_mailbox_notify(&b_of_a->member, 5);
	pass_listening(1);
	CHECK(rung == 7);
	end();
}

/* What a former peer has not taken does not pass for a doorbell on its way. */
static void marks_of_before(void)
{
	begin();
	hall_mailbox_notify(&b_of_a->member, 64);
	replace_b(10);
	hall_mailbox_look(a_of_b);
	rung = 0;
	hall_mailbox_notify(&b_of_a->member, 65);
	CHECK(rung == 1);
	end();
}

/* B still has the former peer, which looks while its successor already sends. */
static void looks_of_before(void)
{
	struct hall_peer *former;

	begin();
	former = a_of_b;
	guest_close(&a, HALLWAY_REASON_PEER_LEFT);
	a.occupant = a.slice.generation = 8;
	MUST(!hall_own_slice_open(&a.own, &a.slice, no_address, 0));
	b_of_a = guest_meet(&a, &b.slice, 1, 0);
	say(b_of_a, HALLWAY_DEMOTE, 5);
	CHECK(hall_mailbox_look(former) == HALL_LOOK_MESSAGES && !noted.messages);
	hall_peer_depart(former, HALLWAY_REASON_PEER_LEFT);
	guest_pass(100);
	a_of_b = guest_meet(&b, &a.slice, 0, 1);
	hall_mailbox_look(a_of_b);
	CHECK(noted.messages == 1 && said(0, HALLWAY_DEMOTE, 5));
	end();
}

/* Ring memory */

static struct hallway_handle handle(u64 offset, u64 size)
{
	u64 place[2] = { offset, size };
	struct hallway_handle handle = { };

	memcpy(handle.opaque, place, sizeof(place));
	return handle;
}

static void memory_shared(void)
{
	struct hall_memory memory, second;
	struct hallway_ring *ring;
	u64 place[2];

	begin();
	CHECK(!hall_memory_alloc(&b_of_a->member, 8192, &memory));
	memcpy(place, memory.handle.opaque, sizeof(place));
	CHECK(place[0] == hall_slice_overhead(2) && place[1] == 8192);
	ring = hall_slice_map(&a_of_b->member, &memory.handle, 8192);
	CHECK(ring == memory.ring);
	CHECK((u8 *)ring - (u8 *)a.slice.header == (long)place[0]);
	CHECK(!hall_slice_map(&a_of_b->member, &memory.handle, 4096));
	CHECK(!hall_memory_alloc(&b_of_a->member, 4096, &second));
	CHECK(second.ring == (void *)memory.ring + 8192);
	CHECK(a.own.pool.used.counter == 12288 &&
	      b_of_a->member.held.counter == 12288);
	hall_memory_free(&b_of_a->member, &memory);
	hall_memory_free(&b_of_a->member, &second);
	CHECK(!memory.ring && !a.own.pool.used.counter);
	end();
}

static void memory_bounds(void)
{
	u64 start = hall_slice_overhead(2), stop = start + PAGES * 4096;
	const struct {
		u64 offset, size;
		bool good;
	} at[] = {
		{ start, 4096, true },
		{ start, PAGES * 4096, true },
		{ stop - 4096, 4096, true },
		{ start - 4096, 4096, false },
		{ 0, 4096, false },
		{ start + 1, 4096, false },
		{ start + 2048, 4096, false },
		{ stop - 4096, 8192, false },
		{ stop, 4096, false },
		{ start + 4096, PAGES * 4096, false },
		{ -4096ULL, 4096, false },
		{ -4096ULL, 8192, false },
		{ start, -start, false },
		{ ~0ULL, 4096, false },
	};
	struct hallway_handle named;
	unsigned int i;

	begin();
	for (i = 0; i < sizeof(at) / sizeof(*at); i++) {
		named = handle(at[i].offset, at[i].size);
		CHECK(!!hall_slice_map(&a_of_b->member, &named, at[i].size) ==
		      at[i].good, "%u", i);
	}
	end();
}

static void memory_quota(void)
{
	unsigned int pages = 0;
	struct hall_memory memory[PAGES];

	begin();
	while (!hall_memory_alloc(&b_of_a->member, 4096, &memory[pages]))
		MUST(++pages < PAGES);
	/* A peer holds at most eight times what it leaves. */
	CHECK(pages == PAGES * HALL_POOL_SHARE / (HALL_POOL_SHARE + 1), "%u", pages);
	while (pages--)
		hall_memory_free(&b_of_a->member, &memory[pages]);
	end();
}

/* Large rings leave memory for a number of small ones. */
static void memory_of_rings(void)
{
	static const u32 sizes[] = { 64, 64, 16, 16, 16, 16 };
	struct hall_memory memory[sizeof(sizes) / sizeof(*sizes)], none;
	unsigned int i, n = sizeof(sizes) / sizeof(*sizes);
	u32 bytes;

	begin();
	for (i = 0; i < n; i++) {
		bytes = 256 << 10;
		MUST(!hall_memory_alloc_ring(&b_of_a->member, &bytes, &memory[i]));
		CHECK(bytes == sizes[i] << 10, "%u: %u", i, bytes);
		CHECK(memory[i].size == HALLWAY_RING_HEADER + bytes);
	}
	bytes = 256 << 10;
	CHECK(hall_memory_alloc_ring(&b_of_a->member, &bytes, &none) == -ENOMEM);
	/* A program that wants less gets less. */
	bytes = 4096;
	CHECK(!hall_memory_alloc_ring(&b_of_a->member, &bytes, &none));
	CHECK(bytes == 4096);
	hall_memory_free(&b_of_a->member, &none);
	while (i--)
		hall_memory_free(&b_of_a->member, &memory[i]);
	CHECK(!a.own.pool.used.counter);
	end();
}

/* Copies of all members together have a bound, and a refused one does not count. */
static void copies_bounded(void)
{
	const size_t most = 64 << 20;

	CHECK(hall_copied_charge(most - 1));
	CHECK(!hall_copied_charge(2));
	CHECK(hall_copied_charge(1));
	CHECK(!hall_copied_charge(1));
	hall_copied_uncharge(most / 2);
	CHECK(!hall_copied_charge(most / 2 + 1));
	CHECK(hall_copied_charge(most / 2));
	hall_copied_uncharge(most);
	CHECK(hall_copied_charge(most));
	hall_copied_uncharge(most);
}

/* Addresses */

/* Reads them once the pause after the last publication is over. */
static void read_later(void)
{
	shim_pass(HZ / 20);
	hall_peers_read_addresses(&a.own);
}

static void addresses(void)
{
	struct in6_addr some[3] = {
		numbered(0x20, 1), numbered(0xfe, 2), numbered(0x20, 3),
	};

	begin();
	hall_peers_read_addresses(&a.own);
	CHECK(noted.lists == 1 && noted.count == 1);
	hall_peers_read_addresses(&a.own);
	CHECK(noted.lists == 1);
	hall_own_slice_publish(&b.own, some, 3);
	read_later();
	CHECK(noted.lists == 2 && noted.count == 2);
	CHECK(!memcmp(&noted.address[0], &some[0], 16) &&
	      !memcmp(&noted.address[1], &some[2], 16));
	/* It can publish without end: for a moment the last ones wait. */
	hall_own_slice_publish(&b.own, no_address, 0);
	hall_peers_read_addresses(&a.own);
	CHECK(noted.lists == 2);
	read_later();
	CHECK(noted.lists == 3 && !noted.count);
	/* More than there can be. */
	b.slice.header->address_seq += 2;
	b.slice.header->address_count = HALLWAY_ADDRESSES_MAX + 1;
	read_later();
	b.slice.header->address_count = ~0;
	read_later();
	CHECK(noted.lists == 3);
	/* All that there can be. */
	b.slice.header->address_count = HALLWAY_ADDRESSES_MAX;
	memset(b.slice.header->address, 0x20, sizeof(b.slice.header->address));
	read_later();
	CHECK(noted.lists == 4 && noted.count == HALLWAY_ADDRESSES_MAX);
	end();
}

static unsigned int acts;

static void publish_torn(void)
{
	struct hallway_slice *header = b.slice.header;

	/* At each access: half of a list that changes without end. */
	header->address_seq += 2;
	memset(header->address, ++acts, 16);
}

static void publish_once(void)
{
	if (++acts == 4) {
		b.slice.header->address_seq += 2;
		memset(b.slice.header->address, 0x33, 16);
	}
}

/* A list that changes while it is copied is copied again, or not taken. */
static void torn_addresses(void)
{
	begin();
	acts = 0;
	act = publish_torn;
	hall_peers_read_addresses(&a.own);
	act = NULL;
	CHECK(!noted.lists && acts > 100 && acts < 10000, "%u", acts);
	acts = 0;
	b.slice.header->address_seq++;
	read_later();
	CHECK(!noted.lists);
	b.slice.header->address_seq++;
	for (acts = 0, act = publish_once; acts < 4 && !noted.lists;)
		read_later();
	act = NULL;
	CHECK(noted.lists == 1 && noted.address[0].s6_addr[0] == 0x33);
	end();
}

/* Heartbeats */

static void unresponsive(void)
{
	unsigned int i;

	begin();
	pass_listening(20);
	CHECK(!noted.detached && hall_peer_responds(b_of_a));
	/* Its kernel stands still. */
	b.occupant = 0;
	hall_peers_listen(&a.own);
	for (i = 0; i < 100; i++)
		hall_peers_listen(&a.own);
	CHECK(!noted.detached);
	for (i = 0; i < 20 && !noted.detached; i++)
		pass_listening(1);
	CHECK(noted.detached == 1 && noted.reason == HALLWAY_REASON_UNRESPONSIVE);
	CHECK(i >= 4 && i <= 6, "%u looks", i);
	CHECK(!hall_peer_responds(b_of_a));
	pass_listening(20);
	CHECK(noted.detached == 1);
	/* Its addresses count when it responds again, and not before. */
	hall_peers_read_addresses(&a.own);
	CHECK(!noted.lists);
	b.occupant = 9;
	pass_listening(3);
	CHECK(hall_peer_responds(b_of_a));
	hall_peers_read_addresses(&a.own);
	CHECK(noted.lists == 1);
	b.occupant = 0;
	pass_listening(10);
	b.occupant = 9;
	pass_listening(3);
	CHECK(noted.detached == 2);
	hall_peers_read_addresses(&a.own);
	CHECK(noted.lists == 2);
	end();
}

/* Departure */

static void departure(void)
{
	struct hall_member *member;

	begin();
	member = &b_of_a->member;
	member->bytes->tx = 100;
	member->bytes->rx = 10;
	member->channels.counter = 2;
	hall_peers_listen(&a.own);
	CHECK(a.slice.header->tx_bytes == 100 && a.slice.header->rx_bytes == 10);
	CHECK(a.slice.header->channels == 2);
	/* Those that have sent since the last look. */
	member->bytes->sends = 3;
	hall_peers_listen(&a.own);
	CHECK(a.slice.header->senders == 3);
	hall_peers_listen(&a.own);
	CHECK(!a.slice.header->senders);
	hall_peer_depart(b_of_a, HALLWAY_REASON_REGION_GONE);
	/* Its answers are received until its streams are detached. */
	CHECK(hall_peer_at(&a.own, 1) && !noted.detached);
	guest_pass(0);
	CHECK(noted.detached == 1 && noted.departures == 1 &&
	      noted.reason == HALLWAY_REASON_REGION_GONE);
	CHECK(!hall_peer_at(&a.own, 1));
	say(b_of_a, HALLWAY_DONE, 1);
	hall_mailbox_look(a_of_b);
	CHECK(!noted.messages);
	guest_pass(HZ);
	CHECK(!released);
	/* What it moved counts, while it has channels and afterwards. */
	member->bytes->tx = 150;
	hall_peers_listen(&a.own);
	CHECK(a.slice.header->tx_bytes == 150 && a.slice.header->channels == 2);
	member->channels.counter = 0;
	guest_pass(20);
	CHECK(released == 1);
	hall_peers_listen(&a.own);
	CHECK(a.slice.header->tx_bytes == 150 && !a.slice.header->channels);
	b_of_a = guest_meet(&a, &b.slice, 1, 0);
	b_of_a->member.bytes->tx = 7;
	hall_peers_listen(&a.own);
	CHECK(a.slice.header->tx_bytes == 157);
	end();
}

/* The next member in its place waits until its mailboxes are free. */
static void lingering(void)
{
	begin();
	b_of_a->member.channels.counter = 1;
	hall_peer_depart(b_of_a, HALLWAY_REASON_PEER_LEFT);
	CHECK(!hall_peer_at(&a.own, 1) && !noted.departures);
	CHECK(hall_peer_lingers(&a.own, 1) && !hall_peer_lingers(&a.own, 0));
	guest_pass(0);
	CHECK(noted.departures == 1 && !noted.detached && !released);
	CHECK(!hall_peer_lingers(&a.own, 1));
	end();
}

/* A peer departs while its streams are demoted because it is unresponsive. */
static void departs_unresponsive(void)
{
	begin();
	b.occupant = 0;
	while (hall_peer_responds(b_of_a)) {
		guest_pass(HALL_LISTEN);
		hall_peers_listen(&a.own);
	}
	hall_peer_depart(b_of_a, HALLWAY_REASON_PEER_LEFT);
	guest_pass(20);
	CHECK(noted.departures == 1 && released == 1);
	b.occupant = 9;
	end();
}

/* A guest that is suspended has no work item: its peers depart in the call. */
static void abandoned(void)
{
	begin();
	b_of_a->member.channels.counter = 1;
	mutex_unlock(&a.mutex);
	hall_peers_abandon(&a.own);
	mutex_lock(&a.mutex);
	CHECK(noted.departures == 1 && !noted.detached &&
	      noted.reason == HALLWAY_REASON_SUSPENDED);
	CHECK(!hall_peer_at(&a.own, 1) && !hall_peers_are_gone(&a.own));
	guest_pass(HZ);
	CHECK(!released && noted.departures == 1);
	b_of_a->member.channels.counter = 0;
	guest_pass(20);
	CHECK(released == 1 && hall_peers_are_gone(&a.own));
	end();
}

/* A pending work item, or an open channel, keeps a departure from being complete. */
static void abandoned_while_departing(void)
{
	begin();
	b_of_a->member.channels.counter = 1;
	hall_peer_depart(b_of_a, HALLWAY_REASON_PEER_LEFT);
	mutex_unlock(&a.mutex);
	hall_peers_abandon(&a.own);
	CHECK(noted.departures == 1 && noted.reason == HALLWAY_REASON_SUSPENDED);
	hall_peers_abandon(&a.own);
	mutex_lock(&a.mutex);
	guest_pass(HZ);
	CHECK(noted.departures == 1 && noted.abandoned == 1);
	CHECK(!noted.detached && !released);
	b_of_a->member.channels.counter = 0;
	guest_pass(20);
	CHECK(released == 1 && hall_peers_are_gone(&a.own));
	end();
}

/* A slice is closed when the last channel is. */
static void close_waits(void)
{
	begin();
	b_of_a->member.channels.counter = 1;
	hall_peers_depart(&a.own, HALLWAY_REASON_REGION_GONE);
	CHECK(!hall_peers_are_gone(&a.own));
	guest_pass(HZ);
	CHECK(!hall_peers_are_gone(&a.own) && !released);
	CHECK(noted.departures == 1 && noted.detached == 1);
	guest_close(&a, HALLWAY_REASON_REGION_GONE);
	CHECK(released == 1 && noted.departures == 1 && noted.detached == 1);
	CHECK(!a.slice.header->magic);
	MUST(!hall_own_slice_open(&a.own, &a.slice, no_address, 0));
	end();
}

/* What a peer calls itself: one line of the log, and no commands to a terminal. */
static void names(void)
{
	char name[HALLWAY_NAME_SIZE], from[HALLWAY_NAME_SIZE + 1] = "b\n\033[2J\x7f \xc3\xa4";

	hall_member_copy_name(name, from);
	CHECK(!strcmp(name, "b??[2J? \xc3\xa4"), "%s", name);
	memset(from, '\t', HALLWAY_NAME_SIZE);
	hall_member_copy_name(name, from);
	CHECK(strlen(name) == HALLWAY_NAME_SIZE - 1 && strspn(name, "?") == strlen(name));
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	TEST(formatted);
	TEST(taken_away);
	TEST(messages_in_order);
	TEST(backlog);
	TEST(declines);
	TEST(retries);
	TEST(backlog_first);
	TEST(backlog_departs);
	TEST(no_memory);
	TEST(other_generations);
	TEST(impossible_indexes);
	TEST(overwritten);
	TEST(looks);
	TEST(looks_by_turns);
	TEST(marks);
	TEST(late_marks);
	TEST(rings_once);
	TEST(no_mark_is_lost);
	TEST(marks_without_end);
	TEST(rings_again);
	TEST(marks_of_before);
	TEST(looks_of_before);
	TEST(memory_shared);
	TEST(memory_bounds);
	TEST(memory_quota);
	TEST(memory_of_rings);
	TEST(copies_bounded);
	TEST(addresses);
	TEST(torn_addresses);
	TEST(unresponsive);
	TEST(departure);
	TEST(lingering);
	TEST(departs_unresponsive);
	TEST(abandoned);
	TEST(abandoned_while_departing);
	TEST(close_waits);
	TEST(names);
	return tests_done();
}
