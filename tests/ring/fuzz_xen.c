// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hostile domains and a XenStore that changes at any moment: kmod/transport/xen as it is,
 * on a false Xen (false_xen.h). The input writes and removes nodes, also between any two
 * requests, has requests fail, offers grants that are none, maps the guest's and keeps
 * them, rings, writes into all slices, and suspends the guest.
 */
#include "false_xen.h"

#include <sanitizer/lsan_interface.h>

static void use_peer(void)
{
	struct hallway_message message = { .type = byte() % 6, .carrier = 1, .to = byte() };
	struct hall_peer *peer = pick_peer();
	u64 place[2] = { number(2) << 10, PAGE_SIZE };
	struct hallway_handle handle = { };
	struct hallway_ring *ring;

	if (!peer)
		return;
	hall_mailbox_send(&peer->member, &message);
	memcpy(handle.opaque, place, sizeof(place));
	ring = hall_slice_map(&peer->member, &handle, PAGE_SIZE);
	if (ring)
		memset(ring, 1, PAGE_SIZE);
}

/* A peer writes into a slice, its own or the guest's. */
static void scribble(struct peer *peer)
{
	u64 place = number(2) * 4 % (PAGES * PAGE_SIZE);
	u32 value = number(4);
	unsigned int i;

	if (byte() & 1) {
		memcpy((u8 *)peer->slice + place, &value, sizeof(value));
		return;
	}
	for (i = 0; i < REFERENCES; i++)
		if (granted[i].used && granted[i].mapped && granted[i].to == peer->domid)
			break;
	if (i < REFERENCES)
		MUST(pwrite(file, &value, sizeof(value),
			    granted[i].frame * PAGE_SIZE + place % PAGE_SIZE) == sizeof(value));
}

static void storm(void)
{
	unsigned int i;

	for (i = 0; i < 4 * STORM; i++) {
		ring_all();
		run_tasklets();
	}
}

static void play(void)
{
	const struct in6_addr address = { .s6_addr = { 0x20 } };
	u8 what = byte();
	struct peer *peer = &peers[what >> 4 & 1];

	shim_no_memory = what >> 5 == 7;
	switch (what & 15) {
	case 0:
	case 1:
		change_store(peer, byte());
		break;
	case 2:
		planned.after = 1 + byte() % 16;
		planned.what = byte();
		planned.peer = peer - peers;
		break;
	case 3:
		handle_watches();
		break;
	case 4:
	case 5:
		settle();
		break;
	case 6:
		pass(byte() * 4);
		break;
	case 7:
		ring_all();
		break;
	case 8:
		run_tasklets();
		if (what & 32)
			storm();
		break;
	case 9:
		suspend(byte() & 1);
		break;
	case 10:
		scribble(peer);
		break;
	case 11:
		peer_maps(peer, what & 32);
		break;
	case 12:
		failing = byte() % 8;
		break;
	case 13:
		use_ring(byte() % RINGS);
		break;
	case 14:
		use_peer();
		break;
	default:
		if (what & 32)
			close_rings();
		else
			xen_publish(&address, 1);
	}
	check();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	u8 mode;

	input = data;
	left = length;
	mode = byte();
	shim_is_pv = mode & 1;
	refusing = mode >> 5 == 7;
	/* What can't be unmapped is leaked, and stays so. */
	if (refusing)
		__lsan_disable();
	begin();
	if (!(mode & 4))
		join_all();
	while (left)
		play();
	end();
	if (refusing)
		__lsan_enable();
	return 0;
}
