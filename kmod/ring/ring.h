/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One direction of a connection in shared memory: see abi/hallway/ring.h for
 * the layout, ring.c for how it works.
 *
 * Nothing here sleeps, allocates or locks. The caller serialises all calls on
 * one end; the two ends need no common lock.
 */
#ifndef HALL_RING_H
#define HALL_RING_H

#include "env.h"
#include <hallway/ring.h>

/* The sender's end. Private memory: the peer can't reach it. */
struct hall_tx_ring {
	struct hallway_ring *shared;
	u8 *data;		/* where the bytes from head on lie */
	u32 size;		/* bytes of that, a power of two */
	bool broken;		/* sticky: the peer wrote an impossible index */
	u64 grown_at;		/* the bytes from here on lie at data; 0: all */
	bool is_short;		/* a SHORT mark says that there is no memory to grow */
	u64 head;		/* ours; the shared one is a copy */
	u64 tail;		/* the peer's, as last seen and found possible */
	u64 truncated;		/* the position at which the peer has truncated it */
	bool armed;		/* a doorbell was asked for at event */
	u64 event;
};

/* The receiver's end. */
struct hall_rx_ring {
	struct hallway_ring *shared;
	u8 *data;		/* where the bytes below grown_at lie, or all */
	u32 data_size;		/* bytes of that, a power of two */
	u32 size;		/* the same, or bytes of the area */
	bool may_grow;		/* both sides know how; the owner sets it */
	bool grown;		/* grown_at and size are final; release, acquire */
	bool is_short;		/* the writer had no memory to grow */
	u64 grown_at;
	u8 *area;		/* the owner maps it, and sets this, before it reads; or NULL */
	bool broken;
	bool started;		/* the start mark was seen; start_seq is valid */
	bool ended;		/* the end mark was seen, or set by us: head is final */
	bool reset;		/* the end mark resets a tunnel; other rings ignore it */
	u32 start_seq;
	u64 tail;		/* ours; the shared one is a copy */
	u64 head;		/* the peer's, as last seen and found possible */
	bool armed;		/* a doorbell was asked for at event */
	u64 event;
	u64 woken_at;		/* tail + 1 as the reader last woke the writer; or 0 */
};

/* A run of bytes in the ring; it never wraps. */
struct hall_span {
	u8 *data;
	u32 len;
};

/* Where the next bytes of the stream come from. */
enum hall_rx_source {
	HALL_RX_EMPTY,		/* nothing has come; later bytes may */
	HALL_RX_TCP,		/* n bytes from TCP, and not one more */
	HALL_RX_RING,		/* n bytes from the ring */
	HALL_RX_ENDED,		/* the ring is drained and ended: TCP goes on */
	HALL_RX_CORRUPT,	/* the peer broke the rules */
};

/*
 * Free bytes at which a writer that found the ring full is woken, so that a wake-up is
 * worth its cost.
 */
#define HALL_RING_WAKE_SPACE(size)	((size) / 2)

/* A ring is writable for poll() while it has this space. */
#define HALL_RING_LEAST_SPACE(size)	((size) / 16)

/* Bytes that a ring of that size holds at least, if its reader takes none: its writer may poll. */
#define HALL_RING_FILLS(size)	((size) - HALL_RING_LEAST_SPACE(size))

/*
 * May such a writer sleep? A reader that leaves these bytes, and waits for others, has to
 * notify it. True once for a tail: two readers that do so would wake each other for ever,
 * and a writer that fills the ring afterwards wakes the reader. As of the last look of ours.
 */
static inline bool hall_ring_should_wake_writer(struct hall_rx_ring *rx)
{
	if (rx->head - rx->tail <= HALL_RING_WAKE_SPACE(rx->size) ||
	    rx->woken_at == rx->tail + 1)
		return false;
	rx->woken_at = rx->tail + 1;
	return true;
}

/* Did the step from old to new pass the position event? */
static inline bool hall_ring_passes_event(u64 event, u64 new, u64 old)
{
	return new - event - 1 < new - old;
}

/* Is size one that a ring can have? */
bool hall_ring_is_valid_size(u64 size);

