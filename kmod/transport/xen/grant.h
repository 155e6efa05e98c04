/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory between two domains: pages of ours that one other domain may map, and
 * pages of another domain that are mapped here.
 *
 * Process context, but where it says otherwise.
 */
#ifndef HALL_XEN_GRANT_H
#define HALL_XEN_GRANT_H

#include <linux/list.h>
#include <linux/types.h>

#include <xen/grant_table.h>

/* Pages of ours, in a row, which one domain may map and write. */
struct xen_granted {
	struct list_head list;		/* grant.c's, once it is ended */
	void *at;
	domid_t to;
	unsigned int pages;
	grant_ref_t first;		/* of consecutive references */
	unsigned long *revoked;		/* bits: these are not granted any more */
	struct page **page;		/* NULL: it is back already */
};

/* Pages of another domain, in a row. It cannot take them back. */
struct xen_mapped {
	void *at;
	unsigned int pages;
	unsigned int extra;		/* of those, beyond the size of our own slice */
	struct page **page;		/* where they are mapped first; PV: NULL */
	struct page *blank;		/* PV: what the range shows without them */
	struct gnttab_map_grant_ref *map;
	struct gnttab_unmap_grant_ref *unmap;
	bool leaked;			/* some can't be unmapped: for good */
};

/*
 * Zeroed pages, or an error pointer: -ENOMEM, -ENOSPC if all peers have enough, -EBUSY
 * if this one still maps pages of a grant that was ended.
 */
struct xen_granted *hall_xen_grant(domid_t to, unsigned int pages);
/*
 * Ends the grant, and frees it. Pages that the other domain has mapped yet are freed
 * once it has let go of them.
 */
void hall_xen_end_grant(struct xen_granted *granted);
/*
 * The domain is gone: another one, which may get its number, can map none of the pages.
 * They stay ours to write to until the grant is ended. Pages that a domain has mapped yet
 * stay granted.
 */
void hall_xen_revoke_grant(struct xen_granted *granted);
/* The pages of grants that were ended come back, or some time passes. May sleep. */
void hall_xen_grants_await(void);
/*
 * Maps consecutive references, or none. An error pointer if any is not good; -ENOSPC if
 * all peers have enough. As many pages as the peer was granted itself are never too many:
 * no other peer can have them refused.
 */
struct xen_mapped *hall_xen_map(domid_t from, grant_ref_t first,
				unsigned int pages, unsigned int own_pages);
/*
 * Unmaps the other domain's pages; the range stays, and shows nothing. What is read
 * from it is of no meaning. No CPU does anything else meanwhile.
 */
void hall_xen_unmap_pages(struct xen_mapped *mapped);
/* Nothing reads the range any more. */
void hall_xen_unmap(struct xen_mapped *mapped);
/* After the last grant was ended. */
void hall_xen_grants_uninit(void);

#endif /* HALL_XEN_GRANT_H */
