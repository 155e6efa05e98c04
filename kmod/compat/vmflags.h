/* SPDX-License-Identifier: GPL-2.0-only */
/* How flags of a mapping are changed, which was done in place first. */
#ifndef HALL_COMPAT_VMFLAGS_H
#define HALL_COMPAT_VMFLAGS_H

#include <linux/mm.h>

#ifndef HALL_HAS_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

#endif /* HALL_COMPAT_VMFLAGS_H */
