// SPDX-License-Identifier: GPL-2.0-only
/*
 * Options of an outsourced socket.
 *
 * The husk has them all: the native functions check a value and keep it. What concerns
 * packets is then passed to the outsourcer, in the head of our ring (hallway/ring.h).
 * A state is passed, not a call: so a program that sets an option waits for nothing,
 * and one that sets it in a loop causes nothing but doorbells. An option that
 * the outsourcer can't have is refused, or its socket was left native (decide.c).
 *
 * Options of SOL_SOCKET are set without a call of the socket's table. SO_KEEPALIVE is
 * passed with the next call that has one. What is neither passed nor refused concerns
 * the husk alone, or acts on nothing: docs/outsourcing.md names those.
 */
#include "options.h"

#include <linux/tcp.h>
#include <linux/uaccess.h>
#include <net/ipv6.h>
#include <net/tcp.h>

#include "calls.h"
#include "hook.h"

/* For an answer of the outsourcer. */
#define PATIENCE	HZ

static const struct option {
	int level, name, initial;
} options[] = {
	[HALLWAY_OPTION_KEEPALIVE] = { SOL_SOCKET, SO_KEEPALIVE },
	[HALLWAY_OPTION_NODELAY] = { SOL_TCP, TCP_NODELAY },
	[HALLWAY_OPTION_CORK] = { SOL_TCP, TCP_CORK },
	[HALLWAY_OPTION_KEEPIDLE] = { SOL_TCP, TCP_KEEPIDLE },
	[HALLWAY_OPTION_KEEPINTVL] = { SOL_TCP, TCP_KEEPINTVL },
	[HALLWAY_OPTION_KEEPCNT] = { SOL_TCP, TCP_KEEPCNT },
	[HALLWAY_OPTION_USER_TIMEOUT] = { SOL_TCP, TCP_USER_TIMEOUT },
	[HALLWAY_OPTION_SYNCNT] = { SOL_TCP, TCP_SYNCNT },
	[HALLWAY_OPTION_MAXSEG] = { SOL_TCP, TCP_MAXSEG },
	[HALLWAY_OPTION_TOS] = { SOL_IP, IP_TOS },
	[HALLWAY_OPTION_TTL] = { SOL_IP, IP_TTL, -1 },
	[HALLWAY_OPTION_TCLASS] = { SOL_IPV6, IPV6_TCLASS },
	[HALLWAY_OPTION_HOPS] = { SOL_IPV6, IPV6_UNICAST_HOPS, -1 },
};

/* The initial value: the program has not set it. */
static int read_option(const struct sock *sk, unsigned int number)
{
	const struct inet_connection_sock *icsk = inet_csk(sk);
	const struct inet_sock *inet = inet_sk(sk);
	const struct tcp_sock *tp = tcp_sk(sk);
#if IS_ENABLED(CONFIG_IPV6)
	const struct ipv6_pinfo *np = sk->sk_family == AF_INET6 ? inet6_sk(sk) :
								   NULL;
#endif

	switch (number) {
	case HALLWAY_OPTION_KEEPALIVE:
		return sock_flag(sk, SOCK_KEEPOPEN);
	case HALLWAY_OPTION_NODELAY:
		return !!(tp->nonagle & TCP_NAGLE_OFF);
	case HALLWAY_OPTION_CORK:
		return !!(tp->nonagle & TCP_NAGLE_CORK);
	case HALLWAY_OPTION_KEEPIDLE:
		return READ_ONCE(tp->keepalive_time) / HZ;
	case HALLWAY_OPTION_KEEPINTVL:
		return READ_ONCE(tp->keepalive_intvl) / HZ;
	case HALLWAY_OPTION_KEEPCNT:
		return READ_ONCE(tp->keepalive_probes);
	case HALLWAY_OPTION_USER_TIMEOUT:
		return READ_ONCE(icsk->icsk_user_timeout);
	case HALLWAY_OPTION_SYNCNT:
		return READ_ONCE(icsk->icsk_syn_retries);
	case HALLWAY_OPTION_MAXSEG:
		return READ_ONCE(tp->rx_opt.user_mss);
	case HALLWAY_OPTION_TOS:
		return READ_ONCE(inet->tos);
	case HALLWAY_OPTION_TTL:
		return READ_ONCE(inet->uc_ttl);
#if IS_ENABLED(CONFIG_IPV6)
	case HALLWAY_OPTION_TCLASS:
		return np ? READ_ONCE(np->tclass) : 0;
	case HALLWAY_OPTION_HOPS:
		return np ? np->hop_limit : -1;
#endif
	default:
		return options[number].initial;
	}
}

static bool pass_options(struct hall_out *out, struct hallway_ring *ring,
			 const struct sock *sk)
{
	struct hallway_options *shared = &ring->options;
	bool any = false;
	unsigned int n;
	int value;

	for (n = 0; n < ARRAY_SIZE(options); n++) {
		value = read_option(sk, n);
		if (out->passed[n] == value)
			continue;
		WRITE_ONCE(out->passed[n], value);
		WRITE_ONCE(shared->value[n], value);
		/* A full barrier: the value is there before its bit. */
		sync_set_bit(n, (unsigned long *)&shared->changed);
		any = true;
	}
	return any;
}

