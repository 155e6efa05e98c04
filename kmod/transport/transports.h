/* SPDX-License-Identifier: GPL-2.0 */
/* The transports there are. */
#ifndef HALL_TRANSPORTS_H
#define HALL_TRANSPORTS_H

#include "transport.h"

extern const struct hall_transport hall_loopback_transport;
extern const struct hall_transport hall_ivshmem_transport;

#endif /* HALL_TRANSPORTS_H */
