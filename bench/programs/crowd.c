// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Many connections at once. Each has one request in flight: the client writes some
 * bytes, and the server answers with one byte when it has read them all. One thread
 * at each end serves all of them, by epoll and without blocking.
 *
 *   crowd -s PORT BYTES
 *   crowd -c ADDRESS PORT BYTES CONNECTIONS SECONDS
 *
 * The client prints one JSON object. Requests of the first half second are made but not
 * counted: connections may change what carries them meanwhile. "requests" is the sum of
 * what the connections were answered, "squares" that of their squares: several clients
 * together have one index of fairness by them. "all" are the bytes of all requests.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>

#include "common.h"

#define BYTES_MAX 65536
#define CONNECTIONS_MAX 16384
#define SAMPLES_MAX (4 * 1024 * 1024)
#define EVENTS 256
#define WARM_UP_NS 500000000ull
#define DRAIN_NS 30000000000ull

struct connection {
	int fd;
	uint32_t left;		/* bytes of this request to be written, or read; 0: the answer is due */
	uint32_t watched;	/* events that epoll watches for */
	uint32_t counted;	/* requests that were answered, after the warm-up */
	uint64_t begun;		/* when this request began */
};

static char buffer[BYTES_MAX];
static uint32_t samples[SAMPLES_MAX];
static struct epoll_event events[EVENTS];
static uint32_t bytes;
static int epoll;

static void prepare(int fd)
{
	no_delay(fd);
	if (fcntl(fd, F_SETFL, O_NONBLOCK))
		err(1, "O_NONBLOCK");
}

static void add(struct connection *one)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = one };

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, one->fd, &event))
		err(1, "epoll_ctl");
	one->watched = EPOLLIN;
}

static void watch(struct connection *one, uint32_t wanted)
{
	struct epoll_event event = { .events = wanted, .data.ptr = one };

	if (wanted == one->watched)
		return;
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, one->fd, &event))
		err(1, "epoll_ctl");
	one->watched = wanted;
}

static int must_wait(ssize_t n)
{
	return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Server */

static void take(int listener)
{
	struct connection *one = calloc(1, sizeof(*one));

	if (!one)
		err(1, "memory");
	one->fd = accept_one(listener);
	one->left = bytes;
	prepare(one->fd);
	add(one);
}

static void end(struct connection *one)
{
	close(one->fd);
	free(one);
}

static void answer(struct connection *one)
{
	ssize_t n;

	if (one->left) {
		n = read(one->fd, buffer, one->left);
		if (must_wait(n))
			return;
		if (n <= 0) {
			end(one);
			return;
		}
		one->left -= n;
		if (one->left)
			return;
	}
	n = write(one->fd, buffer, 1);
	if (n == 1) {
		one->left = bytes;
	} else if (!must_wait(n)) {
		end(one);
		return;
	}
	watch(one, one->left ? EPOLLIN : EPOLLOUT);
}

static void serve(const char *port)
{
	struct connection listening = { .fd = listen_at(port) };
	int i, n;

	add(&listening);
	for (;;) {
		n = epoll_wait(epoll, events, EVENTS, -1);
		for (i = 0; i < n; i++) {
			if (events[i].data.ptr == &listening)
				take(listening.fd);
			else
				answer(events[i].data.ptr);
		}
	}
}

/* Client */

static void go_on(struct connection *one)
{
	ssize_t n = write(one->fd, buffer, one->left);

	if (n < 0 && !must_wait(n))
		err(1, "write");
	if (n > 0)
		one->left -= n;
	watch(one, one->left ? EPOLLOUT : EPOLLIN);
}

static void ask(struct connection *one, uint64_t at)
{
	one->left = bytes;
	one->begun = at;
	go_on(one);
}

static void report(const struct connection *all, size_t count, size_t n,
		   double seconds, uint64_t answered)
{
	double sum = 0, squares = 0;
	size_t i;

	for (i = 0; i < count; i++) {
		sum += all[i].counted;
		squares += (double)all[i].counted * all[i].counted;
	}
	if (!n)
		errx(1, "no request was answered in time");
	qsort(samples, n, sizeof(*samples), ascending);
	printf("{\"all\": %llu, \"megabytes_per_second\": %.3f, \"p50_us\": %.1f, "
	       "\"p99_us\": %.1f, \"requests\": %.0f, \"squares\": %.0f}\n",
	       (unsigned long long)answered * bytes, sum * bytes / seconds / 1e6,
	       samples[n / 2] / 1e3, samples[n * 99 / 100] / 1e3, sum, squares);
}

static void call(const char *address, int port, size_t count, double seconds)
{
	struct place to = place_of(address, port);
	struct connection *all = calloc(count, sizeof(*all)), *one;
	uint64_t begin, warm, end, at, answered = 0;
	size_t open = count, n = 0;
	int i, ready;

	if (!all || !count || count > CONNECTIONS_MAX)
		errx(1, "1 to %d connections", CONNECTIONS_MAX);
	for (one = all; one < all + count; one++) {
		one->fd = connect_to(&to);
		prepare(one->fd);
		add(one);
	}
	begin = now();
	warm = begin + WARM_UP_NS;
	end = warm + (uint64_t)(seconds * 1e9);
	for (one = all; one < all + count; one++)
		ask(one, begin);
	while (open) {
		ready = epoll_wait(epoll, events, EVENTS, 1000);
		at = now();
		if (at > end + DRAIN_NS)
			errx(1, "%zu connections got no answer", open);
		for (i = 0; i < ready; i++) {
			ssize_t got;
			char byte;

			one = events[i].data.ptr;
			if (one->left) {
				go_on(one);
				continue;
			}
			got = read(one->fd, &byte, 1);
			if (must_wait(got))
				continue;
			if (got != 1)
				errx(1, "a connection ended");
			answered++;
			if (at >= warm && at < end) {
				one->counted++;
				if (n < SAMPLES_MAX)
					samples[n++] = at - one->begun > UINT32_MAX ?
						UINT32_MAX : at - one->begun;
			}
			if (at < end) {
				ask(one, at);
			} else {
				close(one->fd);
				open--;
			}
		}
	}
	report(all, count, n, seconds, answered);
}

int main(int argc, char **argv)
{
	int serves = argc == 4 && !strcmp(argv[1], "-s");
	int calls = argc == 7 && !strcmp(argv[1], "-c");

	if (!serves && !calls)
		errx(2, "-s PORT BYTES, or -c ADDRESS PORT BYTES CONNECTIONS SECONDS");
	bytes = strtoul(argv[calls ? 4 : 3], NULL, 0);
	if (!bytes || bytes > BYTES_MAX)
		errx(1, "1 to %d bytes", BYTES_MAX);
	allow_descriptors(CONNECTIONS_MAX);
	epoll = epoll_create1(0);
	if (epoll < 0)
		err(1, "epoll_create1");
	/* A client may end before it has its answer. */
	signal(SIGPIPE, SIG_IGN);
	if (serves)
		serve(argv[2]);
	else
		call(argv[2], atoi(argv[3]), strtoul(argv[5], NULL, 0), atof(argv[6]));
	return 0;
}
