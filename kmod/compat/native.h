/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef HALL_COMPAT_NATIVE_H
#define HALL_COMPAT_NATIVE_H

#include <linux/limits.h>
#include <linux/types.h>

/*
 * The inner half of a call returns this to go on in the native one. The outer
 * half jumps there as its last step: a thread that blocks in the native call has
 * no frame of the module on its stack, and the module can be unloaded. The
 * compiler makes it a jump only if the outer half has no variable in memory, so
 * the inner one is never inlined; `make check` looks at the code.
 */
#define HALL_NATIVE	INT_MIN
/* The same of poll(): no mask has this bit. */
#define HALL_NATIVE_POLL	((__force __poll_t)HALL_NATIVE)

#endif /* HALL_COMPAT_NATIVE_H */
