// SPDX-License-Identifier: GPL-2.0-only
/*
 * Options, ioctls, and kernel users that take the socket over. Code that is about
 * to replace or to compare sk_prot finds the native one there.
 */
#include "calls.h"

#include <asm/ioctls.h>
#include <linux/skmsg.h>
#include <linux/sockios.h>
#include <net/ipv6.h>

#include <hallway/reason.h>

#include "callbacks.h"
#include "carrier.h"
#include "idle.h"
#include "lookup.h"
#include "quiet.h"
#include "stream.h"
#include "wake.h"

/* May it become a socket of IPv4? Otherwise TCP refuses: see refuse_addrform(). */
static bool can_become_ipv4(const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	return sk->sk_family == AF_INET6 && !ipv6_only_sock(sk) &&
	       ipv6_addr_v4mapped(&sk->sk_v6_daddr);
#else
	return false;
#endif
}

/* The error that TCP gives where sk_prot is its own table: with ours it gives EBUSY. */
static int refuse_addrform(const struct sock *sk)
{
	return READ_ONCE(sk->sk_state) == TCP_ESTABLISHED ? -EADDRNOTAVAIL : -ENOTCONN;
}

/* Options that no ring can live with. */
static u32 find_option_reason(const struct sock *sk, int level, int optname)
{
	if (level == SOL_TCP && optname == TCP_ULP)
		return HALLWAY_REASON_ULP;
	if (level == SOL_TCP && optname == TCP_REPAIR)
		return HALLWAY_REASON_REPAIR;
	if (level == SOL_TCP && (optname == TCP_MD5SIG || optname == TCP_MD5SIG_EXT))
		return HALLWAY_REASON_SECURED;
#ifdef CONFIG_TCP_AO
	if (level == SOL_TCP && optname == TCP_AO_ADD_KEY)
		return HALLWAY_REASON_SECURED;
#endif
	if (level == SOL_IPV6 && optname == IPV6_ADDRFORM && can_become_ipv4(sk))
		return HALLWAY_REASON_ADDRFORM;
	return 0;
}

static int set_option(struct hall_sock *hs, struct socket *sock, int level, int optname,
		      sockptr_t optval, unsigned int optlen, u32 reason)
{
	struct hall_call call;
	int err = 0;

	hall_call_begin(hs, &call);
	if (unlikely(reason))
		err = hall_sock_handler.detach_sync(hs, reason);
	/* A scan may attach the socket again at any time: see switch/ulp.c. */
	if (!err)
		err = hall_sock_find_native_ops(sock)->setsockopt(sock, level, optname,
								  optval, optlen);
	hall_call_end(hs, &call);
	return err;
}

static noinline int set_attached_option(struct socket *sock, int level, int optname,
					sockptr_t optval, unsigned int optlen)
{
	struct sock *sk = sock->sk;
	u32 reason = find_option_reason(sk, level, optname);
	struct hall_sock *hs;
	int err;

	do {
		hs = hall_sock_get(sk);
		if (!hs)
			return HALL_NATIVE;
		err = set_option(hs, sock, level, optname, optval, optlen, reason);
		hall_sock_put(hs);
		/* TCP found another table than its own: that of a new attachment. */
	} while (unlikely(err == -EBUSY && reason == HALLWAY_REASON_ADDRFORM));
	if (unlikely(err == -EBUSY && !reason && level == SOL_IPV6 &&
		     optname == IPV6_ADDRFORM))
		err = refuse_addrform(sk);
	return err;
}

/*
 * Is no ring affected by the option? The native call needs no reference then: nothing of
 * ours follows. While foreign calls are watched for, it would look like one.
 */
static bool is_plain_option(const struct sock *sk, int level, int optname)
{
	const struct hall_sock *hs = hall_sock_peek(sk);

	return hs && !READ_ONCE(hs->watched) && !find_option_reason(sk, level, optname) &&
	       (level != SOL_IPV6 || optname != IPV6_ADDRFORM);
}

/*
 * In the socket's table, not in that of its protocol: some kernels (6.1) let BPF programs set
 * options of TCP only where that one has TCP's own function.
 */
int hall_ops_setsockopt(struct socket *sock, int level, int optname, sockptr_t optval,
			unsigned int optlen)
{
	int err;

	if (!is_plain_option(sock->sk, level, optname)) {
		err = set_attached_option(sock, level, optname, optval, optlen);
		if (err != HALL_NATIVE)
			return err;
	}
	return hall_sock_find_native_ops(sock)->setsockopt(sock, level, optname, optval,
							   optlen);
}

