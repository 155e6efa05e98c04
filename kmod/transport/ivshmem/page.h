/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The private page: what this guest and hallwayd say to each other. Everything
 * under ivshmem_mutex.
 */
#ifndef HALL_IVSHMEM_PAGE_H
#define HALL_IVSHMEM_PAGE_H

#include "doorbell.h"

/* The addresses of this guest. */
extern struct in6_addr ivshmem_address[HALLWAY_ADDRESSES_MAX];
extern unsigned int ivshmem_addresses;

/* Returns the serial that the reply will have. region: a UUID, or NULL. */
u32 ivshmem_page_request(struct doorbell *doorbell, unsigned int entry,
			 u32 command, const u8 *region);
/*
 * The CID of the one other member that the region has by the reply in this entry; 0: there
 * may be several, or the daemon is too old to say. It may be another one by each time that
 * the member arrives.
 */
u32 ivshmem_page_read_peer(struct doorbell *doorbell, unsigned int entry);
/* The CID of this guest by the reply in this entry. */
u32 ivshmem_page_read_cid(struct doorbell *doorbell, unsigned int entry);
/* Is it the key of the region that the reply in this entry is about? An older daemon says none. */
bool ivshmem_page_has_key(const struct doorbell *doorbell, unsigned int entry,
			  const u8 *key);
/*
 * Says once that this guest takes part, so that the daemon plugs in its regions.
 * entry: a free one, or HALLWAY_PAGE_ENTRIES.
 */
void ivshmem_page_greet(struct doorbell *doorbell, unsigned int entry);
/* Has the daemon know this guest's addresses. */
void ivshmem_page_publish(struct doorbell *doorbell);
/* Hands up the daemon's list of candidates, if it is another one. */
void ivshmem_page_read_candidates(struct doorbell *doorbell);
/* Has the daemon know with which of the candidates there is traffic. */
void ivshmem_page_want(struct doorbell *doorbell,
		       const struct in6_addr *address, unsigned int count);

#endif /* HALL_IVSHMEM_PAGE_H */
