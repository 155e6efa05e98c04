// SPDX-License-Identifier: GPL-2.0-only
/*
 * The device of loans, and calls that pass messages in ring memory: abi/hallway/loan.h.
 *
 * A file refers to the tunnel and to the socket's file: neither goes before its mappings do.
 *
 * The program is trusted with no more than its socket is. Rings that are lent begin with
 * zeros, so it reads nothing that others had there. What it writes is its own ring: if it
 * spoils a header, the peer resets the tunnel. What it reads the peer may change at any time,
 * and once the peer has departed, until that is noticed, another member of the region may:
 * the release says whether what was read is good, as for a copy of our own.
 */
#include "loan.h"

#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/net.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <hallway/loan.h>

#include "../obs/counters.h"
#include "frame.h"

/* What a file that is attached has. */
struct borrower {
	struct hall_tunnel *tunnel;	/* referenced */
	struct socket *socket;		/* its file is */
};

static struct borrower *borrower_of(struct file *file)
{
	return smp_load_acquire(&file->private_data);
}

static int map_file(struct file *file, struct vm_area_struct *vma)
{
	struct borrower *borrower = borrower_of(file);

	return borrower ? hall_loan_map(borrower->tunnel->loan, vma) : -ENOTCONN;
}

static void return_loan(struct borrower *borrower)
{
	struct hall_tunnel *tunnel = borrower->tunnel;
	struct hall_loan *loan = tunnel->loan;
	struct sock *sk = borrower->socket->sk;

	lock_sock(sk);
	hall_loan_return(loan);
	release_sock(sk);
	hall_channel_put(&tunnel->channel);
	sockfd_put(borrower->socket);
	kfree(borrower);
}

/* A borrower of the socket's tunnel, or an error pointer. It has the socket then. */
static struct borrower *borrow(struct file *file, struct socket *socket)
{
	struct borrower *borrower = kzalloc(sizeof(*borrower), GFP_KERNEL_ACCOUNT);
	struct sock *sk = socket->sk;
	struct hall_tunnel *tunnel;
	int err;

	if (!borrower)
		return ERR_PTR(-ENOMEM);
	lock_sock(sk);
	tunnel = hall_tunnel_of(vsock_sk(sk));
	if (!tunnel || tunnel->state != HALL_TUNNEL_CONNECTED)
		err = -ENOTCONN;
	else if (!tunnel->channel.member->transport->find_pfn || !tunnel->is_blank)
		err = -EOPNOTSUPP;
	else if (tunnel->loan && tunnel->loan->taken)
		err = -EBUSY;
	else
		err = hall_loan_take(tunnel, file);
	if (!err)
		refcount_inc(&tunnel->channel.refs);
	release_sock(sk);
	if (err) {
		kfree(borrower);
		return ERR_PTR(err);
	}
	borrower->tunnel = tunnel;
	borrower->socket = socket;
	return borrower;
}

static long attach(struct file *file, void __user *argument)
{
	struct hallway_loan_attach attach;
	struct borrower *borrower;
	struct hall_loan *loan;
	struct socket *socket;
	int err;

	if (copy_from_user(&attach, argument, sizeof(attach)))
		return -EFAULT;
	if (attach.reserved)
		return -EINVAL;
	socket = sockfd_lookup(attach.socket, &err);
	if (!socket)
		return err;
	if (socket->sk->sk_family != AF_VSOCK || socket->type != SOCK_SEQPACKET) {
		sockfd_put(socket);
		return -EPROTOTYPE;
	}
	borrower = borrow(file, socket);
	if (IS_ERR(borrower)) {
		sockfd_put(socket);
		return PTR_ERR(borrower);
	}
	loan = borrower->tunnel->loan;
	attach.tx_size = loan->tx.size;
	attach.rx_size = loan->rx.size;
	attach.tx_offset = loan->offset;
	attach.rx_offset = loan->offset + HALL_LOAN_WINDOW;
	if (copy_to_user(argument, &attach, sizeof(attach))) {
		return_loan(borrower);
		return -EFAULT;
	}
	if (cmpxchg(&file->private_data, NULL, borrower)) {
		return_loan(borrower);
		return -EBUSY;
	}
	return 0;
}

