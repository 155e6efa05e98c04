/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What XenStore says of the domains that this one may share memory with.
 *
 * Below /local/domain/N/hallway, where N is this domain and P another one:
 *   peer/P/{name,uuid,key}                       written in dom0, read by N
 *   to/P/{major,gref,pages,port,generation}      written by N, read by P
 *
 * dom0 makes the folders, with these permissions. That peer/P is there says that N
 * and P may share memory; the key, 16 bytes in the form of a UUID, is written last. A
 * domain that is given the number P later is another one, and has another key.
 * to/P is what N offers P: its slice, and the event channel if it is N that makes
 * it. The major version says that N has a module: it is written before anything is
 * offered, and removed last. The generation is written last and removed first: without
 * it there is no offer.
 *
 * A peer can write anything: everything here is bounded, and is a claim.
 *
 * Process context; each function waits for XenStore.
 */
#ifndef HALL_XEN_STORE_H
#define HALL_XEN_STORE_H

#include <linux/types.h>

#include <xen/xenbus.h>

#include <hallway/constants.h>

/* A slice that one domain offers another. */
struct xen_offer {
	bool possible;			/* dom0 has made its place: the domain is there */
	u32 generation;			/* 0: there is no offer */
	u32 major;			/* HALLWAY_MAJOR of its module; 0: it has none */
	u32 gref;			/* the first of consecutive references */
	u32 pages;
	u32 port;			/* 0: the other side makes the channel */
};

/* A domain that this one may share memory with, as dom0 says. */
struct xen_known {
	u8 key[16];
	u8 uuid[16];
	char name[HALLWAY_NAME_SIZE];
};

/* Node names of one pair of domains. */
struct xen_nodes {
	char peer[32];			/* what dom0 says of it */
	char to[32];			/* what is offered to it */
	char from[64];			/* what it offers */
};

#define HALL_XEN_FOLDER	"hallway/peer"

/*
 * will_handle of all watches here: one event is kept, since it says only that there is
 * something to look at. A peer can cause them without end, and the thread that takes
 * them may be held up.
 */
bool hall_xen_takes_event(struct xenbus_watch *watch, const char *path,
			  const char *token);

/*
 * This domain's number, which changes as it is restored; or a negative error. -ENOENT:
 * XenStore does not say. All others: it gave no answer.
 */
int hall_xen_read_domid(void);
void hall_xen_name_nodes(struct xen_nodes *nodes, domid_t own, domid_t peer);

/*
 * Readers return 0, or a negative error if XenStore gave no answer, as where memory is
 * short: nothing is known then. That a node is not there, or holds something else, is
 * an answer.
 */

/* Calls fn for each domain that dom0 lists. */
int hall_xen_list(void (*fn)(domid_t domid));
/* -ENOENT: dom0 has not written all of it. */
int hall_xen_read_known(const struct xen_nodes *nodes, struct xen_known *known);
int hall_xen_read_key(const struct xen_nodes *nodes, u8 *key);
int hall_xen_read_offer(const struct xen_nodes *nodes, struct xen_offer *offer);
/* This domain has a module. 0 or a negative error. */
int hall_xen_announce(const struct xen_nodes *nodes);
/* Announces this domain, too. 0 or a negative error. */
int hall_xen_write_offer(const struct xen_nodes *nodes,
			 const struct xen_offer *offer);
void hall_xen_remove_offer(const struct xen_nodes *nodes);
/* After that. This domain has no module any more. */
void hall_xen_leave(const struct xen_nodes *nodes);

#endif /* HALL_XEN_STORE_H */
