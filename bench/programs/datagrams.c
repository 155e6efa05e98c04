// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Datagrams that arrive: the clients send as fast as they can, in datagrams of one size, and
 * then ask the server how many of theirs it has received.
 *
 *   datagrams -s KIND:PORT
 *   datagrams -c KIND:ADDRESS PORT BYTES SECONDS CLIENTS
 *
 * KIND is udp or datagram: see common.h. Each client is a process with a socket of its own. All
 * begin once each has had an answer from the server. The clock stops at the last answer, so all
 * that counts has been read by then. One JSON object says how many were sent and arrived, how
 * many arrived a second, and what the client that sent least has sent, as a part of the mean.
 */
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "common.h"

#define BYTES_MAX 65507
#define CLIENTS_MAX 64
#define ASK_AGAIN_US 2000	/* as long may pass between the last datagram and the last answer */
#define PATIENCE_NS 10000000000ull

enum { DATA, ASK };

/* The beginning of each datagram; answers are nothing but that. */
struct header {
	uint32_t what;
	uint32_t client;
	uint64_t run;
	uint64_t question;	/* its answer has the same: one may come late */
	uint64_t count;
};

struct result {
	uint64_t sent, arrived;
	uint64_t begin, end;	/* of the time that counts, with the last answer */
};

/* What all clients share. */
struct shared {
	uint32_t ready;		/* clients with an answer */
	struct result result[CLIENTS_MAX];
};

static char buffer[BYTES_MAX];
static volatile sig_atomic_t over;

static int bind_any(const struct place *place)
{
	int fd = socket(place->kind->family, place->kind->type, 0);

	if (fd < 0 || bind(fd, &place->at.any, place->length))
		err(1, "bind");
	return fd;
}

static void serve(const char *word)
{
	static struct {
		uint64_t run, count;
	} clients[CLIENTS_MAX];
	const struct kind *kind;
	const char *port = find_kind(word, &kind);
	struct place own = place_of_kind(kind, NULL, atoi(port)), from;
	int fd = bind_any(&own);

	for (;;) {
		struct header header;
		ssize_t n;

		from.length = sizeof(from.at);
		n = recvfrom(fd, buffer, sizeof(buffer), 0, &from.at.any, &from.length);
		if (n < 0)
			err(1, "recvfrom");
		memcpy(&header, buffer, sizeof(header));
		if ((size_t)n < sizeof(header) || header.client >= CLIENTS_MAX)
			continue;
		if (clients[header.client].run != header.run) {
			clients[header.client].run = header.run;
			clients[header.client].count = 0;
		}
		if (header.what == DATA) {
			clients[header.client].count++;
			continue;
		}
		header.count = clients[header.client].count;
		/* One that is lost is asked for again. */
		sendto(fd, &header, sizeof(header), 0, &from.at.any, from.length);
	}
}

static void on_alarm(int number)
{
	(void)number;
	over = 1;
}

/* How many have arrived; asks until there is an answer: the server may not be there yet. */
static uint64_t ask(int fd, uint32_t client, uint64_t run)
{
	struct header header = { .what = ASK, .client = client, .run = run, .question = now() };
	uint64_t end = now() + PATIENCE_NS;
	struct header answer;

	while (now() < end) {
		if (send(fd, &header, sizeof(header), 0) > 0)
			while (recv(fd, &answer, sizeof(answer), 0) == sizeof(answer))
				if (answer.client == client && answer.question == header.question)
					return answer.count;
		if (errno == ECONNREFUSED || errno == ENOBUFS)
			usleep(ASK_AGAIN_US);
		else if (errno != EAGAIN)
			err(1, "the server's answer");
	}
	errx(1, "the server does not answer");
}

/* Sends for a while, from the first answer on. */
static struct result send_all(const struct place *to, uint32_t client, uint64_t run,
			      size_t bytes, double seconds, uint32_t *ready, uint32_t clients)
{
	struct place own = place_of_kind(to->kind, NULL, 0);
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval timer = {
		.it_value.tv_sec = (time_t)seconds,
		.it_value.tv_usec = (suseconds_t)((seconds - (time_t)seconds) * 1e6),
	};
	struct timeval again = { .tv_usec = ASK_AGAIN_US };
	struct header header = { .what = DATA, .client = client, .run = run };
	struct result result = { 0 };
	int fd;

	if (to->kind->family == AF_VSOCK)
		own.at.vm.svm_port = VMADDR_PORT_ANY;
	fd = bind_any(&own);
	if (connect(fd, &to->at.any, to->length))
		err(1, "connect");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &again, sizeof(again));
	ask(fd, client, run);
	__atomic_add_fetch(ready, 1, __ATOMIC_SEQ_CST);
	result.begin = now();
	while (__atomic_load_n(ready, __ATOMIC_SEQ_CST) < clients) {
		if (now() > result.begin + PATIENCE_NS)
			errx(1, "other clients have no answer");
		usleep(ASK_AGAIN_US);
	}
	memcpy(buffer, &header, sizeof(header));
	result.begin = now();
	/* Without SA_RESTART: the signal also ends a send() that waits. */
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	while (!over) {
		if (send(fd, buffer, bytes, 0) == (ssize_t)bytes)
			result.sent++;
		else if (errno != EINTR && errno != ENOBUFS)
			err(1, "send");
	}
	result.arrived = ask(fd, client, run);
	result.end = now();
	return result;
}

static void call(const char *address, int port, size_t bytes, double seconds, uint32_t clients)
{
	struct place to = place_of(address, port);
	uint64_t run = now(), begin = UINT64_MAX, end = 0;
	uint64_t sent = 0, arrived = 0, least = UINT64_MAX;
	struct shared *shared;
	struct result *results;
	bool failed = false;
	uint32_t i;
	int status;

	if (bytes < sizeof(struct header) || bytes > BYTES_MAX)
		errx(1, "%zu to %d bytes", sizeof(struct header), BYTES_MAX);
	if (!clients || clients > CLIENTS_MAX)
		errx(1, "1 to %d clients", CLIENTS_MAX);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	if (shared == MAP_FAILED)
		err(1, "mmap");
	results = shared->result;
	for (i = 0; i < clients; i++) {
		switch (fork()) {
		case -1:
			err(1, "fork");
		case 0:
			results[i] = send_all(&to, i, run, bytes, seconds, &shared->ready,
					      clients);
			exit(0);
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	if (failed)
		exit(1);
	for (i = 0; i < clients; i++) {
		sent += results[i].sent;
		arrived += results[i].arrived;
		if (results[i].sent < least)
			least = results[i].sent;
		if (results[i].begin < begin)
			begin = results[i].begin;
		if (results[i].end > end)
			end = results[i].end;
	}
	printf("{\"sent\": %llu, \"arrived\": %llu, \"arrived_per_second\": %.3f, "
	       "\"least_share\": %.3f}\n",
	       (unsigned long long)sent, (unsigned long long)arrived, arrived * 1e9 / (end - begin),
	       sent ? (double)least * clients / sent : 0.0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 7 && !strcmp(argv[1], "-c"))
		call(argv[2], atoi(argv[3]), strtoul(argv[4], NULL, 0), atof(argv[5]),
		     strtoul(argv[6], NULL, 0));
	else
		errx(2, "-s KIND:PORT, or -c KIND:ADDRESS PORT BYTES SECONDS CLIENTS");
	return 0;
}
