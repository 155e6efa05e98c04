// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * libxenvchan between two domains of Xen: a stream one way, or round trips. Programs that use
 * it share two rings by grants, and know of it; sockets are not in it.
 *
 *   vchan -s DOMAIN
 *   vchan -c DOMAIN stream|trips BYTES SECONDS
 *
 * DOMAIN is the number of the other one. The server serves one client after the other. The
 * client prints one JSON object, as stream and pingpong do.
 */
#include <err.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <libxenvchan.h>

#define PLACE "data/hallway-vchan"	/* in the server's XenStore */
#define RING (1 << 20)			/* bytes: the library's largest */
#define BYTES_MAX (1 << 20)
#define READ (64 << 10)			/* bytes that the server reads at once, as that of stream */
#define SAMPLES_MAX (1 << 20)
#define LAST 0xff			/* the last byte of a stream, and no other one */

enum { STREAM, TRIPS };

struct order {
	uint32_t what, bytes;
};

static unsigned char buffer[BYTES_MAX];
static uint32_t samples[SAMPLES_MAX];
static volatile sig_atomic_t over;

static void on_alarm(int number)
{
	(void)number;
	over = 1;
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Returns 0 when the other end is gone. */
static int get(struct libxenvchan *chan, void *into, size_t bytes)
{
	size_t have = 0;

	while (have < bytes) {
		int n = libxenvchan_read(chan, (char *)into + have, bytes - have);

		if (n <= 0)
			return 0;
		have += n;
	}
	return 1;
}

static int put(struct libxenvchan *chan, const void *from, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		int n = libxenvchan_write(chan, (const char *)from + done, bytes - done);

		if (n <= 0)
			return 0;
		done += n;
	}
	return 1;
}

static void serve_one(struct libxenvchan *chan)
{
	struct order order;
	int n;

	if (!get(chan, &order, sizeof(order)) || order.bytes > BYTES_MAX)
		return;
	if (order.what == TRIPS) {
		while (get(chan, buffer, order.bytes) && put(chan, buffer, order.bytes))
			;
		return;
	}
	do {
		n = libxenvchan_read(chan, buffer, READ);
	} while (n > 0 && buffer[n - 1] != LAST);
	if (n > 0)
		put(chan, buffer, 1);
	/* The client closes first. */
	get(chan, buffer, 1);
}

static void serve(int domain)
{
	for (;;) {
		struct libxenvchan *chan =
			libxenvchan_server_init(NULL, domain, PLACE, RING, RING);

		if (!chan)
			err(1, "no channel for domain %d", domain);
		chan->blocking = 1;
		serve_one(chan);
		libxenvchan_close(chan);
	}
}

static struct libxenvchan *join(int domain)
{
	char place[64];
	int tries;

	snprintf(place, sizeof(place), "/local/domain/%d/" PLACE, domain);
	/* The server may be about to offer its next channel. */
	for (tries = 0; tries < 500; tries++) {
		struct libxenvchan *chan = libxenvchan_client_init(NULL, domain, place);

		if (chan) {
			chan->blocking = 1;
			return chan;
		}
		usleep(10000);
	}
	err(1, "domain %d offers no channel", domain);
}

static void stream(struct libxenvchan *chan, uint32_t bytes, double seconds)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct itimerval timer = {
		.it_value.tv_sec = (time_t)seconds,
		.it_value.tv_usec = (suseconds_t)((seconds - (time_t)seconds) * 1e6),
	};
	uint64_t begin = now(), sent = 0, took;
	int last;

	sigaction(SIGALRM, &action, NULL);
	memset(buffer, 'h', sizeof(buffer));
	setitimer(ITIMER_REAL, &timer, NULL);
	do {
		/* As in stream, without a look at the clock for each write. */
		last = over;
		if (last)
			buffer[bytes - 1] = LAST;
		if (!put(chan, buffer, bytes))
			errx(1, "the server is gone");
		sent += bytes;
	} while (!last);
	if (!get(chan, buffer, 1))
		errx(1, "the server is gone");
	took = now() - begin;
	printf("{\"bytes\": %llu, \"megabytes_per_second\": %.3f}\n",
	       (unsigned long long)sent, sent * 1e3 / took);
}

static void make_trips(struct libxenvchan *chan, uint32_t bytes, double seconds)
{
	uint64_t last = now(), end = last + (uint64_t)(seconds * 1e9), t;
	size_t n = 0;

	while (last < end && n < SAMPLES_MAX) {
		if (!put(chan, buffer, bytes) || !get(chan, buffer, bytes))
			errx(1, "the server is gone");
		t = now();
		samples[n++] = t - last > UINT32_MAX ? UINT32_MAX : t - last;
		last = t;
	}
	qsort(samples, n, sizeof(*samples), ascending);
	printf("{\"bytes\": %u, \"round_trips\": %zu, \"p50_us\": %.3f}\n", bytes, n,
	       samples[n / 2] / 1e3);
}

static void call(int domain, const char *what, uint32_t bytes, double seconds)
{
	struct order order = { .what = strcmp(what, "stream") ? TRIPS : STREAM, .bytes = bytes };
	struct libxenvchan *chan;

	if (!bytes || bytes > BYTES_MAX)
		errx(2, "1 to %d bytes", BYTES_MAX);
	chan = join(domain);
	if (!put(chan, &order, sizeof(order)))
		errx(1, "the server is gone");
	(order.what == TRIPS ? make_trips : stream)(chan, bytes, seconds);
	libxenvchan_close(chan);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(atoi(argv[2]));
	else if (argc == 6 && !strcmp(argv[1], "-c"))
		call(atoi(argv[2]), argv[3], atoi(argv[4]), atof(argv[5]));
	else
		errx(2, "-s DOMAIN, or -c DOMAIN stream|trips BYTES SECONDS");
	return 0;
}
