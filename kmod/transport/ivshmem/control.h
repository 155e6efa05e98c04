/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Looking: at the mailboxes that peers keep for this guest, at the member tables
 * and at the private page. The work item waits for no peer and no program, so no
 * peer can hold up another's arrival.
 */
#ifndef HALL_IVSHMEM_CONTROL_H
#define HALL_IVSHMEM_CONTROL_H

#include "doorbell.h"

/* Has the work item look at everything soon. Any context. */
void ivshmem_control(void);
/* The doorbell's interrupt came: see struct doorbell. */
void ivshmem_look(struct doorbell *doorbell);
/* After the last device is gone: stops the work item. */
void ivshmem_control_uninit(void);

#endif /* HALL_IVSHMEM_CONTROL_H */
