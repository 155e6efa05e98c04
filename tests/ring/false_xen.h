/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A false Xen and a false XenStore for kmod/transport/xen as it is (shim/domain.h), with
 * two other domains and dom0, which a test has do as it likes. What holds whatever they do
 * is asserted here:
 *   - no access to pages that are not mapped, and none is unmapped twice;
 *   - no page is freed while another domain maps it, nor addresses at which its pages are;
 *   - memory for each peer, watches and events are bounded;
 *   - at the end all is freed.
 */
#ifndef TESTS_RING_FALSE_XEN_H
#define TESTS_RING_FALSE_XEN_H

#include "guest.h"
#include "input.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../kmod/transport/xen/xen.c"

#define PEERS		2
#define PAGES		16	/* of a slice */
#define FRAMES		1024
#define REFERENCES	512	/* in one frame of the grant table */
#define MAPPED_MAX	16384	/* pages that a peer may offer */
#define OFFERED_MAX	1024	/* references that a peer makes: to its pages, again and again */
#define EXTRA_MAX	256	/* pages beyond PAGES that may be mapped of all peers */
#define HANDLES		4096
#define PORTS		256
#define NODES		64
#define WATCHES		(3 * PAIRS_MAX + 1)
#define RINGS		4
#define STORM		8	/* events in one jiffy */

u8 hall_uuid[16];
bool shim_is_pv, shim_is_stopped;
extern void *shim_param_xen_slice, *shim_param_storm;

struct peer {
	domid_t domid;
	struct page *page[PAGES];
	struct hallway_slice *slice;	/* of the peer, as it maps it itself */
	grant_ref_t first;
	u32 generation;
	unsigned int key;
};

static struct peer peers[PEERS];
static bool refusing;		/* Xen refuses to unmap some pages */
static bool refused;		/* it has */
static bool frozen, working, in_watch_thread, unloading;
static unsigned int members;	/* that have not departed */
static const struct platform_driver *pm;

/*
 * What a mapping that can't be undone keeps, with its module: the end of the input takes
 * it, or a run of thousands of inputs ends for want of memory.
 */
struct kept {
	_Alignas(16) struct kept *next;
	struct kept **at;
	size_t mapped;		/* bytes that are to be unmapped; 0: of calloc() */
};

static struct kept *kept;

static void *keep(struct kept *memory, size_t mapped)
{
	*memory = (struct kept){ .next = kept, .at = &kept, .mapped = mapped };
	if (kept)
		kept->at = &memory->next;
	kept = memory;
	return memory + 1;
}

static void forget(struct kept *memory)
{
	*memory->at = memory->next;
	if (memory->next)
		memory->next->at = memory->at;
	if (memory->mapped)
		MUST(!munmap(memory, memory->mapped));
	else
		free(memory);
}

void *shim_kvcalloc(size_t n, size_t size)
{
	struct kept *memory = shim_no_memory ? NULL : calloc(1, sizeof(*memory) + n * size);

	return memory ? keep(memory, 0) : NULL;
}

void kvfree(const void *memory)
{
	if (memory)
		forget((struct kept *)memory - 1);
}

/* Pages */

static int file = -1;
static struct page pages[FRAMES];
static unsigned int pages_used;

static void map_frame(void *at, int frame)
{
	MUST(mmap(at, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
		  frame * PAGE_SIZE) == at);
}

static void map_nothing(void *at)
{
	MUST(mmap(at, PAGE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) == at);
}

