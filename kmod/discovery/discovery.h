/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Members that transports report, and the addresses that they publish. An
 * address is only a hint: the connection's token decides.
 */
#ifndef HALL_DISCOVERY_H
#define HALL_DISCOVERY_H

#include "../transport/transport.h"

/* What discovery reports. Process context, discovery's mutexes not held. */
struct hall_discovery_handler {
	/* Members have other addresses: connections to them may exist already. */
	void (*served)(void);
	/* There are other candidates: connections to them may exist already. */
	void (*candidates)(void);
	/* There is an outsourcer. */
	void (*outsourcer)(void);
	/* Closes all channels to the member; does not wait for the last. */
	void (*departed)(struct hall_member *member, u32 reason);
	/* Takes all streams from the member's rings, and returns when that is done. */
	void (*detach)(struct hall_member *member, u32 reason);
};

extern struct hall_discovery_handler hall_discovery_handler;

/* The member that publishes the address, or NULL. Under rcu_read_lock(). */
struct hall_member *hall_members_find(const struct in6_addr *address);
/* Has the address a holder that no connection has given reason to doubt lately? Any context. */
bool hall_members_hold(const struct in6_addr *address);
/*
 * The member is not the other end of a connection to that address. True: another
 * one, which publishes the address as well, is to be tried. Process context; waits
 * for no lock.
 */
bool hall_members_doubt(struct hall_member *member,
			const struct in6_addr *address);

/* The outsourcer, with a reference, or NULL. Any context. */
struct hall_member *hall_members_get_outsourcer(void);

/*
 * The member of that CID (abi/hallway/tunnel.h), with a reference, or NULL. One for which
 * the host vouches comes before others. Any context.
 */
struct hall_member *hall_members_get_by_cid(u32 cid);
/*
 * The lowest CID above that one which another VM has, or 0. Calls from 0 on visit each VM
 * once, however many regions it shares with this one. Any context.
 */
u32 hall_members_next_cid(u32 cid);
/*
 * May the member use the CID that it has? Not that of this guest, nor that of another one
 * for which the host vouches, and not for it. An outsourcer has none, nor hallwayd. Any
 * context.
 */
bool hall_member_has_cid(const struct hall_member *member);

/*
 * Calls fn for each member, under discovery's mutex, until it returns other than
 * 0; returns that.
 */
int hall_members_walk(int (*fn)(struct hall_member *member, void *data),
		      void *data);
/* Calls fn for each address of the member; within hall_members_walk() only. */
int hall_member_addresses(struct hall_member *member,
			  int (*fn)(const struct in6_addr *address, void *data),
			  void *data);

/* Hooks into the transports, before they start; and after they have stopped. */
void hall_members_init(void);
void hall_members_uninit(void);

/*
 * Candidates: VMs that share no memory with this guest, and might. meet: there is
 * a new connection to this address, which may be a candidate's or not; under
 * rcu_read_lock(), any context.
 */
void hall_candidates_meet(const struct in6_addr *address);
/*
 * Counts the bytes of connections that exist: begin, then count for each, then
 * end; candidates whose bytes grew by enough are met. False from begin: there are
 * no candidates, and nothing to end. One count at a time. Process context; count:
 * any context.
 */
bool hall_candidates_count_begin(void);
void hall_candidates_count(const struct in6_addr *address, u64 bytes);
void hall_candidates_count_end(u64 enough);

/* Hooks into the transports, before they start; and after they have stopped. */
void hall_candidates_init(void);
void hall_candidates_uninit(void);

/*
 * Watches this guest's addresses, and publishes them while enabled; publishes an
 * empty list when it is disabled. Process context.
 */
int hall_addresses_init(void);
void hall_addresses_uninit(void);
void hall_addresses_enable(bool enabled);

#endif /* HALL_DISCOVERY_H */