/* Sender: make memory of HALLWAY_RING_HEADER + size bytes a fresh ring. */
void hall_ring_init_tx(struct hall_tx_ring *tx, struct hallway_ring *shared,
		       u32 size, u32 carrier);
/* Receiver: take up a ring of the size that was agreed. False: not a ring. */
bool hall_ring_init_rx(struct hall_rx_ring *rx, struct hallway_ring *shared,
		       u32 size, u32 carrier);
/*
 * The same for a stream that begins in the ring: no byte comes over TCP. False, too, if
 * its sender has not set the start mark for 0. It is not looked at again.
 */
bool hall_ring_init_first_rx(struct hall_rx_ring *rx, struct hallway_ring *shared,
			     u32 size, u32 carrier);

/* Sender: free bytes, 0 also if broken. */
u32 hall_ring_count_space(struct hall_tx_ring *tx);
/* Sender: bytes that the receiver has not consumed yet. */
u32 hall_ring_count_unread(struct hall_tx_ring *tx);
/* Sender: a free run, offset bytes ahead, at most max bytes; len 0 if there is none. */
struct hall_span hall_ring_get_tx_span(struct hall_tx_ring *tx, u32 offset,
				       u32 max);
/* Sender: free bytes, by what is known of the peer's index. */
static inline u32 hall_ring_get_known_space(const struct hall_tx_ring *tx)
{
	u64 first = max_t(u64, READ_ONCE(tx->tail), tx->grown_at);

	return tx->size - (u32)(READ_ONCE(tx->head) - first);
}

/*
 * Sender: n free bytes that do not wrap, by what is known of the peer's index; NULL if
 * there are not as many. Beside others, as hall_ring_publish().
 */
static inline u8 *hall_ring_find_free(const struct hall_tx_ring *tx, u32 n)
{
	u32 at = tx->head & (tx->size - 1);

	return hall_ring_get_known_space(tx) < n || tx->size - at < n || tx->broken ?
		       NULL : tx->data + at;
}

/*
 * Sender: the first n bytes of the span are written. True: ring the doorbell. Beside
 * others of this end that load the peer's index, arm or disarm: these find a head that
 * is no older than the tail that they have loaded.
 */
static inline bool hall_ring_publish(struct hall_tx_ring *tx, u32 n)
{
	u64 old = tx->head, new = old + n;

	/* Ours first: the peer's answer to the shared one may come at once. */
	WRITE_ONCE(tx->head, new);
	virt_store_release(&tx->shared->head, new);		/* A */
	virt_mb();						/* C */
	return hall_ring_passes_event(READ_ONCE(tx->shared->head_event), new, old);
}

/*
 * Sender: the bytes from head on go to data, of size bytes, more than it had. Once, if the
 * receiver knows how. handle: what the receiver maps data by.
 */
void hall_ring_grow(struct hall_tx_ring *tx, u8 *data, u32 size,
		    const struct hallway_handle *handle);
/*
 * Sender: there is no memory for the ring to grow now. True: ring the doorbell, as the
 * receiver may wait for more bytes than the ring holds.
 */
bool hall_ring_report_short(struct hall_tx_ring *tx);
/*
 * Sender: ask for a doorbell once want bytes are free, unless least are free
 * now. True: they are, or the ring is broken: do not sleep. want is well above
 * least, or each read would wake a writer at the limit.
 */
bool hall_ring_arm_tail(struct hall_tx_ring *tx, u32 least, u32 want);
/*
 * Sender: is the doorbell that was asked for due? It has rung, or is lost. When
 * it rings, call hall_ring_disarm_tx().
 */
bool hall_ring_is_tx_due(struct hall_tx_ring *tx);
void hall_ring_disarm_tx(struct hall_tx_ring *tx);
/*
 * Sender: set the marks; each once, start first. hall_ring_set_end() returns how
 * many bytes the receiver has truncated before: hall_ring_get_truncated() has
 * them, to be resent over TCP before any other, and dropped then.
 */
