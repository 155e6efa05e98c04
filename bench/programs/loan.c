// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * One-way throughput of packets over a tunnel. The client writes each byte, and the server
 * reads each: in ring memory that is lent, or in a buffer of the program.
 *
 *   loan -s PORT                                  serves both, by the client's word
 *   loan -c lent|copied CID PORT BYTES SECONDS
 *
 * A ring of the usual 256 KiB holds three messages of 64 KiB: both ends would sleep more than
 * they work. So rings have 1 MiB.
 *
 * After its time the client ends its direction and waits for the server's count. It prints
 * one JSON object.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "../../abi/hallway/loan.h"
#include "common.h"

#define BYTES_MAX (128 * 1024)
/* The clock is read once for as many messages. */
#define BATCH 16
#define RING_BYTES (1ull << 20)

struct rings {
	int device, socket;
	char *tx, *rx;
};

static char buffer[BYTES_MAX];

static void enlarge(int fd)
{
	uint64_t size = RING_BYTES;

	if (setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_MAX_SIZE, &size, sizeof(size)) ||
	    setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_SIZE, &size, sizeof(size)))
		err(1, "SO_VM_SOCKETS_BUFFER_SIZE");
}

static struct rings borrow(int fd)
{
	struct hallway_loan_attach attach = { .socket = fd };
	struct rings rings = { .device = open("/dev/hallway-loan", O_RDWR), .socket = fd };

	if (rings.device < 0 || ioctl(rings.device, HALLWAY_LOAN_ATTACH, &attach))
		err(1, "/dev/hallway-loan");
	rings.tx = mmap(NULL, 2 * attach.tx_size, PROT_READ | PROT_WRITE, MAP_SHARED, rings.device,
			attach.tx_offset);
	rings.rx = mmap(NULL, 2 * attach.rx_size, PROT_READ, MAP_SHARED, rings.device,
			attach.rx_offset);
	if (rings.tx == MAP_FAILED || rings.rx == MAP_FAILED)
		err(1, "mmap");
	return rings;
}

static void wait_for(const struct rings *rings, short event)
{
	struct pollfd one = { .fd = rings->socket, .events = event };

	if (poll(&one, 1, -1) < 0)
		err(1, "poll");
}

/* Sends a message of that length where it was reserved, and finds space for the next. */
static char *send_lent(const struct rings *rings, size_t commit, size_t reserve)
{
	struct hallway_loan_send words = { .commit = commit, .reserve = reserve };

	for (;;) {
		if (ioctl(rings->device, HALLWAY_LOAN_SEND, &words))
			err(1, "HALLWAY_LOAN_SEND");
		if (words.state == HALLWAY_LOAN_FOUND)
			return rings->tx + words.offset;
		if (!reserve)
			return NULL;
		wait_for(rings, POLLOUT);
		words.commit = 0;
	}
}

/* Releases the message before, if there is one. NULL: the peer has ended. */
static const char *receive_lent(const struct rings *rings, bool release, size_t *length)
{
	struct hallway_loan_receive words = { .release = release };

	for (;;) {
		if (ioctl(rings->device, HALLWAY_LOAN_RECEIVE, &words))
			err(1, "HALLWAY_LOAN_RECEIVE");
		if (words.state != HALLWAY_LOAN_NONE) {
			*length = words.length;
			return words.state == HALLWAY_LOAN_FOUND ? rings->rx + words.offset : NULL;
		}
		wait_for(rings, POLLIN);
		words.release = 0;
	}
}

/* Reads each byte. */
static uint64_t add(const char *bytes, size_t length)
{
	const volatile uint64_t *words = (const volatile uint64_t *)bytes;
	uint64_t sum = 0;

	for (size_t i = 0; i < length / sizeof(*words); i++)
		sum += words[i];
	return sum;
}

static uint64_t count_lent(int fd, uint64_t *sum)
{
	struct rings rings = borrow(fd);
	uint64_t count = 0;
	const char *bytes;
	size_t length;
	bool any = false;

	while ((bytes = receive_lent(&rings, any, &length))) {
		*sum += add(bytes, length);
		count += length;
		any = true;
	}
	return count;
}

static uint64_t count_copied(int fd, uint64_t *sum)
{
	uint64_t count = 0;
	ssize_t n;

	while ((n = read(fd, buffer, sizeof(buffer))) > 0) {
		*sum += add(buffer, n);
		count += n;
	}
	if (n < 0)
		err(1, "read");
	return count;
}

/* In a process of its own: the loan ends with it. */
static void serve_one(int fd)
{
	uint64_t said[2] = { 0 };

	if (read(fd, buffer, sizeof(buffer)) != 1)
		errx(1, "no word of the client");
	said[0] = buffer[0] == 'l' ? count_lent(fd, said + 1) : count_copied(fd, said + 1);
	if (write(fd, said, sizeof(said)) != sizeof(said))
		err(1, "write");
}

static void serve(const char *port)
{
	char word[32];
	int listener;

	snprintf(word, sizeof(word), "packet:%s", port);
	listener = listen_at(word);
	enlarge(listener);
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int fd = accept_one(listener);

		if (!fork()) {
			serve_one(fd);
			exit(0);
		}
		close(fd);
	}
}

static void call(bool lent, const char *cid, int port, size_t bytes, double seconds)
{
	uint64_t begin, took, sent = 0, said[2];
	struct rings rings = { 0 };
	char word[64], *space = buffer;
	struct place to;
	int fd;

	if (!bytes || bytes > BYTES_MAX || bytes % sizeof(uint64_t))
		errx(1, "8 to %d bytes, a multiple of 8", BYTES_MAX);
	snprintf(word, sizeof(word), "packet:%s", cid);
	to = place_of(word, port);
	fd = socket(AF_VSOCK, SOCK_SEQPACKET, 0);
	if (fd < 0)
		err(1, "socket");
	enlarge(fd);
	if (connect(fd, &to.at.any, to.length))
		err(1, "connect");
	if (write(fd, lent ? "l" : "c", 1) != 1)
		err(1, "write");
	if (lent) {
		rings = borrow(fd);
		space = send_lent(&rings, 0, bytes);
	}
	begin = now();
	while (now() - begin < seconds * 1e9) {
		for (int i = 0; i < BATCH; i++) {
			memset(space, 1, bytes);
			if (lent)
				space = send_lent(&rings, bytes, bytes);
			else if (write(fd, buffer, bytes) != (ssize_t)bytes)
				err(1, "write");
		}
		sent += BATCH * bytes;
	}
	if (lent)
		send_lent(&rings, 0, 0);
	if (shutdown(fd, SHUT_WR))
		err(1, "shutdown");
	if (read(fd, said, sizeof(said)) != sizeof(said))
		errx(1, "the server did not tell its count");
	took = now() - begin;
	if (said[0] != sent || said[1] != sent / sizeof(uint64_t) * 0x0101010101010101)
		errx(1, "%llu bytes were sent, %llu arrived, or others",
		     (unsigned long long)sent, (unsigned long long)said[0]);
	printf("{\"bytes\": %llu, \"megabytes_per_second\": %.3f}\n",
	       (unsigned long long)sent, sent * 1e3 / took);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "-s"))
		serve(argv[2]);
	else if (argc == 7 && !strcmp(argv[1], "-c") &&
		 (!strcmp(argv[2], "lent") || !strcmp(argv[2], "copied")))
		call(argv[2][0] == 'l', argv[3], atoi(argv[4]), strtoul(argv[5], NULL, 0),
		     atof(argv[6]));
	else
		errx(2, "-s PORT, or -c lent|copied CID PORT BYTES SECONDS");
	return 0;
}
