// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * How many connections a second: connect(), accept(), close(), one after the
 * other and without payload.
 *
 *   connrate -s PORT
 *   connrate -c ADDRESS PORT SECONDS
 *
 * The server closes first: what waits in TIME_WAIT is then on its side, and
 * the client does not run out of ports. The client closes when it has read
 * the end of the stream, and prints one JSON object.
 */
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void serve(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (void *)&at, sizeof(at)) || listen(listener, 1024))
		err(1, "port %d", port);
	for (;;) {
		int fd = accept(listener, NULL, NULL);

		if (fd < 0)
			err(1, "accept");
		close(fd);
	}
}

static void call(const char *address, int port, double seconds)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	uint64_t begin = now(), end = begin + (uint64_t)(seconds * 1e9), t;
	unsigned long count = 0;
	char byte;

	if (inet_pton(AF_INET, address, &to.sin_addr) != 1)
		errx(1, "no IPv4 address: %s", address);
	do {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (fd < 0 || connect(fd, (void *)&to, sizeof(to)))
			err(1, "connection %lu", count);
		if (read(fd, &byte, 1) != 0)
			errx(1, "connection %lu: no end of the stream", count);
		close(fd);
		count++;
		t = now();
	} while (t < end);
	printf("{\"connections\": %lu, \"per_second\": %.1f}\n", count,
	       count * 1e9 / (t - begin));
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(atoi(argv[2]));
	else if (argc == 5 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), atof(argv[4]));
	else
		errx(2, "-s PORT, or -c ADDRESS PORT SECONDS");
	return 0;
}
