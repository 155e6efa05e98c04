// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hostile peers over shared pages: kmod/transport/shared as it is, on a little of
 * a kernel (shim/pages.h). The input writes words into all slices, also between
 * any two accesses of the guest, and has the guest do what it does. Whatever is
 * written, the guest takes only what can be, a bounded amount of it, and its own
 * ring memory and private words stay as they are.
 */
#include "guest.h"
#include "input.h"

#define SLOTS 3			/* slot 0 is the guest's */
#define PAGES 4
#define RINGS 6
#define PATTERN 0x5c

static struct guest guest;
static struct hall_slice slices[SLOTS];	/* the guest's is guest.slice */
static u32 occupants[SLOTS];
static struct hall_peer *peers[SLOTS];
static struct hall_memory rings[RINGS];
static struct hall_peer *ring_peer[RINGS];
static u32 generation;

static unsigned int messages, leaves, departures;
static bool looking;
static unsigned long sweep_at;	/* of the peer, before the look */

/* A write that a peer does at one of the next accesses. */
static struct {
	unsigned int after;	/* accesses; 0: none is planned */
	u32 *word;
	u32 value;
} planned;

void shim_hook(void)
{
	if (planned.after && !--planned.after)
		__atomic_store_n(planned.word, planned.value, __ATOMIC_RELAXED);
}

/* Words that mean something, and any other that is not ring memory of ours. */
static u32 *pick_word(void)
{
	unsigned int slot = byte() % SLOTS;
	struct hallway_slice *header = slices[slot].header;
	struct hallway_mailbox *mailbox = hall_mailbox_at(&slices[slot], byte() % SLOTS);
	u64 words = hall_slice_overhead(SLOTS) / 4;

	switch (byte() % 14) {
	case 0:
	case 1:
		return &mailbox->head.index;
	case 2:
		return &mailbox->head.sender_generation;
	case 3:
		return &mailbox->head.receiver_generation;
	case 4:
		return &mailbox->tail.index;
	case 5:
		return &mailbox->tail.sender_generation;
	case 6:
		return &mailbox->tail.receiver_generation;
	case 7:
		return (u32 *)&mailbox->pending[0];
	case 8:
		return (u32 *)&mailbox->pending[byte() % 64] + 1;
	case 9:
		return &header->address_seq;
	case 10:
		return &header->address_count;
	case 11:
		return &header->heartbeat;
	case 12:
		return byte() & 1 ? &header->generation :
				    (u32 *)slices[slot].occupant;
	default:
		return (u32 *)header + number(4) % words;
	}
}

static u32 pick_value(const u32 *word)
{
	switch (byte() % 5) {
	case 0:
		return *word + (int8_t)byte();
	case 1:
		return byte();
	case 2:
		return *slices[byte() % SLOTS].occupant;
	case 3:
		return -(u32)byte();
	default:
		return number(4);
	}
}

/* What the guest hands up */

static void on_message(struct hall_member *member,
		       const struct hallway_message *message)
{
	struct hall_peer *peer = hall_peer_of(member);
	struct hallway_message copy = *message;

	MUST(looking && peer == peers[member->slot]);
	MUST(++messages <= HALLWAY_MAILBOX_MESSAGES);
	/* The copy is the guest's own. */
	memset(peer->in->message, byte(), sizeof(peer->in->message));
	MUST(!memcmp(&copy, message, sizeof(copy)));
	if (byte() & 1)
		member->transport->send(member, message);
}

static void on_wake(struct hall_member *member, u32 endpoint)
{
	MUST(looking && member == &peers[member->slot]->member);
	MUST(endpoint && endpoint < HALLWAY_ENDPOINTS_MAX);
	/* Of a block in use, or once a second. */
	MUST(member->blocks & 1ull << endpoint / 64 ||
	     hall_peer_of(member)->sweep_at != sweep_at);
}

static void on_addresses(struct hall_member *member,
			 const struct in6_addr *address, unsigned int count)
{
	MUST(count <= HALLWAY_ADDRESSES_MAX);
	while (count--)
		MUST(hall_address_travels(&address[count]));
}

static void on_arrived(struct hall_member *member)
{
	MUST(!member->departed);
}

