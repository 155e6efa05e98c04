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
	PLAY(unbound_channels);
	return tests_done();
}
