// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * One-way throughput: the client writes as fast as it can, in writes of one
 * size. The server reads what is there, at most 64 KiB at a time, since
 * programs do not know the sizes of their peer's writes.
 *
 *   stream -s PORT
 *   stream -c ADDRESS PORT BYTES SECONDS
 *
 * PORT and ADDRESS may begin with a kind of socket: see common.h.
 *
 * After its time the client ends its direction and waits for the server's
 * count: every byte was read when the clock stops. It prints one JSON object.
 * Between two writes it neither reads a clock nor polls: that would be
 * measured, too.
 */
#include <errno.h>
#include <signal.h>
#include <sys/time.h>

#include "common.h"

#define BYTES_MAX (1024 * 1024)
#define READ_MAX 65536

static char buffer[BYTES_MAX];
static volatile sig_atomic_t over;

static void serve(const char *port)
{
	int listener = listen_at(port);

	/* A client that is killed is the end of its connection alone. */
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		int fd = accept_one(listener);
		uint64_t count = 0;
		ssize_t n;

		while ((n = read(fd, buffer, READ_MAX)) > 0)
			count += n;
		if (n < 0)
			warn("read");
		else if (write(fd, &count, sizeof(count)) != sizeof(count))
			warn("write");
		close(fd);
	}
}

static void on_alarm(int number)
{
	(void)number;
	over = 1;
}

static void call(const char *address, int port, size_t bytes, double seconds)
{
	struct place to = place_of(address, port);
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval timer = {
		.it_value.tv_sec = (time_t)seconds,
		.it_value.tv_usec = (suseconds_t)((seconds - (time_t)seconds) * 1e6),
	};
	int fd = connect_to(&to);
	uint64_t begin, took, sent = 0, count = 0;
	size_t have = 0;
	ssize_t n;

	if (!bytes || bytes > BYTES_MAX)
		errx(1, "1 to %d bytes", BYTES_MAX);
	/* Without SA_RESTART: the signal also ends a write that waits. */
	sigaction(SIGALRM, &action, NULL);
	memset(buffer, 'h', sizeof(buffer));
	begin = now();
	setitimer(ITIMER_REAL, &timer, NULL);
	while (!over) {
		n = write(fd, buffer, bytes);
		if (n < 0 && errno != EINTR)
			err(1, "write");
		if (n > 0)
			sent += n;
	}
	if (shutdown(fd, SHUT_WR))
		err(1, "shutdown");
	while (have < sizeof(count)) {
		n = read(fd, (char *)&count + have, sizeof(count) - have);
		if (n <= 0)
			errx(1, "the server did not tell its count");
		have += n;
	}
	took = now() - begin;
	if (count != sent)
		errx(1, "%llu bytes were sent, %llu arrived",
		     (unsigned long long)sent, (unsigned long long)count);
	printf("{\"bytes\": %llu, \"megabytes_per_second\": %.3f}\n",
	       (unsigned long long)sent, sent * 1e3 / took);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 6 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), strtoul(argv[4], NULL, 0), atof(argv[5]));
	else
		errx(2, "-s PORT, or -c ADDRESS PORT BYTES SECONDS");
	return 0;
}
