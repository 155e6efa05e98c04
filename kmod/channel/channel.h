/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A channel: the messages of two members about one connection. This room
 * numbers endpoints, sends messages, and checks those that arrive. The room that
 * owns the channel's kind gives them their meaning: sock/ owns streams.
 *
 * A message is received in softirq: the channel keeps it and raises an event,
 * and the owner's work handles the event later. A message replaces an earlier one
 * of its type that the work has not taken yet; only a peer that breaks the
 * protocol sends two.
 */
#ifndef HALL_CHANNEL_H
#define HALL_CHANNEL_H

#include <linux/spinlock.h>

#include "../discovery/discovery.h"
#include "../ring/ring.h"

/* Events: bits of hall_channel.events. */
enum hall_channel_event {
	HALL_EVENT_OFFER,
	HALL_EVENT_ACCEPT,
	HALL_EVENT_DECLINE,
	HALL_EVENT_DEMOTE,
	HALL_EVENT_DONE,
	HALL_EVENT_DEPARTED,	/* the member has departed */
	HALL_EVENT_KIND,	/* the first of the kind's own */
};

/* What is kept of an ACCEPT, DECLINE, DEMOTE or DONE. */
struct hall_answer {
	u32 from;
	u32 carrier;
	u32 reason;
	u64 position;
	__u64 token[2];
};

struct hall_channel {
	const struct hall_channel_kind *kind;
	struct hall_member *member;	/* referenced */
	refcount_t refs;
	spinlock_t lock;		/* BH; messages below, and rings' ends */
	unsigned long events;
	u32 endpoint;			/* our number; 0: none */
	u32 sent_in;			/* the round in which it sent last */
	/*
	 * The peer's numbers; 0: not known yet. A socket that was detached and
	 * attached again has two: the old one for the ring that we still read,
	 * the new one for the ring that we write.
	 */
	u32 sender;			/* of the ring that we read */
	u32 receiver;			/* of the ring that we write */
	struct hallway_message *offer;	/* the peer's last OFFER, allocated */
	struct hall_answer accept, decline, demote, done;
};

/* What the room that owns a kind of channel does with its channels. */
struct hall_channel_kind {
	u16 number;			/* HALLWAY_KIND_* */
	struct module *owner;		/* pinned by each channel; NULL: hallway.ko */
	/*
	 * Returns the channel that a peer's OFFER is for, with a reference. The
	 * channel may exist, or be made for this OFFER. NULL declines the OFFER
	 * with NO_MATCH. Softirq.
	 */
	struct hall_channel *(*offer)(struct hall_member *member,
				      const struct hallway_message *offer);
	/* An event was raised: get to work. Softirq or process context. */
	void (*raised)(struct hall_channel *channel);
	/* The doorbell rang for the channel. Softirq, RCU read lock. */
	void (*wake)(struct hall_channel *channel);
	/*
	 * The last reference is gone. Any context. Look-ups by endpoint may
	 * still read the channel until an RCU grace period has passed.
	 */
	void (*release)(struct hall_channel *channel);
};

/*
 * Registers a kind. An OFFER of a kind that is not registered is declined with
 * reason KIND. Any context.
 */
void hall_channel_register(const struct hall_channel_kind *kind);
/* No channel of the kind is left. After an RCU grace period none of it is called. */
void hall_channel_unregister(const struct hall_channel_kind *kind);

/*
 * Fills in a zeroed channel to the member; the caller has its one reference, and
 * keeps the kind's owner loaded meanwhile.
 */
void hall_channel_setup(struct hall_channel *channel,
			const struct hall_channel_kind *kind,
			struct hall_member *member);
/* The last reference is gone. */
void hall_channel_free(struct hall_channel *channel);

/* Under RCU: false if the last reference is gone. */
static inline bool hall_channel_tryget(struct hall_channel *channel)
{
	return refcount_inc_not_zero(&channel->refs);
}

static inline void hall_channel_put(struct hall_channel *channel)
{
	if (refcount_dec_and_test(&channel->refs))
		hall_channel_free(channel);
}

/*
 * Hands an OFFER to a channel, as if the peer had sent it there. False: no memory.
 * Any context.
 */
bool hall_channel_pass_offer(struct hall_channel *channel,
			     const struct hallway_message *offer);
/* The peer's last OFFER, which is the caller's to free from now on, or NULL. Any context. */
struct hallway_message *hall_channel_take_offer(struct hall_channel *channel);

