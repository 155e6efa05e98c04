// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls that move bytes between a ring and a connected socket. None of them blocks.

use std::os::fd::{AsFd, AsRawFd};

use hallway_ring::Runs;
use nix::errno::Errno;

/// The runs, as a system call takes them.
pub fn vectors(runs: &Runs) -> [libc::iovec; 2] {
    runs.0.map(|(base, length)| libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    })
}

/// A message of these vectors, without name and control data.
pub fn header(vectors: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is one without name, vectors and control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = if vectors[1].iov_len == 0 { 1 } else { 2 };
    header
}

/// What a system call returned.
pub fn count(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::last())
}

/// Sends bytes of a ring. `is_last`: no more follow at once, so that a segment that is
/// not full may go.
pub fn send(socket: &impl AsFd, runs: &Runs, is_last: bool) -> Result<usize, Errno> {
    let mut vectors = vectors(runs);
    let header = header(&mut vectors);
    let more = if is_last { 0 } else { libc::MSG_MORE };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
    // SAFETY: the runs lie in a mapping that the ring's end keeps. The kernel alone
    // reads them, and copies what it finds: that others write them harms nothing.
    count(unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &header, flags) })
}

/// Receives bytes into a ring.
pub fn receive(socket: &impl AsFd, runs: &Runs) -> Result<usize, Errno> {
    let mut vectors = vectors(runs);
    let mut header = header(&mut vectors);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the runs are free bytes of a ring, in a mapping that the ring's end
    // keeps. The kernel alone writes them, and no reference to them exists.
    count(unsafe { libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT) })
}

/// Whether the other end has sent bytes (true) or its end (false).
pub fn peek(socket: &impl AsFd) -> Result<bool, Errno> {
    let mut byte = [0_u8; 1];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes one byte at most, into a buffer that lives until then.
    count(unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 1, flags) }).map(|count| count > 0)
}
