// SPDX-License-Identifier: GPL-2.0-only
/*
 * What kmod/transport/xen does as domains come, go and misbehave, step by step, on a false
 * Xen (false_xen.h). Each test is played in a PV domain and in one that is not.
 */
#include <sanitizer/lsan_interface.h>

#include "check.h"
#include "false_xen.h"

#define PLAY(scenario) do { \
	test_ok = true; \
	for (int pv = 0; pv < 2; pv++) { \
		shim_is_pv = pv; \
		begin(); \
		scenario(); \
		check(); \
		end(); \
	} \
	test_count(#scenario); \
} while (0)

/* References that the peer may map. */
static unsigned int count_granted(const struct peer *peer)
{
	unsigned int i, n = 0;

	for (i = 0; i < REFERENCES; i++)
		n += granted[i].used && granted[i].to == peer->domid;
	return n;
}

static unsigned int count_mapped(void)
{
	unsigned int i, n = 0;

	for (i = 0; i < HANDLES; i++)
		n += handles[i].used;
	return n;
}

static void remove_node_from(struct peer *peer, const char *name)
{
	char path[64];

	snprintf(path, sizeof(path), FROM "/%s", peer->domid, own, name);
	remove_node(path);
}

static void remove_domain(struct peer *peer)
{
	char path[64];

	snprintf(path, sizeof(path), FROM, peer->domid, own);
	remove_node(path);
}

static void two_join(void)
{
	join_all();
	CHECK(count_granted(&peers[0]) == PAGES && count_granted(&peers[1]) == PAGES);
	CHECK(count_mapped() == 2 * PAGES);
}

/* dom0's daemon is not there to say that the domain is gone. */
static void domain_gone_before_it_joined(void)
{
	list_peer(&peers[0]);
	write_number_node(&peers[0], "major", HALLWAY_MAJOR);
	settle();
	CHECK(count_granted(&peers[0]) == PAGES);
	remove_domain(&peers[0]);
	settle();
	CHECK(!count_granted(&peers[0]));
}

/* XenStore does not say for a moment which domain this is: its pairs stay. */
static void no_answer(void)
{
	join_all();
	own_domid = -EIO;
	failing = 1;
	read_list_soon();
	pass(100);
	CHECK(!failing && members == 2);
	pass(1000);
	CHECK(own_domid == 5 && members == 2);
}

/* What says that there is a module here. */
static bool is_announced(const struct peer *peer)
{
	char path[64];

	snprintf(path, sizeof(path), "/local/domain/%u/hallway/to/%u/major", own, peer->domid);
	return find_node(path) >= 0;
}

/* A domain that has no module is granted nothing; it sees that there is one here. */
static void domain_without_a_module(void)
{
	list_peer(&peers[0]);
	write_node(FROM, &peers[0], "", "");
	settle();
	CHECK(!count_granted(&peers[0]) && is_announced(&peers[0]));
	offer(&peers[0], PAGES);
	settle();
	CHECK(count_granted(&peers[0]) == PAGES && count_mapped() == PAGES);
	remove_node_from(&peers[0], "generation");
	remove_node_from(&peers[0], "major");
	settle();
	CHECK(!count_granted(&peers[0]) && !count_mapped());
	end();
	CHECK(!is_announced(&peers[0]));
	begin();
}

static void domain_gone_after_it_left(void)
{
	join_all();
	remove_node_from(&peers[0], "generation");
	settle();
	CHECK(count_mapped() == PAGES);
	remove_domain(&peers[0]);
	settle();
	CHECK(!count_granted(&peers[0]) && count_granted(&peers[1]) == PAGES);
}

/* Its number has a place again: it is granted a slice once more. */
static void domain_comes_again(void)
{
	domain_gone_after_it_left();
	offer(&peers[0], PAGES);
	pass(10000);
	settle();
	CHECK(count_granted(&peers[0]) == PAGES && count_mapped() == 2 * PAGES);
}

/* Nothing is granted before dom0 has made the place. */
static void no_place_for_offers(void)
{
	list_peer(&peers[0]);
	settle();
	CHECK(!count_granted(&peers[0]));
	offer(&peers[0], PAGES);
	settle();
	pass(1000);
	CHECK(count_mapped() == PAGES);
}

/* One as large as the guest's own is always mapped; what all have beyond that is bounded. */
static void large_slices(void)
{
	unsigned int i;

	for (i = 0; i < PEERS; i++) {
		list_peer(&peers[i]);
		offer(&peers[i], PAGES + EXTRA_MAX - i);
		settle();
	}
	pass(10000);
	CHECK(count_mapped() == PAGES + EXTRA_MAX);
	offer(&peers[1], PAGES);
	settle();
	pass(10000);
	CHECK(count_mapped() == 2 * PAGES + EXTRA_MAX);
	offer(&peers[1], PAGES + EXTRA_MAX);
	remove_node_from(&peers[0], "generation");
	settle();
	pass(10000);
	CHECK(count_mapped() == PAGES + EXTRA_MAX);
	offer(&peers[1], PAGES + EXTRA_MAX + 1);
	settle();
	pass(10000);
	CHECK(!count_mapped());
}

