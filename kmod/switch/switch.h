/* SPDX-License-Identifier: GPL-2.0-only */
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
 * Does nothing if the socket is attached, belongs to kTLS, MPTCP or a sockmap, or
 * if memory is short.
 */
void hall_attach(struct sock *sk, struct hall_member *member);
/* Is the socket native, and free to be attached? RCU; may be outdated. */
bool hall_can_attach(const struct sock *sk);
/*
 * Puts our copy of the socket's proto_ops in place. lock_sock() or slock. False:
 * they are not TCP's, or memory is short.
 */
bool hall_attach_ops(struct hall_sock *hs);
/* Frees the copies. No task is in a call of ours any more, or about to make one. */
void hall_attach_uninit(void);

/*
 * policy.c. All under lock_sock(), unless it says otherwise.
 *
 * A HALLWAY_REASON_* why this socket can't be on a ring now, or 0. calling: within a
 * call of the socket's user.
 */
u32 hall_policy_find_reason(struct hall_sock *hs, bool calling);
/* In a call, about to send that many bytes: offers a ring if one was earned. */
void hall_policy_offer_ring(struct hall_sock *hs, size_t sending);
/* No offer is tried for a while; longer each time. */
void hall_policy_back_off(struct hall_sock *hs, u32 reason);
/* A writer finds its ring full. True: it was ended, for a larger one. */
bool hall_policy_grow(struct hall_sock *hs);
/* Ends a ring whose memory is of better use to others. */
void hall_policy_shrink(struct hall_sock *hs);
/*
 * In the work item: offers the ring that replaces one, once that is drained. False:
 * call it again soon.
 */
bool hall_policy_replace(struct hall_sock *hs);
/*
 * Once a second: has the work item look after a ring that may shrink, or an offer
 * that has no answer. No lock.
 */
void hall_policy_check(struct hall_sock *hs);

/*
 * filters.c. Do rules apply to the connection's packets? Any context; the answer
 * may be outdated.
 */
bool hall_filters_apply(struct sock *sk, bool v4);
/* Do programs of the cgroup decide about its connect()? Any context. */
bool hall_filters_apply_connect(struct sock *sk);
/* The same about its datagrams. */
bool hall_filters_apply_sendmsg(struct sock *sk);
/* Once a second: if they do, has the socket demoted and detached. No lock held. */
void hall_filters_check(struct hall_sock *hs);

/* budget.c. All under lock_sock(), unless it says otherwise. */

/* Was nothing sent for so long that what comes now is a new use? Any context. */
bool hall_budget_is_new_use(const struct hall_sock *hs);
/* Bytes of the ring to offer; and of the next smaller one, or 0. */
u32 hall_budget_get_offer(const struct hall_sock *hs);
u32 hall_budget_get_smaller(u32 bytes);
/* A ring was offered: its use is counted from here. */
void hall_budget_begin(struct hall_sock *hs);
/* A writer finds its ring full: the bytes that it should have, its size or more. */
u32 hall_budget_grow(struct hall_sock *hs);
/* The same when nothing happened: its size, less, or 0. Any context, as a hint. */
u32 hall_budget_shrink(const struct hall_sock *hs);
/* A ring or a number was refused for want of one. Any context. */
void hall_budget_want(struct hall_sock *hs);

/* work.c. The socket's work item. */
void hall_switch_run_work(struct hall_sock *hs);

/*
 * detach.c. Puts the native tables back, where ours still are. The module's other
 * users learn of it by hall_detach() alone. lock_sock() or slock; else any context.
 */
void hall_restore_tables(struct hall_sock *hs);
/* Detaches a socket from which no ring is read. lock_sock() or slock. */
void hall_detach(struct hall_sock *hs, u32 reason);
/* See hall_sock_handler. Process context, no locks. */
int hall_detach_sync(struct hall_sock *hs, u32 reason);
/*
 * Detaches the streams to a member, or all if it is NULL, and waits for 5 s at
 * most. Process context, no locks.
 */
void hall_detach_streams(struct hall_member *member, u32 reason);
/* As detach of hall_discovery_handler. */
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
void hall_scan_init(void);
void hall_scan_uninit(void);

/* probe.c. The tracepoint that reports new connections. */
int hall_probe_init(void);
void hall_probe_uninit(void);

/* ulp.c. Keeps our tables from kTLS. */
int hall_ulp_init(void);
void hall_ulp_uninit(void);

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
