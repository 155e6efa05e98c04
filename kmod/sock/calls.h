/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The calls of a socket, as attach puts them in its struct proto and proto_ops.
 * Each goes on in the native call if the socket is not attached any more.
 */
#ifndef HALL_CALLS_H
#define HALL_CALLS_H

#include "../compat/recvmsg.h"
#include "sock.h"

/* tx.c; hall_ops_sendmsg() is the short way into hall_sendmsg() */
int hall_ops_sendmsg(struct socket *sock, struct msghdr *msg, size_t size);
int hall_sendmsg(struct sock *sk, struct msghdr *msg, size_t size);
#ifdef HALL_HAS_SENDPAGE
int hall_sendpage(struct sock *sk, struct page *page, int offset, size_t size,
		  int flags);
#endif

/* rx.c; likewise */
int hall_ops_recvmsg(struct socket *sock, struct msghdr *msg, size_t len,
		     int flags);
int hall_recvmsg(struct sock *sk, struct msghdr *msg, size_t len,
		 int flags HALL_RECVMSG_LAST);
/*
 * The inner half of it, for splice.c: HALL_NATIVE if the socket is detached. It
 * waits until target bytes are there.
 */
int hall_receive(struct hall_sock *hs, struct msghdr *msg, size_t len,
		 int target, int flags HALL_RECVMSG_LAST);

/* poll.c */
bool hall_sock_is_readable(struct sock *sk);
bool hall_stream_memory_free(const struct sock *sk, int wake);

/* splice.c */
ssize_t hall_splice_read(struct socket *sock, loff_t *ppos,
			 struct pipe_inode_info *pipe, size_t len,
			 unsigned int flags);

/*
 * read_sock.c. lock_sock(); or slock, where a read while there is a ring is put off and
 * 0 is returned.
 */
int hall_read_sock(struct sock *sk, read_descriptor_t *desc,
		   sk_read_actor_t actor);
/* Unread bytes; has sk_data_ready() called when there are more. slock or lock_sock(). */
int hall_peek_len(struct socket *sock);

/* close.c */
void hall_close(struct sock *sk, long timeout);
void hall_shutdown(struct sock *sk, int how);
void hall_destroy(struct sock *sk);
int hall_disconnect(struct sock *sk, int flags);

/* options.c */
int hall_ops_setsockopt(struct socket *sock, int level, int optname, sockptr_t optval,
			unsigned int optlen);
int hall_getsockopt(struct sock *sk, int level, int optname,
		    char __user *optval, int __user *option);
#ifdef HALL_IOCTL_INT
int hall_ioctl(struct sock *sk, int cmd, int *karg);
#else
int hall_ioctl(struct sock *sk, int cmd, unsigned long arg);
#endif
int hall_psock_update_sk_prot(struct sock *sk, struct sk_psock *psock,
			      bool restore);
/* At releases of the socket lock: see options.c. slock. */
void hall_release_cb(struct sock *sk);

#endif /* HALL_CALLS_H */
