// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * How long the calls take that make and end connections: connect(), accept(), bind(), listen()
 * and close(), as in Fig. 16 of "Inter-domain Socket Communications" (XWAY, VEE 2008).
 *
 *   lifecycle -s PORT
 *   lifecycle -c ADDRESS PORT CALL SECONDS
 *
 * CALL is one of the five; the client prints its median in a JSON object. connect() and close()
 * are the client's. The server times the others, for each connection, and sends what it found:
 * accept() of a connection that waits already, and bind() and listen() of a fresh socket.
 */
#include <poll.h>

#include "common.h"

#define SAMPLES_MAX (1 << 20)

enum { ACCEPT, BIND, LISTEN, OF_SERVER, CONNECT = OF_SERVER, CLOSE, CALLS };

static const char *const names[CALLS] = { "accept", "bind", "listen", "connect", "close" };
static uint32_t samples[SAMPLES_MAX];

static void time_listener(const struct place *any, uint32_t *took)
{
	int fd = socket(any->kind->family, any->kind->type, 0);
	uint64_t begin = now(), bound;

	if (fd < 0 || bind(fd, &any->at.any, any->length))
		err(1, "bind");
	bound = now();
	if (listen(fd, 1))
		err(1, "listen");
	took[LISTEN] = now() - bound;
	took[BIND] = bound - begin;
	close(fd);
}

static void serve(const char *port)
{
	struct pollfd listener = { .fd = listen_at(port), .events = POLLIN };
	const struct kind *kind;
	struct place any;

	find_kind(port, &kind);
	any = place_of_kind(kind, NULL, 0);
	for (;;) {
		uint32_t took[OF_SERVER];
		uint64_t begin;
		int fd;

		if (poll(&listener, 1, -1) != 1)
			err(1, "poll");
		begin = now();
		fd = accept_one(listener.fd);
		took[ACCEPT] = now() - begin;
		time_listener(&any, took);
		if (write(fd, took, sizeof(took)) != sizeof(took))
			err(1, "write");
		close(fd);
	}
}

/* The server closes first: sockets in TIME_WAIT are then on its side. */
static void time_connection(const struct place *to, uint32_t *took)
{
	int fd = socket(to->kind->family, to->kind->type, 0);
	uint64_t begin = now();
	char byte;

	if (fd < 0 || connect(fd, &to->at.any, to->length))
		err(1, "connect");
	took[CONNECT] = now() - begin;
	if (recv(fd, took, OF_SERVER * sizeof(*took), MSG_WAITALL) !=
	    OF_SERVER * sizeof(*took) || read(fd, &byte, 1) != 0)
		errx(1, "the server did not say how long its calls took");
	begin = now();
	close(fd);
	took[CLOSE] = now() - begin;
}

static void call(const char *address, int port, const char *name, double seconds)
{
	struct place to = place_of(address, port);
	uint64_t end = now() + (uint64_t)(seconds * 1e9);
	uint32_t took[CALLS];
	size_t n = 0;
	int which = 0;

	while (which < CALLS && strcmp(names[which], name))
		which++;
	if (which == CALLS)
		errx(2, "no call: %s", name);
	do {
		time_connection(&to, took);
		samples[n++] = took[which];
	} while (n < SAMPLES_MAX && now() < end);
	qsort(samples, n, sizeof(*samples), ascending);
	printf("{\"connections\": %zu, \"p50_us\": %.3f}\n", n, samples[n / 2] / 1e3);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 6 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), argv[4], atof(argv[5]));
	else
		errx(2, "-s PORT, or -c ADDRESS PORT CALL SECONDS");
	return 0;
}