/* What a guest that is not PV reads there. */
static void map_ones(void *at)
{
	MUST(mmap(at, PAGE_SIZE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
	memset(at, 0xff, PAGE_SIZE);
}

struct page *alloc_page(gfp_t gfp)
{
	static const u8 zeros[PAGE_SIZE];
	unsigned int i;

	if (shim_no_memory)
		return NULL;
	for (i = 0; pages[i].used; i++)
		MUST(i < FRAMES - 1);
	pages[i] = (struct page){ .frame = i, .used = true };
	pages_used++;
	MUST(pwrite(file, zeros, PAGE_SIZE, i * PAGE_SIZE) == PAGE_SIZE);
	return &pages[i];
}

/* Each vmap() has a page before it, for what is kept of it. */
void *vmap(struct page **page, unsigned int count, int flags, int prot)
{
	unsigned int i;
	u8 *at;

	if (shim_no_memory)
		return NULL;
	at = mmap(NULL, (count + 1) * PAGE_SIZE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(at != MAP_FAILED);
	keep((struct kept *)at, (count + 1) * PAGE_SIZE);
	for (i = 0; i < count; i++) {
		u8 *here = at + (i + 1) * PAGE_SIZE;

		if (page[i]->frame < 0)
			map_ones(here);
		else
			map_frame(here, page[i]->frame);
		page[i]->at = here;
	}
	return at + PAGE_SIZE;
}

/* Pages of peers that are mapped; in PV, the address is that of the mapping. */
static struct {
	bool used;
	u64 address;
} handles[HANDLES];

static bool is_mapped_within(const void *at, size_t size)
{
	unsigned int i;

	for (i = 0; i < HANDLES; i++)
		if (handles[i].used && handles[i].address - (u64)at < size)
			return true;
	return false;
}

/* In PV, what another domain's pages are mapped at is not used for anything else. */
void vunmap(void *at)
{
	struct kept *memory = (struct kept *)((u8 *)at - PAGE_SIZE);

	MUST(!is_mapped_within(at, memory->mapped - PAGE_SIZE));
	forget(memory);
}

void set_pte(pte_t *at, pte_t pte)
{
	map_frame(at, pte.page->frame);
}

/* Grants of the guest */

static struct {
	bool used, mapped;	/* by the peer */
	domid_t to;
	int frame;
} granted[REFERENCES];

static struct page *deferred[REFERENCES];	/* left to the kernel at unload */
static unsigned int deferrals;
static bool unmapping;		/* peers unmap what they no longer need when the guest sleeps */

static bool is_mapped_elsewhere(int frame)
{
	unsigned int i;

	for (i = 0; i < REFERENCES; i++)
		if (granted[i].used && granted[i].mapped && granted[i].frame == frame)
			return true;
	return false;
}

void __free_page(struct page *page)
{
	MUST(page->used && !is_mapped_elsewhere(page->frame));
	page->used = false;
	pages_used--;
}

unsigned int gnttab_max_grant_frames(void)
{
	return 1;
}

int gnttab_alloc_grant_reference_seq(unsigned int count, grant_ref_t *first)
{
	unsigned int i, run = 0;

	for (i = 0; i < REFERENCES && !shim_no_memory; i++) {
		run = granted[i].used ? 0 : run + 1;
		if (run != count)
			continue;
		*first = i - count + 1;
		for (run = 0; run < count; run++)
			granted[*first + run].used = true;
		return 0;
	}
	return -ENOSPC;
}

void gnttab_grant_foreign_access_ref(grant_ref_t ref, domid_t to, unsigned long frame,
				     int readonly)
{
	MUST(granted[ref].used && !readonly);
	granted[ref].to = to;
	granted[ref].frame = frame;
	granted[ref].mapped = false;
}

int gnttab_try_end_foreign_access(grant_ref_t ref)
{
	MUST(granted[ref].used);
	if (granted[ref].mapped)
		return 0;
	granted[ref].used = false;
	return 1;
}

void gnttab_end_foreign_access(grant_ref_t ref, struct page *page)
{
	if (gnttab_try_end_foreign_access(ref)) {
		__free_page(page);
		return;
	}
	deferred[ref] = page;
	deferrals++;
}

static void peer_maps(struct peer *peer, bool maps)
{
	unsigned int i;

	for (i = 0; i < REFERENCES; i++)
		if (granted[i].used && granted[i].to == peer->domid)
			granted[i].mapped = maps;
}

void msleep(unsigned int ms)
{
	unsigned int i;

	shim_jiffies += ms;
	for (i = 0; unmapping && i < PEERS; i++)
		peer_maps(&peers[i], false);
}

/* Grants of the peers */

static unsigned int last_handle;

static void map_one(struct gnttab_map_grant_ref *map)
{
	struct page *over;
	unsigned int i;

	map->status = GNTST_bad_gntref;
	for (i = 0; i < PEERS; i++)
		if (peers[i].domid == map->dom && map->ref - peers[i].first < OFFERED_MAX)
			break;
	if (i == PEERS)
		return;
	do
		last_handle = (last_handle + 1) % HANDLES;
	while (handles[last_handle].used);
	handles[last_handle].used = true;
	handles[last_handle].address = map->host_addr;
	map->handle = last_handle;
	map->status = GNTST_okay;
	i = peers[i].page[(map->ref - peers[i].first) % PAGES]->frame;
	if (map->flags & GNTMAP_contains_pte) {
		map_frame((void *)map->host_addr, i);
	} else {
		over = (struct page *)map->host_addr;
		MUST(over->frame < 0);
		over->frame = i;
	}
}

static bool stale;	/* a CPU may see what the page table had before */

void __flush_tlb_all(void)
{
	stale = false;
}

void gnttab_batch_map(struct gnttab_map_grant_ref *map, unsigned int count)
{
	MUST(shim_is_pv && count <= MAPPED_MAX);
	stale = true;
	while (count--)
		map_one(map++);
}

int gnttab_map_refs(struct gnttab_map_grant_ref *map, void *kernel,
		    struct page **page, unsigned int count)
{
	MUST(!shim_is_pv && count <= MAPPED_MAX && !kernel);
	while (count--)
		map_one(map++);
	return 0;
}

/* Without memory; their addresses are those of the structures. */
int gnttab_alloc_pages(int count, struct page **page)
{
	struct page *first = shim_kvcalloc(count, sizeof(*first));
	int i;

	if (!first)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		page[i] = &first[i];
		page[i]->frame = -1;
	}
	return 0;
}

void gnttab_free_pages(int count, struct page **page)
{
	while (count--)
		MUST(page[count]->frame < 0);
	kvfree(page[0]);
}

int HYPERVISOR_grant_table_op(unsigned int op, void *ops, unsigned int count)
{
	struct gnttab_unmap_grant_ref *unmap = ops;
	struct page *page;

	MUST(op == GNTTABOP_unmap_grant_ref);
	/* Nothing meets entries that are empty for a moment. */
	MUST(!frozen || shim_is_stopped);
	for (; count--; unmap++) {
		MUST(handles[unmap->handle].used &&
		     handles[unmap->handle].address == unmap->host_addr);
		unmap->status = GNTST_general_error;
		if (refusing && !(byte() & 7)) {
			refused = true;
			continue;
		}
		unmap->status = GNTST_okay;
		handles[unmap->handle].used = false;
		if (shim_is_pv) {
			map_nothing((void *)unmap->host_addr);
			continue;
		}
		page = (struct page *)unmap->host_addr;
		page->frame = -1;
		if (page->at)
			map_ones(page->at);
	}
	return 0;
}

/* Event channels: the number of the interrupt is that of the port. */

static struct {
	bool open, masked;
	bool spurious;		/* the event before was */
	unsigned long unmask_at;	/* jiffies; 0: by the guest */
	unsigned long jiffy;
	unsigned int events;	/* in that */
	domid_t to;
	bool unbound;		/* to that domain */
	irq_handler_t handler;
	void *data;
} ports[PORTS];
static struct tasklet_struct *tasklets;

/* What becomes of a port that can't be bound; shim_no_memory: any of these. */
static enum {
	BINDS,
	STAYS_OPEN,		/* there is no interrupt */
	IS_CLOSED,		/* by the kernel: request_irq() failed */
	IS_TAKEN,		/* the same, and by a driver of dom0's devices since */
} binding;

static int open_port(evtchn_port_t *port, domid_t to, bool unbound)
{
	for (*port = 1; ports[*port].open; ++*port)
		MUST(*port < PORTS - 1);
	ports[*port].open = true;
	ports[*port].to = to;
	ports[*port].unbound = unbound;
	return 0;
}

static void get_status(struct evtchn_status *status)
{
	MUST(status->dom == DOMID_SELF);
	if (!ports[status->port].open) {
		status->status = EVTCHNSTAT_closed;
	} else if (ports[status->port].unbound) {
		status->status = EVTCHNSTAT_unbound;
		status->u.unbound.dom = ports[status->port].to;
	} else {
		status->status = EVTCHNSTAT_interdomain;
		status->u.interdomain.dom = ports[status->port].to;
	}
}

int HYPERVISOR_event_channel_op(int op, void *arg)
{
	struct evtchn_alloc_unbound *alloc = arg;
	struct evtchn_bind_interdomain *bind = arg;
	struct evtchn_close *close = arg;

	switch (op) {
	case EVTCHNOP_alloc_unbound:
		return shim_no_memory ? -ENOSPC :
					open_port(&alloc->port, alloc->remote_dom, true);
	case EVTCHNOP_bind_interdomain:
		if (!bind->remote_port)
			return -EINVAL;
		return open_port(&bind->local_port, bind->remote_dom, false);
	case EVTCHNOP_status:
		get_status(arg);
		return 0;
	}
	MUST(op == EVTCHNOP_close && ports[close->port].open && ports[close->port].to);
	ports[close->port].open = false;
	return 0;
}

int bind_evtchn_to_irqhandler_lateeoi(evtchn_port_t port, irq_handler_t handler,
				      unsigned long flags, const char *name, void *data)
{
	MUST(ports[port].open && !ports[port].handler);
	switch (shim_no_memory ? STAYS_OPEN + byte() % 3 : binding) {
	case BINDS:
		break;
	case IS_TAKEN:
		ports[port].to = ports[port].unbound = 0;
		return -ENOMEM;
	case IS_CLOSED:
		ports[port].open = false;
		return -ENOMEM;
	default:
		return -ENOMEM;
	}
	ports[port].handler = handler;
	ports[port].data = data;
	ports[port].masked = ports[port].spurious = false;
	ports[port].unmask_at = ports[port].events = 0;
	return port;
}

void disable_irq(unsigned int irq)
{
	MUST(ports[irq].handler);
}

void unbind_from_irqhandler(unsigned int irq, void *data)
{
	MUST(ports[irq].handler && ports[irq].data == data);
	ports[irq].handler = NULL;
	ports[irq].open = false;
}

/* As the kernel does it: one spurious event is none. */
void xen_irq_lateeoi(unsigned int irq, unsigned int flags)
{
	MUST(ports[irq].handler && ports[irq].masked && !ports[irq].unmask_at);
	if (flags & XEN_EOI_FLAG_SPURIOUS && ports[irq].spurious) {
		ports[irq].unmask_at = shim_jiffies + 1;
		ports[irq].spurious = false;
	} else {
		ports[irq].spurious = flags & XEN_EOI_FLAG_SPURIOUS;
		ports[irq].masked = false;
	}
}

void notify_remote_via_evtchn(evtchn_port_t port)
{
	MUST(ports[port].open);
}

void tasklet_schedule(struct tasklet_struct *tasklet)
{
	if (tasklet->scheduled)
		return;
	tasklet->scheduled = true;
	tasklet->next = tasklets;
	tasklets = tasklet;
}

void tasklet_kill(struct tasklet_struct *tasklet)
{
	struct tasklet_struct **at = &tasklets;

	if (!tasklet->scheduled)
		return;
	while (*at != tasklet)
		at = &(*at)->next;
	*at = tasklet->next;
	tasklet->scheduled = false;
	tasklet->run(tasklet);
	/* It would go on without end. */
	MUST(!tasklet->scheduled);
}

static inline void run_tasklets(void)
{
	struct tasklet_struct *tasklet = tasklets;

	if (!tasklet)
		return;
	tasklets = tasklet->next;
	tasklet->scheduled = false;
	tasklet->run(tasklet);
}

static bool is_masked(unsigned int port)
{
	if (ports[port].unmask_at && shim_jiffies >= ports[port].unmask_at) {
		ports[port].masked = false;
		ports[port].unmask_at = 0;
	}
	return ports[port].masked;
}

static inline void ring_all(void)
{
	unsigned int i;

	for (i = 1; i < PORTS; i++) {
		if (!ports[i].handler || is_masked(i))
			continue;
		if (ports[i].jiffy != shim_jiffies)
			ports[i].events = 0;
		ports[i].jiffy = shim_jiffies;
		MUST(++ports[i].events <= STORM + 1);
		ports[i].masked = true;
		ports[i].handler(i, ports[i].data);
	}
}

/* XenStore */

static struct {
	char path[64], value[64];
	bool there;
} nodes[NODES];
static struct xenbus_watch *watches[WATCHES];
static domid_t own;
static unsigned int failing;	/* requests that fail from now on */

/* A change that is made at one of the next requests. */
static struct {
	unsigned int after;	/* requests; 0: none is planned */
	u8 what, peer;
} planned;

static void change_store(struct peer *peer, u8 what);

static const char *absolute(char *into, const char *folder, const char *node)
{
	char root[32] = "";

	if (*folder != '/')
		snprintf(root, sizeof(root), "/local/domain/%u/", own);
	snprintf(into, 128, "%s%s%s%s", root, folder, *node ? "/" : "", node);
	return into;
}

static bool is_below(const char *path, const char *above)
{
	size_t length = strlen(above);

	return !strncmp(path, above, length) && (!path[length] || path[length] == '/');
}

static void fire(const char *path)
{
	struct xenbus_watch *watch;
	char node[128];
	unsigned int i;

	for (i = 0; i < WATCHES; i++) {
		watch = watches[i];
		if (!watch)
			continue;
		absolute(node, watch->node, "");
		if (!is_below(path, node) && !is_below(node, path))
			continue;
		if (!watch->will_handle || watch->will_handle(watch, path, ""))
			watch->nr_pending++;
		MUST(watch->nr_pending <= 1);
	}
}

static int find_node(const char *path)
{
	unsigned int i;

	for (i = 0; i < NODES; i++)
		if (nodes[i].there && !strcmp(nodes[i].path, path))
			return i;
	return -1;
}

static bool has_nodes_below(const char *path)
{
	unsigned int i;

	for (i = 0; i < NODES; i++)
		if (nodes[i].there && is_below(nodes[i].path, path))
			return true;
	return false;
}

static void set_node(const char *path, const char *value)
{
	int i = find_node(path);

	if (i < 0)
		for (i = 0; nodes[i].there; i++)
			MUST(i < NODES - 1);
	nodes[i].there = true;
	snprintf(nodes[i].path, sizeof(nodes[i].path), "%s", path);
	snprintf(nodes[i].value, sizeof(nodes[i].value), "%s", value);
	fire(path);
}

static bool remove_node(const char *path)
{
	bool was = false;
	unsigned int i;

	for (i = 0; i < NODES; i++) {
		if (!nodes[i].there || !is_below(nodes[i].path, path))
			continue;
		nodes[i].there = false;
		was = true;
	}
	if (was)
		fire(path);
	return was;
}

/* 0, or the error of this request. */
static int request(void)
{
	if (planned.after && !--planned.after)
		change_store(&peers[planned.peer], planned.what);
	if (failing) {
		failing--;
		return byte() & 1 ? -ENOMEM : -EIO;
	}
	return 0;
}

void *xenbus_read(int transaction, const char *folder, const char *node, unsigned int *length)
{
	int err = request(), i;
	char path[128];

	if (err)
		return ERR_PTR(err);
	absolute(path, folder, node);
	i = find_node(path);
	if (i >= 0)
		return strdup(nodes[i].value);
	/* A node is made with all those above it. */
	return has_nodes_below(path) ? strdup("") : ERR_PTR(-ENOENT);
}

int xenbus_scanf(int transaction, const char *folder, const char *node, const char *format, ...)
{
	char *text = xenbus_read(transaction, folder, node, NULL);
	va_list words;
	int n;

	if (IS_ERR(text))
		return PTR_ERR(text);
	va_start(words, format);
	n = vsscanf(text, format, words);
	va_end(words);
	free(text);
	return n <= 0 ? -ERANGE : n;
}

char **xenbus_directory(int transaction, const char *folder, const char *node, unsigned int *n)
{
	int err = request();
	unsigned int i, j;
	char path[128];
	char **names;
	char *text;

	if (err)
		return ERR_PTR(err);
	absolute(path, folder, node);
	names = malloc(NODES * (sizeof(*names) + 64));
	text = (char *)(names + NODES);
	*n = 0;
	for (i = err = 0; i < NODES; i++) {
		if (!nodes[i].there || !is_below(nodes[i].path, path))
			continue;
		err = 1;
		if (!nodes[i].path[strlen(path)])
			continue;
		snprintf(text, 64, "%s", nodes[i].path + strlen(path) + 1);
		text[strcspn(text, "/")] = 0;
		for (j = 0; j < *n && strcmp(names[j], text); j++)
			;
		if (j < *n)
			continue;
		names[(*n)++] = text;
		text += 64;
	}
	if (err)
		return names;
	free(names);
	return ERR_PTR(-ENOENT);
}

int xenbus_printf(int transaction, const char *folder, const char *node, const char *format, ...)
{
	char path[128], text[64];
	int err = request();
	va_list words;

	/* dom0 has made the folder, or has not. */
	if (!err && find_node(absolute(path, folder, "")) < 0)
		err = -EACCES;
	if (err)
		return err;
	va_start(words, format);
	vsnprintf(text, sizeof(text), format, words);
	va_end(words);
	set_node(absolute(path, folder, node), text);
	return 0;
}

int xenbus_rm(int transaction, const char *folder, const char *node)
{
	char path[128];
	int err = request();

	return err ?: remove_node(absolute(path, folder, node)) ? 0 : -ENOENT;
}

int register_xenbus_watch(struct xenbus_watch *watch)
{
	unsigned int i;

	if (request() || shim_no_memory)
		return -ENOMEM;
	for (i = 0; watches[i]; i++)
		MUST(i < WATCHES - 1);
	watches[i] = watch;
	watch->nr_pending = 1;
	return 0;
}

/* The thread that suspends handles watches, and work items may not wait for it. */
void unregister_xenbus_watch(struct xenbus_watch *watch)
{
	unsigned int i;

	MUST(in_watch_thread || unloading);
	for (i = 0; watches[i] != watch; i++)
		MUST(i < WATCHES - 1);
	watches[i] = NULL;
	watch->nr_pending = 0;
}

static void handle_watches(void)
{
	struct xenbus_watch *watch;
	unsigned int i;

	in_watch_thread = true;
	for (i = 0; i < WATCHES; i++) {
		watch = watches[i];
		if (!watch || !watch->nr_pending)
			continue;
		watch->nr_pending--;
		watch->callback(watch, watch->node, "");
	}
	in_watch_thread = false;
}

int uuid_parse(const char *text, uuid_t *uuid)
{
	if (strlen(text) < 2)
		return -EINVAL;
	memset(uuid, text[1], sizeof(*uuid));
	return 0;
}

static u32 random_number;

u32 shim_random(void)
{
	return random_number += 2;
}

int platform_driver_register(struct platform_driver *driver)
{
	pm = driver;
	return 0;
}

void platform_driver_unregister(struct platform_driver *driver)
{
	pm = NULL;
}

/* What dom0 and the peers write */

static void write_node(const char *format, struct peer *peer, const char *node,
		       const char *value)
{
	char path[128];
	int n = snprintf(path, sizeof(path), format, peer->domid, own);

	snprintf(path + n, sizeof(path) - n, "%s%s", *node ? "/" : "", node);
	set_node(path, value);
}

#define FROM "/local/domain/%u/hallway/to/%u"

static void list_peer(struct peer *peer)
{
	char path[128], text[8];

	snprintf(path, sizeof(path), "/local/domain/%u/hallway/to/%u", own, peer->domid);
	set_node(path, "");
	snprintf(path, sizeof(path), "/local/domain/%u/hallway/peer/%u", own, peer->domid);
	set_node(path, "");
	strcat(path, "/name");
	set_node(path, "n\n");
	strcpy(strrchr(path, '/'), "/uuid");
	set_node(path, "uu");
	strcpy(strrchr(path, '/'), "/key");
	snprintf(text, sizeof(text), "k%c", 'a' + peer->key % 26);
	set_node(path, text);
}

static void forget_peer(struct peer *peer, bool offers)
{
	char path[128];

	snprintf(path, sizeof(path), "/local/domain/%u/hallway/peer/%u", own, peer->domid);
	remove_node(path);
	snprintf(path, sizeof(path), "/local/domain/%u/hallway/to/%u", own, peer->domid);
	if (offers)
		remove_node(path);
}

static void write_number_node(struct peer *peer, const char *node, u32 number)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", number);
	write_node(FROM, peer, node, text);
}

/* An offer that is good with PAGES, or with more. */
static void offer(struct peer *peer, u32 count)
{
	peer->generation += 2;
	memset(peer->slice, 0, hall_slice_overhead(1));
	peer->slice->generation = peer->generation;
	peer->slice->magic = HALLWAY_SLICE_MAGIC;
	write_node(FROM, peer, "", "");
	write_number_node(peer, "major", HALLWAY_MAJOR);
	write_number_node(peer, "gref", peer->first);
	write_number_node(peer, "pages", count);
	write_number_node(peer, "port", 7);
	write_number_node(peer, "generation", peer->generation);
}

static void change_store(struct peer *peer, u8 what)
{
	static const char *const names[] = { "gref", "pages", "port", "generation" };
	const char *name = names[what >> 3 & 3];
	char path[128];

	snprintf(path, sizeof(path), FROM, peer->domid, own);
	switch (what & 7) {
	case 0:
	case 1:
		list_peer(peer);
		break;
	case 2:
		forget_peer(peer, what & 8);
		break;
	case 3:
		/* What is leaked counts in the bound for good, so for the next input. */
		offer(peer, what & 32 && !refusing ? number(2) % (2 * EXTRA_MAX) : PAGES);
		break;
	case 4:
		write_number_node(peer, name, what & 32 ? number(4) : byte());
		break;
	case 5:
		write_node(FROM, peer, name, what & 32 ? "99999999999999999999" : "no number");
		break;
	case 6:
		if (what & 32)
			strcat(strcat(path, "/"), name);
		remove_node(path);
		break;
	case 7:
		/* Another domain has the number: Xen has taken all of the former's back. */
		peer_maps(peer, false);
		remove_node(path);
		peer->key++;
		if (what & 32)
			list_peer(peer);
	}
}

/* What is done with members */

static struct hall_memory rings[RINGS];
static struct hall_member *ring_member[RINGS];
static struct hallway_ring *ring_of_peer[RINGS];
static bool abandoned[RINGS];

void shim_hook(void)
{
}

static void close_rings(void)
{
	unsigned int i;

	for (i = 0; i < RINGS; i++) {
		if (!rings[i].ring)
			continue;
		memset(rings[i].ring, 1, rings[i].size);
		/* A call may go on until now: what it reads is there, if of no meaning. */
		READ_ONCE(*(u32 *)ring_of_peer[i]);
		hall_memory_free(ring_member[i], &rings[i]);
		atomic_dec_and_test(&ring_member[i]->channels);
		hall_member_put(ring_member[i]);
	}
}

void shim_wait(void)
{
	unsigned int i;

	close_rings();
	for (i = 0; i < 3; i++) {
		handle_watches();
		shim_pass(100);
	}
}

static void on_arrived(struct hall_member *member)
{
	MUST(!member->departed && working && !stale);
	members++;
}

static void on_departed(struct hall_member *member, u32 reason)
{
	unsigned int i;

	MUST(!lockdep_is_held(&xen_mutex));
	MUST((reason == HALLWAY_REASON_SUSPENDED) == frozen);
	/* Once more, if channels are left. */
	MUST(!member->departed || frozen);
	members -= !member->departed;
	member->departed = true;
	for (i = 0; i < RINGS; i++)
		abandoned[i] |= frozen && ring_member[i] == member;
}

static void on_detach(struct hall_member *member, u32 reason)
{
	MUST(!frozen && !lockdep_is_held(&xen_mutex));
}

static void on_addresses(struct hall_member *member, const struct in6_addr *address,
			 unsigned int count)
{
	MUST(count <= HALLWAY_ADDRESSES_MAX);
}

static void on_message(struct hall_member *member, const struct hallway_message *message)
{
	if (byte() & 1)
		member->transport->send(member, message);
}

static void on_wake(struct hall_member *member, u32 endpoint)
{
	MUST(endpoint && endpoint < HALLWAY_ENDPOINTS_MAX);
}

static struct hall_peer *pick_peer(void)
{
	struct pair *pair;
	struct hall_peer *peer = NULL;

	mutex_lock(&xen_mutex);
	list_for_each_entry(pair, &xen_pairs, list)
		if (hall_peer_at(&pair->own, 0) && (!peer || byte() & 1))
			peer = hall_peer_at(&pair->own, 0);
	mutex_unlock(&xen_mutex);
	return peer;
}

static inline void use_ring(unsigned int i)
{
	struct hall_peer *peer = pick_peer();
	struct { u64 offset, size; } place = { hall_slice_overhead(1), 9 * PAGE_SIZE };
	struct hallway_handle handle = { };

	if (!peer || rings[i].ring || hall_memory_alloc(&peer->member, PAGE_SIZE, &rings[i]))
		return;
	memcpy(handle.opaque, &place, sizeof(place));
	ring_of_peer[i] = hall_slice_map(&peer->member, &handle, place.size);
	MUST(ring_of_peer[i]);
	ring_of_peer[i] = (void *)ring_of_peer[i] + 8 * PAGE_SIZE;
	ring_member[i] = &peer->member;
	hall_member_get(&peer->member);
	atomic_inc(&peer->member.channels);
}

static inline void suspend(bool elsewhere)
{
	unsigned int i;

	frozen = in_watch_thread = true;
	memset(abandoned, 0, sizeof(abandoned));
	MUST(!pm->driver.pm->freeze(NULL));
	/* Work that waits for the domain to go on finds no memory of theirs. */
	MUST(!members);
	for (i = 0; i < RINGS; i++)
		MUST(!rings[i].ring ||
		     (abandoned[i] && !hall_slice_is_intact(ring_member[i])));
	for (i = 0; i < HANDLES; i++)
		MUST(!handles[i].used || refused);
	for (i = 1; i < PORTS; i++)
		MUST(!ports[i].handler);
	if (elsewhere) {
		/* Another grant table, another XenStore. */
		for (i = 0; i < REFERENCES; i++)
			granted[i].mapped = false;
		for (i = 0; i < NODES; i++)
			nodes[i].there = false;
		own = own == 5 ? 6 : 5;
		set_node(own == 5 ? "/local/domain/5/domid" : "/local/domain/6/domid",
			 own == 5 ? "5" : "6");
		for (i = 0; i < WATCHES; i++)
			if (watches[i])
				watches[i]->nr_pending = 1;
	}
	frozen = false;
	elsewhere ? pm->driver.pm->restore(NULL) : pm->driver.pm->thaw(NULL);
	in_watch_thread = false;
}

static void pass(unsigned long time)
{
	working = true;
	shim_pass(time);
	working = false;
}

/* Of the domain that dom0 lists, if this guest has read that. */
static bool has_key(const struct pair *pair)
{
	char path[128];
	int i;

	if (own_watch.nr_pending || list_changed)
		return true;
	snprintf(path, sizeof(path), "/local/domain/%u/hallway/peer/%u/key", own, pair->domid);
	i = find_node(path);
	return i >= 0 && pair->known.key[0] == nodes[i].value[1];
}

/* Not for longer than it takes to read that its domain is gone. */
static bool may_be_granted(const struct pair *pair)
{
	char path[128];

	snprintf(path, sizeof(path), FROM, pair->domid, own);
	return pair->changed || pair->watch.nr_pending || pair->state != PAIR_ALONE ||
	       find_node(strcat(path, "/major")) >= 0;
}

static void check(void)
{
	unsigned int n, i, watched = 0, used;
	struct pair *pair;

	n = 0;
	list_for_each_entry(pair, &xen_former, list) {
		n++;
		MUST(pair->former && pair->state == PAIR_LEAVING);
	}
	MUST(n <= PEERS);
	n = 0;
	list_for_each_entry(pair, &xen_pairs, list) {
		n++;
		MUST(!pair->former && (pair->state == PAIR_ALONE) == !pair->mapped);
		MUST(pair->state != PAIR_JOINED || pair->granted);
		MUST(!pair->granted || !pair->listed || has_key(pair));
		MUST(!pair->granted || may_be_granted(pair));
	}
	MUST(n <= PEERS);
	for (i = 0; i < WATCHES; i++)
		watched += !!watches[i];
	/* Those that have left, of one change of dom0's, go with the next; former ones. */
	MUST(watched <= 3 * PEERS + 1);
	for (i = n = 0; i < HANDLES; i++)
		n += handles[i].used;
	/* Twice: those of former pairs. */
	MUST(refused || n <= 2 * PEERS * PAGES + EXTRA_MAX);
	for (n = 0; n < PEERS; n++) {
		for (i = used = 0; i < REFERENCES; i++)
			used += granted[i].used && granted[i].to == peers[n].domid;
		MUST(used <= 2 * PAGES);
	}
}

static void begin(void)
{
	unsigned int i, j;

	if (file < 0) {
		file = memfd_create("pages", 0);
		MUST(file >= 0 && !ftruncate(file, FRAMES * PAGE_SIZE));
	}
	hall_transport_handler = HANDLER;
	*(unsigned int *)shim_param_xen_slice = PAGES * PAGE_SIZE >> 10;
	*(unsigned int *)shim_param_storm = STORM;
	/* Nothing of the input before: an input that was found repeats alone what it did. */
	shim_no_memory = refused = frozen = ending = ended = started = short_of_memory =
		false;
	failing = planned.after = last_handle = random_number = deferrals = 0;
	shim_jiffies = rested = listen = 0;
	memset(nodes, 0, sizeof(nodes));
	memset(granted, 0, sizeof(granted));
	memset(handles, 0, sizeof(handles));
	memset(ports, 0, sizeof(ports));
	binding = BINDS;
	memset(pages, 0, sizeof(pages));
	pages_used = 0;
	for (i = 0; i < PEERS; i++) {
		peers[i] = (struct peer){ .domid = i ? 7 : 3, .first = 9 + i };
		for (j = 0; j < PAGES; j++)
			peers[i].page[j] = alloc_page(GFP_KERNEL);
		peers[i].slice = vmap(peers[i].page, PAGES, VM_MAP, PAGE_KERNEL);
	}
	own = 5;
	set_node("/local/domain/5/domid", "5");
	MUST(!hall_heartbeat_init());
	MUST(!xen_init());
}

static void settle(void)
{
	unsigned int i;

	for (i = 0; i < 3; i++) {
		handle_watches();
		pass(100);
	}
}

/* The input begins with members. */
static void join_all(void)
{
	unsigned int i;

	for (i = 0; i < PEERS; i++) {
		list_peer(&peers[i]);
		offer(&peers[i], PAGES);
	}
	settle();
	MUST(pick_peer());
}

static void end(void)
{
	unsigned int i;

	shim_no_memory = false;
	failing = planned.after = 0;
	unloading = true;
	close_rings();
	xen_uninit();
	unloading = false;
	hall_heartbeat_uninit();
	MUST(!shim_queue && !tasklets && !pm && !members);
	for (i = 0; i < WATCHES; i++)
		MUST(!watches[i]);
	for (i = 1; i < PORTS; i++)
		MUST(!ports[i].open || !ports[i].to);
	for (i = 0; i < HANDLES; i++)
		MUST(!handles[i].used || refused);
	/* The kernel frees what peers let go of later. */
	for (i = 0; i < REFERENCES; i++) {
		if (!granted[i].used)
			continue;
		MUST(granted[i].mapped && deferred[i]);
		granted[i].used = false;
		__free_page(deferred[i]);
	}
	MUST(refused || pages_used == PEERS * PAGES);
	for (i = 0; i < PEERS; i++)
		vunmap(peers[i].slice);
	MUST(refused || !kept);
	while (kept)
		forget(kept);
}

#endif /* TESTS_RING_FALSE_XEN_H */