void hall_ring_set_start(struct hall_tx_ring *tx, u32 seq);
u32 hall_ring_set_end(struct hall_tx_ring *tx);
/* Sender, of a tunnel: sets the end mark that is a reset, unless the ring has ended. */
void hall_ring_set_reset(struct hall_tx_ring *tx);
/* Sender: has the receiver truncated the ring, as far as can be seen now? Any context. */
bool hall_ring_is_truncated(const struct hall_tx_ring *tx);
/* Sender: a run of the truncated bytes, offset bytes ahead. The ring has not grown. */
struct hall_span hall_ring_get_truncated(const struct hall_tx_ring *tx,
					 u32 offset);
void hall_ring_drop_truncated(struct hall_tx_ring *tx);
/*
 * Sender: the receiver says that it took the bytes below position and will take
 * no more. *lost: bytes that are lost by that. False: an impossible position.
 */
bool hall_ring_finish(struct hall_tx_ring *tx, u64 position, u32 *lost);

/* Receiver: bytes to read, 0 also if broken. */
u32 hall_ring_count_used(struct hall_rx_ring *rx);
/*
 * Receiver: the most bytes that can be unread at a time. While the ring may grow that is
 * more than it holds: its sender has it grow once it is full, or says that it can't, and rings.
 */
u32 hall_ring_find_most(struct hall_rx_ring *rx);
/*
 * Receiver: a run of unread bytes, offset bytes ahead, at most max bytes. Of a ring that
 * has grown the owner has mapped the area before: without it the run has no bytes.
 */
struct hall_span hall_ring_get_rx_span(struct hall_rx_ring *rx, u32 offset,
				       u32 max);
/*
 * Receiver: the next n bytes, no more than hall_ring_count_used() has just returned, if the
 * ring has not grown and they do not wrap; else NULL.
 */
static inline u8 *hall_ring_find_unread(const struct hall_rx_ring *rx, u32 n)
{
	u32 at = rx->tail & (rx->data_size - 1);

	return READ_ONCE(rx->grown) || rx->data_size - at < n ? NULL : rx->data + at;
}

/* Receiver: n bytes are taken. True: ring the doorbell. */
static inline bool hall_ring_consume(struct hall_rx_ring *rx, u32 n)
{
	u64 old = rx->tail, new = old + n;

	rx->tail = new;
	virt_store_release(&rx->shared->tail, new);		/* B */
	virt_mb();						/* C */
	return hall_ring_passes_event(READ_ONCE(rx->shared->tail_event), new, old);
}

/* Receiver: ask for a doorbell when want bytes are there. True: don't sleep. */
bool hall_ring_arm_head(struct hall_rx_ring *rx, u32 want);
/*
 * Receiver: end the ring at its head; the sender resends later bytes over TCP.
 * Without effect if the sender has ended the ring before.
 */
void hall_ring_truncate(struct hall_rx_ring *rx);
/* Receiver: the same at its tail: the sender resends the unread bytes, too. */
void hall_ring_truncate_unread(struct hall_rx_ring *rx);
/* Receiver: as for the sender. */
bool hall_ring_is_rx_due(struct hall_rx_ring *rx);
void hall_ring_disarm_rx(struct hall_rx_ring *rx);
/* Receiver: have no doorbell rung until it is armed again. */
void hall_ring_mute_rx(struct hall_rx_ring *rx);
/* Receiver: have the doorbell rung for the next byte, though there may be unread ones. */
void hall_ring_arm_edge(struct hall_rx_ring *rx);
/* Receiver: the same, unless target bytes are unread. True: they are, or it is broken. */
bool hall_ring_arm_next(struct hall_rx_ring *rx, u32 target);

/*
 * Receiver: find where the next bytes are. copied is the TCP sequence number of
 * the next byte to be read from TCP, arrived that of the first byte that has not
 * arrived, a FIN not counted. The caller samples arrived before the call, and
 * reads no TCP byte past it on this answer.
 */
enum hall_rx_source hall_ring_find_source(struct hall_rx_ring *rx, u32 copied,
					  u32 arrived, u32 *n);

#endif /* HALL_RING_H */
