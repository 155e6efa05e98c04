// SPDX-License-Identifier: GPL-2.0-only
/*
 * kTLS, espintcp and other ULPs build their tables from the one that they find in
 * sk_prot. kTLS builds them for all sockets of the kernel at once: they must never
 * hold our functions.
 *
 * A thread that sets TCP_ULP may have entered the native setsockopt() before its
 * socket was attached, and wait there for the page of its argument as long as it
 * likes. No table of ours sees that call. So a kprobe at tcp_set_ulp(), through
 * which all ULPs come with lock_sock() held, puts the native tables back first. A
 * socket on a ring can't do without ours: there the ULP is refused, as it is by
 * TCP where another one came first. A kernel without kprobes must have no ULP.
 */
#include "switch.h"

#include <linux/kprobes.h>

#include <hallway/reason.h>

#include "../sock/lookup.h"

#ifdef CONFIG_KPROBES
/* Where a socket has a ULP, TCP refuses another one with EEXIST. */
static const struct tcp_ulp_ops refusal = {
	.name = "hallway",
	.owner = THIS_MODULE,
};

/* lock_sock(); preemption off, and maybe interrupts. */
static int on_set_ulp(struct kprobe *probe, struct pt_regs *regs)
{
	struct sock *sk = (struct sock *)regs_get_kernel_argument(regs, 0);
	struct hall_sock *hs = hall_sock_get(sk);

	if (!hs)
		return 0;
	if (!hall_sock_has_ring(hs)) {
		hs->pinned = HALLWAY_REASON_ULP;
		hall_restore_tables(hs);
		hall_sock_request_detach(hs, HALLWAY_REASON_ULP);
	} else if (!inet_csk(sk)->icsk_ulp_ops) {
		inet_csk(sk)->icsk_ulp_ops = &refusal;
		hs->ulp_refused = true;
	}
	hall_sock_put(hs);
	return 0;
}

static struct kprobe probe = {
	.symbol_name = "tcp_set_ulp",
	.pre_handler = on_set_ulp,
};

int hall_ulp_init(void)
{
	int err = register_kprobe(&probe);

	if (err)
		pr_err("hallway: no kprobe at tcp_set_ulp() (error %d)\n",
		       err);
	return err;
}

void hall_ulp_uninit(void)
{
	unregister_kprobe(&probe);
}
#else
#define HAS_ULPS (IS_ENABLED(CONFIG_TLS) || IS_ENABLED(CONFIG_MPTCP) || \
		  IS_ENABLED(CONFIG_XFRM_ESPINTCP) || IS_ENABLED(CONFIG_SMC))

int hall_ulp_init(void)
{
	if (!HAS_ULPS)
		return 0;
	pr_err("hallway: a kernel with ULPs, such as kTLS, needs CONFIG_KPROBES\n");
	return -EOPNOTSUPP;
}

void hall_ulp_uninit(void)
{
}
#endif
