/* SPDX-License-Identifier: GPL-2.0-only */
/* Taking sockets over from their creation: see hook.c. */
#ifndef HALL_OUT_HOOK_H
#define HALL_OUT_HOOK_H

#include <linux/net.h>
#include <net/sock.h>

/* The shared tables of one family. */
struct hall_tables {
	struct proto prot;		/* of sockets that are being made */
	struct proto_ops watched;
	struct proto_ops chosen;	/* watched, whatever the cgroup is: choice.c */
	struct proto_ops excluded;	/* native, by the program's choice, or closed */
	struct proto_ops stream;	/* of outsourced sockets */
	struct proto *native_prot;
	const struct proto_ops *native;
};

/* The tables of the socket's family. */
struct hall_tables *hall_tables_of(const struct sock *sk);
bool hall_is_watched(const struct socket *sock);
/* Also if an earlier load of the module has left its table, which is the same. */
bool hall_is_native(const struct socket *sock);
/*
 * close() has begun: from now on no work finds the socket, and has the host take its port
 * once more. Process context; not under lock_sock().
 */
void hall_exclude(struct socket *sock);

int hall_hook_init(void);
void hall_hook_uninit(void);

#endif /* HALL_OUT_HOOK_H */
