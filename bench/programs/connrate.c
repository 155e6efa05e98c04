// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * How many connections a second: connect(), accept(), close(), one after the
 * other and without payload.
 *
 *   connrate -s PORT
 *   connrate -c ADDRESS PORT SECONDS
 *
 * PORT and ADDRESS may begin with a kind of socket: see common.h.
 *
 * The server closes first: sockets in TIME_WAIT are then on its side, and the
 * client does not run out of ports. The client closes when it has read the end
 * of the stream. It prints one JSON object.
 */
#include "common.h"

static void serve(const char *port)
{
	int listener = listen_at(port);

	for (;;) {
		close(accept_one(listener));
	}
}

static void call(const char *address, int port, double seconds)
{
	struct place to = place_of(address, port);
	uint64_t begin = now(), end = begin + (uint64_t)(seconds * 1e9), t;
	unsigned long count = 0;

	do {
		connect_to_end(&to);
		count++;
		t = now();
	} while (t < end);
	printf("{\"connections\": %lu, \"per_second\": %.1f}\n", count,
	       count * 1e9 / (t - begin));
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 5 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), atof(argv[4]));
	else
		errx(2, "-s PORT, or -c ADDRESS PORT SECONDS");
	return 0;
}
