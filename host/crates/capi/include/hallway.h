/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libhallway: messages between programs, by a tunnel (AF_VSOCK) to a VM of the
 * same host, or by TCP to anywhere else.
 *
 * Addresses to connect to:
 *   vsock://vm2:5000           a tunnel to the VM of this name, or CID
 *   tcp://host.example:5000    TCP
 *   vm2:5000                   a tunnel, if a VM of this host has that name or
 *                              CID; else TCP
 *   unix:///run/vm1.sock:5000  on the host: a tunnel to the guest whose host end
 *                              has this path
 *   A,B                        the first one of these that connects
 * Addresses to listen at:
 *   5000                       tunnels from VMs of this host
 *   unix:///run/vm1.sock:5000  on the host: tunnels from that guest to port 5000
 *                              of the host
 *   tcp://192.0.2.1:5000       TCP at that address
 *   tcp://[::]:5000            TCP at each address
 * A port is a number, or a name in /etc/hallway.services. VMs choose their names
 * themselves: where it matters which peer this is, give a CID, or tcp://. The path
 * of a host end is the socket of [vm.tunnels] in hallwayd's configuration. Its user
 * has to be allowed to connect to the file vm1.sock_5000 that a listener makes, and
 * removes when it is closed (docs/tunnels.md).
 *
 * A message has 1 to HALLWAY_MESSAGE_MAX bytes and arrives whole. By TCP its
 * length goes before it, 4 bytes, little-endian; nothing else is added. TCP is
 * neither encrypted nor authenticated.
 *
 * Errors: a function that fails returns -1 or NULL and sets errno, and
 * hallway_error() has the text. No function raises SIGPIPE.
 *
 * Blocking: functions wait, unless fcntl() has set O_NONBLOCK on the descriptor:
 * they fail with EAGAIN then. SO_RCVTIMEO and SO_SNDTIMEO do what they do for
 * sockets. Use the descriptor for that and for poll(): never read, write or close
 * it.
 *
 * Threads: one thread may send on a connection while another one receives. All
 * other calls on one connection, hallway_close() above all, come one after the
 * other. Any number of threads may use one listener.
 */
#ifndef HALLWAY_H
#define HALLWAY_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a message at most. A VM that is short of memory may have smaller rings. */
#define HALLWAY_MESSAGE_MAX ((256 << 10) - 8)

struct hallway_connection;
struct hallway_listener;

/*
 * Connect to the first address of a list that can be reached. It waits for each
 * one: 2 s for a tunnel, as long before that for a host end, 10 s for each address
 * of a host by TCP, and the resolver's time. Free the result by hallway_close().
 *
 * NULL with the last address' errno, and the texts of all: EINVAL, it is no
 * address; ENODEV, no module hallway is loaded; EHOSTUNREACH, no VM or host has
 * that name, or CID; ENOTUNIQ, several VMs have; ECONNRESET and ECONNREFUSED,
 * nothing listens, by a tunnel and by TCP; ENOENT and ECONNREFUSED, there is no
 * host end; EBADMSG, it is none; others of socket() and connect().
 */
struct hallway_connection *hallway_connect(const char *to);

/*
 * Send a message, whole or not at all. The bytes are the caller's again when it
 * returns. Returns 0.
 *
 * Without blocking, after a signal, or after the time of SO_SNDTIMEO, TCP may have
 * taken a part of it: the rest is copied, and goes out before the next message, or by
 * hallway_flush().
 *
 * -1 with errno: EINVAL, it is empty; EMSGSIZE, it is longer than
 * HALLWAY_MESSAGE_MAX, or than the tunnel's ring; EAGAIN and EINTR, nothing of it
 * was taken; EPIPE and ECONNRESET, the peer has closed.
 */
int hallway_send(struct hallway_connection *connection, const void *message, size_t length);

/*
 * Send what is left of an earlier message. Returns 0 if nothing is left.
 *
 * -1 with errno: EAGAIN, something still is: wait for POLLOUT, and call it again;
 * EINTR, the same after a signal; EPIPE and ECONNRESET, the peer has closed.
 */
int hallway_flush(struct hallway_connection *connection);

/*
 * Tell the peer that no message follows: it reads all, then the end. It flushes
 * first, with the errors of hallway_flush(). Returns 0.
 */
int hallway_shutdown(struct hallway_connection *connection);

