/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * What every header of the ABI needs. The ABI is little-endian; big-endian
 * machines fail to compile.
 */
#ifndef HALLWAY_ABI_TYPES_H
#define HALLWAY_ABI_TYPES_H

#include <linux/types.h>
#ifdef __KERNEL__
#include <linux/build_bug.h>
#include <linux/stddef.h>
#else
#include <assert.h>
#include <stddef.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Hallway shares memory in little-endian order: big-endian machines are not served"
#endif

#define HALLWAY_ASSERT_SIZE(type, size) \
	static_assert(sizeof(type) == (size), "size of " #type)
#define HALLWAY_ASSERT_OFFSET(type, member, offset) \
	static_assert(offsetof(type, member) == (offset), \
		      "offset of " #type "." #member)

#endif /* HALLWAY_ABI_TYPES_H */
