// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Many idle connections: each carries one byte, which is read, and then nothing.
 *
 *   idle -s PORT
 *   idle -c ADDRESS PORT CONNECTIONS
 *
 * Both go on in the background once they are ready: the server when it listens, the client
 * when all connections are there. Connections of a client that is killed are reset.
 */
#include "common.h"

#define CONNECTIONS_MAX 16384

static void go_on_in_background(void)
{
	if (daemon(1, 0))
		err(1, "daemon");
}

static void serve(const char *port)
{
	int listener = listen_at(port);
	char byte;

	go_on_in_background();
	for (;;)
		if (read(accept_one(listener), &byte, 1) != 1)
			err(1, "read");
}

static void call(const char *address, int port, int connections)
{
	struct place to = place_of(address, port);
	struct linger at_once = { .l_onoff = 1 };
	int fd;

	while (connections--) {
		fd = connect_to(&to);
		/* No port is left in TIME_WAIT: the next run needs it. */
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
		if (write(fd, "", 1) != 1)
			err(1, "write");
	}
	go_on_in_background();
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	allow_descriptors(CONNECTIONS_MAX);
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 5 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), atoi(argv[4]));
	else
		errx(2, "-s PORT, or -c ADDRESS PORT CONNECTIONS");
	return 0;
}
