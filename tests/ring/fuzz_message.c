// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hostile peer's messages: kmod/channel as it is, on a little of a kernel
 * (shim/kernel.h). The input opens and closes channels and lets any 128 bytes
 * come in as a message. Whatever comes, a message touches at most the channel
 * that it names, is answered at most once, and keeps no reference or memory.
 */
#include "input.h"
#include "kernel.h"

#include "../../kmod/channel/channel.c"
#include "../../kmod/channel/token.c"

#define CHANNELS 6

bool shim_no_memory;
struct hall_counters hall_counters;
struct hall_transport_handler hall_transport_handler;

static struct hall_member *member;
static struct hall_channel *channels[CHANNELS];
static struct hallway_message answer;
static unsigned int answers, raised, woken, searched, rung;
static struct hall_channel *raised_on, *woken_on;

/* What surrounds the room */

void hall_member_put(struct hall_member *m)
{
	MUST(m == member);
	refcount_dec_and_test(&m->refs);
}

static void transport_send(struct hall_member *m,
			   const struct hallway_message *message)
{
	MUST(m == member);
	answer = *message;
	answers++;
}

static void transport_notify(struct hall_member *m, u32 endpoint)
{
	MUST(m == member && endpoint && endpoint < HALLWAY_ENDPOINTS_MAX);
	rung = endpoint;
}

static const struct hall_transport transport = {
	.name = "hostile",
	.send = transport_send,
	.notify = transport_notify,
};

static struct hall_channel *on_offer(struct hall_member *m,
				     const struct hallway_message *offer)
{
	struct hall_channel *channel = channels[offer->offer.remote_port % 8 % CHANNELS];

	MUST(m == member && offer->type == HALLWAY_OFFER && offer->from);
	searched++;
	return channel && hall_channel_tryget(channel) ? channel : NULL;
}

static void on_raised(struct hall_channel *channel)
{
	raised++;
	raised_on = channel;
}

static void on_wake(struct hall_channel *channel)
{
	woken++;
	woken_on = channel;
}

static void on_release(struct hall_channel *channel)
{
	MUST(!channel->lock.held && !channel->endpoint);
	free(channel);
}

static const struct hall_channel_kind stream = {
	.number = HALLWAY_KIND_STREAM,
	.offer = on_offer,
	.raised = on_raised,
	.wake = on_wake,
	.release = on_release,
};

static void channel_open(unsigned int i)
{
	if (!channels[i]) {
		channels[i] = calloc(1, sizeof(*channels[i]));
		hall_channel_setup(channels[i], &stream, member);
	}
	MUST(!hall_channel_open(channels[i]));
}

static void channel_drop(unsigned int i)
{
	struct hall_channel *channel = channels[i];

	if (!channel)
		return;
	channels[i] = NULL;
	hall_channel_close(channel);
	hall_channel_put(channel);
}

/* All that a departure waits for. */
void shim_wait(void)
{
	unsigned int i;

	for (i = 0; i < CHANNELS; i++) {
		MUST(!channels[i] || !channels[i]->endpoint ||
		     channels[i]->events & 1 << HALL_EVENT_DEPARTED);
		channel_drop(i);
	}
}

static void check(void)
{
	unsigned int i, open = 0;

	for (i = 0; i < CHANNELS; i++) {
		struct hall_channel *channel = channels[i];

		if (!channel)
			continue;
		open += channel->endpoint != 0;
		MUST(channel->refs.refs == 1 + (channel->endpoint != 0));
		MUST(!channel->lock.held);
		/* Which words tell them is for the socket's state to say. */
		MUST(!channel->sender && !channel->receiver);
	}
	MUST(member->channels.counter == (int)open);
}

/* The channel that a message means, as the specification has it. */
static struct hall_channel *meant(const struct hallway_message *m)
{
	unsigned int i;

	if (m->type == HALLWAY_OFFER)
		return channels[m->offer.remote_port % 8 % CHANNELS];
	for (i = 0; i < CHANNELS; i++)
		if (channels[i] && channels[i]->endpoint == m->to)
			return channels[i];
	return NULL;
}

/* Nobody has such numbers: section 5 of the specification. */
static bool is_forged(const struct hallway_message *m)
{
	if (m->type == HALLWAY_OFFER ? m->to : !m->to)
		return true;
	return m->from >= HALLWAY_ENDPOINTS_MAX ||
	       (!m->from && m->type != HALLWAY_DECLINE);
}

/* old: the channel's OFFER before, or NULL. */
static void judge(const struct hallway_message *m, struct hall_channel *channel,
		  const struct hallway_message *old)
{
	bool forged = is_forged(m);
	const struct hall_answer *kept = NULL;
	u32 refused = 0;

	MUST(answers <= 1 && raised <= 1);
	if (forged || m->type != HALLWAY_OFFER)
		MUST(!answers);
	if (forged || (!channel && m->type != HALLWAY_OFFER)) {
		MUST(!raised);
		return;
	}
	switch (m->type) {
	case HALLWAY_OFFER:
		if (m->offer.kind != HALLWAY_KIND_STREAM)
			refused = HALLWAY_REASON_KIND;
		else if (!channel)
			refused = HALLWAY_REASON_NO_MATCH;
		else if (shim_no_memory)
			refused = HALLWAY_REASON_NO_MEMORY;
		MUST(raised == !refused);
		if (!refused) {
			MUST(raised_on == channel);
			MUST(!memcmp(channel->offer, m, sizeof(*m)));
			/* What it replaces is answered. */
			MUST(answers == (old && (old->from != m->from ||
						 old->carrier != m->carrier)));
			MUST(!answers || (answer.type == HALLWAY_DECLINE &&
					  answer.to == old->from &&
					  answer.carrier == old->carrier));
			return;
		}
		MUST(answers == 1);
		MUST(answer.type == HALLWAY_DECLINE && answer.to == m->from &&
		     answer.carrier == m->carrier && !answer.from &&
		     answer.other.reason == refused);
		return;
	case HALLWAY_ACCEPT:
		kept = &channel->accept;
		break;
	case HALLWAY_DECLINE:
		kept = &channel->decline;
		break;
	case HALLWAY_DEMOTE:
		kept = &channel->demote;
		break;
	case HALLWAY_DONE:
		kept = &channel->done;
		break;
	}
	MUST(raised == (kept != NULL));
	if (!kept)
		return;
	MUST(raised_on == channel);
	MUST(kept->from == m->from && kept->carrier == m->carrier &&
	     kept->reason == m->other.reason &&
	     kept->position == m->other.position &&
	     !memcmp(kept->token, m->other.token, sizeof(kept->token)));
}

