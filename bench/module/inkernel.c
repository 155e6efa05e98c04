// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/inkernel makes a program's calls from within the kernel, where no system
 * call is in the way, and says how long they took: sockets by kernel_sendmsg()
 * and kernel_recvmsg(), pipes by kernel_write() and kernel_read().
 */
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/net.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "inkernel.h"

struct end {
	struct file *file;
	struct socket *socket;	/* of the file, or NULL */
};

static ssize_t move(const struct end *end, bool writes, void *buffer,
		    size_t size)
{
	struct kvec vec = { buffer, size };
	struct msghdr msg = {};

	if (!end->socket)
		return writes ?
			kernel_write(end->file, buffer, size, NULL) :
			kernel_read(end->file, buffer, size, NULL);
	return writes ?
		kernel_sendmsg(end->socket, &msg, &vec, 1, size) :
		kernel_recvmsg(end->socket, &msg, &vec, 1, size, 0);
}

/* Returns the bytes moved, 0 at the end of all. */
static ssize_t call(const struct end *end, u32 kind, void *buffer,
		    size_t size)
{
	size_t done = 0;
	ssize_t n;

	do {
		n = move(end, kind == INKERNEL_WRITE, buffer, size - done);
		if (n <= 0)
			return n;
		done += n;
	} while (done < size && kind != INKERNEL_READ_SOME);
	return done;
}

static int run(struct inkernel_sequence *sequence, const struct end *ends,
	       void *buffer)
{
	const struct inkernel_step *steps = sequence->steps;
	u64 begin = ktime_get_ns();
	ssize_t n = 1;
	u32 i, k;

	sequence->bytes = 0;
	for (i = 0; i < sequence->count && n > 0; i++) {
		if (fatal_signal_pending(current))
			return -EINTR;
		for (k = 0; k < INKERNEL_STEPS && steps[k].call && n > 0; k++) {
			n = call(&ends[k], steps[k].call, buffer,
				 sequence->size);
			if (n > 0 && steps[k].call != INKERNEL_WRITE)
				sequence->bytes += n;
		}
	}
	sequence->ns = ktime_get_ns() - begin;
	return n < 0 ? n : 0;
}

static int check(const struct inkernel_sequence *sequence)
{
	unsigned int k;

	if (!sequence->size || sequence->size > INKERNEL_SIZE)
		return -EINVAL;
	for (k = 0; k < INKERNEL_STEPS; k++)
		if (sequence->steps[k].call > INKERNEL_READ_SOME)
			return -EINVAL;
	return 0;
}

static long inkernel_ioctl(struct file *file, unsigned int command,
			   unsigned long argument)
{
	void __user *place = (void __user *)argument;
	struct inkernel_sequence sequence;
	struct end ends[INKERNEL_STEPS] = {};
	unsigned int k;
	long err;

	if (command != INKERNEL_RUN)
		return -ENOTTY;
	if (copy_from_user(&sequence, place, sizeof(sequence)))
		return -EFAULT;
	err = check(&sequence);
	for (k = 0; k < INKERNEL_STEPS && sequence.steps[k].call && !err; k++) {
		ends[k].file = fget(sequence.steps[k].fd);
		if (ends[k].file)
			ends[k].socket = sock_from_file(ends[k].file);
		else
			err = -EBADF;
	}
	if (!err)
		err = run(&sequence, ends, file->private_data);
	for (k = 0; k < INKERNEL_STEPS; k++)
		if (ends[k].file)
			fput(ends[k].file);
	if (!err && copy_to_user(place, &sequence, sizeof(sequence)))
		err = -EFAULT;
	return err;
}

static int inkernel_open(struct inode *inode, struct file *file)
{
	file->private_data = kvmalloc(INKERNEL_SIZE, GFP_KERNEL);
	if (!file->private_data)
		return -ENOMEM;
	memset(file->private_data, 'h', INKERNEL_SIZE);
	return 0;
}

static int inkernel_release(struct inode *inode, struct file *file)
{
	kvfree(file->private_data);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = inkernel_open,
	.release = inkernel_release,
	.unlocked_ioctl = inkernel_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "inkernel",
	.mode = 0600,
	.fops = &operations,
};
module_misc_device(device);

MODULE_DESCRIPTION("Calls of sockets and pipes from within the kernel");
MODULE_LICENSE("GPL");
