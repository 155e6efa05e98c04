// SPDX-License-Identifier: GPL-2.0-only
/*
 * What kmod/transport/xen does as domains come, go and misbehave, step by step, on a false
 * Xen (domains.h). Each test is played in a PV domain and in one that is not.
 */
#include "check.h"
#include "domains.h"

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

static void two_join(void)
{
	join_all();
	CHECK(count_granted(&peers[0]) == PAGES && count_granted(&peers[1]) == PAGES);
	CHECK(count_mapped() == 2 * PAGES);
}

/* dom0's daemon is not there to say that the domain is gone. */
static void domain_gone_before_it_joined(void)
{
	char path[64];

	list_peer(&peers[0]);
	snprintf(path, sizeof(path), FROM, peers[0].domid, own);
	set_node(path, "");
	settle();
	CHECK(count_granted(&peers[0]) == PAGES);
	remove_node(path);
	settle();
	CHECK(!count_granted(&peers[0]));
}

static void domain_gone_after_it_left(void)
{
	char path[64];

	join_all();
	snprintf(path, sizeof(path), FROM "/generation", peers[0].domid, own);
	remove_node(path);
	settle();
	CHECK(count_mapped() == PAGES);
	*strrchr(path, '/') = 0;
	remove_node(path);
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
	char path[64];
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
	snprintf(path, sizeof(path), FROM "/generation", peers[0].domid, own);
	remove_node(path);
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

static void remove_domain(struct peer *peer)
{
	char path[64];

	snprintf(path, sizeof(path), FROM, peer->domid, own);
	remove_node(path);
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

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	PLAY(two_join);
	PLAY(domain_gone_before_it_joined);
	PLAY(domain_gone_after_it_left);
	PLAY(domain_comes_again);
	PLAY(no_place_for_offers);
	PLAY(large_slices);
	PLAY(storms);
	PLAY(suspended_before_a_departure);
	PLAY(suspended_within_a_departure);
	PLAY(unbound_channels);
	return tests_done();
}
