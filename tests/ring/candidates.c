// SPDX-License-Identifier: GPL-2.0-only
/*
 * Candidates of two transports: kmod/discovery/candidates.c as it is, in one
 * thread, on a little of a kernel (shim/pages.h).
 */
#include "check.h"
#include "pages.h"

#include "../../kmod/discovery/candidates.c"

bool shim_no_memory;
unsigned long shim_jiffies;
struct delayed_work *shim_queue;
pthread_rwlock_t shim_readers = PTHREAD_RWLOCK_INITIALIZER;
struct rcu_head *shim_dead;
struct workqueue_struct *hall_control_queue;
struct hall_transport_handler hall_transport_handler;
struct hall_discovery_handler hall_discovery_handler;

static const struct hall_transport one, other;
static struct in6_addr member;
static u8 wanted_last[2 * HALLWAY_CANDIDATES_MAX];
static unsigned int wants, reports, wanted_count;

void shim_hook(void)
{
}

bool hall_members_hold(const struct in6_addr *address)
{
	return ipv6_addr_equal(address, &member);
}

void hall_transport_want(const struct in6_addr *address, unsigned int count)
{
	wants++;
	for (wanted_count = 0; wanted_count < count; wanted_count++)
		wanted_last[wanted_count] = address[wanted_count].s6_addr[15];
}

static void on_candidates(void)
{
	reports++;
}

static struct in6_addr numbered(u8 number)
{
	return (struct in6_addr){ .s6_addr = { 0x20, [15] = number } };
}

/* count addresses from first on */
static void report(const struct hall_transport *transport, u8 first,
		   unsigned int count)
{
	struct in6_addr address[HALLWAY_CANDIDATES_MAX + 1];
	unsigned int i;

	for (i = 0; i < count; i++)
		address[i] = numbered(first + i);
	hall_transport_handler.candidates(transport, address, count);
}

static void meet_number(u8 number)
{
	struct in6_addr address = numbered(number);

	hall_candidates_meet(&address);
}

static bool wants_number(u8 number)
{
	return memchr(wanted_last, number, wanted_count);
}

static void begin(void)
{
	member = numbered(0);
	reports = wants = wanted_count = 0;
	hall_candidates_init();
	hall_discovery_handler.candidates = on_candidates;
}

static void end(void)
{
	report(&one, 0, 0);
	report(&other, 0, 0);
	hall_candidates_uninit();
	rcu_barrier();
	CHECK(!shim_queue && list_empty(&lists));
}

/* Each transport's list stays, whatever another one reports. */
static void lists_apart(void)
{
	begin();
	report(&one, 1, 3);
	report(&other, 11, 3);
	CHECK(reports == 2);
	meet_number(2);
	meet_number(12);
	shim_pass(0);
	CHECK(wanted_count == 2 && wants_number(2) && wants_number(12));
	report(&other, 0, 0);
	shim_pass(0);
	CHECK(wanted_count == 1 && wants_number(2));
	meet_number(13);
	meet_number(3);
	shim_pass(0);
	CHECK(wanted_count == 2 && wants_number(2) && wants_number(3));
	report(&other, 12, 1);
	report(&one, 3, 1);
	shim_pass(0);
	/* The other's were forgotten with its list. */
	CHECK(wanted_count == 1 && wants_number(3));
	end();
}

static void met_stays(void)
{
	begin();
	report(&one, 1, 2);
	shim_pass(0);
	CHECK(wants && !wanted_count);
	meet_number(2);
	meet_number(9);
	shim_pass(0);
	CHECK(wanted_count == 1 && wants_number(2));
	report(&one, 2, 5);
	shim_pass(0);
	CHECK(wanted_count == 1 && wants_number(2));
	/* Of a member no more is wanted, nor of one without traffic. */
	meet_number(4);
	member = numbered(2);
	shim_pass(LOOK);
	CHECK(wanted_count == 1 && wants_number(4));
	shim_pass(WANTED);
	CHECK(!wanted_count);
	wants = 0;
	shim_pass(10 * LOOK);
	CHECK(!wants);
	end();
}

/* Two transports that could both serve it are both asked. */
static void in_both(void)
{
	begin();
	report(&one, 1, 2);
	report(&other, 2, 2);
	meet_number(2);
	report(&one, 0, 0);
	shim_pass(0);
	CHECK(wanted_count == 1 && wants_number(2));
	end();
}

static void full_lists(void)
{
	unsigned int i;

	begin();
	report(&one, 1, HALLWAY_CANDIDATES_MAX + 1);
	report(&other, 101, HALLWAY_CANDIDATES_MAX);
	for (i = 0; i < 255; i++)
		meet_number(i);
	shim_pass(0);
	CHECK(wanted_count == 2 * HALLWAY_CANDIDATES_MAX, "%u", wanted_count);
	CHECK(!wants_number(1 + HALLWAY_CANDIDATES_MAX));
	end();
}

static void counted(u8 number, u64 bytes)
{
	struct in6_addr address = numbered(number);

	MUST(hall_candidates_count_begin());
	hall_candidates_count(&address, bytes);
	hall_candidates_count_end(1000);
	shim_pass(0);
}

static void bytes_meet(void)
{
	begin();
	CHECK(!hall_candidates_count_begin());
	report(&one, 1, 2);
	report(&other, 11, 2);
	counted(12, 5000);
	CHECK(!wanted_count);
	counted(12, 5999);
	CHECK(!wanted_count);
	counted(12, 6999);
	CHECK(wanted_count == 1 && wants_number(12));
	end();
}

/* A list may change while connections are counted; that count is for nothing. */
static void changed_while_counted(void)
{
	struct in6_addr address = numbered(2);

	begin();
	report(&one, 1, 2);
	counted(2, 5000);
	MUST(hall_candidates_count_begin());
	hall_candidates_count(&address, 1);
	report(&one, 1, 3);
	hall_candidates_count(&address, 1);
	hall_candidates_count_end(1000);
	counted(2, 5999);
	CHECK(!wanted_count);
	counted(2, 6999);
	CHECK(wanted_count == 1 && wants_number(2));
	end();
}

static void no_memory(void)
{
	begin();
	report(&one, 1, 2);
	meet_number(1);
	shim_no_memory = true;
	shim_pass(0);
	CHECK(!wants);
	shim_no_memory = false;
	shim_pass(LOOK);
	CHECK(wanted_count == 1 && wants_number(1));
	end();
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	TEST(lists_apart);
	TEST(met_stays);
	TEST(in_both);
	TEST(full_lists);
	TEST(bytes_meet);
	TEST(changed_while_counted);
	TEST(no_memory);
	return tests_done();
}