static void on_detach(struct hall_member *member, u32 reason)
{
	MUST(reason == HALLWAY_REASON_REGION_GONE || !hall_peer_responds(hall_peer_of(member)));
	MUST(!lockdep_is_held(hall_peer_of(member)->own->mutex));
	leaves++;
}

/* Its channels close: rings are freed. */
static void close_rings(struct hall_peer *peer)
{
	unsigned int i;

	for (i = 0; i < RINGS; i++) {
		if (!rings[i].ring || (peer && ring_peer[i] != peer))
			continue;
		hall_memory_free(&ring_peer[i]->member, &rings[i]);
		atomic_dec_and_test(&ring_peer[i]->member.channels);
	}
}

static void on_departed(struct hall_member *member, u32 reason)
{
	MUST(!member->departed);
	MUST(!lockdep_is_held(hall_peer_of(member)->own->mutex));
	member->departed = true;
	departures++;
}

void shim_wait(void)
{
	close_rings(NULL);
}

/* What is done */

static void arrive(unsigned int slot)
{
	struct hall_slice slice = slices[slot];

	/* A transport does not let it in before. */
	if (peers[slot] || shim_no_memory || hall_peer_lingers(&guest.own, slot))
		return;
	slice.generation = ++generation;
	occupants[slot] = generation;
	peers[slot] = guest_meet(&guest, &slice, slot, 0);
	MUST(peers[slot]);
	peers[slot]->member.blocks = number(8) | 1;
	/* Its own side, as it should be. */
	peers[slot]->in->head = (struct hallway_mailbox_index){
		.sender_generation = generation,
		.receiver_generation = guest.slice.generation,
	};
	peers[slot]->out->tail = (struct hallway_mailbox_index){
		.sender_generation = guest.slice.generation,
		.receiver_generation = generation,
	};
}

/* What a peer does that keeps to the rules, but for the number. */
static void behave(struct hall_peer *peer)
{
	u8 what = byte();

	if (!peer)
		return;
	if (what & 1) {
		peer->in->head.index += what % 80;
		hall_mailbox_mark(peer->in, 0);
	} else {
		peer->out->tail.index = peer->out_head - what % 80;
	}
}

static void depart(unsigned int slot, u32 reason)
{
	struct hall_peer *peer = peers[slot];

	if (!peer)
		return;
	hall_peer_depart(peer, reason);
	if (reason != HALLWAY_REASON_PEER_LEFT)
		guest_pass(0);
	peers[slot] = NULL;
	MUST(!hall_peer_at(&guest.own, slot));
	if (byte() & 1)
		return;
	close_rings(peer);
	guest_pass(20);
}

static void look(void)
{
	unsigned int slot;

	looking = true;
	for (slot = 1; slot < SLOTS; slot++) {
		messages = 0;
		if (!peers[slot])
			continue;
		sweep_at = peers[slot]->sweep_at;
		hall_mailbox_look(peers[slot]);
	}
	looking = false;
}

static void send(struct hall_peer *peer)
{
	struct hallway_message message = { .type = byte() % 6, .carrier = 1 };
	unsigned int count = byte();

	while (peer && count--)
		hall_mailbox_send(&peer->member, &message);
}

static void allocate(struct hall_peer *peer)
{
	unsigned int i = byte() % RINGS, n;
	size_t size = (1 + byte() % 3) * 4096;
	u64 place[2];

	if (rings[i].ring) {
		for (n = 0; n < rings[i].size; n++)
			MUST(((u8 *)rings[i].ring)[n] == PATTERN);
		hall_memory_free(&ring_peer[i]->member, &rings[i]);
		atomic_dec_and_test(&ring_peer[i]->member.channels);
		return;
	}
	if (!peer || hall_memory_alloc(&peer->member, size, &rings[i]))
		return;
	memcpy(place, rings[i].handle.opaque, sizeof(place));
	MUST((u8 *)guest.slice.header + place[0] == (u8 *)rings[i].ring);
	MUST(place[0] >= hall_slice_overhead(SLOTS) && place[1] == size &&
	     place[0] + size <= guest.slice.size);
	memset(rings[i].ring, PATTERN, size);
	ring_peer[i] = peer;
	atomic_inc(&peer->member.channels);
}

