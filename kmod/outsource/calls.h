/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The calls of the shared tables, and the steps of connect() and close() that the work
 * item takes. hall_watched_: of sockets that are native, or not decided; hall_out_ and
 * hall_datagram_: of outsourced ones.
 */
#ifndef HALL_OUT_CALLS_H
#define HALL_OUT_CALLS_H

#include "../compat/address.h"
#include "../compat/native.h"
#include "out.h"

/* connect.c */
int hall_watched_connect(struct socket *sock, struct hall_sockaddr *address,
			 int len, int flags);
int hall_out_connect(struct socket *sock, struct hall_sockaddr *address, int len,
		     int flags);
/*
 * Waits until connect() is answered. 0, -EINPROGRESS if the time is over, or -EINTR
 * and the like. No lock.
 */
int hall_out_await_answer(struct hall_out *out, long timeo);
/* The work item: the answer to connect() is there. Under lock_sock(). */
void hall_out_take_answer(struct hall_out *out, struct hallway_message *offer);
/* Under lock_sock(), if there is a socket. */
void hall_out_take_refusal(struct hall_out *out, int error);

/* unrouted.c */
int hall_unrouted_connect(struct socket *sock, struct hall_sockaddr *address, int len,
			  int flags);

/* bound.c */
int hall_bound_bind(struct socket *sock, struct hall_sockaddr *address, int len);

/* accept.c */
#ifdef HALL_HAS_ACCEPT_ARG
int hall_watched_accept(struct socket *sock, struct socket *fresh,
			struct proto_accept_arg *arg);
int hall_out_accept(struct socket *sock, struct socket *fresh,
		    struct proto_accept_arg *arg);
#else
int hall_watched_accept(struct socket *sock, struct socket *fresh, int flags,
			bool kern);
int hall_out_accept(struct socket *sock, struct socket *fresh, int flags,
		    bool kern);
#endif
int hall_watched_getname(struct socket *sock, struct sockaddr *address, int peer);

/* publish.c */
int hall_watched_listen(struct socket *sock, int backlog);
int hall_watched_release(struct socket *sock);

/* stream.c */
int hall_out_sendmsg(struct socket *sock, struct msghdr *msg, size_t size);
int hall_out_recvmsg(struct socket *sock, struct msghdr *msg, size_t size,
		     int flags);

/* datagram.c */
int hall_datagram_sendmsg(struct socket *sock, struct msghdr *msg, size_t size);
__poll_t hall_datagram_poll(struct file *file, struct socket *sock,
			    struct poll_table_struct *wait);
int hall_datagram_release(struct socket *sock);

/* poll.c: of both tables */
__poll_t hall_out_poll(struct file *file, struct socket *sock,
		       struct poll_table_struct *wait);
void hall_out_wake(struct hall_out *out);

/* names.c */
int hall_out_bind(struct socket *sock, struct hall_sockaddr *address, int len);
int hall_out_listen(struct socket *sock, int backlog);
int hall_out_getname(struct socket *sock, struct sockaddr *address, int peer);
int hall_out_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg);
/* As SIOCOUTQ, or SIOCOUTQNSD (unsent), on the way to the other end; or an error. */
int hall_out_count_unsent(struct hall_out *out, bool unsent);

/* close.c */
int hall_watched_shutdown(struct socket *sock, int how);
int hall_out_shutdown(struct socket *sock, int how);
int hall_out_release(struct socket *sock);
/* connect() to AF_UNSPEC. HALL_NATIVE: the native stack has the socket. */
int hall_out_disconnect(struct socket *sock);
/* Resets the connection, or ends the attempt; the socket is watched again. Mutex, not closed. */
void hall_out_unconnect(struct hall_out *out, struct socket *sock);
/* Ends a socket, or the host's part of a listener, for the unloading of the module. */
void hall_out_abandon(struct hall_out *out);

/* options.c */
int hall_out_setsockopt(struct socket *sock, int level, int name, sockptr_t value,
			unsigned int length);
int hall_out_getsockopt(struct socket *sock, int level, int name,
			char __user *value, int __user *length);

/* choice.c */
int hall_watched_setsockopt(struct socket *sock, int level, int name,
			    sockptr_t value, unsigned int length);
/* The socket is unconnected: its next connect() decides again. lock_sock(). */
void hall_out_watch_again(struct hall_out *out, struct socket *sock);

#endif /* HALL_OUT_CALLS_H */
