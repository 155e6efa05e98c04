// SPDX-License-Identifier: GPL-2.0
/* Reading and writing XenStore: see store.h. */
#include "store.h"

#include <linux/ctype.h>
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/slab.h>
#include <linux/uuid.h>

bool hall_xen_takes_event(struct xenbus_watch *watch, const char *path,
			  const char *token)
{
	return !watch->nr_pending;
}

int hall_xen_read_domid(void)
{
	unsigned int domid;
	int n = xenbus_scanf(XBT_NIL, "domid", "", "%u", &domid);

	if (n < 0)
		return n;
	return n == 1 && domid < DOMID_FIRST_RESERVED ? (int)domid : -EINVAL;
}

void hall_xen_name_nodes(struct xen_nodes *nodes, domid_t own, domid_t peer)
{
	snprintf(nodes->peer, sizeof(nodes->peer), HALL_XEN_FOLDER "/%u", peer);
	snprintf(nodes->to, sizeof(nodes->to), "hallway/to/%u", peer);
	snprintf(nodes->from, sizeof(nodes->from),
		 "/local/domain/%u/hallway/to/%u", peer, own);
}

void hall_xen_list(void (*fn)(domid_t domid))
{
	unsigned int n, i;
	char **names = xenbus_directory(XBT_NIL, HALL_XEN_FOLDER, "", &n);
	u16 domid;

	if (IS_ERR(names))
		return;
	for (i = 0; i < n; i++)
		if (!kstrtou16(names[i], 10, &domid) &&
		    domid < DOMID_FIRST_RESERVED)
			fn(domid);
	kfree(names);
}

/* A string to be freed, or NULL. */
static char *read_text(const char *folder, const char *node)
{
	char *text = xenbus_read(XBT_NIL, folder, node, NULL);

	return IS_ERR(text) ? NULL : text;
}

/* False: there is no such node, or something else in it. */
static bool read_uuid(const char *folder, const char *node, u8 *into)
{
	char *text = read_text(folder, node);
	uuid_t uuid;
	bool good = text && !uuid_parse(text, &uuid);

	if (good)
		export_uuid(into, &uuid);
	kfree(text);
	return good;
}

bool hall_xen_read_known(const struct xen_nodes *nodes, struct xen_known *known)
{
	char *name, *at;

	if (!read_uuid(nodes->peer, "key", known->key) ||
	    !read_uuid(nodes->peer, "uuid", known->uuid))
		return false;
	name = read_text(nodes->peer, "name");
	if (!name)
		return false;
	strscpy(known->name, name, sizeof(known->name));
	/* It is logged. */
	for (at = known->name; *at; at++)
		if (iscntrl(*at))
			*at = '?';
	kfree(name);
	return true;
}

void hall_xen_read_offer(const struct xen_nodes *nodes, struct xen_offer *offer)
{
	*offer = (struct xen_offer){
		.generation = xenbus_read_unsigned(nodes->from, "generation", 0),
	};
	if (!offer->generation)
		return;
	offer->gref = xenbus_read_unsigned(nodes->from, "gref", 0);
	offer->pages = xenbus_read_unsigned(nodes->from, "pages", 0);
	offer->port = xenbus_read_unsigned(nodes->from, "port", 0);
	/* Another offer may have taken its place meanwhile: its watch follows. */
	if (xenbus_read_unsigned(nodes->from, "generation", 0) !=
	    offer->generation)
		offer->generation = 0;
}

bool hall_xen_has_offers(const struct xen_nodes *nodes)
{
	return xenbus_exists(XBT_NIL, nodes->from, "");
}

static int write_number(const struct xen_nodes *nodes, const char *node,
			u32 number)
{
	return xenbus_printf(XBT_NIL, nodes->to, node, "%u", number);
}

int hall_xen_write_offer(const struct xen_nodes *nodes,
			 const struct xen_offer *offer)
{
	int err = write_number(nodes, "gref", offer->gref);

	if (!err)
		err = write_number(nodes, "pages", offer->pages);
	if (!err)
		err = write_number(nodes, "port", offer->port);
	if (!err)
		err = write_number(nodes, "generation", offer->generation);
	return err;
}

void hall_xen_remove_offer(const struct xen_nodes *nodes)
{
	/* It may be gone already, with all that dom0 has made. */
	xenbus_rm(XBT_NIL, nodes->to, "generation");
}
