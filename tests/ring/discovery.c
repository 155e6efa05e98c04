// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hundred members come and go: kmod/discovery/members.c as it is, on a little
 * of a kernel (shim/pages.h). They arrive, publish addresses that others may
 * publish, too, change them, become unresponsive, respond again and depart, at
 * random, while threads look addresses up. A member that is found publishes the
 * address and is not gone; afterwards nothing is left. Of several that publish an
 * address the first one is found, until it is doubted. Several have the same UUID, too: its
 * CID is that of one for which the host vouches, before it is that of the first one.
 */
#include "pages.h"

#include <hallway/reason.h>
#include <hallway/tunnel.h>

#include "../../kmod/discovery/members.c"

#define MEMBERS 100
#define ADDRESSES 200
#define UUIDS 20	/* number 0 is that of this guest */
#define STEPS 20000
#define THREADS 3

bool shim_no_memory;
unsigned long shim_jiffies;
struct delayed_work *shim_queue;
struct hall_counters hall_counters;
/* Else readers that never rest would keep the writer out. */
pthread_rwlock_t shim_readers =
	PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
struct rcu_head *shim_dead;
struct hall_transport_handler hall_transport_handler;
u8 hall_uuid[16];
u32 hall_cid;

static struct vm {
	struct hall_member *member;	/* NULL: not here */
	bool publishes[ADDRESSES];
	unsigned int place[ADDRESSES];	/* in the row of those that publish it */
	/* jiffies; 0: never */
	unsigned long moved[ADDRESSES], doubted[ADDRESSES];
} vms[MEMBERS];
static unsigned int places;

static unsigned int served, departures, unresponsive, conflicts, doubts;
static bool done;

static u64 draw(u64 *state, u64 limit)
{
	u64 x = *state += 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return (x ^ x >> 31) % limit;
}

static struct in6_addr numbered(u32 number)
{
	struct in6_addr address = { };

	address.s6_addr32[3] = number;
	return address;
}

u32 shim_random(void)
{
	return 4711;
}

void shim_hook(void)
{
}

void shim_wait(void)
{
}

/* The rooms above */

static void on_served(void)
{
	served++;
}

static void on_outsourcer(void)
{
}

static void on_departed(struct hall_member *member, u32 reason)
{
	MUST(member->departed && reason == 7);
	departures++;
}

static void on_detach(struct hall_member *member, u32 reason)
{
	MUST(!member->departed);
	unresponsive++;
}

/* Threads that look addresses up, as new connections do */

static void *look_up(void *data)
{
	u64 chance = (unsigned long)data, found = 0;
	struct hall_member *member;
	struct in6_addr address;

	while (!READ_ONCE(done)) {
		address = numbered(draw(&chance, ADDRESSES));
		pthread_rwlock_rdlock(&shim_readers);
		member = hall_members_find(&address);
		if (member) {
			if (found++ % 16 == 0)
				sched_yield();
			/* Its memory is freed after departure: this is a use. */
			MUST(member->slot < MEMBERS && member->generation);
		}
		pthread_rwlock_unlock(&shim_readers);
	}
	MUST(found);
	return NULL;
}

/* VMs of every second UUID are given one, this guest too. */
static u32 cid_of(const u8 *uuid)
{
	return hallway_member_cid(uuid[0] % 2 ? 0 : HALLWAY_CID_GIVEN_FIRST + uuid[0], uuid);
}

/* What happens to a member */

static void arrives(struct vm *vm, u32 generation, u64 *chance)
{
	vm->member = calloc(1, sizeof(*vm->member));
	refcount_set(&vm->member->refs, 1);
	vm->member->uuid[0] = draw(chance, UUIDS);
	vm->member->cid = cid_of(vm->member->uuid);
	vm->member->vouched = !draw(chance, 4);
	vm->member->outsourcer = !draw(chance, 20);
	vm->member->slot = vm - vms;
	vm->member->generation = generation;
	INIT_LIST_HEAD(&vm->member->addresses);
	hall_transport_handler.arrived(vm->member);
}

