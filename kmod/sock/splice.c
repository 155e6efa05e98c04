// SPDX-License-Identifier: GPL-2.0-only
/*
 * splice() from a socket. TCP gives away the pages of its buffers; a ring's
 * bytes are copied into fresh pages, which go into the pipe.
 */
#include "calls.h"

#include <linux/pipe_fs_i.h>
#include <linux/splice.h>
#include <linux/uio.h>

#include "lookup.h"

#define PAGES	16	/* of one round, as in a pipe of the usual size */

static void release_page(struct splice_pipe_desc *spd, unsigned int i)
{
	put_page(spd->pages[i]);
}

static noinline ssize_t splice_bytes(struct hall_sock *hs,
				     struct pipe_inode_info *pipe, size_t len,
				     int recv_flags)
{
	struct partial_page partial[PAGES];
	struct page *pages[PAGES];
	struct bio_vec bvec[PAGES];
	struct splice_pipe_desc spd = {
		.pages = pages,
		.partial = partial,
		.nr_pages_max = PAGES,
		.ops = &nosteal_pipe_buf_ops,
		.spd_release = release_page,
	};
	unsigned int n = min_t(size_t, PAGES, DIV_ROUND_UP(len, PAGE_SIZE));
	struct msghdr msg = { };
	unsigned int i;
	int got, left;

	for (i = 0; i < n; i++) {
		pages[i] = alloc_page(GFP_KERNEL);
		if (!pages[i])
			break;
		bvec[i] = (struct bio_vec){ .bv_page = pages[i],
					    .bv_len = PAGE_SIZE };
	}
	n = i;
	if (!n)
		return -ENOMEM;
	len = min_t(size_t, len, n * PAGE_SIZE);
	iov_iter_bvec(&msg.msg_iter, ITER_DEST, bvec, n, len);
	/* As many bytes as are there: SO_RCVLOWAT is for read() and poll(). */
	got = hall_receive(hs, &msg, len, 1, recv_flags HALL_RECVMSG_NONE);
	for (i = 0, left = got; left > 0; i++, left -= PAGE_SIZE)
		partial[i] = (struct partial_page){
			.len = min_t(int, left, PAGE_SIZE),
		};
	spd.nr_pages = i;
	for (; i < n; i++)
		put_page(pages[i]);
	return got > 0 ? splice_to_pipe(pipe, &spd) : got;
}

ssize_t hall_splice_read(struct socket *sock, loff_t *ppos,
			 struct pipe_inode_info *pipe, size_t len,
			 unsigned int flags)
{
	/* SPLICE_F_NONBLOCK concerns the pipe alone. */
	int recv_flags = sock->file->f_flags & O_NONBLOCK ? MSG_DONTWAIT : 0;
	struct hall_sock *hs = hall_sock_get(sock->sk);
	ssize_t ret = HALL_NATIVE;

	if (hs) {
		ret = splice_bytes(hs, pipe, len, recv_flags);
		hall_sock_put(hs);
	}
	if (ret == HALL_NATIVE)
		return READ_ONCE(sock->ops)->splice_read(sock, ppos, pipe, len,
							 flags);
	return ret;
}
