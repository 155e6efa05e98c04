/* SPDX-License-Identifier: GPL-2.0-only */
/* The list of transports, in the order in which they start. */
#ifndef HALL_TRANSPORTS_H
#define HALL_TRANSPORTS_H

#include "transport.h"

/* T(name): the transport is hall_<name>_transport. */
#ifdef CONFIG_PCI
#define HALL_TRANSPORT_IVSHMEM(T)	T(ivshmem)
#else
#define HALL_TRANSPORT_IVSHMEM(T)
#endif
#ifdef CONFIG_XEN
#define HALL_TRANSPORT_XEN(T)	T(xen)
#else
#define HALL_TRANSPORT_XEN(T)
#endif

#define HALL_TRANSPORTS(T) \
	T(loopback) \
	HALL_TRANSPORT_IVSHMEM(T) \
	HALL_TRANSPORT_XEN(T)

#define HALL_TRANSPORT_DECLARE(name) \
	extern const struct hall_transport hall_##name##_transport;
HALL_TRANSPORTS(HALL_TRANSPORT_DECLARE)

#endif /* HALL_TRANSPORTS_H */