/* The first publisher of the address other than this member; NULL: none. */
static struct vm *holder(u32 number, const struct vm *but)
{
	struct vm *first = NULL, *vm;

	for (vm = vms; vm < vms + MEMBERS; vm++)
		if (vm != but && vm->publishes[number] &&
		    (!first || vm->place[number] < first->place[number]))
			first = vm;
	return first;
}

/* Publishes the numbers that are true in list. Returns whether that is reported. */
static bool take_list(struct vm *vm, const bool *list)
{
	bool news = false;
	u32 number;

	for (number = 0; number < ADDRESSES; number++) {
		if (list[number] == vm->publishes[number])
			continue;
		vm->publishes[number] = list[number];
		news |= list[number] || holder(number, vm);
		if (!list[number])
			continue;
		conflicts += !!holder(number, vm);
		vm->place[number] = ++places;
		vm->moved[number] = 0;
		vm->doubted[number] = 0;
	}
	return news;
}

static void publishes(struct vm *vm, u64 *chance)
{
	struct in6_addr address[HALLWAY_ADDRESSES_MAX];
	unsigned int count = draw(chance, 8), i, before = served;
	bool list[ADDRESSES] = { };
	u32 number;

	for (i = 0; i < count; i++) {
		number = draw(chance, ADDRESSES);
		address[i] = numbered(number);
		list[number] = true;
	}
	hall_transport_handler.addresses(vm->member, address, count);
	MUST(served == before + take_list(vm, list));
}

static void is_doubted(struct vm *vm, u32 number)
{
	struct in6_addr address = numbered(number);
	bool another;

	if (holder(number, NULL) == vm)
		vm->doubted[number] = shim_jiffies;
	if (holder(number, NULL) == vm && holder(number, vm) &&
	    (!vm->moved[number] ||
	     shim_jiffies >= vm->moved[number] + 10 * HZ)) {
		vm->place[number] = ++places;
		vm->moved[number] = shim_jiffies;
		doubts++;
	}
	another = holder(number, NULL) && holder(number, NULL) != vm;
	MUST(hall_members_doubt(vm->member, &address) == another);
}

/* It, and the one that has the address then, a few times. */
static void are_doubted(struct vm *vm, u64 *chance)
{
	u32 number = draw(chance, ADDRESSES);
	unsigned int times;

	for (times = 0; vm && times < 4; times++) {
		is_doubted(vm, number);
		vm = holder(number, NULL);
	}
}

static void becomes_unresponsive(struct vm *vm)
{
	static const bool none[ADDRESSES];
	unsigned int before = served;

	hall_transport_handler.detach(vm->member, HALLWAY_REASON_UNRESPONSIVE);
	MUST(served == before + take_list(vm, none));
}

static void departs(struct vm *vm)
{
	static const bool none[ADDRESSES];
	unsigned int before = served;

	hall_transport_handler.departed(vm->member, 7);
	/* Once more, as where it has channels when this guest is suspended. */
	hall_transport_handler.departed(vm->member, 7);
	MUST(served == before + take_list(vm, none));
	memset(vm->member, 0xff, sizeof(*vm->member));
	free(vm->member);
	vm->member = NULL;
}

/* What has to be, whenever nothing happens */

static int count(struct hall_member *member, void *data)
{
	MUST(vms[member->slot].member == member);
	++*(unsigned int *)data;
	return 0;
}

static int published(const struct in6_addr *address, void *data)
{
	struct vm *vm = data;

	MUST(vm->publishes[address->s6_addr32[3]]);
	return 0;
}

static int listed(struct hall_member *member, void *data)
{
	return hall_member_addresses(member, published, &vms[member->slot]);
}

/* The member of a UUID: its generation says when it arrived. */
static struct hall_member *owner(u8 uuid)
{
	struct hall_member *first = NULL, *member;
	struct vm *vm;

	for (vm = vms; vm < vms + MEMBERS; vm++) {
		member = vm->member;
		if (!member || member->uuid[0] != uuid || member->outsourcer)
			continue;
		if (!first || member->vouched > first->vouched ||
		    (member->vouched == first->vouched &&
		     member->generation < first->generation))
			first = member;
	}
	return first && (uuid || first->vouched) ? first : NULL;
}

