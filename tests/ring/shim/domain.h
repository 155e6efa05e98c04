/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of a guest of Xen as kmod/transport/xen needs besides. Pages are real ones,
 * of a file in memory: what is mapped is seen by both domains, and an access to what is
 * not mapped ends the program. false_xen.h has the hypervisor and XenStore.
 */
#ifndef TESTS_RING_SHIM_DOMAIN_H
#define TESTS_RING_SHIM_DOMAIN_H

#include "pages.h"

#define PAGE_SIZE		4096ul
#define max(a, b)		((a) > (b) ? (a) : (b))
#define clamp(v, low, high)	min(max(v, low), high)
#define cond_resched()		((void)0)

void msleep(unsigned int ms);

/* All memory is there at once. */
static inline unsigned int memalloc_noio_save(void)
{
	return 0;
}

static inline void memalloc_noio_restore(unsigned int flags)
{
	(void)flags;
}

#define MODULE_ALIAS(name)	static_assert(sizeof(name), "")

/* Parameters are the test's to set. */
#undef module_param
#define module_param(name, type, mode)	void *shim_param_##name = &name

#define pr_warn_ratelimited(...)	((void)0)
#define pr_warn_once(...)		((void)0)
#define pr_warn(...)			((void)0)

#define IS_ERR(p)	((unsigned long)(p) >= -4095ul)
#define ERR_PTR(err)	((void *)(long)(err))
#define PTR_ERR(p)	((int)(long)(p))
#define PTR_ERR_OR_ZERO(p)	(IS_ERR(p) ? PTR_ERR(p) : 0)

#define DEFINE_SPINLOCK(name)	spinlock_t name
#define mutex_lock_killable(m)	(mutex_lock(m), 0)

static inline void list_move_tail(struct list_head *entry, struct list_head *head)
{
	list_del(entry);
	list_add_tail(entry, head);
}

#define list_first_entry_or_null(head, type, member) \
	(list_empty(head) ? NULL : list_entry((head)->next, type, member))

#define DECLARE_WAIT_QUEUE_HEAD(name)	wait_queue_head_t name
#define wake_up_all(queue)		((void)(queue))

/* What the test takes back itself where Xen refused to unmap. */
void *shim_kvcalloc(size_t n, size_t size);
void kvfree(const void *memory);
#define kvcalloc(n, size, gfp)		shim_kvcalloc(n, size)
#define kvmalloc_array(n, size, gfp)	shim_kvcalloc(n, size)

static inline int kstrtou16(const char *text, int base, u16 *number)
{
	char *end;
	long n = strtol(text, &end, base);

	if (*end || end == text || n < 0 || n > 0xffff)
		return -EINVAL;
	*number = n;
	return 0;
}

typedef struct {
	u8 b[16];
} uuid_t;

int uuid_parse(const char *text, uuid_t *uuid);
u32 shim_random(void);
#undef get_random_u32
#define get_random_u32 shim_random

static inline void export_uuid(u8 *to, const uuid_t *uuid)
{
	memcpy(to, uuid->b, sizeof(uuid->b));
}

struct shim_uts {
	char nodename[65];
};

static inline struct shim_uts *init_utsname(void)
{
	static struct shim_uts uts = { "guest" };

	return &uts;
}

/* Pages */

struct page {
	int frame;	/* in the file; -1: no memory is behind it */
	void *at;	/* where it is mapped, for those without memory of their own */
	bool used;
};

typedef struct {
	struct page *page;
} pte_t;

#define __GFP_ZERO	0
#define __GFP_NOWARN	0
#define __GFP_NORETRY	0
#define VM_MAP		0
#define PAGE_KERNEL	0
struct page *alloc_page(gfp_t gfp);
void __free_page(struct page *page);
void *vmap(struct page **page, unsigned int count, int flags, int prot);
void vunmap(void *at);
/* An entry of the page table is the address that it is for. */
#define lookup_address(address, level)	((void)(level), (pte_t *)(address))
#define mk_pte(page, prot)		((pte_t){ page })
void set_pte(pte_t *at, pte_t pte);
#define pfn_to_kaddr(pfn)		((void *)(pfn))
#define page_to_pfn(page)		((unsigned long)(page))
#define ClearPageForeign(page)		((void)(page))

/* Grants */

typedef u16 domid_t;
typedef u32 grant_ref_t, grant_handle_t;

#define DOMID_SELF		0x7ff0
#define DOMID_FIRST_RESERVED	0x7ff0
#define GNTST_okay		0
#define GNTST_general_error	(-1)
#define GNTST_bad_gntref	(-3)
#define GNTMAP_host_map		2
#define GNTMAP_contains_pte	16
#define GNTTABOP_unmap_grant_ref	1

struct grant_entry_v1 {
	u16 flags, domid;
	u32 frame;
};

struct gnttab_map_grant_ref {
	u64 host_addr;
	u32 flags;
	grant_ref_t ref;
	domid_t dom;
	int16_t status;
	grant_handle_t handle;
};

struct gnttab_unmap_grant_ref {
	u64 host_addr;
	grant_handle_t handle;
	int16_t status;
};

static inline void gnttab_set_map_op(struct gnttab_map_grant_ref *map, u64 address,
				     u32 flags, grant_ref_t ref, domid_t dom)
{
	*map = (struct gnttab_map_grant_ref){ address, flags, ref, dom, 0, 0 };
}

