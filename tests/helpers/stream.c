// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * stream: moves bytes both ways over many connections at once and checks each
 * of them.
 *
 *   stream server [options]          accepts, streams until its client is done
 *   stream client HOST [options]     connects, streams until SIGTERM, --seconds
 *                                    or --bytes
 *
 * The byte at position p of a direction is a function of the seed, the
 * connection's number, the direction and p: a byte that is lost, repeated,
 * reordered or of another stream shows at once, and the report says which it
 * was. Sizes, calls and pauses are drawn at random; --seed repeats a draw.
 *
 * Each connection is driven in one of three ways (--mode, by default in turn):
 *   block   a thread that sends and one that receives, with blocking calls
 *   level   non-blocking, level-triggered epoll, all such connections together
 *   edge    the same, edge-triggered
 *
 * Nothing waits for ever: a call that makes no progress for --stall seconds is
 * an error. The result is one line of JSON; the exit code says whether there
 * were errors.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define BIGGEST (300 * 1024)
#define REPORTS 32

enum mode { BLOCK, LEVEL, EDGE, MODES, MIXED = MODES };
static const char *const mode_names[] = { "block", "level", "edge", "mixed" };

/* Calls that --calls may choose from; names[] has the same order. */
enum call { SEND_WRITE, SEND_MSG, SEND_MORE, SEND_SPLICE, SEND_FILE,
	    RECV_READ, RECV_MSG, RECV_PEEK, RECV_WAITALL, RECV_POLL,
	    RECV_SPLICE, RECV_TRUNC, CALLS };
static const char *const call_names[] = {
	"write", "sendmsg", "more", "splice-out", "sendfile",
	"read", "recvmsg", "peek", "waitall", "poll", "splice-in", "trunc",
};

static struct {
	bool server;
	bool calm;		/* a pause after each call */
	bool may_be_short;	/* a blocking call: the module goes, or programs are frozen */
	const char *host, *port;
	const char *hold;	/* no call is made while this file exists */
	unsigned int conns, calls, pauses;
	uint64_t seed, bytes;
	double seconds, stall;
	enum mode mode;
	size_t biggest;
} opt = {
	.port = "5000", .conns = 1, .calls = ~0u, .pauses = 1, .seed = 1,
	.bytes = UINT64_MAX, .seconds = 1e9, .stall = 30, .mode = MIXED,
	.biggest = BIGGEST,
};

struct side {			/* one direction of one connection */
	uint64_t key, pos, rng;
	bool done, ready;
	unsigned int phase;	/* calls until the pace changes */
	unsigned int pace;	/* pauses in 1024 calls */
};

struct conn {
	int fd;
	unsigned int index;
	enum mode mode;
	struct side tx, rx;
	bool closed;
	pthread_t sender, receiver;
};

static struct conn *conns;
static volatile sig_atomic_t stop;
static double deadline;

/* Errors */

static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static char reports[REPORTS][400];
static unsigned int errors;

static __attribute__((format(printf, 2, 3)))
void fail(const struct conn *c, const char *format, ...)
{
	char text[300];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	pthread_mutex_lock(&report_lock);
	if (errors < REPORTS)
		snprintf(reports[errors], sizeof(reports[0]),
			 "connection %u (%s) sent %llu received %llu: %s",
			 c->index, mode_names[c->mode],
			 (unsigned long long)c->tx.pos,
			 (unsigned long long)c->rx.pos, text);
	errors++;
	pthread_mutex_unlock(&report_lock);
}

static void die(const char *what)
{
	printf("{\"fatal\": \"%s: %s\"}\n", what, strerror(errno));
	exit(2);
}

/* Content and chance */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static unsigned char content(uint64_t key, uint64_t pos)
{
	return mix(key + pos / 8) >> (pos % 8 * 8);
}

static void fill(unsigned char *to, size_t n, uint64_t key, uint64_t pos)
{
	uint64_t word;

	for (; n && pos % 8; n--)
		*to++ = content(key, pos++);
	for (; n >= 8; n -= 8, to += 8, pos += 8) {
		word = mix(key + pos / 8);
		memcpy(to, &word, 8);
	}
	for (; n; n--)
		*to++ = content(key, pos++);
}