static noinline int get_attached_option(struct sock *sk, int level, int optname,
					char __user *optval, int __user *option)
{
	struct hall_sock *hs = hall_sock_get(sk);
	struct hall_call call;
	int err;

	if (!hs)
		return HALL_NATIVE;
	hall_call_begin(hs, &call);
	if (level == SOL_TCP && optname == TCP_ZEROCOPY_RECEIVE)
		hall_sock_handler.detach_sync(hs, HALLWAY_REASON_ZEROCOPY);
	err = hs->native->getsockopt(sk, level, optname, optval, option);
	hall_call_end(hs, &call);
	hall_sock_put(hs);
	return err;
}

int hall_getsockopt(struct sock *sk, int level, int optname,
		    char __user *optval, int __user *option)
{
	int err = get_attached_option(sk, level, optname, optval, option);

	if (err != HALL_NATIVE)
		return err;
	return READ_ONCE(sk->sk_prot)->getsockopt(sk, level, optname, optval, option);
}

/*
 * Adds the ring's bytes to the native answer, which was given on that carrier.
 * False: ask again, for the ring's bytes may have become TCP's since.
 */
static bool add_ring_bytes(struct hall_sock *hs, int cmd, u32 carrier, int *answer)
{
	bool same;

	if (cmd != SIOCINQ && cmd != SIOCATMARK)
		return true;
	lock_sock(hs->sk);
	same = hs->rx.carrier == carrier;
	if (cmd == SIOCINQ)
		*answer += hall_rx_count_readable(hs);
	else
		*answer = hall_rx_is_at_urgent(hs, 0);
	release_sock(hs->sk);
	return same;
}

#ifdef HALL_IOCTL_INT
static noinline int control_attached(struct sock *sk, int cmd, int *karg)
{
	struct hall_sock *hs = hall_sock_get(sk);
	struct hall_call call;
	u32 carrier;
	int err;

	if (!hs)
		return HALL_NATIVE;
	hall_call_begin(hs, &call);
	do {
		carrier = READ_ONCE(hs->rx.carrier);
		err = hs->native->ioctl(sk, cmd, karg);
	} while (!err && !add_ring_bytes(hs, cmd, carrier, karg));
	hall_call_end(hs, &call);
	hall_sock_put(hs);
	return err;
}

int hall_ioctl(struct sock *sk, int cmd, int *karg)
{
	int err = control_attached(sk, cmd, karg);

	if (err != HALL_NATIVE)
		return err;
	return READ_ONCE(sk->sk_prot)->ioctl(sk, cmd, karg);
}
#else
static noinline int control_attached(struct sock *sk, int cmd, unsigned long arg)
{
	int __user *to = (int __user *)arg;
	struct hall_sock *hs = hall_sock_get(sk);
	int err, native, answer;
	struct hall_call call;
	u32 carrier;

	if (!hs)
		return HALL_NATIVE;
	hall_call_begin(hs, &call);
	do {
		carrier = READ_ONCE(hs->rx.carrier);
		err = hs->native->ioctl(sk, cmd, arg) ?: get_user(native, to);
		answer = native;
	} while (!err && !add_ring_bytes(hs, cmd, carrier, &answer));
	hall_call_end(hs, &call);
	if (!err && answer != native)
		err = put_user(answer, to);
	/* A page fault may sleep: the module has to stay until here. */
	hall_sock_put(hs);
	return err;
}

int hall_ioctl(struct sock *sk, int cmd, unsigned long arg)
{
	int err = control_attached(sk, cmd, arg);

	if (err != HALL_NATIVE)
		return err;
	return READ_ONCE(sk->sk_prot)->ioctl(sk, cmd, arg);
}
#endif

/* With SOCK_FASYNC each arrival has to ring, whether or not earlier bytes were read. */
static void take_signals(struct hall_sock *hs, bool signals)
{
	hs->signals = signals;
	spin_lock_bh(&hs->channel.lock);
	if (signals && hs->rx.state == HALL_RX_MAPPED)
		hall_ring_arm_edge(&hs->rx.ring);
	spin_unlock_bh(&hs->channel.lock);
}

/* A poller that waited for more bytes may have enough now: it looks again. */
static void take_rcvlowat(struct hall_sock *hs, int rcvlowat)
{
	hs->rcvlowat = rcvlowat;
	if (hs->rx.state == HALL_RX_MAPPED)
		hs->sk->sk_data_ready(hs->sk);
}

