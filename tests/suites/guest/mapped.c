// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Preloaded into a program of a suite: its connections over loopback are the host's.
 *
 * Listeners at the loopback address get a port that the host publishes, and connects to
 * such a port go to the host's address. So the host executes both ends. The program sees
 * loopback addresses all the time. Ports that are not published stay on loopback. A connect
 * of a bound socket stays there, too: it is native, and would reach the host from an address
 * of the guest. The guest resets such a connection.
 *
 * MAPPED_V4, MAPPED_V6: the host's addresses; MAPPED_FIRST, MAPPED_LAST: published ports.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct in6_addr host[2], loopback[2], any[2]; /* of IPv4, mapped; of IPv6 */
static unsigned int first, last, next;

static void map4(struct in6_addr *to, const char *from)
{
	memset(to, 0, sizeof(*to));
	memset(&to->s6_addr[10], 0xff, 2);
	inet_pton(AF_INET, from, &to->s6_addr[12]);
}

__attribute__((constructor)) static void start(void)
{
	const char *v4 = getenv("MAPPED_V4"), *v6 = getenv("MAPPED_V6");

	if (!v4 || !v6)
		return;
	map4(&host[0], v4);
	map4(&loopback[0], "127.0.0.1");
	map4(&any[0], "0.0.0.0");
	inet_pton(AF_INET6, v6, &host[1]);
	loopback[1] = in6addr_loopback;
	any[1] = in6addr_any;
	first = atoi(getenv("MAPPED_FIRST"));
	last = atoi(getenv("MAPPED_LAST"));
	next = getpid();
}

static bool is_tcp(int fd)
{
	int protocol = 0;
	socklen_t len = sizeof(protocol);

	getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len);
	return first && protocol == IPPROTO_TCP;
}

/* False: it is of another family. */
static bool read_address(const struct sockaddr_storage *from, struct in6_addr *ip,
			 unsigned int *port)
{
	if (from->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)from;

		*ip = any[0];
		memcpy(&ip->s6_addr[12], &in->sin_addr, 4);
		*port = ntohs(in->sin_port);
		return true;
	}
	if (from->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const void *)from;

		*ip = in->sin6_addr;
		*port = ntohs(in->sin6_port);
		return true;
	}
	return false;
}

static void write_address(struct sockaddr_storage *to, const struct in6_addr *ip,
			  unsigned int port)
{
	struct sockaddr_in *in4 = (void *)to;
	struct sockaddr_in6 *in6 = (void *)to;

	if (to->ss_family == AF_INET) {
		memcpy(&in4->sin_addr, &ip->s6_addr[12], 4);
		in4->sin_port = htons(port);
	} else {
		in6->sin6_addr = *ip;
		in6->sin6_port = htons(port);
	}
}

/* Which of these it is, or -1. */
static int find(const struct in6_addr *ip, const struct in6_addr in[2])
{
	for (int i = 0; i < 2; i++)
		if (!memcmp(ip, &in[i], sizeof(*ip)))
			return i;
	return -1;
}

static bool is_published(unsigned int port)
{
	return port >= first && port <= last;
}

/* A copy of what a program gives. False: it is not for us. */
static bool take(int fd, const struct sockaddr *from, socklen_t len,
		 struct sockaddr_storage *to, int *family, unsigned int *port)
{
	struct in6_addr ip;

	if (!from || len > sizeof(*to) || len < sizeof(struct sockaddr_in) || !is_tcp(fd))
		return false;
	memset(to, 0, sizeof(*to));
	memcpy(to, from, len);
	if (!read_address(to, &ip, port))
		return false;
	*family = find(&ip, loopback);
	return *family >= 0;
}

int bind(int fd, const struct sockaddr *address, socklen_t len)
{
	struct sockaddr_storage to;
	unsigned int port, tries;
	int family, one = 1, err = -1;

	if (!take(fd, address, len, &to, &family, &port) || (port && !is_published(port)))
		return syscall(SYS_bind, fd, address, len);
	if (family == 1)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (port) {
		write_address(&to, &any[family], port);
		return syscall(SYS_bind, fd, &to, len);
	}
	for (tries = first; err && tries <= last; tries++) {
		port = first + __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % (last - first + 1);
		write_address(&to, &any[family], port);
		err = syscall(SYS_bind, fd, &to, len);
		if (err && errno != EADDRINUSE)
			break;
	}
	return err;
}

/* Is it bound, and not connected yet? */
static bool is_bound(int fd)
{
	struct sockaddr_storage own;
	struct tcp_info info = {};
	socklen_t len = sizeof(own), info_len = sizeof(info);
	struct in6_addr ip;
	unsigned int port;

	return !syscall(SYS_getsockname, fd, &own, &len) && read_address(&own, &ip, &port) &&
	       port && !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_len) &&
	       info.tcpi_state == TCP_CLOSE;
}

int connect(int fd, const struct sockaddr *address, socklen_t len)
{
	struct sockaddr_storage to;
	unsigned int port;
	int family;

	if (!take(fd, address, len, &to, &family, &port) || !is_published(port) || is_bound(fd))
		return syscall(SYS_connect, fd, address, len);
	write_address(&to, &host[family], port);
	return syscall(SYS_connect, fd, &to, len);
}

/* What the kernel said, as loopback has it. */
static void show(struct sockaddr *address, const socklen_t *len)
{
	struct sockaddr_storage *at = (void *)address;
	struct in6_addr ip;
	unsigned int port;
	int family;

	if (!first || !address || *len < sizeof(struct sockaddr_in) ||
	    !read_address(at, &ip, &port))
		return;
	family = find(&ip, host);
	if (family < 0 && is_published(port))
		family = find(&ip, any);
	if (family >= 0)
		write_address(at, &loopback[family], port);
}

/* Into all that an address may take, so that none is cut before it is shown. */
static int ask(long call, int fd, struct sockaddr *address, socklen_t *len, int flags)
{
	struct sockaddr_storage whole;
	socklen_t length = sizeof(whole);
	int err;

	if (!address || !len)
		return syscall(call, fd, address, len, flags);
	err = syscall(call, fd, &whole, &length, flags);
	if (err < 0)
		return err;
	show((struct sockaddr *)&whole, &length);
	memcpy(address, &whole, *len < length ? *len : length);
	*len = length;
	return err;
}

int accept(int fd, struct sockaddr *address, socklen_t *len)
{
	return ask(SYS_accept4, fd, address, len, 0);
}

int accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
	return ask(SYS_accept4, fd, address, len, flags);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *len)
{
	return ask(SYS_getsockname, fd, address, len, 0);
}

int getpeername(int fd, struct sockaddr *address, socklen_t *len)
{
	return ask(SYS_getpeername, fd, address, len, 0);
}