static void map(struct hall_peer *peer)
{
	u64 place[2] = { number(8), number(8) }, start, offset;
	size_t size = byte() & 1 ? place[1] : (1 + byte() % 8) * 4096ul;
	struct hallway_handle handle = { };
	struct hallway_ring *ring;

	start = hall_slice_overhead(SLOTS);
	if (byte() & 1)
		place[0] = start + (int8_t)byte() * 1024;
	memcpy(handle.opaque, place, sizeof(place));
	if (!peer)
		return;
	ring = hall_slice_map(&peer->member, &handle, size);
	if (!ring)
		return;
	offset = (u8 *)ring - (u8 *)peer->slice.header;
	MUST(offset >= start && offset % 4096 == 0 && offset <= peer->slice.size);
	MUST(size <= peer->slice.size - offset && size == place[1]);
	hall_slice_unmap(&peer->member, ring);
}

static void check(void)
{
	struct hall_peer *peer;
	struct list_head *at;
	unsigned int slot, n, i;

	for (slot = 1; slot < SLOTS; slot++) {
		peer = peers[slot];
		MUST(hall_peer_at(&guest.own, slot) == peer);
		if (!peer)
			continue;
		MUST(peer->slice.header == slices[slot].header &&
		     peer->slice.size == slices[slot].size &&
		     peer->slice.generation == peer->member.generation);
		MUST(!peer->lock.held && peer->mailbox == slot);
		for (n = 0, at = peer->backlog.next; at != &peer->backlog; at = at->next)
			n++;
		MUST(n == peer->backlogged && n <= 4 * HALLWAY_ENDPOINTS_MAX);
		for (n = 0, i = 0; i < HALLWAY_ENDPOINTS_MAX; i++)
			n += peer->declining[i / 64] >> i % 64 & 1;
		MUST(n == peer->declines);
		MUST(!(n + peer->backlogged) || peer->retry.queued || looking);
	}
	MUST(guest.own.pool.used.counter <= (long)guest.own.pool.size);
}

static void begin(void)
{
	const struct in6_addr address = { .s6_addr = { 0x20 } };
	unsigned int slot;

	hall_transport_handler = HANDLER;
	planned.after = released = departures = 0;
	generation = SLOTS;
	MUST(!hall_heartbeat_init());
	guest_create(&guest, SLOTS, PAGES, 1);
	MUST(!hall_own_slice_open(&guest.own, &guest.slice, &address, 1));
	slices[0] = guest.slice;
	for (slot = 1; slot < SLOTS; slot++) {
		occupants[slot] = 1 + slot;
		slice_create(&slices[slot], SLOTS, PAGES, &occupants[slot]);
		arrive(slot);
	}
}

static void end(void)
{
	unsigned int slot;

	planned.after = 0;
	shim_no_memory = false;
	guest_close(&guest, HALLWAY_REASON_REGION_GONE);
	MUST(released == departures);
	hall_heartbeat_uninit();
	MUST(!shim_queue);
	guest_free(&guest);
	for (slot = 1; slot < SLOTS; slot++) {
		free(slices[slot].header);
		peers[slot] = NULL;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	const struct in6_addr address = { .s6_addr = { 0x20 } };
	u32 *word;

	input = data;
	left = length;
	begin();
	while (left) {
		u8 what = byte();
		unsigned int slot = 1 + (what >> 4) % (SLOTS - 1);

		shim_no_memory = what >> 6 == 3;
		switch (what & 15) {
		case 0:
			arrive(slot);
			break;
		case 1:
			depart(slot, what & 64 ? HALLWAY_REASON_PEER_LEFT :
						 HALLWAY_REASON_REGION_GONE);
			break;
		case 2:
			send(peers[slot]);
			break;
		case 3:
			allocate(peers[slot]);
			break;
		case 4:
			map(peers[slot]);
			break;
		case 5:
			hall_peers_read_addresses(&guest.own);
			break;
		case 6:
			guest_pass(byte());
			break;
		case 7:
			guest_pass(HALL_LISTEN);
			hall_peers_listen(&guest.own);
			break;
		case 8:
			hall_own_slice_publish(&guest.own, &address, 1);
			break;
		case 9:
			word = pick_word();
			planned.word = word;
			planned.value = pick_value(word);
			planned.after = 1 + byte();
			break;
		case 10:
			look();
			break;
		case 11:
		case 12:
			behave(peers[slot]);
			break;
		default:
			word = pick_word();
			*word = pick_value(word);
		}
		check();
	}
	end();
	return 0;
}
