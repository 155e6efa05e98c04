// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Lines as messages: "lines listen ADDRESS" prints those of one peer, then says
 * how many came; "lines send ADDRESS" sends those of its input.
 *
 *   cc lines.c $(pkg-config --cflags --libs hallway) -o lines
 */
#define _GNU_SOURCE
#include <hallway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *what)
{
	fprintf(stderr, "lines: %s: %s\n", what, hallway_error());
	return EXIT_FAILURE;
}

static int receive(struct hallway_connection *connection)
{
	const void *message;
	char answer[40];
	long count = 0;
	ssize_t length;

	while ((length = hallway_recv(connection, &message)) > 0) {
		fwrite(message, 1, length, stdout);
		putchar('\n');
		count++;
	}
	if (length < 0)
		return failed("receiving");
	if (fflush(stdout) || ferror(stdout)) {
		perror("lines: output");
		return EXIT_FAILURE;
	}
	snprintf(answer, sizeof(answer), "%ld messages", count);
	if (hallway_send(connection, answer, strlen(answer)))
		return failed("answering");
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

static int send_lines(struct hallway_connection *connection)
{
	const void *message;
	char *line = NULL;
	size_t size = 0;
	ssize_t length;

	while ((length = getline(&line, &size, stdin)) > 0) {
		if (line[length - 1] == '\n')
			length--;
		if (hallway_send(connection, line, length))
			return failed("sending");
	}
	free(line);
	if (ferror(stdin)) {
		perror("lines: input");
		return EXIT_FAILURE;
	}
	if (hallway_shutdown(connection))
		return failed("shutting down");
	length = hallway_recv(connection, &message);
	if (length < 0)
		return failed("answer");
	printf("%.*s\n", (int)length, (const char *)message);
	return EXIT_SUCCESS;
}

static int send_to(const char *to)
{
	struct hallway_connection *connection = hallway_connect(to);
	int code;

	if (!connection)
		return failed(to);
	fprintf(stderr, "connected to %s\n", hallway_peer(connection));
	code = send_lines(connection);
	hallway_close(connection);
	return code;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "listen"))
		return listen_at(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "send"))
		return send_to(argv[2]);
	fprintf(stderr, "usage: lines listen|send ADDRESS\n");
	return EXIT_FAILURE;
}
