/* SPDX-License-Identifier: GPL-2.0 */
/*
 * When a socket is attached, promoted, demoted and detached. The only room that
 * assigns sk_prot.
 */
#ifndef HALL_SWITCH_H
#define HALL_SWITCH_H

#include "../sock/sock.h"

/* The operator's switch; off also while the module is loaded or unloaded. */
extern bool hall_enabled;

/*
 * attach.c. Attaches an established socket. lock_sock() or slock, and RCU.
 * older: the connection existed before, and may have been used. Does nothing if
 * the socket is attached, belongs to kTLS, MPTCP or a sockmap, or if memory is
 * short.
 */
void hall_attach(struct sock *sk, struct hall_member *member, bool older);
/* Is the socket native, and free to be attached? RCU; may be outdated. */
bool hall_can_attach(const struct sock *sk);
/*
 * Puts our copy of the socket's proto_ops in place. lock_sock() or slock. False:
 * they are not TCP's.
 */
bool hall_attach_ops(struct hall_sock *hs);

/*
 * policy.c. A reason why this socket can't be on a ring now, or 0. lock_sock()
 * calling: within a call of the socket's user.
 */
u32 hall_policy_against(struct hall_sock *hs, bool calling);
/* Tries to offer a ring, if the connection has earned it. */
void hall_policy(struct hall_sock *hs, size_t sending);
/* Do not try again for a while; longer each time. */
void hall_policy_back_off(struct hall_sock *hs, u32 reason);

/*
 * filters.c. Do rules apply to the connection's packets? Any context; the answer
 * may be outdated.
 */
bool hall_filters_apply(struct hall_sock *hs);
/* Once a second: if they do, has the socket demoted and detached. No lock held. */
void hall_filters_check(struct hall_sock *hs);

/*
 * budget.c. All under lock_sock(), unless it says otherwise.
 */
/* Was nothing sent for so long that what comes now is a new use? */
bool hall_budget_new_use(const struct hall_sock *hs);
/* Offers a ring of a fitting size. 0 or -ENOMEM, -EUSERS. */
int hall_budget_offer(struct hall_sock *hs, const struct hall_tokens *tokens);
/* A writer finds its ring full. True: it is ended, for a larger one. */
bool hall_budget_full(struct hall_sock *hs);
/* No ring, or no larger one: what idle connections hold is wanted. Any context. */
void hall_budget_want(struct hall_sock *hs);
/* Once a second: is the ring of better use to others? No lock held. */
void hall_budget_look(struct hall_sock *hs);
/* If it is, ends it. */
void hall_budget_spare(struct hall_sock *hs);

/* work.c. The socket's work item. */
void hall_switch_run_work(struct hall_sock *hs);

/* detach.c. Restores the native tables of a socket. lock_sock() or slock. */
void hall_detach(struct hall_sock *hs, u32 reason);
/* See hall_sock_handler. Process context, no locks. */
int hall_detach_sync(struct hall_sock *hs, u32 reason);
/*
 * Detaches the streams to a member, or all if it is NULL, and waits for 5 s at
 * most. Process context, no locks.
 */
void hall_detach_streams(struct hall_member *member, u32 reason);
/* As leave of hall_discovery_handler. */
void hall_detach_member(struct hall_member *member, u32 reason);
/* See hall_sock_handler: does not wait. */
int hall_detach_now(struct hall_sock *hs, u32 reason);
/* As departed of hall_discovery_handler. */
void hall_depart_member(struct hall_member *member, u32 reason);

/*
 * timeout.c. Would TCP have given up on the bytes that an unresponsive peer did
 * not read? Otherwise *left is when to ask again, in jiffies, or 0. lock_sock().
 */
bool hall_check_timeout(struct hall_sock *hs, unsigned long *left);

/* scan.c. Attaches existing connections, in a work item. Any context. */
void hall_scan(void);
int hall_scan_init(void);
void hall_scan_uninit(void);

/* probe.c. The tracepoint that reports new connections. */
int hall_probe_init(void);
void hall_probe_uninit(void);

/* watchdog.c. Once a second: wakes sleepers whose doorbell was lost. No lock held. */
void hall_watchdog_check(struct hall_sock *hs);

/* tick.c. What each socket needs once a second. */
void hall_tick_init(void);
void hall_tick_uninit(void);

/* Turns Hallway on or off; off waits until sockets are detached. */
void hall_switch_set(bool on, u32 reason);
/* Start; stop using sockets (transports still run); and be gone. */
int hall_switch_init(void);
void hall_switch_stop(void);
void hall_switch_uninit(void);

#endif /* HALL_SWITCH_H */
