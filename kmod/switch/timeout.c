// SPDX-License-Identifier: GPL-2.0-only
/*
 * The timeout of bytes that an unresponsive peer has not read.
 *
 * A member without a heartbeat is stopped, starved, or dead inside a QEMU that
 * lives. Its streams are demoted to TCP, whose timers handle a peer that does not
 * answer. When its heartbeat goes on, connections are promoted as after a join.
 *
 * TCP's timers know nothing of bytes that the peer has not read from our rings:
 * no ACK covers them. After the time for which TCP would retransmit
 * them the connection is reset, as TCP would do.
 */
#include "switch.h"

#include <linux/log2.h>
#include <net/inet_connection_sock.h>
#include <net/tcp.h>

#include <hallway/reason.h>

#include "../compat/rto.h"
#include "../sock/stream.h"

/*
 * The time from which the bytes count as unread: the last send, or the last moment
 * at which the peer was surely alive, whichever is later.
 */
static unsigned long find_unread_since(const struct sock *sk)
{
	u32 sent_ago = tcp_jiffies32 - tcp_sk(sk)->lsndtime;

	return jiffies - min_t(u32, sent_ago, HALL_UNRESPONSIVE);
}

/* Jiffies for which TCP retransmits; as in net/ipv4/tcp_timer.c. */
static unsigned long find_patience(const struct sock *sk)
{
	unsigned int times = READ_ONCE(sock_net(sk)->ipv4.sysctl_tcp_retries2);
	unsigned int longest = HALL_RTO_MAX(sk);
	unsigned int doubles = ilog2(longest / TCP_RTO_MIN);
	u32 user = READ_ONCE(inet_csk(sk)->icsk_user_timeout);

	if (user)
		return msecs_to_jiffies(user);
	if (times <= doubles)
		return ((2UL << times) - 1) * TCP_RTO_MIN;
	return ((2UL << doubles) - 1) * TCP_RTO_MIN +
	       (times - doubles) * longest;
}

bool hall_check_timeout(struct hall_sock *hs, unsigned long *left)
{
	long due;

	*left = 0;
	if (!hs->detached || hs->reason != HALLWAY_REASON_UNRESPONSIVE ||
	    !hall_tx_count_unread(hs))
		return false;
	if (!hs->give_up_at)
		hs->give_up_at = find_unread_since(hs->sk) +
				 find_patience(hs->sk) + 1;
	due = hs->give_up_at - jiffies;
	*left = max(due, 0L);
	return due <= 0;
}
