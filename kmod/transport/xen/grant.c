// SPDX-License-Identifier: GPL-2.0-only
/*
 * Grants: see grant.h.
 *
 * A page that another domain has mapped must not be used for anything else. The
 * kernel has a list of such pages, but looks at ten of them a second, and logs each.
 * A slice has a thousand: so this file has a list of its own, and hands the kernel
 * only what peers keep when the module is unloaded.
 */
#define pr_fmt(fmt) "hallway: xen: " fmt

#include "grant.h"

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pgtable.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/stop_machine.h>
#include <linux/vmalloc.h>

#include <xen/page.h>
#include <xen/xen.h>
#include <asm/tlbflush.h>
#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include "../transport.h"

#define REAP		(HZ / 10)
/* Peers unmap a slice once they find that its offer is gone. */
#define PARTING		(2 * HZ)
/* The share of this guest's grant references that all peers have: 1 / SHARE. */
#define SHARE		2
#define REFERENCES	(PAGE_SIZE / sizeof(struct grant_entry_v1))

static DEFINE_MUTEX(mutex);		/* of the next three */
static unsigned int granted_pages;	/* those that are not back yet included */
static unsigned int extra_pages;	/* mapped, beyond the size of our own slices */
static LIST_HEAD(ended);		/* grants that have such pages */

static void reap(struct work_struct *work);
static DECLARE_DELAYED_WORK(reap_work, reap);

/*
 * Under the mutex. The same bound for both counts: as many pages as this guest may
 * grant to peers. False: it would be exceeded.
 */
static bool count_pages(unsigned int *count, unsigned int pages)
{
	unsigned int most = gnttab_max_grant_frames() * REFERENCES / SHARE;

	if (pages > most || *count > most - pages)
		return false;
	*count += pages;
	return true;
}

/* Granting */

/* Under the mutex. Does the domain keep what it was granted before? */
static bool keeps_pages(domid_t to)
{
	struct xen_granted *granted;

	list_for_each_entry(granted, &ended, list)
		if (granted->to == to)
			return true;
	return false;
}

/* A peer that never unmaps a slice, and has its pair end again and again, has one. */
static int reserve(domid_t to, unsigned int pages)
{
	int err = 0;

	mutex_lock(&mutex);
	if (keeps_pages(to))
		err = -EBUSY;
	else if (!count_pages(&granted_pages, pages))
		err = -ENOSPC;
	mutex_unlock(&mutex);
	return err;
}

static void unreserve(unsigned int pages)
{
	mutex_lock(&mutex);
	granted_pages -= pages;
	mutex_unlock(&mutex);
}

/* No page of it is granted, or none any more. */
static void free_granted(struct xen_granted *granted)
{
	unsigned int i;

	for (i = 0; granted->page && i < granted->pages; i++)
		if (granted->page[i])
			__free_page(granted->page[i]);
	kvfree(granted->page);
	bitmap_free(granted->revoked);
	kfree(granted);
}

static bool alloc_pages_of(struct xen_granted *granted)
{
	unsigned int i;

	granted->revoked = bitmap_zalloc(granted->pages, GFP_KERNEL);
	granted->page = kvcalloc(granted->pages, sizeof(*granted->page),
				 GFP_KERNEL);
	if (!granted->revoked || !granted->page)
		return false;
	/*
	 * One by one: each comes back on its own. All else waits: rather no slice than a
	 * search for memory as long as that takes.
	 */
	for (i = 0; i < granted->pages; i++) {
		granted->page[i] = alloc_page(GFP_KERNEL | __GFP_ZERO |
					      __GFP_NORETRY | __GFP_NOWARN);
		if (!granted->page[i])
			return false;
	}
	granted->at = vmap(granted->page, granted->pages, VM_MAP, PAGE_KERNEL);
	return granted->at;
}

struct xen_granted *hall_xen_grant(domid_t to, unsigned int pages)
{
	struct xen_granted *granted;
	unsigned int i;
	int err = reserve(to, pages);

