// SPDX-License-Identifier: GPL-2.0-only
/* The private page: see page.h. */
#define pr_fmt(fmt) "hallway: ivshmem: " fmt

#include "page.h"

#include <linux/bitops.h>
#include <linux/utsname.h>
#include <net/ipv6.h>

#include <hallway/tunnel.h>

#include "../transports.h"

struct in6_addr ivshmem_address[HALLWAY_ADDRESSES_MAX];
unsigned int ivshmem_addresses;

u32 ivshmem_page_request(struct doorbell *doorbell, unsigned int entry,
			 u32 command, const u8 *region)
{
	struct hallway_request *shared = &doorbell->page->entry[entry].request;
	struct hallway_reply *reply = &doorbell->page->entry[entry].reply;
	struct hallway_request request = {
		.major = HALLWAY_MAJOR,
		.minor = HALLWAY_MINOR,
		.command = command,
	};
	u32 serial;

	if (region)
		memcpy(request.region, region, sizeof(request.region));
	memcpy(request.vm, hall_uuid, sizeof(request.vm));
	strscpy(request.name, init_utsname()->nodename, sizeof(request.name));
	/*
	 * The page outlives the guest: go on from what is there, so that no old
	 * reply passes for the answer. Serial 0 means "no request".
	 */
	serial = max(READ_ONCE(shared->serial), READ_ONCE(reply->serial)) + 1;
	serial += !serial;
	WRITE_ONCE(shared->serial, 0);
	virt_wmb();
	memcpy((void *)shared + sizeof(u32), (void *)&request + sizeof(u32),
	       sizeof(request) - sizeof(u32));
	virt_store_release(&shared->serial, serial);
	ivshmem_doorbell_ring(doorbell, HALLWAY_DAEMON_ID);
	return serial;
}

/* What an older daemon leaves in a newer field may have come with a migration. */
static bool has_minor(const struct doorbell *doorbell, unsigned int entry, u16 minor)
{
	return READ_ONCE(doorbell->page->entry[entry].reply.minor) >= minor;
}

u32 ivshmem_page_read_peer(struct doorbell *doorbell, unsigned int entry)
{
	const struct hallway_page *page = doorbell->page;

	if (has_minor(doorbell, entry, HALLWAY_MINOR_CIDS))
		return READ_ONCE(page->peer_cid[entry]);
	return has_minor(doorbell, entry, HALLWAY_MINOR_PEERS) ?
		       READ_ONCE(page->entry[entry].reply.peer_cid) : 0;
}

u32 ivshmem_page_read_cid(struct doorbell *doorbell, unsigned int entry)
{
	u32 cid = has_minor(doorbell, entry, HALLWAY_MINOR_CIDS) ?
			  READ_ONCE(doorbell->page->cid) : 0;

	return cid ?: hallway_cid(hall_uuid);
}

bool ivshmem_page_has_key(const struct doorbell *doorbell, unsigned int entry,
			  const u8 *key)
{
	const struct hallway_page *page = doorbell->page;

	return !has_minor(doorbell, entry, HALLWAY_MINOR_KEYS) ||
	       !memcmp(page->region_key[entry], key, sizeof(page->region_key[entry]));
}

/*
 * Nothing waits for the reply, and a request that takes the entry before this one
 * was read says the same.
 */
void ivshmem_page_greet(struct doorbell *doorbell, unsigned int entry)
{
	doorbell->greeted = true;
	ivshmem_page_publish(doorbell);
	if (entry < HALLWAY_PAGE_ENTRIES)
		ivshmem_page_request(doorbell, entry, HALLWAY_COMMAND_HELLO,
				     NULL);
}

void ivshmem_page_publish(struct doorbell *doorbell)
{
	struct hallway_home *home = &doorbell->page->home;
	u32 seq = READ_ONCE(home->seq) | 1;
	unsigned int count = min_t(unsigned int, ivshmem_addresses,
				   HALLWAY_HOME_MAX);

	WRITE_ONCE(home->seq, seq);
	virt_wmb();
	memcpy(home->address, ivshmem_address, count * sizeof(*ivshmem_address));
	WRITE_ONCE(home->count, count);
	virt_store_release(&home->seq, seq + 1);
	ivshmem_doorbell_ring(doorbell, HALLWAY_DAEMON_ID);
}

void ivshmem_page_read_candidates(struct doorbell *doorbell)
{
	struct hallway_candidates *shared = &doorbell->page->candidates;
	u32 seq = virt_load_acquire(&shared->seq);
	u32 count = READ_ONCE(shared->count);

	/* The daemon rings when it has written. */
	if (seq == doorbell->candidates_seq || (seq & 1) ||
	    count > HALLWAY_CANDIDATES_MAX)
		return;
	memcpy(doorbell->candidate, shared->address,
	       count * sizeof(*doorbell->candidate));
	virt_rmb();
	if (READ_ONCE(shared->seq) != seq)
		return;
	doorbell->candidate_count = count;
	doorbell->candidates_seq = seq;
	hall_transport_handler.candidates(&hall_ivshmem_transport,
					  doorbell->candidate, count);
}

void ivshmem_page_want(struct doorbell *doorbell,
		       const struct in6_addr *address, unsigned int count)
{
	struct hallway_wanted *shared = &doorbell->page->wanted;
	unsigned int i, n;
	u64 set = 0;

	for (i = 0; i < count; i++)
		for (n = 0; n < doorbell->candidate_count; n++)
			if (ipv6_addr_equal(&address[i], &doorbell->candidate[n]))
				set |= BIT_ULL(n);
	if (READ_ONCE(shared->seq) == doorbell->candidates_seq &&
	    READ_ONCE(shared->set) == set)
		return;
	WRITE_ONCE(shared->seq, 0);
	virt_wmb();
	WRITE_ONCE(shared->set, set);
	virt_store_release(&shared->seq, doorbell->candidates_seq);
	if (set)
		ivshmem_doorbell_ring(doorbell, HALLWAY_DAEMON_ID);
}
