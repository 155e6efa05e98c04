/* SPDX-License-Identifier: GPL-2.0-only */
/* sock_rps_record_flow(), which net/sock.h had before it got a header of its own. */
#ifndef HALL_COMPAT_RPS_H
#define HALL_COMPAT_RPS_H

#include <net/sock.h>
#ifdef HALL_HAS_RPS_HEADER
#include <net/rps.h>
#endif

#endif /* HALL_COMPAT_RPS_H */
