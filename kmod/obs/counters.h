/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Counters instead of prints: whatever a peer can cause is counted here and
 * told over netlink. Usable from any context, by every room.
 */
#ifndef HALL_COUNTERS_H
#define HALL_COUNTERS_H

#include <linux/percpu.h>

#define HALL_COUNTERS(C) \
	C(ATTACHED, attached)			/* sockets ever attached */ \
	C(DETACHED, detached)			/* and given back */ \
	C(TX_PROMOTED, tx_promoted)		/* directions we moved to a ring */ \
	C(TX_DEMOTED, tx_demoted)		/* and back to TCP */ \
	C(RX_PROMOTED, rx_promoted)		/* directions the peer moved */ \
	C(RX_DEMOTED, rx_demoted)		/* and back */ \
	C(TX_BYTES_TCP, tx_bytes_tcp)		/* of attached sockets */ \
	C(TX_BYTES_RING, tx_bytes_ring) \
	C(TX_BYTES_UNREAD, tx_bytes_unread)	/* of a ring, when its reader closed */ \
	C(TX_BYTES_REPEATED, tx_bytes_repeated)	/* over TCP: the peer cut the ring */ \
	C(RX_BYTES_TCP, rx_bytes_tcp) \
	C(RX_BYTES_RING, rx_bytes_ring)		/* read from a ring */ \
	C(RX_BYTES_SAVED, rx_bytes_saved)	/* moved from a ring to TCP's queue */ \
	C(RX_CUTS, rx_cuts)			/* rings cut: no answer of the peer, or no time */ \
	C(RINGS_IDLE, rings_idle)		/* given back: nothing was sent */ \
	C(RINGS_GROWN, rings_grown)		/* larger ones after ones that filled */ \
	C(RINGS_SHRUNK, rings_shrunk)		/* ended for smaller ones: others want memory */ \
	C(RINGS_REFUSED, rings_refused)		/* none, or no larger one: no memory */ \
	C(OFFERS, offers) \
	C(OFFERS_DECLINED, offers_declined)	/* by the peer */ \
	C(DECLINES, declines)			/* by us */ \
	C(DEMOTE_REQUESTS, demote_requests)	/* that we sent */ \
	C(DOORBELLS_SENT, doorbells_sent) \
	C(DOORBELLS_RECEIVED, doorbells_received) /* interrupts */ \
	C(STORMS, storms)			/* times that the vector was masked */ \
	C(RX_SLEEPS, rx_sleeps)			/* readers put to sleep on a ring */ \
	C(RX_SPINS, rx_spins)			/* readers that spun */ \
	C(RX_SPIN_HITS, rx_spin_hits)		/* and found bytes */ \
	C(TX_SLEEPS, tx_sleeps)			/* writers put to sleep on a ring */ \
	C(RING_FULL, ring_full)			/* a writer found it full */ \
	C(RING_EMPTY, ring_empty)		/* a reader found it empty */ \
	C(RING_WRAPS, ring_wraps)		/* a writer passed the ring's end */ \
	C(SWITCH_IN_TCP, switch_in_tcp)		/* promoted with bytes left in TCP */ \
	C(SWITCH_IN_RING, switch_in_ring)	/* demoted with bytes left in a ring */ \
	C(SWITCH_READER, switch_reader)		/* a direction moved under a blocked reader */ \
	C(SWITCH_WRITER, switch_writer)		/* a direction moved under a blocked writer */ \
	C(CORRUPT_RINGS, corrupt_rings) \
	C(CORRUPT_MESSAGES, corrupt_messages) \
	C(MESSAGES_LOST, messages_lost) \
	C(RESETS, resets)			/* sockets that we had to reset */ \
	C(WATCHDOG_WAKES, watchdog_wakes)	/* sleepers the watchdog saved: a bug */

#define HALL_COUNTER_ENUM(id, name) HALL_##id,
enum hall_counter {
	HALL_COUNTERS(HALL_COUNTER_ENUM)
	HALL_COUNTER_COUNT
};

struct hall_counters {
	u64 value[HALL_COUNTER_COUNT];
};

DECLARE_PER_CPU(struct hall_counters, hall_counters);

static inline void hall_count_add(enum hall_counter counter, u64 n)
{
	this_cpu_add(hall_counters.value[counter], n);
}

static inline void hall_count(enum hall_counter counter)
{
	hall_count_add(counter, 1);
}

/* The sum over all CPUs; and what people call it. */
u64 hall_counter_read(enum hall_counter counter);
const char *hall_counter_name(enum hall_counter counter);

/* The words for a HALLWAY_REASON_*. */
const char *hall_reason_text(u32 reason);

#endif /* HALL_COUNTERS_H */
