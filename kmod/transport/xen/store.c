// SPDX-License-Identifier: GPL-2.0-only
/* Reading and writing XenStore: see store.h. */
#include "store.h"

#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/slab.h>
#include <linux/uuid.h>

#include "../transport.h"

bool hall_xen_takes_event(struct xenbus_watch *watch, const char *path,
			  const char *token)
{
	return !watch->nr_pending;
}

void hall_xen_name_nodes(struct xen_nodes *nodes, domid_t own, domid_t peer)
{
	snprintf(nodes->peer, sizeof(nodes->peer), HALL_XEN_FOLDER "/%u", peer);
	snprintf(nodes->to, sizeof(nodes->to), "hallway/to/%u", peer);
	snprintf(nodes->from, sizeof(nodes->from),
		 "/local/domain/%u/hallway/to/%u", peer, own);
}

/* Where the node above can't be read either, it is EACCES. */
static bool is_absent(int err)
{
	return err == -ENOENT || err == -EACCES;
}

int hall_xen_list(void (*fn)(domid_t domid))
{
	unsigned int n, i;
	char **names = xenbus_directory(XBT_NIL, HALL_XEN_FOLDER, "", &n);
	u16 domid;

	if (IS_ERR(names))
		return is_absent(PTR_ERR(names)) ? 0 : PTR_ERR(names);
	for (i = 0; i < n; i++)
		if (!kstrtou16(names[i], 10, &domid) &&
		    domid < DOMID_FIRST_RESERVED)
			fn(domid);
	kfree(names);
	return 0;
}

/* A string to be freed, or an error pointer: -ENOENT if there is no such node. */
static char *read_text(const char *folder, const char *node)
{
	char *text = xenbus_read(XBT_NIL, folder, node, NULL);

	return IS_ERR(text) && is_absent(PTR_ERR(text)) ? ERR_PTR(-ENOENT) :
							  text;
}

/* -ENOENT: there is no such node, or something else in it. */
static int read_uuid(const char *folder, const char *node, u8 *into)
{
	char *text = read_text(folder, node);
	uuid_t uuid;
	int err = 0;

	if (IS_ERR(text))
		return PTR_ERR(text);
	if (uuid_parse(text, &uuid))
		err = -ENOENT;
	else
		export_uuid(into, &uuid);
	kfree(text);
	return err;
}

/* -ENOENT: there is no such node, or no number in it. */
static int scan_number(const char *folder, const char *node, u32 *number)
{
	int n = xenbus_scanf(XBT_NIL, folder, node, "%u", number);

	if (n == 1)
		return 0;
	return is_absent(n) || n == -ERANGE ? -ENOENT : n;
}

/* 0 is in *number if there is no such node, or none in it. */
static int read_number(const char *folder, const char *node, u32 *number)
{
	int err = scan_number(folder, node, number);

	if (err)
		*number = 0;
	return err == -ENOENT ? 0 : err;
}

int hall_xen_read_domid(void)
{
	u32 domid;
	int err = scan_number("domid", "", &domid);

	if (err)
		return err;
	return domid < DOMID_FIRST_RESERVED ? (int)domid : -ENOENT;
}

int hall_xen_read_key(const struct xen_nodes *nodes, u8 *key)
{
	return read_uuid(nodes->peer, "key", key);
}

int hall_xen_read_known(const struct xen_nodes *nodes, struct xen_known *known)
{
	char *name;
	int err = hall_xen_read_key(nodes, known->key);

	if (!err)
		err = read_uuid(nodes->peer, "uuid", known->uuid);
	if (err)
		return err;
	name = read_text(nodes->peer, "name");
	if (IS_ERR(name))
		return PTR_ERR(name);
	hall_member_copy_name(known->name, name);
	kfree(name);
	return 0;
}

static int read_place(const struct xen_nodes *nodes, bool *there)
{
	char *text = read_text(nodes->from, "");
	int err = PTR_ERR_OR_ZERO(text);

	*there = !err;
	if (!err)
		kfree(text);
	return err == -ENOENT ? 0 : err;
}

int hall_xen_read_offer(const struct xen_nodes *nodes, struct xen_offer *offer)
{
	struct xen_offer found = { .possible = true };
	u32 generation = 0;
	int err = read_number(nodes->from, "generation", &found.generation);

	if (!err)
		err = read_number(nodes->from, "major", &found.major);
	if (!err && found.generation) {
		err = read_number(nodes->from, "gref", &found.gref);
		if (!err)
			err = read_number(nodes->from, "pages", &found.pages);
		if (!err)
			err = read_number(nodes->from, "port", &found.port);
		if (!err)
			err = read_number(nodes->from, "generation", &generation);
	} else if (!err && !found.major) {
		err = read_place(nodes, &found.possible);
	}
	if (err)
		return err;
	/* Another offer may have taken its place meanwhile: its watch follows. */
	if (generation != found.generation)
		found.generation = 0;
	*offer = found;
	return 0;
}

static int write_number(const struct xen_nodes *nodes, const char *node,
			u32 number)
{
	return xenbus_printf(XBT_NIL, nodes->to, node, "%u", number);
}

int hall_xen_announce(const struct xen_nodes *nodes)
{
	return write_number(nodes, "major", HALLWAY_MAJOR);
}

int hall_xen_write_offer(const struct xen_nodes *nodes,
			 const struct xen_offer *offer)
{
	int err = hall_xen_announce(nodes);

	if (!err)
		err = write_number(nodes, "gref", offer->gref);
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

void hall_xen_leave(const struct xen_nodes *nodes)
{
	xenbus_rm(XBT_NIL, nodes->to, "major");
}