/* A peer that rings without end is heard again in each jiffy. */
static void storms(void)
{
	unsigned int i, jiffy, looked;

	join_all();
	for (jiffy = 0; jiffy < 10; jiffy++) {
		pass(2);
		looked = hall_counters.value[HALL_DOORBELLS_RECEIVED];
		for (i = 0; i < 100; i++) {
			ring_all();
			run_tasklets();
			run_tasklets();
		}
		looked = hall_counters.value[HALL_DOORBELLS_RECEIVED] - looked;
		CHECK(looked == 2 * (STORM + 1), "%u", looked);
	}
}

/* Peers keep what they have granted: it is there again in a moment. */
static void suspended_and_here_again(void)
{
	unsigned int i;

	join_all();
	suspend(false);
	CHECK(!members);
	for (i = 0; i < 1000; i++) {
		handle_watches();
		pass(1);
		CHECK(is_announced(&peers[0]) && is_announced(&peers[1]));
	}
	pass(10000);
	CHECK(members == 2);
}

/* Its departure waits for a work item of its own. */
static void suspended_before_a_departure(void)
{
	join_all();
	remove_domain(&peers[0]);
	handle_watches();
	control(NULL);
	CHECK(members == 2);
	suspend(true);
	pass(10000);
	CHECK(!count_mapped());
}

/* It waits for those of sockets. */
static void suspended_within_a_departure(void)
{
	join_all();
	use_ring(0);
	remove_domain(&peers[0]);
	remove_domain(&peers[1]);
	handle_watches();
	pass(100);
	CHECK(!members && count_mapped() == PAGES);
	suspend(false);
	CHECK(!count_mapped());
	close_rings();
	pass(10000);
}

/* A program is in a call on a ring of this peer. */
static void join_with_a_call(void)
{
	list_peer(&peers[0]);
	offer(&peers[0], PAGES);
	settle();
	use_ring(0);
}

/*
 * A call of a program that is in a page fault keeps the memory of before, and no peer
 * from coming back: it does so once.
 */
static void calls_that_stay(void)
{
	u32 *read;

	join_with_a_call();
	read = (u32 *)ring_of_peer[0];
	remove_node_from(&peers[0], "generation");
	settle();
	pass(100);
	CHECK(!members && count_mapped() == PAGES);
	offer(&peers[0], PAGES);
	pass(10000);
	settle();
	CHECK(members == 1 && count_mapped() == 2 * PAGES);
	CHECK(READ_ONCE(*read) != ~0u);
	use_ring(1);
	remove_node_from(&peers[0], "generation");
	settle();
	offer(&peers[0], PAGES);
	pass(10000);
	settle();
	CHECK(!members && count_mapped() == 2 * PAGES);
	close_rings();
	pass(10000);
	settle();
	CHECK(members == 1 && count_mapped() == PAGES && count_granted(&peers[0]) == PAGES);
}

/* dom0 says nothing meanwhile. */
static void calls_that_stay_again_and_again(void)
{
	unsigned int i, n, watched = 0;

	list_peer(&peers[0]);
	for (i = 0; i < 10; i++) {
		offer(&peers[0], PAGES);
		settle();
		pass(10000);
		settle();
		CHECK(members == 1);
		use_ring(0);
		remove_node_from(&peers[0], "generation");
		settle();
		pass(10000);
		close_rings();
		settle();
	}
	for (n = 0; n < WATCHES; n++)
		watched += !!watches[n];
	CHECK(watched <= 3, "%u", watched);
}

/* Nothing says that there is a module once it has gone. */
static void unloaded_while_a_call_stays(void)
{
	join_with_a_call();
	ending = true;
	read_list_soon();
	pass(10000);
	CHECK(!members && count_mapped() == PAGES);
	end();
	CHECK(!is_announced(&peers[0]));
	begin();
}

/* No pair has followed those that the suspension has ended. */
static void unloaded_after_a_suspension(void)
{
	join_all();
	suspend(false);
	end();
	CHECK(!is_announced(&peers[0]) && !is_announced(&peers[1]));
	begin();
}

/* By kexec another kernel has the domain's memory next. */
static void shut_down_by_the_kernel(void)
{
	join_all();
	pm->shutdown(NULL);
	settle();
	CHECK(!members && !count_granted(&peers[0]) && !count_granted(&peers[1]));
}

/* A domain that gets the number can map nothing of what its predecessor was granted. */
static void domain_gone_while_a_call_stays(void)
{
	join_with_a_call();
	/* XenStore is the first to show it. */
	peer_maps(&peers[0], true);
	remove_domain(&peers[0]);
	settle();
	CHECK(count_mapped() == PAGES && count_granted(&peers[0]) == PAGES);
	peer_maps(&peers[0], false);
	settle();
	CHECK(count_mapped() == PAGES && !count_granted(&peers[0]));
	close_rings();
	pass(10000);
	settle();
	CHECK(!count_mapped());
}

