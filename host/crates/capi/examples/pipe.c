// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A pipe between programs: "pipe send ADDRESS" sends its input, "pipe listen
 * ADDRESS" prints it. In a tunnel, no copy is made but those of read() and
 * write(), from and to ring memory.
 *
 *   cc pipe.c $(pkg-config --cflags --libs hallway) -o pipe
 */
#include <hallway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of a message at most. */
#define PIECE (64 << 10)

static int failed(const char *what)
{
	fprintf(stderr, "pipe: %s: %s\n", what, hallway_error());
	return EXIT_FAILURE;
}

static int receive(struct hallway_connection *connection)
{
	const void *message;
	ssize_t length;

	while ((length = hallway_peek(connection, &message)) > 0) {
		if (write(STDOUT_FILENO, message, length) != length) {
			perror("pipe: output");
			return EXIT_FAILURE;
		}
		if (hallway_release(connection))
			return failed("receiving");
	}
	if (length < 0)
		return failed("receiving");
	fprintf(stderr, "lent: %s\n", hallway_is_lent(connection) ? "true" : "false");
	return EXIT_SUCCESS;
}

static int listen_at(const char *at)
{
	struct hallway_connection *connection;
	struct hallway_listener *listener;
	int code;

	listener = hallway_listen(at);
	if (!listener)
		return failed(at);
	fprintf(stderr, "listening at %s\n", hallway_listener_address(listener));
	connection = hallway_accept(listener);
	code = connection ? receive(connection) : failed("accepting");
	hallway_close(connection);
	hallway_listener_close(listener);
	return code;
}

static int send_input(struct hallway_connection *connection)
{
	const void *answer;
	ssize_t length;
	void *space;

	for (;;) {
		space = hallway_reserve(connection, PIECE);
		if (!space)
			return failed("sending");
		length = read(STDIN_FILENO, space, PIECE);
		if (length <= 0)
			break;
		if (hallway_commit(connection, length))
			return failed("sending");
	}
	if (length < 0) {
		perror("pipe: input");
		return EXIT_FAILURE;
	}
	/* The peer ends once it has printed all. */
	if (hallway_shutdown(connection) || hallway_peek(connection, &answer))
		return failed("the end");
	fprintf(stderr, "lent: %s\n", hallway_is_lent(connection) ? "true" : "false");
	return EXIT_SUCCESS;
}

static int send_to(const char *to)
{
	struct hallway_connection *connection = hallway_connect(to);
	int code;

	if (!connection)
		return failed(to);
	fprintf(stderr, "connected to %s\n", hallway_peer(connection));
	code = send_input(connection);
	hallway_close(connection);
	return code;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "listen"))
		return listen_at(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "send"))
		return send_to(argv[2]);
	fprintf(stderr, "usage: pipe listen|send ADDRESS\n");
	return EXIT_FAILURE;
}
