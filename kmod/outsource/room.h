/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef HALL_OUTSOURCE_ROOM_H
#define HALL_OUTSOURCE_ROOM_H

#include <linux/in6.h>
#include <linux/types.h>

/* Before the transports start. */
void hall_outsource_init(void);
/* Makes all sockets native again, or resets them; before the transports stop, and after. */
void hall_outsource_stop(void);
void hall_outsource_uninit(void);

/* An outsourced socket, or a published listener: see hall_out. */
struct hall_outsourced {
	struct in6_addr local, remote;
	u16 local_port, remote_port;
	bool datagram;			/* a UDP socket */
	u8 state;			/* TCP_ESTABLISHED and so on */
	u64 tx_bytes, rx_bytes;
	const char *peer;		/* name of the member */
};

/* Each is handed out, while no lock is held. Process context. */
void hall_outsource_walk(void (*fn)(const struct hall_outsourced *one, void *data),
			 void *data);

/*
 * on: new sockets may be outsourced: those of programs in these cgroups, by their ids, or
 * all if there are none. Off: none, and no listener is published; those that are connected
 * remain. 0, -ENOMEM or -EOPNOTSUPP. Process context.
 */
int hall_outsource_set(bool on, const u64 *cgroup, unsigned int cgroups);
/* Writes up to HALLWAY_CGROUPS_MAX ids, and returns their count. */
unsigned int hall_outsource_get_cgroups(u64 *id);
extern bool hall_outsourcing;

#endif /* HALL_OUTSOURCE_ROOM_H */
