/* SPDX-License-Identifier: GPL-2.0-only */
/* The rest of a truncated ring goes over TCP: see resend.c. */
#ifndef HALL_RESEND_H
#define HALL_RESEND_H

#include "sock.h"

/*
 * Sends the truncated bytes of a ring over TCP. lock_sock(). False: some could not
 * be sent.
 */
bool hall_tx_resend(struct hall_sock *hs, u32 bytes);

#endif /* HALL_RESEND_H */
