/* SPDX-License-Identifier: GPL-2.0-only */
/* A reference to a file that may be closed at this moment, which was a macro first. */
#ifndef HALL_COMPAT_FILE_H
#define HALL_COMPAT_FILE_H

#include <linux/file.h>
#include <linux/fs.h>

/* Is there a reference? Not if the file is being closed. Its memory stays meanwhile. */
static inline bool hall_try_get_file(struct file *file)
{
#ifdef get_file_rcu
	return get_file_rcu(file);
#else
	return get_file_active(&file);
#endif
}

#endif /* HALL_COMPAT_FILE_H */
