/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kmod/ring/ring.c as it is, with a call before every access to shared memory
 * and at every barrier: there a test lets the other side act, in one thread and
 * repeatably. Each such step is one that two CPUs could take.
 */
#ifndef TESTS_RING_HOOKED_H
#define TESTS_RING_HOOKED_H

#include "env.h"

static void hook(void);

#undef READ_ONCE
#undef WRITE_ONCE
#undef virt_load_acquire
#undef virt_store_release

#define READ_ONCE(x) (hook(), __atomic_load_n(&(x), __ATOMIC_RELAXED))
#define WRITE_ONCE(x, v) (hook(), __atomic_store_n(&(x), (v), __ATOMIC_RELAXED))
#define virt_load_acquire(p) (hook(), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define virt_store_release(p, v) (hook(), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define virt_mb() hook()

#include "ring.c"

#endif /* TESTS_RING_HOOKED_H */