static inline void gnttab_set_unmap_op(struct gnttab_unmap_grant_ref *unmap,
				       u64 address, u32 flags, grant_handle_t handle)
{
	*unmap = (struct gnttab_unmap_grant_ref){ address, handle, 0 };
}

struct shim_machine {
	u64 maddr;
};

#define arbitrary_virt_to_machine(p)	((struct shim_machine){ (u64)(p) })
#define xen_page_to_gfn(page)		((page)->frame)
unsigned int gnttab_max_grant_frames(void);
int gnttab_alloc_grant_reference_seq(unsigned int count, grant_ref_t *first);
void gnttab_grant_foreign_access_ref(grant_ref_t ref, domid_t to, unsigned long frame,
				     int readonly);
int gnttab_try_end_foreign_access(grant_ref_t ref);
void gnttab_end_foreign_access(grant_ref_t ref, struct page *page);
void gnttab_batch_map(struct gnttab_map_grant_ref *map, unsigned int count);
int gnttab_map_refs(struct gnttab_map_grant_ref *map, void *kernel,
		    struct page **page, unsigned int count);
int gnttab_alloc_pages(int count, struct page **page);
void gnttab_free_pages(int count, struct page **page);
int HYPERVISOR_grant_table_op(unsigned int op, void *ops, unsigned int count);

extern bool shim_is_pv;
#define xen_pv_domain()		shim_is_pv
#define xen_domain()		true
#define xen_initial_domain()	false

/* Event channels */

typedef u32 evtchn_port_t;
typedef int irqreturn_t;
typedef irqreturn_t (*irq_handler_t)(int irq, void *data);

#define IRQ_HANDLED		1
#define XEN_EOI_FLAG_SPURIOUS	1
#define EVTCHNOP_bind_interdomain	0
#define EVTCHNOP_close			3
#define EVTCHNOP_status			5
#define EVTCHNOP_alloc_unbound		6

struct evtchn_close {
	evtchn_port_t port;
};

#define EVTCHNSTAT_closed	0
#define EVTCHNSTAT_unbound	1
#define EVTCHNSTAT_interdomain	2

struct evtchn_status {
	domid_t dom;
	evtchn_port_t port;
	u32 status;
	union {
		struct {
			domid_t dom;
		} unbound, interdomain;
	} u;
};

struct evtchn_alloc_unbound {
	domid_t dom, remote_dom;
	evtchn_port_t port;
};

struct evtchn_bind_interdomain {
	domid_t remote_dom;
	evtchn_port_t remote_port, local_port;
};

int HYPERVISOR_event_channel_op(int op, void *arg);
int bind_evtchn_to_irqhandler_lateeoi(evtchn_port_t port, irq_handler_t handler,
				      unsigned long flags, const char *name, void *data);
void unbind_from_irqhandler(unsigned int irq, void *data);
void disable_irq(unsigned int irq);
void xen_irq_lateeoi(unsigned int irq, unsigned int flags);
void notify_remote_via_evtchn(evtchn_port_t port);

struct tasklet_struct {
	void (*run)(struct tasklet_struct *tasklet);
	struct tasklet_struct *next;
	bool scheduled;
};

#define from_tasklet(var, tasklet, member)	container_of(tasklet, typeof(*var), member)
#define tasklet_setup(t, function)	(*(t) = (struct tasklet_struct){ .run = function })
void tasklet_schedule(struct tasklet_struct *tasklet);
void tasklet_kill(struct tasklet_struct *tasklet);

/* XenStore */

struct xenbus_watch {
	const char *node;
	unsigned int nr_pending;
	bool (*will_handle)(struct xenbus_watch *watch, const char *path, const char *token);
	void (*callback)(struct xenbus_watch *watch, const char *path, const char *token);
};

#define XBT_NIL 0
int register_xenbus_watch(struct xenbus_watch *watch);
void unregister_xenbus_watch(struct xenbus_watch *watch);
char **xenbus_directory(int transaction, const char *folder, const char *node, unsigned int *n);
void *xenbus_read(int transaction, const char *folder, const char *node, unsigned int *length);
int xenbus_scanf(int transaction, const char *folder, const char *node, const char *format, ...);
int xenbus_printf(int transaction, const char *folder, const char *node, const char *format, ...);
int xenbus_rm(int transaction, const char *folder, const char *node);

/* CPUs; there is one */

#define on_each_cpu(fn, data, wait)	fn(data)
void __flush_tlb_all(void);

/* Suspension */

/* No other CPU does anything. */
extern bool shim_is_stopped;

static inline int stop_machine(int (*fn)(void *data), void *data, const void *cpus)
{
	int result;

	shim_is_stopped = true;
	result = fn(data);
	shim_is_stopped = false;
	return result;
}

struct device;

struct dev_pm_ops {
	int (*freeze)(struct device *device);
	int (*thaw)(struct device *device);
	int (*restore)(struct device *device);
};

struct platform_device;

struct platform_driver {
	struct {
		const char *name;
		const struct dev_pm_ops *pm;
	} driver;
	void (*shutdown)(struct platform_device *device);
};

#define PLATFORM_DEVID_NONE (-1)
#define platform_device_register_simple(name, id, resources, n) \
	((struct platform_device *)malloc(1))
#define platform_device_unregister(device)	free(device)
int platform_driver_register(struct platform_driver *driver);
void platform_driver_unregister(struct platform_driver *driver);

#endif /* TESTS_RING_SHIM_DOMAIN_H */