/* lock_sock() */
static bool can_send(const struct hall_tunnel *tunnel, struct sock *sk)
{
	return !tunnel->failed && !tunnel->ended && !(sk->sk_shutdown & SEND_SHUTDOWN) &&
	       !(vsock_sk(sk)->peer_shutdown & RCV_SHUTDOWN);
}

/* Sends n bytes of what was reserved. lock_sock() */
static int commit(struct hall_tunnel *tunnel, struct sock *sk, u32 n, u32 flags)
{
	struct hallway_frame frame = {
		.length = n,
		.flags = flags & HALLWAY_LOAN_EOR ? HALLWAY_FRAME_EOR : 0,
	};
	u32 reserved = tunnel->loan->reserved;

	tunnel->loan->reserved = 0;
	if (!n)
		return 0;
	if (n > reserved)
		return -EINVAL;
	if (!can_send(tunnel, sk) || !tunnel->memory.ring ||
	    hall_ring_is_truncated(&tunnel->tx))
		return -EPIPE;
	if (tunnel->tx.broken) {
		hall_tunnel_corrupt(tunnel, sk);
		return -ECONNRESET;
	}
	hall_frame_enclose(&tunnel->tx, &frame);
	hall_tunnel_publish(tunnel, hall_frame_size(n), n);
	hall_count(HALL_TUNNEL_LOANS);
	return 0;
}

/* lock_sock() */
static int reserve(struct hall_tunnel *tunnel, struct sock *sk, struct hallway_loan_send *send)
{
	u32 size = hall_frame_size(min_t(u32, send->reserve, HALLWAY_RING_MAX)), space;
	int err;

	if (!can_send(tunnel, sk))
		return -EPIPE;
	err = hall_tunnel_find_space(tunnel, sk, 0, &space);
	if (err)
		return err;
	if (size > tunnel->tx.size)
		return -EMSGSIZE;
	/* For poll(); a program that has just sent one may want to send a shorter one. */
	tunnel->need = space < size && !send->commit ? size : 0;
	if (space < size)
		return 0;
	tunnel->loan->reserved = send->reserve;
	send->state = HALLWAY_LOAN_FOUND;
	send->offset = (tunnel->tx.head + sizeof(struct hallway_frame)) & (tunnel->tx.size - 1);
	return 0;
}

static long send_message(struct borrower *borrower, void __user *argument)
{
	struct hall_tunnel *tunnel = borrower->tunnel;
	struct sock *sk = borrower->socket->sk;
	struct hallway_loan_send send;
	int err;

	if (copy_from_user(&send, argument, sizeof(send)))
		return -EFAULT;
	if (send.reserved || (send.flags & ~HALLWAY_LOAN_EOR))
		return -EINVAL;
	send.state = HALLWAY_LOAN_NONE;
	send.offset = 0;
	lock_sock(sk);
	err = hall_tunnel_of(vsock_sk(sk)) == tunnel ? 0 : -ENOTCONN;
	err = err ?: commit(tunnel, sk, send.commit, send.flags);
	tunnel->need = 0;
	if (!err && send.reserve) {
		err = reserve(tunnel, sk, &send);
		/* This message is sent: the next call gives the error. */
		if (send.commit)
			err = 0;
	}
	release_sock(sk);
	if (!err && copy_to_user(argument, &send, sizeof(send)))
		return -EFAULT;
	return err;
}

/* lock_sock() */
static int release(struct hall_tunnel *tunnel, struct sock *sk)
{
	struct hall_loan *loan = tunnel->loan;
	u32 found = loan->found;

	loan->found = 0;
	/* recv() may have taken it. */
	if (!found || loan->found_at != tunnel->rx.tail)
		return -EINVAL;
	if (!hall_tunnel_is_intact(tunnel, sk))
		return -ECONNRESET;
	/* It was copied, or the tunnel was reset. */
	if (!tunnel->mapped)
		return tunnel->rest ? -EREMCHG : -ECONNRESET;
	hall_tunnel_consume(tunnel, found, loan->found_payload);
	hall_count(HALL_TUNNEL_LOANS);
	return 0;
}

