/* SPDX-License-Identifier: GPL-2.0-only */
/* The PCI driver of both devices. */
#ifndef HALL_IVSHMEM_PCI_H
#define HALL_IVSHMEM_PCI_H

/* uninit removes all devices. */
int ivshmem_pci_init(void);
void ivshmem_pci_uninit(void);

#endif /* HALL_IVSHMEM_PCI_H */