/*
 * Receive a message. Returns its length, or 0 if the peer has ended. *message
 * points at it, until the next call of this function for the connection, or of
 * hallway_close(): the connection owns it.
 *
 * While POLLIN is not there, no whole message is: none is kept in the library.
 *
 * -1 with errno: EAGAIN and EINTR, no message is complete, and none is lost;
 * ECONNRESET, the peer is gone, or has ended within a message; EBADMSG, by TCP no
 * length of a message came: that is no peer of this library, and the connection
 * is of no use; EMSGSIZE, by a tunnel a message came that is longer than
 * HALLWAY_MESSAGE_MAX, and is lost.
 */
ssize_t hallway_recv(struct hallway_connection *connection, const void **message);

/*
 * Reserve space for a message of this length, and give up a reservation before it.
 * Returns where the message is to be written, until hallway_commit() or another call
 * that sends: the connection owns it. It is ring memory if hallway_is_lent(): no
 * system call copies the message then.
 *
 * NULL with errno: EINVAL, EMSGSIZE, EPIPE and ECONNRESET, as hallway_send(); EAGAIN
 * and EINTR, there is no space yet.
 */
void *hallway_reserve(struct hallway_connection *connection, size_t length);

/*
 * Send the first bytes of what was reserved as a message. Returns 0.
 *
 * -1 with errno: EINVAL, it is empty, or longer than what was reserved; EAGAIN and
 * EINTR, nothing of it was taken, and it stays reserved; EPIPE and ECONNRESET, the
 * peer has closed.
 */
int hallway_commit(struct hallway_connection *connection, size_t length);

/*
 * Give the next message where it lies: in ring memory if hallway_is_lent(). Returns
 * its length, or 0 if the peer has ended. It stays the next one, and *message points
 * at it, until hallway_release() or hallway_recv().
 *
 * A peer that breaks the rules can change a message in ring memory at any time: read
 * once what you decide by.
 *
 * -1 with errno: those of hallway_recv().
 */
ssize_t hallway_peek(struct hallway_connection *connection, const void **message);

/*
 * Take the message that hallway_peek() has given. Returns 0.
 *
 * -1 with errno: EINVAL, there is none; ECONNRESET, the peer has gone, and what was
 * read may not be what it has sent; EREMCHG, the same, and hallway_peek() gives the
 * message again.
 */
int hallway_release(struct hallway_connection *connection);

/*
 * Return 1 if hallway_reserve() and hallway_peek() give ring memory, and 0 if they
 * give buffers: by TCP, to the host and on it, or where /dev/hallway-loan cannot be
 * used.
 */
int hallway_is_lent(const struct hallway_connection *connection);

/* Return the descriptor. The connection owns it. */
int hallway_fd(const struct hallway_connection *connection);

/*
 * Return the other end: vsock://CID:PORT, unix:///PATH:PORT or tcp://ADDRESS:PORT.
 * The host end does not give the port of a guest that has connected: it is the
 * listener's then. The connection owns the text.
 */
const char *hallway_peer(const struct hallway_connection *connection);

/*
 * Close and free a connection; NULL is none. What hallway_flush() would send is
 * lost: the peer gets ECONNRESET then.
 */
void hallway_close(struct hallway_connection *connection);

/*
 * Listen at one address. Free the result by hallway_listener_close().
 *
 * NULL with errno: EINVAL, it is no such address; EADDRNOTAVAIL, it is not one of
 * this host; EADDRINUSE; EACCES for a tunnel's port below 1024; others of
 * socket(), bind() and listen().
 */
struct hallway_listener *hallway_listen(const char *at);

/*
 * Take the next connection, which blocks. Free the result by hallway_close().
 *
 * NULL with errno: EAGAIN, there is none yet; EINTR; others of accept4(), such as
 * EMFILE.
 */
struct hallway_connection *hallway_accept(const struct hallway_listener *listener);

/* Return the descriptor. The listener owns it. */
int hallway_listener_fd(const struct hallway_listener *listener);

/*
 * Return where it listens: PORT, unix:///PATH:PORT or tcp://ADDRESS:PORT. Port 0 of
 * TCP has become one. The listener owns the text.
 */
const char *hallway_listener_address(const struct hallway_listener *listener);

/* Close and free a listener; NULL is none. */
void hallway_listener_close(struct hallway_listener *listener);

/*
 * Return the text of the last error in this thread, until the next error there.
 */
const char *hallway_error(void);

#ifdef __cplusplus
}
#endif

#endif