/* lock_sock() */
static int look(struct hall_tunnel *tunnel, struct sock *sk,
		struct hallway_loan_receive *receive)
{
	u32 unread = hall_tunnel_count_unread(tunnel, sk);
	struct hall_loan *loan = tunnel->loan;
	struct hallway_frame frame;
	s64 length;

	if (!unread) {
		if (hall_tunnel_is_reset(tunnel, sk))
			return -ECONNRESET;
		if (tunnel->fin || !tunnel->mapped || (sk->sk_shutdown & RCV_SHUTDOWN))
			receive->state = HALLWAY_LOAN_END;
		return 0;
	}
	if (!tunnel->mapped)
		return -EREMCHG;
	length = hall_frame_find(&tunnel->rx, unread, &frame);
	if (length < 0) {
		hall_tunnel_corrupt(tunnel, sk);
		return -ECONNRESET;
	}
	loan->found = hall_frame_size(length);
	loan->found_payload = length;
	loan->found_at = tunnel->rx.tail;
	receive->state = HALLWAY_LOAN_FOUND;
	receive->offset = (tunnel->rx.tail + sizeof(frame)) & (tunnel->rx.size - 1);
	receive->length = length;
	receive->flags = frame.flags & HALLWAY_FRAME_EOR ? HALLWAY_LOAN_EOR : 0;
	return 0;
}

static long receive_message(struct borrower *borrower, void __user *argument)
{
	struct hall_tunnel *tunnel = borrower->tunnel;
	struct sock *sk = borrower->socket->sk;
	struct hallway_loan_receive receive;
	int err;

	if (copy_from_user(&receive, argument, sizeof(receive)))
		return -EFAULT;
	if (receive.reserved || receive.release > 1)
		return -EINVAL;
	receive.state = HALLWAY_LOAN_NONE;
	receive.offset = receive.length = receive.flags = 0;
	lock_sock(sk);
	err = hall_tunnel_of(vsock_sk(sk)) == tunnel ? 0 : -ENOTCONN;
	if (!err && receive.release)
		err = release(tunnel, sk);
	if (!err) {
		err = look(tunnel, sk, &receive);
		/* This message is taken: the next call gives the error. */
		if (receive.release)
			err = 0;
	}
	release_sock(sk);
	if (!err && copy_to_user(argument, &receive, sizeof(receive)))
		return -EFAULT;
	return err;
}

static long control(struct file *file, unsigned int command, unsigned long argument)
{
	struct borrower *borrower = borrower_of(file);
	void __user *at = (void __user *)argument;

	if (command == HALLWAY_LOAN_ATTACH)
		return borrower ? -EBUSY : attach(file, at);
	if (command != HALLWAY_LOAN_SEND && command != HALLWAY_LOAN_RECEIVE)
		return -ENOTTY;
	if (!borrower)
		return -ENOTCONN;
	return command == HALLWAY_LOAN_SEND ? send_message(borrower, at) :
					      receive_message(borrower, at);
}

static int open_loan(struct inode *inode, struct file *file)
{
	/* The core of these devices has put itself there. */
	file->private_data = NULL;
	return 0;
}

static int close_loan(struct inode *inode, struct file *file)
{
	if (file->private_data)
		return_loan(file->private_data);
	return 0;
}

static const struct file_operations loan_fops = {
	.owner = THIS_MODULE,
	.open = open_loan,
	.release = close_loan,
	.mmap = map_file,
	.unlocked_ioctl = control,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hallway-loan",
	.fops = &loan_fops,
	/* Others by a rule of udev: see docs/tunnels.md. */
	.mode = 0600,
};

static bool registered;

void hall_loans_init(void)
{
	int err = misc_register(&device);

	registered = !err;
	if (err)
		pr_warn("hallway_vsock: no /dev/%s: error %d\n", device.name, err);
}

void hall_loans_uninit(void)
{
	if (registered)
		misc_deregister(&device);
}