	if (err)
		return ERR_PTR(err);
	err = -ENOMEM;
	granted = kzalloc(sizeof(*granted), GFP_KERNEL);
	if (!granted)
		goto unreserve;
	granted->to = to;
	granted->pages = pages;
	if (!alloc_pages_of(granted))
		goto free;
	err = gnttab_alloc_grant_reference_seq(pages, &granted->first);
	if (err < 0)
		goto unmap;
	for (i = 0; i < pages; i++)
		gnttab_grant_foreign_access_ref(granted->first + i, to,
						xen_page_to_gfn(granted->page[i]),
						false);
	return granted;
unmap:
	vunmap(granted->at);
free:
	free_granted(granted);
unreserve:
	unreserve(pages);
	return ERR_PTR(err);
}

/* Under the mutex. True: no other domain can map that page, nor has it mapped. */
static bool revoke(struct xen_granted *granted, unsigned int i)
{
	if (!test_bit(i, granted->revoked) &&
	    gnttab_try_end_foreign_access(granted->first + i))
		__set_bit(i, granted->revoked);
	return test_bit(i, granted->revoked);
}

void hall_xen_revoke_grant(struct xen_granted *granted)
{
	unsigned int i;

	mutex_lock(&mutex);
	for (i = 0; i < granted->pages; i++) {
		revoke(granted, i);
		cond_resched();
	}
	mutex_unlock(&mutex);
}

/* Under the mutex. True: all pages are back. */
static bool take_back(struct xen_granted *granted)
{
	unsigned int i;
	bool all = true;

	for (i = 0; i < granted->pages; i++) {
		if (!granted->page[i])
			continue;
		if (!revoke(granted, i)) {
			all = false;
			continue;
		}
		__free_page(granted->page[i]);
		granted->page[i] = NULL;
		granted_pages--;
		cond_resched();
	}
	return all;
}

/* Under the mutex. True: all pages are back. */
static bool take_all_back(void)
{
	struct xen_granted *granted, *next;

	list_for_each_entry_safe(granted, next, &ended, list) {
		if (!take_back(granted))
			continue;
		list_del(&granted->list);
		free_granted(granted);
	}
	return list_empty(&ended);
}

static void reap(struct work_struct *work)
{
	mutex_lock(&mutex);
	if (!take_all_back())
		queue_delayed_work(hall_control_queue, &reap_work, REAP);
	mutex_unlock(&mutex);
}

void hall_xen_end_grant(struct xen_granted *granted)
{
	vunmap(granted->at);
	mutex_lock(&mutex);
	if (take_back(granted)) {
		free_granted(granted);
	} else {
		list_add_tail(&granted->list, &ended);
		queue_delayed_work(hall_control_queue, &reap_work, REAP);
	}
	mutex_unlock(&mutex);
}

void hall_xen_grants_await(void)
{
	unsigned long end = jiffies + PARTING;
	bool all;

	do {
		mutex_lock(&mutex);
		all = take_all_back();
		mutex_unlock(&mutex);
		if (all)
			return;
		msleep(20);
	} while (time_before(jiffies, end));
}

void hall_xen_grants_uninit(void)
{
	struct xen_granted *granted, *next;
	unsigned int i;

	cancel_delayed_work_sync(&reap_work);
	hall_xen_grants_await();
	mutex_lock(&mutex);
	list_for_each_entry_safe(granted, next, &ended, list) {
		for (i = 0; i < granted->pages; i++) {
			if (!granted->page[i] || test_bit(i, granted->revoked))
				continue;
			gnttab_end_foreign_access(granted->first + i,
						  granted->page[i]);
			granted->page[i] = NULL;
			granted_pages--;
		}
		list_del(&granted->list);
		free_granted(granted);
	}
	mutex_unlock(&mutex);
}

/* Mapping */

