// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ring memory in the page tables of a program.
 *
 * A page comes into a page table when the program first touches it: a fault finds the ring
 * lent, or puts a page of the loan's own in its place. When a ring ends, its pages are taken
 * out of all page tables, before the peer hears of that or the memory is free. So no mapping
 * outlives its ring, and no end of a peer is a signal for the program.
 *
 * A fault looks whether the ring is lent under the lock of the page table, which the end
 * takes as well after it has changed that. So the end waits for no lock that a program
 * could keep.
 *
 * Rings have another offset in the device for each attachment, so that mappings of other
 * files stay as they are.
 */
#include "loan.h"

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "../compat/file.h"
#include "../compat/vmflags.h"

/*
 * Each attachment takes the next. Two with the same number, after as many others, would only
 * lose pages that another fault brings back. A program of 32 bits maps none above these.
 */
static atomic64_t attachments;
#define ATTACHMENTS	BIT_ULL(18)

struct touched {
	struct vm_fault *vmf;
	const struct lent_ring *ring;
	unsigned long pfn, blank;
};

/* The lock of the page table. */
static int set_page(pte_t *pte, unsigned long address, void *data)
{
	struct touched *touched = data;
	struct vm_area_struct *vma = touched->vmf->vma;
	pgprot_t prot = vma->vm_page_prot;
	unsigned long pfn = touched->blank;

	/* Another thread has touched it, too. */
	if (!pte_none(ptep_get(pte)))
		return 0;
	/* The end changes that, and then looks for page tables, such as this one, which is new. */
	smp_mb();
	if (READ_ONCE(touched->ring->lent)) {
		pfn = touched->pfn;
		/* What VMs share no VM encrypts: memremap() has it so. */
		prot = pgprot_decrypted(prot);
	}
	set_pte_at(vma->vm_mm, address, pte, pte_mkspecial(pfn_pte(pfn, prot)));
	return 0;
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	struct hall_loan *loan = vmf->vma->vm_private_data;
	unsigned long at = vmf->pgoff - (loan->offset >> PAGE_SHIFT);
	struct touched touched = { .vmf = vmf, .blank = page_to_pfn(loan->blank) };

	touched.ring = at < HALL_LOAN_WINDOW >> PAGE_SHIFT ? &loan->tx : &loan->rx;
	at &= (touched.ring->size >> PAGE_SHIFT) - 1;
	touched.pfn = touched.ring->pfn + at;
	if (apply_to_page_range(vmf->vma->vm_mm, vmf->address & PAGE_MASK, PAGE_SIZE, set_page,
				&touched))
		return VM_FAULT_OOM;
	return VM_FAULT_NOPAGE;
}

static const struct vm_operations_struct loan_vm_ops = {
	.fault = fault,
};

int hall_loan_map(struct hall_loan *loan, struct vm_area_struct *vma)
{
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT, size = vma->vm_end - vma->vm_start;
	bool writes = offset == loan->offset;

	if (!(vma->vm_flags & VM_SHARED) ||
	    (!writes && offset != loan->offset + HALL_LOAN_WINDOW) ||
	    size > 2ull * (writes ? loan->tx.size : loan->rx.size))
		return -EINVAL;
	if (!writes && (vma->vm_flags & VM_WRITE))
		return -EACCES;
	if (!writes)
		vm_flags_clear(vma, VM_MAYWRITE);
	/* A child would write beside its parent. */
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_private_data = loan;
	vma->vm_ops = &loan_vm_ops;
	return 0;
}

static void end_ring(struct hall_loan *loan, struct lent_ring *ring, u64 window)
{
	struct file *file = NULL;

	spin_lock(&loan->lock);
	/* One that is being closed has no mapping. */
	if (ring->lent && loan->file && hall_try_get_file(loan->file))
		file = loan->file;
	WRITE_ONCE(ring->lent, false);
	spin_unlock(&loan->lock);
	if (!file)
		return;
	/* See set_page(). */
	smp_mb();
	unmap_mapping_range(file->f_mapping, loan->offset + window, HALL_LOAN_WINDOW, 1);
	fput(file);
}

void hall_loan_end_tx(struct hall_tunnel *tunnel)
{
	if (tunnel->loan)
		end_ring(tunnel->loan, &tunnel->loan->tx, 0);
}

void hall_loan_end_rx(struct hall_tunnel *tunnel)
{
	if (tunnel->loan)
		end_ring(tunnel->loan, &tunnel->loan->rx, HALL_LOAN_WINDOW);
}

void hall_loan_free(struct hall_tunnel *tunnel)
{
	if (!tunnel->loan)
		return;
	__free_page(tunnel->loan->blank);
	kfree(tunnel->loan);
}

static struct hall_loan *make_loan(void)
{
	struct hall_loan *loan = kzalloc(sizeof(*loan), GFP_KERNEL_ACCOUNT);

	if (!loan)
		return NULL;
	loan->blank = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!loan->blank) {
		kfree(loan);
		return NULL;
	}
	spin_lock_init(&loan->lock);
	return loan;
}

/* Prepares a ring, if it is there, and begins and ends with a page. */
static int prepare(struct hall_member *member, struct lent_ring *ring, bool is_there,
		   const u8 *data, u32 size)
{
	if (!is_there)
		return -ENOTCONN;
	if (!PAGE_ALIGNED(data) || !PAGE_ALIGNED(size))
		return -EOPNOTSUPP;
	ring->size = size;
	ring->pfn = member->transport->find_pfn(member, data);
	return 0;
}

int hall_loan_take(struct hall_tunnel *tunnel, struct file *file)
{
	struct hall_member *member = tunnel->channel.member;
	struct hall_loan *loan = tunnel->loan ?: make_loan();
	u64 number;
	int err;

	if (!loan)
		return -ENOMEM;
	tunnel->loan = loan;
	err = prepare(member, &loan->tx, tunnel->memory.ring, tunnel->tx.data, tunnel->tx.size) ?:
	      prepare(member, &loan->rx, tunnel->mapped, tunnel->rx.data, tunnel->rx.size);
	if (err)
		return err;
	number = atomic64_inc_return(&attachments) & (ATTACHMENTS - 1);
	loan->offset = number * 2 * HALL_LOAN_WINDOW;
	loan->taken = true;
	spin_lock(&loan->lock);
	loan->file = file;
	loan->tx.lent = loan->rx.lent = true;
	spin_unlock(&loan->lock);
	return 0;
}

void hall_loan_return(struct hall_loan *loan)
{
	spin_lock(&loan->lock);
	loan->file = NULL;
	loan->tx.lent = loan->rx.lent = false;
	spin_unlock(&loan->lock);
	loan->reserved = 0;
	loan->found = 0;
	loan->taken = false;
}