static noinline void release_changed(struct hall_sock *hs, struct sock *sk)
{
	bool signals = sock_flag(sk, SOCK_FASYNC);
	u32 reason = hall_sock_needs_packets(sk);
	int rcvlowat = READ_ONCE(sk->sk_rcvlowat);

	if (unlikely(hs->watched))
		hall_quiet_watch(hs);
	if (unlikely(hs->ulp_refused)) {
		inet_csk(sk)->icsk_ulp_ops = NULL;
		hs->ulp_refused = false;
	}
	hs->native->release_cb(sk);
	/* A timer that TCP had put off has ended the socket. */
	if (unlikely(!hall_sock_is_of(hs, sk)))
		return;
	if (unlikely(reason) && !hs->detaching) {
		if (reason == HALLWAY_REASON_FILTERED &&
		    hs->rx.state == HALL_RX_MAPPED)
			hall_rx_truncate(hs);
		hall_sock_request_detach(hs, reason);
	}
	/* It would take TCP's later bytes before the work item requeues the ring's. */
	if (unlikely(sk->sk_data_ready != hs->callbacks.data_ready) &&
	    hall_callbacks_check(hs)) {
		gfp_t gfp = sk->sk_allocation;

		/* A corrupt ring ends the other one: what was in that is resent here. */
		sk->sk_allocation = GFP_ATOMIC;
		hall_rx_demote_now(hs, HALLWAY_REASON_FOREIGN);
		sk->sk_allocation = gfp;
	}
	if (unlikely(signals != hs->signals))
		take_signals(hs, signals);
	if (unlikely(rcvlowat != hs->rcvlowat))
		take_rcvlowat(hs, rcvlowat);
}

/*
 * Runs each time the socket lock is released, once there was a ring or foreign calls are
 * watched for; also after a setsockopt() that the socket layer handles without our proto. A
 * program that needs packets, see hall_sock_needs_packets(), may make no call until one
 * comes; and a filter has to see each byte that is sent from now on.
 */
void hall_release_cb(struct sock *sk)
{
	struct hall_sock *hs = container_of(sk->sk_prot, struct hall_sock, prot);

	if (likely(!hs->watched && !hs->ulp_refused && !hall_sock_needs_packets(sk) &&
		   sk->sk_data_ready == hs->callbacks.data_ready &&
		   sock_flag(sk, SOCK_FASYNC) == hs->signals &&
		   READ_ONCE(sk->sk_rcvlowat) == hs->rcvlowat))
		hs->native->release_cb(sk);
	else
		release_changed(hs, sk);
}

#if IS_ENABLED(CONFIG_NET_SOCK_MSG) && IS_ENABLED(CONFIG_BPF_SYSCALL)
/*
 * sockmap sets sk_prot to one that it built from the native tables, under
 * lock_sock() and RCU: sleeping is not allowed. Unread bytes of a ring are in
 * TCP's queue afterwards, where a verdict program finds them. Bytes sent into a
 * ring come before all that a program will see.
 */
static int hand_to_sockmap(struct hall_sock *hs, struct sk_psock *psock)
{
	int err = 0;

	if (hs->tx.state == HALL_TX_TCP && hs->rx.state == HALL_RX_NATIVE)
		hall_sock_handler.detach(hs, HALLWAY_REASON_SOCKMAP);
	else
		err = hall_sock_handler.detach_now(hs, HALLWAY_REASON_SOCKMAP);
	if (err)
		return err;
	/*
	 * sockmap saved before the call what it will call and restore later,
	 * possibly when the module is gone.
	 */
	psock->sk_proto = hs->native;
	psock->saved_close = hs->native->close;
	psock->saved_destroy = hs->native->destroy;
	psock->psock_update_sk_prot = hs->native->psock_update_sk_prot;
	return 0;
}

int hall_psock_update_sk_prot(struct sock *sk, struct sk_psock *psock,
			      bool restore)
{
	struct hall_sock *hs = hall_sock_get(sk);
	int err = 0;

	if (hs) {
		/* After an error of ours sockmap restores: nothing to hand over. */
		if (!restore)
			err = hand_to_sockmap(hs, psock);
		hall_sock_put(hs);
		if (restore || err)
			return err;
	}
	return READ_ONCE(sk->sk_prot)->psock_update_sk_prot(sk, psock, restore);
}
#endif