static void message(void)
{
	struct hallway_message m, old;
	struct hall_channel *channel;
	bool offered;
	u8 how = byte(), *raw = (u8 *)&m;
	unsigned int i;

	for (i = 0; i < sizeof(m); i++)
		raw[i] = how & 1 || i < 16 ? byte() : 0;
	/* Most get further if their head is nearly right. */
	if (how & 2)
		m.type %= 8;
	if (how & 4)
		m.from %= HALLWAY_ENDPOINTS_MAX + 1;
	if (how & 8)
		m.to %= CHANNELS + 2;
	if (how & 16) {
		m.offer.kind = HALLWAY_KIND_STREAM;
		if (m.type == HALLWAY_OFFER)
			m.to = 0;
		m.offer.remote_port = byte();
	}
	shim_no_memory = (how & 0xe0) == 0xe0;
	answers = raised = searched = 0;
	channel = meant(&m);
	offered = channel && channel->offer;
	if (offered)
		old = *channel->offer;
	struct hallway_message sent = m;

	hall_transport_handler.message(member, &m);
	MUST(!memcmp(&sent, &m, sizeof(m)));
	MUST(searched <= 1);
	judge(&m, channel, offered ? &old : NULL);
	shim_no_memory = false;
}

static void wake(void)
{
	u32 endpoint = byte() & 1 ? number(4) % HALLWAY_ENDPOINTS_MAX : byte() % 8;
	struct hall_channel *channel = xa_load(&member->endpoints, endpoint);

	woken = 0;
	hall_transport_handler.wake(member, endpoint);
	MUST(woken == (channel != NULL));
	MUST(!channel || woken_on == channel);
}

/* The owner knows the peer's numbers: each word goes where it belongs. */
static void speak(struct hall_channel *channel)
{
	u32 sender = number(4) % HALLWAY_ENDPOINTS_MAX;
	u32 receiver = number(4) % HALLWAY_ENDPOINTS_MAX;
	struct hall_tokens tokens = { .own = { number(4), number(4) } };

	channel->sender = sender;
	channel->receiver = receiver;
	rung = 0;
	hall_channel_notify_sender(channel);
	MUST(rung == sender);
	rung = 0;
	hall_channel_notify_receiver(channel);
	MUST(rung == receiver);
	hall_channel_send(channel, HALLWAY_DONE, 7, 0, 9);
	MUST(answer.type == HALLWAY_DONE && answer.to == sender &&
	     answer.from == channel->endpoint && answer.carrier == 7 &&
	     answer.other.position == 9);
	hall_channel_accept(channel, 5, &tokens);
	MUST(answer.type == HALLWAY_ACCEPT && answer.to == sender &&
	     answer.carrier == 5 &&
	     !memcmp(answer.other.token, tokens.own, sizeof(tokens.own)));
	channel->sender = channel->receiver = 0;
}

/* Both ends of a connection know it by each other's offers; no other does. */
static void tokens(void)
{
	u32 iss_active = number(4), iss_passive = number(4), other = number(4);
	struct hall_tokens active, passive, stranger;
	u8 key[16] = { byte() };

	hall_tokens_make(&active, key, iss_active, iss_passive + 1);
	hall_tokens_make(&passive, key, iss_passive + 1, iss_active + 1);
	MUST(hall_tokens_match(&passive, active.own));
	MUST(hall_tokens_match(&active, passive.own));
	if (other - iss_active + 2 <= 4)
		return;
	hall_tokens_make(&stranger, key, other, iss_passive + 1);
	MUST(!hall_tokens_match(&stranger, passive.own));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	unsigned int i;

	input = data;
	left = length;
	hall_channel_init();
	hall_channel_register(&stream);
	member = calloc(1, sizeof(*member));
	member->transport = &transport;
	refcount_set(&member->refs, 1);
	for (i = 0; i < 3; i++)
		channel_open(i);
	while (left) {
		u8 what = byte();

		i = (what >> 3) % CHANNELS;
		switch (what & 7) {
		case 0:
			channel_open(i);
			break;
		case 1:
			channel_drop(i);
			break;
		case 2:
			/* The owner takes the offer up. */
			if (channels[i]) {
				free(channels[i]->offer);
				channels[i]->offer = NULL;
			}
			break;
		case 3:
			wake();
			break;
		case 4:
			if (what == 4)
				hall_channel_raise_all(member, NULL, HALL_EVENT_DEPARTED);
			else if (channels[i])
				speak(channels[i]);
			break;
		case 5:
			tokens();
			break;
		default:
			message();
		}
		check();
	}
	for (i = 0; i < CHANNELS; i++)
		channel_drop(i);
	check();
	MUST(member->refs.refs == 1);
	free(member);
	return 0;
}
