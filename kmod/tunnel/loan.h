/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Loans of ring memory to programs: abi/hallway/loan.h. A tunnel of SOCK_SEQPACKET has one
 * at most, for as long as it lives; a file of the device takes it up, and another one later.
 */
#ifndef HALL_TUNNEL_LOAN_H
#define HALL_TUNNEL_LOAN_H

#include <linux/spinlock.h>

#include "tunnel.h"

/* Bytes of a file for each ring: it may be mapped twice, one after the other. */
#define HALL_LOAN_WINDOW	(2ull * HALLWAY_RING_MAX)

struct lent_ring {
	bool lent;		/* read under the lock of a page table */
	u32 size;		/* bytes, whole pages */
	unsigned long pfn;	/* of its data */
};

struct hall_loan {
	bool taken;		/* by a file; lock_sock() */
	u32 reserved;		/* bytes; lock_sock(), as all of these */
	u32 found;		/* bytes of the ring that the message found takes; 0: none */
	u32 found_payload;	/* of these, the program's */
	u64 found_at;		/* position in the ring */
	struct page *blank;	/* instead of a ring that has ended */
	struct lent_ring tx, rx;
	u64 offset;		/* of tx in the file; rx follows */
	spinlock_t lock;
	struct file *file;	/* that has it; NULL: none has */
};

/* loan.c: once the module is sure to be loaded. Without a device the log says so. */
void hall_loans_init(void);
/* No file is open. */
void hall_loans_uninit(void);

/* lend.c */
/*
 * Has a file take up the tunnel's loan. 0, -ENOMEM, -ENOTCONN, or -EOPNOTSUPP: rings are no
 * whole pages. lock_sock()
 */
int hall_loan_take(struct hall_tunnel *tunnel, struct file *file);
/* The file is closed, and its mappings are gone. lock_sock() */
void hall_loan_return(struct hall_loan *loan);
/* For mmap() of that file. 0; -EINVAL: no such part of it; -EACCES. */
int hall_loan_map(struct hall_loan *loan, struct vm_area_struct *vma);
/*
 * Takes back the ring that this guest writes, or the one that it reads, from all page tables.
 * Before its memory can be another's. lock_sock(), or without a socket.
 */
void hall_loan_end_tx(struct hall_tunnel *tunnel);
void hall_loan_end_rx(struct hall_tunnel *tunnel);
/* The last reference to the tunnel is gone. Any context. */
void hall_loan_free(struct hall_tunnel *tunnel);

/* Has a program reserved space? No other message can begin. lock_sock() */
static inline bool hall_loan_is_reserved(const struct hall_tunnel *tunnel)
{
	return tunnel->loan && tunnel->loan->reserved;
}

#endif /* HALL_TUNNEL_LOAN_H */