static int reserve_extra(unsigned int pages)
{
	int err = 0;

	mutex_lock(&mutex);
	if (!count_pages(&extra_pages, pages))
		err = -ENOSPC;
	mutex_unlock(&mutex);
	return err;
}

static void free_mapped(struct xen_mapped *mapped)
{
	mutex_lock(&mutex);
	extra_pages -= mapped->extra;
	mutex_unlock(&mutex);
	if (mapped->blank)
		__free_page(mapped->blank);
	kvfree(mapped->page);
	kvfree(mapped->map);
	kvfree(mapped->unmap);
	kfree(mapped);
}

/* A CPU may have seen the page of our own there, and Xen flushes nothing. */
static void flush(void *unused)
{
	__flush_tlb_all();
}

/*
 * In PV, Xen writes the page table entries itself. The range has entries of a page
 * of our own until then.
 */
static int map_pv(struct xen_mapped *mapped, domid_t from, grant_ref_t first)
{
	struct page **page;
	unsigned int i, level;
	pte_t *pte;

	mapped->blank = alloc_page(GFP_KERNEL | __GFP_ZERO);
	page = kvmalloc_array(mapped->pages, sizeof(*page), GFP_KERNEL);
	if (page && mapped->blank) {
		for (i = 0; i < mapped->pages; i++)
			page[i] = mapped->blank;
		mapped->at = vmap(page, mapped->pages, VM_MAP, PAGE_KERNEL);
	}
	kvfree(page);
	if (!mapped->at)
		return -ENOMEM;
	for (i = 0; i < mapped->pages; i++) {
		pte = lookup_address((unsigned long)mapped->at + i * PAGE_SIZE,
				     &level);
		gnttab_set_map_op(&mapped->map[i],
				  arbitrary_virt_to_machine(pte).maddr,
				  GNTMAP_host_map | GNTMAP_contains_pte,
				  first + i, from);
	}
	gnttab_batch_map(mapped->map, mapped->pages);
	on_each_cpu(flush, NULL, 1);
	return 0;
}

static unsigned long address_of(struct page *page)
{
	return (unsigned long)pfn_to_kaddr(page_to_pfn(page));
}

/* Elsewhere they are mapped over pages that have no memory behind them. */
static int map_translated(struct xen_mapped *mapped, domid_t from,
			  grant_ref_t first)
{
	unsigned int i;

	mapped->page = kvcalloc(mapped->pages, sizeof(*mapped->page),
				GFP_KERNEL);
	if (!mapped->page)
		return -ENOMEM;
	if (gnttab_alloc_pages(mapped->pages, mapped->page)) {
		kvfree(mapped->page);
		mapped->page = NULL;
		return -ENOMEM;
	}
	for (i = 0; i < mapped->pages; i++)
		gnttab_set_map_op(&mapped->map[i], address_of(mapped->page[i]),
				  GNTMAP_host_map, first + i, from);
	/* The state of each is looked at by the caller. */
	gnttab_map_refs(mapped->map, NULL, mapped->page, mapped->pages);
	mapped->at = vmap(mapped->page, mapped->pages, VM_MAP, PAGE_KERNEL);
	return mapped->at ? 0 : -ENOMEM;
}

static bool is_whole(const struct xen_mapped *mapped)
{
	unsigned int i;

	for (i = 0; i < mapped->pages; i++)
		if (mapped->map[i].status != GNTST_okay)
			return false;
	return true;
}

