// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The same operations as both their ends see them, each end between two marks of
 * ../plugin/instructions.c: their sum is what an operation costs two VMs. Where one end
 * is outside of any VM, the other one alone counts.
 *
 *   both -s PORT
 *   both -c ADDRESS PORT
 *
 * Each end prints a line "SLOT NAME OPERATIONS" for each kind of operation, as
 * calls.c does. The server's round begins before the client's: it is asleep then.
 */
#include "common.h"
#include "mark.h"

#define ROUNDS 25

static char buffer[1 << 16];

static void put(int fd, size_t bytes)
{
	if (write(fd, buffer, bytes) != (ssize_t)bytes)
		err(1, "write");
}

/* Takes all there is at each read. */
static void get(int fd, size_t bytes)
{
	ssize_t n;

	for (; bytes; bytes -= n) {
		n = read(fd, buffer, bytes < sizeof(buffer) ? bytes : sizeof(buffer));
		if (n <= 0)
			err(1, "read");
	}
}

/* Time and bytes for a ring to come, and for it to get its size. */
static void warm_up(int fd, int asks)
{
	for (int i = 0; i < 200; i++) {
		if (asks)
			put(fd, 1024);
		get(fd, 1024);
		if (!asks)
			put(fd, 1024);
		usleep(2000);
	}
}

/* A round is over for both ends; the server begins the next one. */
static void meet(int fd, int asks)
{
	if (asks)
		put(fd, 1);
	get(fd, 1);
	if (!asks)
		put(fd, 1);
}

/* What the client does count times, and what the server does meanwhile. */
#define measure(slot, name, count, asking, answering) do { \
	for (int round = 0; round < ROUNDS; round++) { \
		mark(MARK_START, slot); \
		if (asks) { \
			for (int i = 0; i < (count); i++) { \
				asking; \
			} \
		} else { \
			answering; \
		} \
		mark(MARK_STOP, slot); \
		meet(fd, asks); \
	} \
	printf("%d %s %d\n", slot, name, count); \
} while (0)

/* to: of a client. */
static void measure_all(int fd, int listener, const struct place *to)
{
	int asks = !!to;

	measure(0, "both-trip-1", 128, (put(fd, 1), get(fd, 1)),
		for (int i = 0; i < 128; i++) (get(fd, 1), put(fd, 1)));
	measure(1, "both-write-1k", 1024, put(fd, 1024), get(fd, 1024 * 1024));
	measure(2, "both-write-64", 8192, put(fd, 64), get(fd, 8192 * 64));
	measure(3, "both-connect", 64, connect_to_end(to),
		for (int i = 0; i < 64; i++) close(accept_one(listener)));
}

int main(int argc, char **argv)
{
	struct place to;
	int fd, listener = -1;

	if (argc == 3 && !strcmp(argv[1], "-s")) {
		listener = listen_at(argv[2]);
		fd = accept_one(listener);
	} else if (argc == 4 && !strcmp(argv[1], "-c")) {
		to = place_of(argv[2], atoi(argv[3]));
		fd = connect_to(&to);
	} else {
		errx(2, "-s PORT | -c ADDRESS PORT");
	}
	memset(buffer, 'h', sizeof(buffer));
	warm_up(fd, listener < 0);
	measure_all(fd, listener, listener < 0 ? &to : NULL);
	mark(MARK_END, 0);
	return 0;
}
