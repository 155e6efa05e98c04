// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Request and response of a few bytes over one TCP connection, blocking, with
 * TCP_NODELAY: the median of the whole round trip.
 *
 *   pingpong -s PORT
 *   pingpong -c ADDRESS PORT BYTES SECONDS
 *
 * PORT and ADDRESS may begin with a kind of socket: see common.h.
 *
 * The client prints one JSON object, when its time is over or at SIGINT. Round
 * trips of the first tenth of a second are made but not counted.
 */
#include "common.h"

#include <signal.h>

#define BYTES_MAX 65536
#define SAMPLES_MAX (4 * 1024 * 1024)
#define WARM_UP_NS 100000000ull

static char buffer[BYTES_MAX];
static uint32_t samples[SAMPLES_MAX];
static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
	interrupted = number;
}

/* Reads all of it; returns 0 at the end of the stream. */
static int get(int fd, size_t bytes)
{
	size_t have = 0;

	while (have < bytes) {
		ssize_t n = read(fd, buffer + have, bytes - have);

		if (n < 0)
			err(1, "read");
		if (n == 0)
			return 0;
		have += n;
	}
	return 1;
}

static void put(int fd, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = write(fd, buffer + done, bytes - done);

		if (n < 0)
			err(1, "write");
		done += n;
	}
}

static void serve(const char *port)
{
	int listener = listen_at(port);

	for (;;) {
		int fd = accept_one(listener);
		uint32_t bytes;

		no_delay(fd);
		/* The client says first how large a request is. */
		if (get(fd, sizeof(bytes))) {
			memcpy(&bytes, buffer, sizeof(bytes));
			while (bytes && bytes <= BYTES_MAX && get(fd, bytes))
				put(fd, bytes);
		}
		close(fd);
	}
}

static void call(const char *address, int port, uint32_t bytes, double seconds)
{
	struct place to = place_of(address, port);
	int fd = connect_to(&to);
	uint64_t begin, warm, end, last, t, longest = 0;
	size_t n = 0, all = 0;

	if (!bytes || bytes > BYTES_MAX)
		errx(1, "1 to %d bytes", BYTES_MAX);
	no_delay(fd);
	signal(SIGINT, interrupt);
	memcpy(buffer, &bytes, sizeof(bytes));
	put(fd, sizeof(bytes));
	begin = last = now();
	warm = begin + WARM_UP_NS;
	end = warm + (uint64_t)(seconds * 1e9);
	while (last < end && n < SAMPLES_MAX && !interrupted) {
		put(fd, bytes);
		if (!get(fd, bytes))
			errx(1, "the server closed the connection");
		t = now();
		if (last >= warm) {
			samples[n++] = t - last > UINT32_MAX ? UINT32_MAX : t - last;
			longest = t - last > longest ? t - last : longest;
		}
		all++;
		last = t;
	}
	if (!n)
		errx(1, "no round trip was made");
	qsort(samples, n, sizeof(*samples), ascending);
	printf("{\"bytes\": %u, \"round_trips\": %zu, \"p50_us\": %.3f, "
	       "\"p99_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f}\n",
	       bytes, all, samples[n / 2] / 1e3, samples[n * 99 / 100] / 1e3,
	       samples[0] / 1e3, longest / 1e3);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 6 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), atoi(argv[4]), atof(argv[5]));
	else
		errx(2, "-s PORT, or -c ADDRESS PORT BYTES SECONDS");
	return 0;
}