struct xen_mapped *hall_xen_map(domid_t from, grant_ref_t first,
				unsigned int pages, unsigned int own_pages)
{
	struct xen_mapped *mapped = kzalloc(sizeof(*mapped), GFP_KERNEL);
	unsigned int i;
	int err;

	if (!mapped)
		return ERR_PTR(-ENOMEM);
	mapped->pages = pages;
	mapped->extra = max(pages, own_pages) - own_pages;
	err = reserve_extra(mapped->extra);
	if (err) {
		kfree(mapped);
		return ERR_PTR(err);
	}
	mapped->map = kvcalloc(pages, sizeof(*mapped->map), GFP_KERNEL);
	mapped->unmap = kvcalloc(pages, sizeof(*mapped->unmap), GFP_KERNEL);
	if (!mapped->map || !mapped->unmap) {
		free_mapped(mapped);
		return ERR_PTR(-ENOMEM);
	}
	for (i = 0; i < pages; i++)
		mapped->map[i].status = GNTST_general_error;
	err = xen_pv_domain() ? map_pv(mapped, from, first) :
				map_translated(mapped, from, first);
	if (!err && !is_whole(mapped))
		err = -EIO;
	if (!err)
		return mapped;
	hall_xen_unmap(mapped);
	return ERR_PTR(err);
}

static unsigned int collect(struct xen_mapped *mapped)
{
	struct gnttab_map_grant_ref *map;
	unsigned int i, n = 0;

	for (i = 0; i < mapped->pages; i++) {
		map = &mapped->map[i];
		if (map->status != GNTST_okay)
			continue;
		/* It makes a physical address of the kernel's itself. */
		gnttab_set_unmap_op(&mapped->unmap[n],
				    mapped->page ? address_of(mapped->page[i]) :
						   map->host_addr,
				    map->flags, map->handle);
		/* Until Xen says otherwise. */
		mapped->unmap[n++].status = GNTST_general_error;
	}
	return n;
}

/* In PV, the entry of the page table is gone with the page. */
static void show_blank(struct xen_mapped *mapped, unsigned int i)
{
	unsigned int level;

	if (mapped->blank && mapped->at)
		set_pte(lookup_address((unsigned long)mapped->at + i * PAGE_SIZE,
				       &level),
			mk_pte(mapped->blank, PAGE_KERNEL));
}

/*
 * A page that is unmapped is so for good: Xen gives its handle to another mapping.
 * Returns the number of pages that are mapped yet.
 */
static unsigned int note_unmapped(struct xen_mapped *mapped)
{
	unsigned int i, n = 0, left = 0;

	for (i = 0; i < mapped->pages; i++) {
		if (mapped->map[i].status != GNTST_okay)
			continue;
		if (mapped->unmap[n++].status != GNTST_okay) {
			left++;
			continue;
		}
		mapped->map[i].status = GNTST_general_error;
		show_blank(mapped, i);
	}
	return left;
}

/* Returns the number of pages that are mapped yet. */
static int unmap(void *data)
{
	struct xen_mapped *mapped = data;
	unsigned int n = collect(mapped);

	if (!n)
		return 0;
	/* The status of each says more than the result does. */
	HYPERVISOR_grant_table_op(GNTTABOP_unmap_grant_ref, mapped->unmap, n);
	return note_unmapped(mapped);
}

static void note_leaked(struct xen_mapped *mapped, unsigned int pages)
{
	mapped->leaked = pages;
	if (pages)
		pr_warn_ratelimited("%u pages of another domain can't be unmapped: leaking them\n",
				    pages);
}

void hall_xen_unmap_pages(struct xen_mapped *mapped)
{
	if (mapped->leaked)
		return;
	/*
	 * In PV, Xen leaves the range without entries, and a timer or a packet on another
	 * CPU may read a ring at any moment.
	 */
	note_leaked(mapped, stop_machine(unmap, mapped, NULL));
}

void hall_xen_unmap(struct xen_mapped *mapped)
{
	unsigned int i;

	if (!mapped->leaked)
		note_leaked(mapped, unmap(mapped));
	/*
	 * What is still mapped must not become anything else: its next user would
	 * write to the other domain's memory.
	 */
	if (mapped->leaked)
		return;
	if (mapped->at)
		vunmap(mapped->at);
	for (i = 0; mapped->page && i < mapped->pages; i++)
		ClearPageForeign(mapped->page[i]);
	if (mapped->page)
		gnttab_free_pages(mapped->pages, mapped->page);
	free_mapped(mapped);
}
