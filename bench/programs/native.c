// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What a call costs in one kernel, whatever carries the bytes.
 *
 *   native WHERE CARRIER OPERATION SIZE SECONDS
 *
 * WHERE is user, or kernel: then ../module/inkernel.c makes the calls. CARRIER is tcp,
 * unix or pipe. OPERATION is one of
 *   write, read  both ends in this process: some writes, then their reads
 *   trip         a write and a read at each end, all in this process
 *   asleep       the same, with a process at each end
 *   stream       this process writes, another one reads all there is
 *
 * Prints what it measured as JSON. A time is the median of samples of many calls, so
 * that few of them hold a tick of the timer. From user space it is without what as
 * many writes to /dev/null take.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "common.h"
#include "../module/inkernel.h"

#define PORT "7030"
#define CALLS 96	/* of a sample, at least */
#define TRIPS 32	/* of a sample */

struct end {
	int in, out;
};

struct samples {
	uint32_t *taken;
	size_t count;
};

static char buffer[INKERNEL_SIZE];
static int device = -1;	/* of calls within the kernel */
static struct end a, b;

static ssize_t call(const struct inkernel_step *step, size_t size)
{
	size_t done = 0;
	ssize_t n;

	do {
		do {
			n = step->call == INKERNEL_WRITE ?
				    write(step->fd, buffer, size - done) :
				    read(step->fd, buffer, size - done);
			/* A sockmap's read() may say so where it should wait. */
		} while (n < 0 && errno == EAGAIN);
		if (n < 0)
			err(1, "a call of %zu bytes", size);
		done += n;
	} while (n && done < size && step->call != INKERNEL_READ_SOME);
	return n ? done : 0;
}

static void run_here(struct inkernel_sequence *sequence)
{
	const struct inkernel_step *steps = sequence->steps;
	uint64_t begin = now();
	ssize_t n = 1;

	sequence->bytes = 0;
	for (uint32_t i = 0; i < sequence->count && n; i++) {
		for (int k = 0; k < INKERNEL_STEPS && steps[k].call && n; k++) {
			n = call(steps + k, sequence->size);
			if (steps[k].call != INKERNEL_WRITE)
				sequence->bytes += n;
		}
	}
	sequence->ns = now() - begin;
}

/* Returns how long it took. */
static uint64_t run(struct inkernel_sequence *sequence)
{
	if (device < 0)
		run_here(sequence);
	else if (ioctl(device, INKERNEL_RUN, sequence))
		err(1, "in the kernel");
	return sequence->ns;
}

static void open_device(void)
{
	device = open("/dev/inkernel", O_RDWR);
	if (device < 0)
		err(1, "/dev/inkernel");
}

static void connect_ends(const char *carrier)
{
	struct place to = place_of("nodelay:127.0.0.1", atoi(PORT));
	int one[2], other[2], listener;

	if (!strcmp(carrier, "pipe")) {
		if (pipe(one) || pipe(other))
			err(1, "pipe");
		a = (struct end){ .in = other[0], .out = one[1] };
		b = (struct end){ .in = one[0], .out = other[1] };
		return;
	}
	if (!strcmp(carrier, "unix")) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, one))
			err(1, "socketpair");
	} else {
		listener = listen_at(PORT);
		one[0] = connect_to(&to);
		one[1] = accept_one(listener);
		no_delay(one[1]);
		close(listener);
	}
	a = (struct end){ .in = one[0], .out = one[0] };
	b = (struct end){ .in = one[1], .out = one[1] };
}

/*
 * Time and bytes for a ring to come. Calls from user space show that no other one is
 * in the socket.
 */
static void warm_up(void)
{
	struct inkernel_sequence trip = {
		.steps = {
			{ INKERNEL_WRITE, a.out }, { INKERNEL_READ, b.in },
			{ INKERNEL_WRITE, b.out }, { INKERNEL_READ, a.in },
		},
		.size = 1024,
		.count = 1,
	};

	for (int i = 0; i < 100; i++) {
		run_here(&trip);
		usleep(2000);
	}
}

static void end_bytes(struct end end)
{
	if (end.in == end.out)
		shutdown(end.out, SHUT_WR);
	else
		close(end.out);
}

static void drop(struct end end)
{
	close(end.in);
	if (end.in != end.out)
		close(end.out);
}

/* A process at the other end, which ends with the bytes, and then says how many it read. */
static pid_t fork_peer(struct inkernel_sequence sequence)
{
	pid_t child = fork();

	if (child < 0)
		err(1, "fork");
	if (child) {
		drop(b);
		return child;
	}
	drop(a);
	if (device >= 0)
		open_device();
	run(&sequence);
	if (write(b.out, &sequence.bytes, sizeof(sequence.bytes)) != sizeof(sequence.bytes))
		err(1, "the count");
	_exit(0);
}

/* Returns what the peer read. */
static uint64_t end_peer(pid_t child)
{
	uint64_t bytes;

	end_bytes(a);
	if (read(a.in, &bytes, sizeof(bytes)) != sizeof(bytes))
		err(1, "the count");
	waitpid(child, NULL, 0);
	return bytes;
}