void hall_options_init(struct hall_out *out, struct hallway_ring *ring,
		       const struct sock *sk)
{
	struct hallway_options *shared = &ring->options;
	unsigned int n;

	BUILD_BUG_ON(ARRAY_SIZE(options) > ARRAY_SIZE(out->passed));
	BUILD_BUG_ON(ARRAY_SIZE(out->passed) > HALLWAY_OPTIONS);
	memset(shared, 0, sizeof(*shared));
	for (n = 0; n < ARRAY_SIZE(options); n++) {
		WRITE_ONCE(out->passed[n], options[n].initial);
		shared->value[n] = options[n].initial;
	}
	pass_options(out, ring, sk);
}

void hall_options_pass(struct hall_out *out)
{
	if (out->memory.ring && pass_options(out, out->memory.ring, out->sk))
		hall_channel_notify_receiver(&out->channel);
}

void hall_options_inherit(struct sock *sk, const struct sock *listener)
{
	struct inet_connection_sock *icsk = inet_csk(sk);
	const struct tcp_sock *from = tcp_sk(listener);
	struct tcp_sock *tp = tcp_sk(sk);

	sk->sk_rcvtimeo = READ_ONCE(listener->sk_rcvtimeo);
	sk->sk_sndtimeo = READ_ONCE(listener->sk_sndtimeo);
	sk->sk_rcvlowat = READ_ONCE(listener->sk_rcvlowat);
	sk->sk_lingertime = READ_ONCE(listener->sk_lingertime);
	if (sock_flag(listener, SOCK_LINGER))
		sock_set_flag(sk, SOCK_LINGER);
	if (sock_flag(listener, SOCK_KEEPOPEN))
		sock_set_flag(sk, SOCK_KEEPOPEN);
	tp->nonagle = from->nonagle;
	tp->keepalive_time = READ_ONCE(from->keepalive_time);
	tp->keepalive_intvl = READ_ONCE(from->keepalive_intvl);
	tp->keepalive_probes = READ_ONCE(from->keepalive_probes);
	tp->rx_opt.user_mss = READ_ONCE(from->rx_opt.user_mss);
	icsk->icsk_user_timeout = READ_ONCE(inet_csk(listener)->icsk_user_timeout);
	icsk->icsk_syn_retries = READ_ONCE(inet_csk(listener)->icsk_syn_retries);
	inet_sk(sk)->tos = READ_ONCE(inet_sk(listener)->tos);
	inet_sk(sk)->uc_ttl = READ_ONCE(inet_sk(listener)->uc_ttl);
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6) {
		inet6_sk(sk)->tclass = READ_ONCE(inet6_sk(listener)->tclass);
		inet6_sk(sk)->hop_limit = inet6_sk(listener)->hop_limit;
	}
#endif
}

/* What acts on packets, and is not passed to the outsourcer. */
static bool is_refused(int level, int name)
{
	switch (level) {
	case SOL_TCP:
		switch (name) {
		case TCP_CONGESTION:
		case TCP_FASTOPEN:
		case TCP_FASTOPEN_CONNECT:
		case TCP_MD5SIG:
		case TCP_MD5SIG_EXT:
		case TCP_REPAIR:
		case TCP_TX_DELAY:
		case TCP_ULP:
#ifdef TCP_AO_ADD_KEY
		case TCP_AO_ADD_KEY:
		case TCP_AO_INFO:
		case TCP_AO_REPAIR:
#endif
			return true;
		}
		return false;
	case SOL_IP:
		return name == IP_OPTIONS || name == IP_TRANSPARENT ||
		       name == IP_MINTTL || name == IP_IPSEC_POLICY ||
		       name == IP_XFRM_POLICY;
	case SOL_IPV6:
		switch (name) {
		case IPV6_ADDRFORM:
		case IPV6_TRANSPARENT:
		case IPV6_MINHOPCOUNT:
		case IPV6_HOPOPTS:
		case IPV6_RTHDR:
		case IPV6_RTHDRDSTOPTS:
		case IPV6_DSTOPTS:
		case IPV6_2292PKTOPTIONS:
		case IPV6_IPSEC_POLICY:
		case IPV6_XFRM_POLICY:
			return true;
		}
		return false;
	default:
		return false;
	}
}

static noinline int set_sockopt(struct socket *sock, int level, int name,
				sockptr_t value, unsigned int length)
{
	const struct proto_ops *native = hall_tables_of(sock->sk)->native;
	struct hall_out *out = hall_out_get(sock->sk);
	int err = -ENOPROTOOPT;

	if (!out)
		return HALL_NATIVE;
	if (!is_refused(level, name))
		err = native->setsockopt(sock, level, name, value, length);
	if (!err) {
		mutex_lock(&out->mutex);
		hall_options_pass(out);
		hall_out_unlock(out);
	}
	hall_out_put(out);
	return err;
}

