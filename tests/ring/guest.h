/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A guest over kmod/transport/shared as it is, with a transport that only counts:
 * a slice is memory of exactly its size, so that no access beyond it goes unseen.
 */
#ifndef TESTS_RING_GUEST_H
#define TESTS_RING_GUEST_H

#include "pages.h"

#include <hallway/reason.h>
#include <hallway/ring.h>

#include "../../kmod/obs/counters.h"
#include "../../kmod/transport/shared/bounds.h"
#include "../../kmod/transport/shared/shared.h"

bool shim_no_memory;
unsigned long shim_jiffies;
struct delayed_work *shim_queue;
pthread_rwlock_t shim_readers = PTHREAD_RWLOCK_INITIALIZER;
struct rcu_head *shim_dead;
struct hall_counters hall_counters;
struct hall_transport_handler hall_transport_handler;
/* Of a test's own functions. */
#define HANDLER ((struct hall_transport_handler){ \
	.arrived = on_arrived, \
	.departed = on_departed, \
	.detach = on_detach, \
	.addresses = on_addresses, \
	.message = on_message, \
	.wake = on_wake, \
})
struct workqueue_struct *hall_control_queue, *hall_depart_queue;

struct guest {
	struct mutex mutex;
	struct hall_own_slice own;
	struct hall_slice slice;
	u32 occupant;			/* the generation that owns the slice */
};

static struct guest *guests[4];		/* those that exist */
static unsigned int rung, released;

bool hall_address_travels(const struct in6_addr *address)
{
	return address->s6_addr[0] != 0xfe;
}

static void guest_ring(struct hall_member *member)
{
	rung++;
}

static void guest_release(struct hall_member *member)
{
	hall_peer_free(hall_peer_of(member));
	released++;
}

static const struct hall_transport guest_transport = {
	.name = "pages",
	.alloc = hall_slice_alloc,
	.free = hall_slice_free,
	.map = hall_slice_map,
	.unmap = hall_slice_unmap,
	.intact = hall_slice_is_intact,
	.send = hall_mailbox_send,
	.notify = hall_mailbox_notify,
	.forget = hall_mailbox_forget,
	.ring = guest_ring,
	.release = guest_release,
};

static inline void slice_create(struct hall_slice *slice, u32 mailboxes,
				unsigned int pages, const u32 *occupant)
{
	slice->size = hall_slice_overhead(mailboxes) + pages * 4096;
	slice->header = aligned_alloc(4096, slice->size);
	slice->generation = *occupant;
	slice->occupant = occupant;
	memset(slice->header, 0, slice->size);
}

static inline void guest_create(struct guest *guest, u32 mailboxes,
				unsigned int pages, u32 generation)
{
	static const struct mutex unlocked = { PTHREAD_MUTEX_INITIALIZER };
	unsigned int i;

	memset(guest, 0, sizeof(*guest));
	guest->mutex = unlocked;
	guest->occupant = generation;
	slice_create(&guest->slice, mailboxes, pages, &guest->occupant);
	hall_own_slice_init(&guest->own, mailboxes, &guest->mutex);
	for (i = 0; guests[i]; i++)
		;
	guests[i] = guest;
	mutex_lock(&guest->mutex);
}

static inline void guest_free(struct guest *guest)
{
	unsigned int i;

	for (i = 0; i < 4; i++)
		if (guests[i] == guest)
			guests[i] = NULL;
	mutex_unlock(&guest->mutex);
	free(guest->slice.header);
}

/* Time passes, and work is done: the mutexes are the work's to take. */
static inline void guest_pass(unsigned long time)
{
	unsigned int i;

	for (i = 0; i < 4; i++)
		if (guests[i])
			mutex_unlock(&guests[i]->mutex);
	shim_pass(time);
	for (i = 0; i < 4; i++)
		if (guests[i])
			mutex_lock(&guests[i]->mutex);
}

/* Leaves as a transport does. */
static inline void guest_close(struct guest *guest, u32 reason)
{
	hall_peers_depart(&guest->own, reason);
	guest_pass(20);
	if (!hall_peers_are_gone(&guest->own)) {
		shim_wait();
		guest_pass(20);
	}
	MUST(hall_peers_are_gone(&guest->own));
	hall_own_slice_close(&guest->own);
}

/* The member of that slot arrives at the guest. */
static inline struct hall_peer *guest_meet(struct guest *guest,
					   const struct hall_slice *slice,
					   u32 slot, u32 own_slot)
{
	struct hall_peer *peer = hall_peer_create(&guest->own, slice,
						  &guest_transport);

	if (!peer)
		return NULL;
	peer->member.slot = slot;
	hall_peer_arrive(peer, slot, own_slot);
	return peer;
}

#endif /* TESTS_RING_GUEST_H */