static void add(struct samples *samples, uint64_t ns)
{
	samples->taken = realloc(samples->taken, (samples->count + 1) * sizeof(uint32_t));
	if (!samples->taken)
		err(1, "samples");
	samples->taken[samples->count++] = ns < UINT32_MAX ? ns : UINT32_MAX;
}

static double median(struct samples *samples)
{
	qsort(samples->taken, samples->count, sizeof(uint32_t), ascending);
	return samples->taken[samples->count / 2];
}

/* All samples have had that number of operations, each of which makes some calls. */
static void print_time(struct samples *all, struct samples *null, int operations, uint64_t bytes)
{
	double nothing = device < 0 ? median(null) / operations : 0;

	printf("{\"ns\": %.1f, \"null_ns\": %.1f, \"bytes\": %llu}\n",
	       median(all) / operations - nothing, nothing, (unsigned long long)bytes);
}

/* Writes of that size and number to /dev/null, from user space. */
static uint64_t call_nothing(size_t size, uint32_t count)
{
	static int null = -1;
	struct inkernel_sequence nothing = { .size = size, .count = count };

	if (null < 0)
		null = open("/dev/null", O_WRONLY);
	nothing.steps[0] = (struct inkernel_step){ INKERNEL_WRITE, null };
	return device < 0 ? run(&nothing) : 0;
}

/* No more at once than each carrier has room for. */
static uint32_t burst_of(size_t size)
{
	return size <= 64 ? 128 : size <= 1024 ? 32 : size <= 16384 ? 3 : 1;
}

static void measure_calls(size_t size, int reads, uint64_t end)
{
	uint32_t count = burst_of(size);
	struct inkernel_sequence out = {
		.steps = { { INKERNEL_WRITE, a.out } }, .size = size, .count = count,
	}, in = {
		.steps = { { INKERNEL_READ, b.in } }, .size = size, .count = count,
	};
	struct samples all = {}, null = {};
	uint64_t bytes = 0, ns, nothing;
	uint32_t calls;

	do {
		for (calls = ns = nothing = 0; calls < CALLS; calls += count) {
			run(&out);
			run(&in);
			ns += reads ? in.ns : out.ns;
			nothing += call_nothing(size, count);
			bytes += size * count;
		}
		add(&all, ns);
		add(&null, nothing);
	} while (now() < end);
	print_time(&all, &null, calls, bytes);
}

static void measure_trips(size_t size, int asleep, uint64_t end)
{
	struct inkernel_sequence trip = {
		.steps = {
			{ INKERNEL_WRITE, a.out }, { INKERNEL_READ, b.in },
			{ INKERNEL_WRITE, b.out }, { INKERNEL_READ, a.in },
		},
		.size = size,
		.count = TRIPS,
	}, answer = {
		.steps = { { INKERNEL_READ, b.in }, { INKERNEL_WRITE, b.out } },
		.size = size,
		.count = UINT32_MAX,
	};
	struct samples all = {}, null = {};
	uint64_t bytes = 0;
	pid_t child = 0;

	if (asleep) {
		child = fork_peer(answer);
		trip.steps[1] = trip.steps[3];
		trip.steps[2].call = INKERNEL_NONE;
	}
	do {
		add(&all, run(&trip));
		add(&null, call_nothing(size, 4 * TRIPS));
		bytes += 2 * size * TRIPS;
	} while (now() < end);
	if (asleep)
		end_peer(child);
	print_time(&all, &null, TRIPS, bytes);
}

static void measure_stream(size_t size, uint64_t end)
{
	struct inkernel_sequence out = {
		.steps = { { INKERNEL_WRITE, a.out } }, .size = size, .count = 1 + (1 << 20) / size,
	}, all = {
		.steps = { { INKERNEL_READ_SOME, b.in } }, .size = INKERNEL_SIZE, .count = UINT32_MAX,
	};
	pid_t child = fork_peer(all);
	uint64_t begin = now(), bytes = 0, read, took;

	do {
		run(&out);
		bytes += (uint64_t)out.count * size;
	} while (now() < end);
	read = end_peer(child);
	took = now() - begin;
	if (read != bytes)
		errx(1, "%llu bytes were written, and %llu read", (unsigned long long)bytes,
		     (unsigned long long)read);
	printf("{\"megabytes_per_second\": %.1f, \"bytes\": %llu}\n", bytes * 1e3 / took,
	       (unsigned long long)bytes);
}

int main(int argc, char **argv)
{
	size_t size;
	uint64_t end;

	if (argc != 6)
		errx(2, "user|kernel tcp|unix|pipe write|read|trip|asleep|stream SIZE SECONDS");
	size = strtoul(argv[4], NULL, 0);
	if (!size || size > sizeof(buffer))
		errx(2, "SIZE: 1 to %zu", sizeof(buffer));
	memset(buffer, 'h', sizeof(buffer));
	if (!strcmp(argv[1], "kernel"))
		open_device();
	connect_ends(argv[2]);
	warm_up();
	end = now() + atof(argv[5]) * 1e9;
	if (!strcmp(argv[3], "stream"))
		measure_stream(size, end);
	else if (!strcmp(argv[3], "trip") || !strcmp(argv[3], "asleep"))
		measure_trips(size, !strcmp(argv[3], "asleep"), end);
	else
		measure_calls(size, !strcmp(argv[3], "read"), end);
	return 0;
}