int hall_out_setsockopt(struct socket *sock, int level, int name, sockptr_t value,
			unsigned int length)
{
	int err = set_sockopt(sock, level, name, value, length);

	if (err != HALL_NATIVE)
		return err;
	return hall_tables_of(sock->sk)->native->setsockopt(sock, level, name, value,
							    length);
}

/* What the outsourcer answers: see struct hallway_options. */
struct answer {
	u32 unacked;
	u32 size;
	union {
		u8 bytes[HALLWAY_INFO_MAX];
		struct tcp_info info;
	};
};

/* 1 once the outsourcer has answered, 0 if not yet, HALL_NATIVE if it will not. */
static int take_answer(struct hall_out *out, u32 question, struct answer *answer)
{
	const struct hallway_options *shared;
	int taken = HALL_NATIVE;

	mutex_lock(&out->mutex);
	if (out->memory.ring && !out->closed) {
		shared = &out->memory.ring->options;
		taken = (s32)(READ_ONCE(shared->answered) - question) >= 0;
		virt_rmb();
	}
	if (taken > 0) {
		answer->size = min_t(u32, READ_ONCE(shared->info_size),
				     HALLWAY_INFO_MAX);
		answer->unacked = READ_ONCE(shared->unacked);
		memcpy(answer->bytes, shared->info, answer->size);
	}
	hall_out_unlock(out);
	return taken;
}

static u32 ask_outsourcer(struct hall_out *out)
{
	u32 question;

	mutex_lock(&out->mutex);
	question = ++out->asked;
	if (out->memory.ring) {
		WRITE_ONCE(out->memory.ring->options.asked, question);
		hall_channel_notify_receiver(&out->channel);
	}
	hall_out_unlock(out);
	return question;
}

/* NULL: no memory. Else it is to be freed. *err: 0, or HALL_NATIVE if there is no answer. */
static struct answer *await_answer(struct hall_out *out, int *err)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	struct answer *answer = kzalloc(sizeof(*answer), GFP_KERNEL);
	long timeo = PATIENCE;
	u32 question;
	int taken;

	*err = -ENOMEM;
	if (!answer)
		return NULL;
	add_wait_queue(&out->answers, &wait);
	question = ask_outsourcer(out);
	while (!(taken = take_answer(out, question, answer))) {
		if (!timeo || fatal_signal_pending(current))
			taken = -ETIMEDOUT;
		if (taken)
			break;
		timeo = wait_woken(&wait, TASK_KILLABLE, timeo);
	}
	remove_wait_queue(&out->answers, &wait);
	*err = min(taken, 0);
	return answer;
}

int hall_options_count_unacked(struct hall_out *out, bool unsent)
{
	struct answer *answer;
	u32 n = 0;
	int err;

	answer = await_answer(out, &err);
	if (!err)
		n = unsent ? answer->info.tcpi_notsent_bytes : answer->unacked;
	kfree(answer);
	/* Without a socket of its own the host has nothing left. */
	return err && err != HALL_NATIVE ? err : min_t(u32, n, INT_MAX / 2);
}

/* TCP_INFO or TCP_MAXSEG: both are the connection's, not the program's. */
static int get_info(struct hall_out *out, int name, char __user *value,
		    int __user *length)
{
	struct answer *answer;
	const void *from;
	int size, err;
	u32 has;

	if (get_user(size, length))
		return -EFAULT;
	if (size < 0)
		return -EINVAL;
	answer = await_answer(out, &err);
	if (!err && !answer->size)
		err = HALL_NATIVE;
	if (!err) {
		from = answer->bytes;
		has = answer->size;
		if (name == TCP_MAXSEG) {
			from = &answer->info.tcpi_snd_mss;
			has = sizeof(answer->info.tcpi_snd_mss);
		}
		size = min_t(u32, size, has);
		if (put_user(size, length) || copy_to_user(value, from, size))
			err = -EFAULT;
	}
	kfree(answer);
	return err;
}

static noinline int get_sockopt(struct socket *sock, int level, int name,
				char __user *value, int __user *length)
{
	struct hall_out *out = NULL;
	int err = HALL_NATIVE;

	if (level == SOL_TCP && (name == TCP_INFO || name == TCP_MAXSEG))
		out = hall_out_get(sock->sk);
	if (!out)
		return HALL_NATIVE;
	if (hall_out_state(out) == HALL_OUT_CONNECTED)
		err = get_info(out, name, value, length);
	hall_out_put(out);
	return err;
}

int hall_out_getsockopt(struct socket *sock, int level, int name,
			char __user *value, int __user *length)
{
	int err = get_sockopt(sock, level, name, value, length);

	if (err != HALL_NATIVE)
		return err;
	return hall_tables_of(sock->sk)->native->getsockopt(sock, level, name, value,
							    length);
}