static void look_at_cids(void)
{
	struct hall_member *first, *found;
	u8 uuid[16] = { };
	struct vm *vm;

	for (; uuid[0] < UUIDS; uuid[0]++) {
		found = hall_members_get_by_cid(cid_of(uuid));
		MUST(found == owner(uuid[0]));
		if (found)
			refcount_set(&found->refs, 1);
	}
	for (vm = vms; vm < vms + MEMBERS; vm++) {
		if (!vm->member)
			continue;
		first = owner(vm->member->uuid[0]);
		MUST(hall_member_has_cid(vm->member) ==
		     (!vm->member->outsourcer &&
		      (vm->member->vouched || (first && !first->vouched))));
	}
}

/* From 0 on each CID of another VM comes once, in order. */
static void look_at_next_cids(void)
{
	u32 cid = 0, next;
	struct vm *vm;

	while ((next = hall_members_next_cid(cid))) {
		MUST(next > cid && hall_members_next_cid(next - 1) == next);
		for (vm = vms; vm < vms + MEMBERS; vm++)
			if (vm->member && !vm->member->outsourcer && vm->member->cid == next)
				break;
		MUST(vm < vms + MEMBERS && next != hall_cid);
		cid = next;
	}
	for (vm = vms; vm < vms + MEMBERS; vm++)
		if (vm->member && !vm->member->outsourcer && vm->member->uuid[0])
			MUST(hall_members_next_cid(vm->member->cid - 1) ==
			     vm->member->cid);
}

static void look(void)
{
	unsigned int here = 0, seen = 0, number, i;
	struct hall_member *member;
	struct in6_addr address;
	struct vm *vm;

	for (i = 0; i < MEMBERS; i++)
		here += !!vms[i].member;
	hall_members_walk(count, &seen);
	MUST(here == seen);
	hall_members_walk(listed, NULL);
	for (number = 0; number < ADDRESSES; number++) {
		address = numbered(number);
		member = hall_members_find(&address);
		vm = holder(number, NULL);
		MUST(member == (vm ? vm->member : NULL));
		MUST(hall_members_hold(&address) ==
		     (vm && (!vm->doubted[number] ||
			     shim_jiffies >= vm->doubted[number] + 10 * HZ)));
	}
	MUST(hall_counters.value[HALL_ADDRESS_CONFLICTS] == conflicts);
	look_at_cids();
	look_at_next_cids();
}

int main(int argc, char **argv)
{
	u64 chance = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	pthread_t thread[THREADS];
	unsigned int i, step;
	struct vm *vm;

	printf("seed %llu\n", (unsigned long long)chance);
	hall_cid = cid_of(hall_uuid);
	hall_members_init();
	hall_discovery_handler.served = on_served;
	hall_discovery_handler.outsourcer = on_outsourcer;
	hall_discovery_handler.departed = on_departed;
	hall_discovery_handler.detach = on_detach;
	for (i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, look_up, (void *)(chance + i + 1));
	for (step = 1; step <= STEPS; step++) {
		shim_jiffies += 1 + draw(&chance, 20);
		vm = &vms[draw(&chance, MEMBERS)];
		if (!vm->member)
			arrives(vm, step, &chance);
		else if (draw(&chance, 10))
			draw(&chance, 2) ? publishes(vm, &chance) :
					   are_doubted(vm, &chance);
		else if (draw(&chance, 2))
			becomes_unresponsive(vm);
		else
			departs(vm);
		if (step % 50 == 0)
			look();
		if (step % 500 == 0)
			rcu_barrier();
	}
	for (i = 0; i < MEMBERS; i++)
		if (vms[i].member)
			departs(&vms[i]);
	look();
	WRITE_ONCE(done, true);
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	hall_members_uninit();
	MUST(!shim_dead && departures > MEMBERS && unresponsive > MEMBERS && doubts);
	printf("%u departures, %u unresponsive, %u doubts\n1 passed, 0 failed\n", departures,
	       unresponsive, doubts);
	return 0;
}
