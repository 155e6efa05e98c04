// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Single calls, each between two marks of ../plugin/instructions.c: the same calls
 * over whatever carries the connection.
 *
 *   calls ADDRESS PART
 *
 * Both ends are in this guest, and in this process where not said otherwise. PART
 * is one of
 *   stream   calls on a connection that has moved some bytes
 *   connect  connections that move none
 * Prints a line "SLOT NAME OPERATIONS" for each: operations of one round.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "common.h"
#include "mark.h"

#define ROUNDS 25
#define PORT "7009"

static char buffer[1 << 16];

static void put(int fd, size_t bytes)
{
	if (write(fd, buffer, bytes) != (ssize_t)bytes)
		err(1, "write");
}

static void get(int fd, size_t bytes)
{
	ssize_t n;

	for (; bytes; bytes -= n) {
		n = read(fd, buffer, bytes);
		if (n <= 0)
			err(1, "read");
	}
}

/*
 * Runs "call" count times in each round, with "before" before the round and "after"
 * after it. The first round is not like the others: it is the last of the warm-up.
 */
#define measure(slot, name, count, before, call, after) do { \
	for (int round = 0; round < ROUNDS; round++) { \
		before; \
		mark(MARK_START, slot); \
		for (int i = 0; i < (count); i++) { \
			call; \
		} \
		mark(MARK_STOP, slot); \
		after; \
	} \
	printf("%d %s %d\n", slot, name, count); \
} while (0)

struct pair {
	int a, b;
};

static struct pair connect_pair(int listener, const struct place *to)
{
	struct pair pair = { .a = connect_to(to) };

	pair.b = accept_one(listener);
	no_delay(pair.a);
	no_delay(pair.b);
	return pair;
}

/* Time and bytes for a ring to come, and for it to get its size. */
static void warm_up(struct pair pair)
{
	for (int i = 0; i < 100; i++) {
		put(pair.a, 1024);
		get(pair.b, 1024);
		put(pair.b, 1024);
		get(pair.a, 1024);
		usleep(2000);
	}
}

/* Answers each byte with a byte, or reads all there is. */
static pid_t fork_peer(struct pair pair, int answers)
{
	pid_t child = fork();
	ssize_t n;

	if (child < 0)
		err(1, "fork");
	if (child)
		return child;
	close(pair.a);
	while ((n = read(pair.b, buffer, answers ? 1 : sizeof(buffer))) > 0)
		if (answers)
			put(pair.b, n);
	_exit(n < 0);
}

static void end_peer(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void measure_calls(struct pair pair)
{
	int a = pair.a, b = pair.b;
	struct pollfd in = { .fd = b, .events = POLLIN }, out = { .fd = a, .events = POLLOUT };
	pid_t child;

	measure(0, "write-64", 256, , put(a, 64), get(b, 256 * 64));
	measure(1, "send-64", 256, , send(a, buffer, 64, 0), get(b, 256 * 64));
	measure(2, "read-64", 256, for (int i = 0; i < 256; i++) put(a, 64), get(b, 64), );
	fcntl(b, F_SETFL, O_NONBLOCK);
	measure(3, "read-eagain", 256, , read(b, buffer, 1), );
	fcntl(b, F_SETFL, 0);
	measure(10, "poll-empty", 256, , poll(&in, 1, 0), );
	measure(11, "poll-space", 256, , poll(&out, 1, 0), );
	measure(4, "write-read-1k", 128, , (put(a, 1024), get(b, 1024)), );
	measure(5, "write-64-read-all", 1024, ,
		(put(a, 64), i % 256 == 255 ? get(b, 256 * 64) : (void)0), );
	measure(6, "write-read-16k", 32, , (put(a, 16384), get(b, 16384)), );
	measure(7, "trip-1", 128, , (put(a, 1), get(b, 1), put(b, 1), get(a, 1)), );
	child = fork_peer(pair, 1);
	measure(8, "trip-1-asleep", 128, , (put(a, 1), get(a, 1)), );
	end_peer(child);
	child = fork_peer(pair, 0);
	measure(9, "stream-64-asleep", 8192, , put(a, 64), usleep(50000));
	end_peer(child);
}

int main(int argc, char **argv)
{
	struct place to;
	struct pair pair;
	int listener;

	if (argc != 3)
		errx(2, "ADDRESS stream|connect");
	to = place_of(argv[1], atoi(PORT));
	listener = listen_at(PORT);
	memset(buffer, 'h', sizeof(buffer));
	if (!strcmp(argv[2], "connect")) {
		/* The host asks ever more seldom whether the program has ended. */
		sleep(1);
		/* Few at once: a round is shorter than a tick of the timer. */
		measure(0, "connect", 8, , (pair = connect_pair(listener, &to), close(pair.a), close(pair.b)), );
	} else {
		pair = connect_pair(listener, &to);
		warm_up(pair);
		measure_calls(pair);
	}
	mark(MARK_END, 0);
	return 0;
}