/* The same, once another pair with the domain has followed. */
static void domain_gone_while_a_former_call_stays(void)
{
	join_with_a_call();
	remove_node_from(&peers[0], "generation");
	settle();
	pass(10000);
	offer(&peers[0], PAGES);
	pass(10000);
	settle();
	CHECK(!list_empty(&xen_former) && count_granted(&peers[0]) == 2 * PAGES);
	remove_domain(&peers[0]);
	settle();
	CHECK(!list_empty(&xen_former) && !count_granted(&peers[0]));
	close_rings();
	pass(10000);
	settle();
	CHECK(!count_mapped());
}

/* This guest was paused meanwhile, and sees the other domain's key alone. */
static void number_used_again_while_a_call_stays(void)
{
	join_with_a_call();
	peers[0].key++;
	list_peer(&peers[0]);
	settle();
	CHECK(count_mapped() == PAGES && !count_granted(&peers[0]));
	close_rings();
	offer(&peers[0], PAGES);
	pass(10000);
	settle();
	CHECK(members == 1 && count_granted(&peers[0]) == PAGES);
}

/* Nothing is left to the kernel, which gives a few pages back in a second. */
static void unloaded_while_peers_unmap(void)
{
	unsigned int i;

	join_all();
	for (i = 0; i < PEERS; i++)
		peer_maps(&peers[i], true);
	unmapping = true;
	end();
	unmapping = false;
	CHECK(!deferrals);
	begin();
}

/* The peer uses the memory of former rings for new ones. */
static void call_that_stays_where_the_peer_has_not_left(void)
{
	join_with_a_call();
	forget_peer(&peers[0], false);
	settle();
	list_peer(&peers[0]);
	pass(10000);
	settle();
	CHECK(!members && count_mapped() == PAGES);
	close_rings();
	pass(10000);
	settle();
	CHECK(members == 1 && count_mapped() == PAGES);
}

static void suspended_while_a_call_stays(void)
{
	join_all();
	use_ring(0);
	remove_node_from(&peers[0], "generation");
	remove_node_from(&peers[1], "generation");
	settle();
	pass(10000);
	CHECK(!members && count_mapped() == PAGES);
	suspend(true);
	CHECK(!count_mapped());
	list_peer(&peers[0]);
	offer(&peers[0], PAGES);
	settle();
	pass(10000);
	CHECK(is_announced(&peers[0]));
	close_rings();
	pass(10000);
}

/* The server's, and the client's: each is tried again. */
static void unbound_channels(void)
{
	unsigned int i;

	for (binding = STAYS_OPEN; binding <= IS_TAKEN; binding++) {
		for (i = 0; i < PEERS; i++) {
			list_peer(&peers[i]);
			offer(&peers[i], PAGES);
		}
		pass(10000);
		settle();
		CHECK(!count_mapped());
	}
	binding = BINDS;
	pass(10000);
	CHECK(count_mapped() == 2 * PAGES);
}

/* Xen refuses to undo a mapping: its addresses and pages stay. The peer's next slice is mapped. */
static void mapping_that_stays(void)
{
	/* What is allocated from here on may stay so. */
	__lsan_disable();
	join_all();
	refusing = true;
	remove_node_from(&peers[0], "generation");
	settle();
	CHECK(members == 1 && count_mapped() == 2 * PAGES);
	refusing = false;
	offer(&peers[0], PAGES);
	pass(10000);
	settle();
	CHECK(members == 2 && count_mapped() == 3 * PAGES);
	remove_node_from(&peers[0], "generation");
	settle();
	CHECK(count_mapped() == 2 * PAGES);
	__lsan_enable();
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	PLAY(two_join);
	PLAY(domain_gone_before_it_joined);
	PLAY(no_answer);
	PLAY(domain_without_a_module);
	PLAY(domain_gone_after_it_left);
	PLAY(domain_comes_again);
	PLAY(no_place_for_offers);
	PLAY(large_slices);
	PLAY(storms);
	PLAY(suspended_and_here_again);
	PLAY(suspended_before_a_departure);
	PLAY(suspended_within_a_departure);
	PLAY(calls_that_stay);
	PLAY(calls_that_stay_again_and_again);
	PLAY(unloaded_while_a_call_stays);
	PLAY(unloaded_after_a_suspension);
	PLAY(shut_down_by_the_kernel);
	PLAY(domain_gone_while_a_call_stays);
	PLAY(domain_gone_while_a_former_call_stays);
	PLAY(number_used_again_while_a_call_stays);
	PLAY(unloaded_while_peers_unmap);
	PLAY(call_that_stays_where_the_peer_has_not_left);
	PLAY(suspended_while_a_call_stays);
	PLAY(unbound_channels);
	PLAY(mapping_that_stays);
	return tests_done();
}