/* The channel of an endpoint's number, with a reference, or NULL. Any context. */
struct hall_channel *hall_channel_find(struct hall_member *member, u32 endpoint);

/* event: of hall_channel_event, or of the kind's own. Any context. */
void hall_channel_raise(struct hall_channel *channel, unsigned int event);

/*
 * Takes an endpoint number if the channel has none; the number holds a
 * reference. Process context; the owner serialises open and close. Returns 0, or
 * -EUSERS: no number is left, or the member has departed.
 */
int hall_channel_open(struct hall_channel *channel);
/*
 * Keeps the member's memory where it is, as an endpoint does. False: the member has
 * departed. Any context.
 */
bool hall_channel_hold(struct hall_member *member);
void hall_channel_release(struct hall_member *member);
/* Frees the number: no message or doorbell reaches the channel any more. */
void hall_channel_close(struct hall_channel *channel);

/* Counts what was sent through the channel. The owner serialises calls. */
static inline void hall_channel_count_sent(struct hall_channel *channel, u32 bytes)
{
	u32 round = READ_ONCE(hall_send_round);

	this_cpu_add(channel->member->bytes->tx, bytes);
	if (channel->sent_in != round) {
		channel->sent_in = round;
		this_cpu_add(channel->member->bytes->sends, 1);
	}
}

/* Rings the doorbell of the end that reads our ring, or writes the peer's. */
void hall_channel_notify_receiver(struct hall_channel *channel);
void hall_channel_notify_sender(struct hall_channel *channel);

/*
 * map.c: maps the ring of an OFFER that begins a stream. False: there is none, or it is of
 * another carrier. Process context.
 */
bool hall_channel_map_ring(struct hall_channel *channel, const struct hallway_message *offer,
			   u32 carrier, struct hall_rx_ring *rx);
/*
 * Maps the area of a ring that was found grown; the ring is broken if that fails. The caller
 * serialises it with all that reads the ring's area, and has found no area yet. Process
 * context; takes channel.lock.
 */
void hall_channel_map_area(struct hall_channel *channel, struct hall_rx_ring *rx);

/* The tokens of a connection, two for each end: see token.c. */
struct hall_tokens {
	__u64 own[2];	/* in our OFFER or ACCEPT */
	__u64 peer[2];	/* one of them is in the peer's */
};

void hall_tokens_make(struct hall_tokens *tokens, const u8 key[16], u32 own_isn,
		      u32 peer_isn);
/* Does a token that the peer sent belong to the connection's other end? */
bool hall_tokens_match(const struct hall_tokens *tokens, const __u64 token[2]);

/* Sends OFFER: memory is a ring that this end writes. Ports in host order. */
void hall_channel_offer(struct hall_channel *channel, u32 carrier,
			const struct hall_tokens *tokens,
			const struct in6_addr *local, u16 local_port,
			const struct in6_addr *remote, u16 remote_port,
			const struct hall_memory *memory);
/*
 * The same for sockets of the outsourcer, which have no tokens. bytes: of the ring's
 * data, or a listener's backlog.
 */
void hall_channel_call(struct hall_channel *channel, u32 carrier,
		       const struct hallway_call *call,
		       const struct in6_addr *local, u16 local_port,
		       const struct in6_addr *remote, u16 remote_port, u32 bytes,
		       const struct hallway_handle *handle);
/* The same for tunnels, without addresses. */
void hall_channel_tunnel(struct hall_channel *channel, u32 carrier,
			 const struct hallway_tunnel *tunnel,
			 const struct hall_memory *memory);
/* Sends ACCEPT of the ring that we read. */
void hall_channel_accept(struct hall_channel *channel, u32 carrier,
			 const struct hall_tokens *tokens);
/*
 * Sends DECLINE of an OFFER. The channel, if there is one, may have no endpoint
 * number: the member is enough.
 */
void hall_channel_decline(struct hall_member *member,
			  const struct hallway_message *offer, u32 reason);
/* Sends DEMOTE or DONE of the ring that we read. */
void hall_channel_send(struct hall_channel *channel, u16 type, u32 carrier,
		       u32 reason, u64 position);

/* Waits until every channel to the member has closed; patience in jiffies. */
void hall_channel_drain(struct hall_member *member, unsigned long patience);
/* Raises the event on every channel to the member, or on those of a kind. */
void hall_channel_raise_all(struct hall_member *member, const struct hall_channel_kind *kind,
			    unsigned int event);

void hall_channel_init(void);

#endif /* HALL_CHANNEL_H */