static uint64_t draw(struct side *s, uint64_t below)
{
	s->rng = mix(s->rng);
	return below ? s->rng % below : 0;
}

static size_t draw_size(struct side *s)
{
	size_t n;

	switch (draw(s, 8)) {
	case 0:
		n = 1 + draw(s, 16);
		break;
	case 1:
		n = 1 + draw(s, 700);
		break;
	case 2:
		n = (1ul << (6 + draw(s, 12))) - 1 + draw(s, 3);
		break;
	case 3:
		n = 1 + draw(s, opt.biggest);
		break;
	default:
		n = 1 + draw(s, 20000);
	}
	return n < opt.biggest ? n : opt.biggest;
}

/* The pace of a direction changes at random: rings must fill and run dry. */
static void pause_maybe(struct side *s)
{
	static const unsigned int paces[] = { 0, 0, 8, 60, 400 };
	struct timespec nap = { 0 };

	while (opt.hold && !access(opt.hold, F_OK))
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	if (!opt.pauses)
		return;
	if (!s->phase--) {
		s->phase = 20 + draw(s, 400);
		s->pace = opt.calm ? 1024 : paces[draw(s, 5)];
	}
	if (draw(s, 1024) < s->pace) {
		nap.tv_nsec = draw(s, 3000000);
		nanosleep(&nap, NULL);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Where else in the stream would these bytes have been right? */
static void explain(const struct conn *c, const unsigned char *got, size_t n,
		    uint64_t pos)
{
	unsigned char want[24];
	char hex[60] = "";
	size_t i, len = n < 16 ? n : 16;
	long long d;

	for (i = 0; i < len && i < 16; i++)
		sprintf(hex + 2 * i, "%02x", got[i]);
	if (len >= 6) {
		for (d = -(4ll << 20); d < 4ll << 20; d++) {
			if ((long long)pos + d < 0 || !d)
				continue;
			if (content(c->rx.key, pos + d) != got[0])
				continue;
			fill(want, len, c->rx.key, pos + d);
			if (!memcmp(want, got, len)) {
				fail(c, "wrong bytes at %llu: %s, which belong %lld bytes %s (%s)",
				     (unsigned long long)pos, hex, d < 0 ? -d : d,
				     d < 0 ? "before" : "after",
				     d < 0 ? "repeated" : "skipped");
				return;
			}
		}
	}
	fail(c, "wrong bytes at %llu: %s, not of this part of the stream",
	     (unsigned long long)pos, hex);
}

static bool check(struct conn *c, const unsigned char *got, size_t n,
		  uint64_t pos)
{
	static __thread unsigned char want[BIGGEST];
	size_t i;

	fill(want, n, c->rx.key, pos);
	if (!memcmp(want, got, n))
		return true;
	for (i = 0; want[i] == got[i]; i++)
		;
	explain(c, got + i, n - i, pos + i);
	return false;
}

/* Cuts a buffer into random pieces. */
static int cut(struct side *s, void *buf, size_t n, struct iovec *iov, int max)
{
	size_t piece;
	int i = 0;

	while (n && i < max) {
		piece = i == max - 1 ? n : 1 + draw(s, n);
		iov[i++] = (struct iovec){ buf, piece };
		buf = (char *)buf + piece;
		n -= piece;
	}
	return i;
}

static enum call choose(struct side *s, enum call first, enum call last)
{
	enum call call;

	if (!(opt.calls & (((1u << (last + 1)) - 1) & ~((1u << first) - 1))))
		return first;
	do {
		call = first + draw(s, last - first + 1);
	} while (!(opt.calls & (1u << call)));
	return call;
}

/* Sending */

static bool sender_done(const struct conn *c)
{
	return opt.server ? c->rx.done :
	       stop || c->tx.pos >= opt.bytes || now() >= deadline;
}

static ssize_t send_file(int fd, const unsigned char *buf, size_t n)
{
	/* A new file each time: its pages are TCP's until they are acked. */
	int file = memfd_create("stream", 0);
	off_t offset = 0;
	ssize_t ret;
	int err;

	if (file < 0 || write(file, buf, n) != (ssize_t)n)
		return -1;
	ret = sendfile(fd, file, &offset, n);
	err = errno;
	close(file);
	errno = err;
	return ret;
}

/*
 * Programs that are frozen, as before a domain of Xen is saved, have their calls interrupted:
 * by TCP, too, where the socket has a time limit, as those here.
 */
static bool was_interrupted(ssize_t n)
{
	return n < 0 && errno == EINTR && opt.may_be_short;
}

/* All of it: what is in the pipe can't be taken back. */
static ssize_t send_pipe(int fd, int *pipe_fds, const unsigned char *buf,
			 size_t n)
{
	size_t left;
	ssize_t ret;

	n = n < 60000 ? n : 60000;
	if (write(pipe_fds[1], buf, n) != (ssize_t)n)
		return -1;
	for (left = n; left; left -= ret) {
		do
			ret = splice(pipe_fds[0], NULL, fd, NULL, left, SPLICE_F_MOVE);
		while (was_interrupted(ret));
		if (ret <= 0)
			return -1;
	}
	return n;
}

/* A blocking send takes everything. */
static ssize_t all_of(struct conn *c, size_t n, ssize_t sent, bool blocking)
{
	if (blocking && sent > 0 && (size_t)sent < n && !opt.may_be_short)
		fail(c, "a blocking send took %zd bytes of %zu", sent, n);
	return sent;
}

static ssize_t send_some(struct conn *c, unsigned char *buf, int *pipe_fds,
			 bool blocking)
{
	struct side *s = &c->tx;
	size_t n = draw_size(s);
	struct iovec iov[6];
	struct msghdr msg = { .msg_iov = iov };
	enum call call = choose(s, SEND_WRITE, SEND_FILE);

	if (n > opt.bytes - s->pos)
		n = opt.bytes - s->pos;
	fill(buf, n, s->key, s->pos);
	if (!blocking && call == SEND_SPLICE)
		call = SEND_WRITE;
	switch (call) {
	case SEND_MSG:
		msg.msg_iovlen = cut(s, buf, n, iov, 6);
		return all_of(c, n, sendmsg(c->fd, &msg, MSG_NOSIGNAL), blocking);
	case SEND_MORE:
		return all_of(c, n, send(c->fd, buf, n, MSG_NOSIGNAL | MSG_MORE),
			      blocking);
	case SEND_SPLICE:
		return send_pipe(c->fd, pipe_fds, buf, n);
	case SEND_FILE:
		return send_file(c->fd, buf, n);
	default:
		return all_of(c, n, send(c->fd, buf, n, MSG_NOSIGNAL), blocking);
	}
}

static void *send_all(void *data)
{
	unsigned char *buf = malloc(BIGGEST);
	struct conn *c = data;
	int pipe_fds[2];
	ssize_t n;

	if (pipe(pipe_fds))
		die("pipe");
	while (!sender_done(c)) {
		n = send_some(c, buf, pipe_fds, true);
		if (was_interrupted(n))
			continue;
		if (n <= 0) {
			fail(c, "send: %s", n ? strerror(errno) : "nothing sent");
			goto out;
		}
		c->tx.pos += n;
		pause_maybe(&c->tx);
	}
	if (shutdown(c->fd, SHUT_WR))
		fail(c, "shutdown: %s", strerror(errno));
out:
	c->tx.done = true;
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	free(buf);
	return NULL;
}

/* Receiving */

static ssize_t recv_pipe(struct conn *c, int *pipe_fds, unsigned char *buf,
			 size_t n)
{
	ssize_t got, part, done;

	got = splice(c->fd, NULL, pipe_fds[1], NULL, n < 60000 ? n : 60000, 0);
	for (done = 0; done < got; done += part) {
		part = read(pipe_fds[0], buf + done, got - done);
		if (part <= 0)
			return -1;
	}
	return got;
}

static ssize_t recv_peek(struct conn *c, unsigned char *buf, size_t n)
{
	size_t less = 1 + draw(&c->rx, n);
	ssize_t seen = recv(c->fd, buf, n, MSG_PEEK), got;

	if (seen <= 0)
		return seen;
	if (!check(c, buf, seen, c->rx.pos))
		fail(c, "(that was MSG_PEEK)");
	/* What was peeked at is there, in full if we ask for no more. */
	less = less < (size_t)seen ? less : (size_t)seen;
	got = recv(c->fd, buf, less, MSG_DONTWAIT);
	if (got <= 0)
		fail(c, "peeked at %zd bytes, then read %zd: %s", seen, got,
		     got ? strerror(errno) : "EOF");
	return got;
}

static ssize_t recv_waitall(struct conn *c, unsigned char *buf, size_t n)
{
	ssize_t got = recv(c->fd, buf, n, MSG_WAITALL), next;
	char byte;

	if (got > 0 && (size_t)got < n && !opt.may_be_short) {
		next = recv(c->fd, &byte, 1, MSG_PEEK);
		if (next > 0)
			fail(c, "MSG_WAITALL gave %zd bytes of %zu, and there are more",
			     got, n);
	}
	return got;
}

static ssize_t recv_some(struct conn *c, unsigned char *buf, int *pipe_fds,
			 bool blocking)
{
	struct pollfd waiting = { .fd = c->fd, .events = POLLIN };
	size_t n = draw_size(&c->rx);
	struct iovec iov[6];
	struct msghdr msg = { .msg_iov = iov };
	enum call call = choose(&c->rx, RECV_READ, RECV_TRUNC);
	ssize_t got;

	if (!blocking && (call == RECV_WAITALL || call == RECV_POLL ||
			  call == RECV_PEEK))
		call = RECV_READ;
	switch (call) {
	case RECV_MSG:
		msg.msg_iovlen = cut(&c->rx, buf, n, iov, 6);
		got = recvmsg(c->fd, &msg, 0);
		break;
	case RECV_PEEK:
		got = recv_peek(c, buf, n);
		break;
	case RECV_WAITALL:
		got = recv_waitall(c, buf, n);
		break;
	case RECV_POLL:
		if (poll(&waiting, 1, opt.stall * 1000) != 1) {
			errno = EAGAIN;
			return -1;
		}
		got = recv(c->fd, buf, n, MSG_DONTWAIT);
		if (got < 0 && errno == EAGAIN)
			fail(c, "poll said readable, recv said EAGAIN");
		break;
	case RECV_SPLICE:
		got = recv_pipe(c, pipe_fds, buf, n);
		break;
	case RECV_TRUNC:
		/* Throws the bytes away; what follows must still be in place. */
		if (draw(&c->rx, 8) == 0)
			return recv(c->fd, NULL, n, MSG_TRUNC);
		got = recv(c->fd, buf, n, 0);
		break;
	default:
		got = read(c->fd, buf, n);
	}
	if (got > 0 && !check(c, buf, got, c->rx.pos)) {
		errno = EILSEQ;
		return -1;
	}
	return got;
}

static void recv_end(struct conn *c, ssize_t n)
{
	char byte;

	if (n < 0 && errno != EILSEQ)
		fail(c, "recv: %s", strerror(errno));
	if (!n && recv(c->fd, &byte, 1, 0))
		fail(c, "more after the end of the stream");
	c->rx.done = true;
	if (n < 0) {
		stop = 1;
		shutdown(c->fd, SHUT_RDWR);
	}
}

static void *recv_all(void *data)
{
	unsigned char *buf = malloc(BIGGEST);
	struct conn *c = data;
	int pipe_fds[2];
	ssize_t n;

	if (pipe(pipe_fds))
		die("pipe");
	do {
		n = recv_some(c, buf, pipe_fds, true);
		if (n > 0) {
			c->rx.pos += n;
			pause_maybe(&c->rx);
		}
	} while (n > 0 || was_interrupted(n));
	recv_end(c, n);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	free(buf);
	return NULL;
}

/* Event-driven connections */

struct loop {
	enum mode mode;
	pthread_t thread;
	int epoll;
	unsigned int open;
};

static void watch(struct loop *loop, struct conn *c, int op)
{
	struct epoll_event event = { .data.ptr = c };

	event.events = loop->mode == EDGE ? EPOLLET : 0;
	event.events |= c->rx.done ? 0 : EPOLLIN | EPOLLRDHUP;
	event.events |= c->tx.done ? 0 : EPOLLOUT;
	if (epoll_ctl(loop->epoll, op, c->fd, &event))
		fail(c, "epoll_ctl: %s", strerror(errno));
}

/* Returns whether there may be more to do without a new event. */
static bool turn_over(struct loop *loop, struct side *s)
{
	pause_maybe(s);
	if (loop->mode == LEVEL)
		s->ready = false;
	return s->ready;
}

static bool drive_rx(struct loop *loop, struct conn *c, unsigned char *buf,
		     int *pipe_fds)
{
	int rounds = 1 + draw(&c->rx, 6);
	ssize_t n;

	if (!c->rx.ready || c->rx.done)
		return false;
	while (rounds--) {
		n = recv_some(c, buf, pipe_fds, false);
		if (n < 0 && errno == EAGAIN) {
			c->rx.ready = false;
			return false;
		}
		if (n <= 0) {
			recv_end(c, n);
			if (loop->mode == LEVEL)
				watch(loop, c, EPOLL_CTL_MOD);
			return false;
		}
		c->rx.pos += n;
	}
	return turn_over(loop, &c->rx);
}

static bool drive_tx(struct loop *loop, struct conn *c, unsigned char *buf,
		     int *pipe_fds)
{
	int rounds = 1 + draw(&c->tx, 6);
	ssize_t n = 1;

	while (!c->tx.done && sender_done(c)) {
		if (shutdown(c->fd, SHUT_WR) && errno != ENOTCONN)
			fail(c, "shutdown: %s", strerror(errno));
		c->tx.done = true;
		if (loop->mode == LEVEL)
			watch(loop, c, EPOLL_CTL_MOD);
	}
	if (!c->tx.ready || c->tx.done)
		return false;
	while (!sender_done(c) && rounds--) {
		n = send_some(c, buf, pipe_fds, false);
		if (n < 0 && errno == EAGAIN) {
			c->tx.ready = false;
			return false;
		}
		if (n <= 0) {
			fail(c, "send: %s", n ? strerror(errno) : "nothing sent");
			c->tx.done = c->rx.done = true;
			return false;
		}
		c->tx.pos += n;
	}
	return turn_over(loop, &c->tx);
}

static bool drive(struct loop *loop, struct conn *c, unsigned char *buf,
		  int *pipe_fds)
{
	bool more;

	if (c->closed)
		return false;
	more = drive_rx(loop, c, buf, pipe_fds);
	more |= drive_tx(loop, c, buf, pipe_fds);
	if (c->rx.done && c->tx.done) {
		epoll_ctl(loop->epoll, EPOLL_CTL_DEL, c->fd, NULL);
		close(c->fd);
		c->closed = true;
		loop->open--;
	}
	return more;
}

static void *drive_all(void *data)
{
	unsigned char *buf = malloc(BIGGEST);
	struct epoll_event events[512];
	double last = now();
	struct loop *loop = data;
	bool more = true, idle;
	int pipe_fds[2], i, n;
	unsigned int k;

	if (pipe(pipe_fds))
		die("pipe");
	while (loop->open) {
		/* A client that is to end looks at the clock. */
		n = epoll_wait(loop->epoll, events, 512, more ? 0 : 50);
		for (i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;

			if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
				c->rx.ready = true;
			if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
				c->tx.ready = true;
		}
		idle = n <= 0 && !more;
		more = false;
		for (k = 0; k < opt.conns; k++)
			if (conns[k].mode == loop->mode)
				more |= drive(loop, &conns[k], buf, pipe_fds);
		/* Only now: calls may have been held for longer than a stall. */
		if (!idle || more)
			last = now();
		if (now() - last < opt.stall)
			continue;
		for (k = 0; k < opt.conns; k++)
			if (conns[k].mode == loop->mode && !conns[k].closed)
				fail(&conns[k], "no event for %.0f s (waits to %s%s)",
				     opt.stall, conns[k].rx.done ? "" : "read ",
				     conns[k].tx.done ? "" : "write");
		break;
	}
	free(buf);
	return NULL;
}

/* Setting up */

static void set_up(struct conn *c, int fd, unsigned int index)
{
	struct timeval limit = { .tv_sec = opt.stall };
	uint64_t base = mix(opt.seed) + mix(index + 1) * 2;

	c->fd = fd;
	c->index = index;
	c->mode = opt.mode == MIXED ? index % MODES : opt.mode;
	c->tx.key = mix(base + opt.server);
	c->rx.key = mix(base + !opt.server);
	c->tx.rng = mix(c->tx.key + 1);
	c->rx.rng = mix(c->rx.key + 2);
	c->rx.ready = c->tx.ready = true;
	if (c->mode != BLOCK)
		fcntl(fd, F_SETFL, O_NONBLOCK);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* Numbers only: this is linked statically. No host: any address, both families. */
static int open_socket(struct sockaddr_storage *to, socklen_t *size)
{
	struct sockaddr_in6 *six = (void *)to;
	struct sockaddr_in *four = (void *)to;
	int fd;

	memset(to, 0, sizeof(*to));
	if (opt.host && inet_pton(AF_INET, opt.host, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons(atoi(opt.port));
		*size = sizeof(*four);
	} else {
		if (opt.host && inet_pton(AF_INET6, opt.host, &six->sin6_addr) != 1)
			errno = EINVAL, die(opt.host);
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(atoi(opt.port));
		*size = sizeof(*six);
	}
	fd = socket(to->ss_family, SOCK_STREAM, 0);
	if (fd < 0)
		die("socket");
	return fd;
}

static void accept_all(void)
{
	struct sockaddr_storage address;
	socklen_t size;
	int listener = open_socket(&address, &size), one = 1, fd;
	struct pollfd waiting = { .fd = listener, .events = POLLIN };
	uint32_t hello;
	unsigned int i;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (void *)&address, size) ||
	    listen(listener, 1024))
		die("listen");
	for (i = 0; i < opt.conns; i++) {
		if (poll(&waiting, 1, opt.stall * 1000) != 1)
			errno = ETIMEDOUT, die("nobody connects");
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			die("accept");
		if (recv(fd, &hello, 4, MSG_WAITALL) != 4)
			die("hello");
		if (hello >= opt.conns || conns[hello].fd)
			errno = EPROTO, die("hello");
		set_up(&conns[hello], fd, hello);
	}
	close(listener);
}

static void connect_all(void)
{
	struct sockaddr_storage address;
	socklen_t size;
	double limit = now() + opt.stall;
	uint32_t hello;
	int fd;

	for (hello = 0; hello < opt.conns; hello++) {
		for (;;) {
			fd = open_socket(&address, &size);
			if (!connect(fd, (void *)&address, size))
				break;
			if (now() > limit)
				die("connect");
			close(fd);
			/* The server may not listen yet. */
			nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
		}
		if (send(fd, &hello, 4, MSG_NOSIGNAL) != 4)
			die("hello");
		set_up(&conns[hello], fd, hello);
	}
}

static void run_all(void)
{
	struct loop loops[MODES] = { [LEVEL] = { LEVEL }, [EDGE] = { EDGE } };
	pthread_attr_t small;
	unsigned int i;
	int m;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 20);
	for (m = LEVEL; m < MODES; m++)
		loops[m].epoll = epoll_create1(0);
	for (i = 0; i < opt.conns; i++) {
		struct conn *c = &conns[i];

		if (c->mode == BLOCK) {
			if (pthread_create(&c->sender, &small, send_all, c) ||
			    pthread_create(&c->receiver, &small, recv_all, c))
				die("pthread_create");
		} else {
			watch(&loops[c->mode], c, EPOLL_CTL_ADD);
			loops[c->mode].open++;
		}
	}
	for (m = LEVEL; m < MODES; m++)
		pthread_create(&loops[m].thread, NULL, drive_all, &loops[m]);
	for (i = 0; i < opt.conns; i++) {
		if (conns[i].mode != BLOCK)
			continue;
		pthread_join(conns[i].sender, NULL);
		pthread_join(conns[i].receiver, NULL);
		close(conns[i].fd);
	}
	for (m = LEVEL; m < MODES; m++)
		pthread_join(loops[m].thread, NULL);
}

static void print_result(void)
{
	uint64_t sent = 0, received = 0;
	unsigned int i;

	printf("{\"role\": \"%s\", \"per\": [", opt.server ? "server" : "client");
	for (i = 0; i < opt.conns; i++) {
		printf("%s[%llu, %llu]", i ? ", " : "",
		       (unsigned long long)conns[i].tx.pos,
		       (unsigned long long)conns[i].rx.pos);
		sent += conns[i].tx.pos;
		received += conns[i].rx.pos;
	}
	printf("], \"sent\": %llu, \"received\": %llu, \"errors\": %u, \"reports\": [",
	       (unsigned long long)sent, (unsigned long long)received, errors);
	for (i = 0; i < errors && i < REPORTS; i++)
		printf("%s\"%s\"", i ? ", " : "", reports[i]);
	printf("]}\n");
}

static void on_term(int number)
{
	stop = 1;
}

static unsigned int parse_calls(char *list)
{
	unsigned int calls = 0, i;
	char *word;

	for (word = strtok(list, ","); word; word = strtok(NULL, ","))
		for (i = 0; i < CALLS; i++)
			if (!strcmp(word, call_names[i]))
				calls |= 1u << i;
	return calls;
}

static void parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "port", 1, NULL, 'p' }, { "conns", 1, NULL, 'n' },
		{ "seed", 1, NULL, 's' }, { "bytes", 1, NULL, 'b' },
		{ "seconds", 1, NULL, 't' }, { "stall", 1, NULL, 'w' },
		{ "mode", 1, NULL, 'm' }, { "calls", 1, NULL, 'c' },
		{ "no-pauses", 0, NULL, 'q' }, { "biggest", 1, NULL, 'x' },
		{ "calm", 0, NULL, 'l' }, { "short", 0, NULL, 'h' },
		{ "hold", 1, NULL, 'o' },
		{ "bind", 1, NULL, 'a' }, { NULL },
	};
	int o;

	while ((o = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
		switch (o) {
		case 'p': opt.port = optarg; break;
		case 'n': opt.conns = atoi(optarg); break;
		case 's': opt.seed = strtoull(optarg, NULL, 0); break;
		case 'b': opt.bytes = strtoull(optarg, NULL, 0); break;
		case 't': opt.seconds = atof(optarg); break;
		case 'w': opt.stall = atof(optarg); break;
		case 'c': opt.calls = parse_calls(optarg); break;
		case 'q': opt.pauses = 0; break;
		case 'o': opt.hold = optarg; break;
		case 'l': opt.calm = true; break;
		case 'h': opt.may_be_short = true; break;
		case 'x': opt.biggest = atoi(optarg); break;
		case 'a': opt.host = optarg; break;
		case 'm':
			for (opt.mode = 0; opt.mode < MIXED; opt.mode++)
				if (!strcmp(optarg, mode_names[opt.mode]))
					break;
			break;
		default: exit(2);
		}
	}
	opt.server = optind < argc && !strcmp(argv[optind], "server");
	if (!opt.server) {
		if (optind + 1 >= argc) {
			fprintf(stderr, "usage: stream server|client HOST [options]\n");
			exit(2);
		}
		opt.host = argv[optind + 1];
	}
	if (!opt.biggest || opt.biggest > BIGGEST)
		opt.biggest = BIGGEST;
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };

	parse(argc, argv);
	setrlimit(RLIMIT_NOFILE, &files);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTERM, on_term);
	conns = calloc(opt.conns, sizeof(*conns));
	if (opt.server)
		accept_all();
	else
		connect_all();
	deadline = now() + opt.seconds;
	run_all();
	print_result();
	return errors ? 1 : 0;
}
