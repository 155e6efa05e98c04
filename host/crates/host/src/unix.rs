// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unix sockets with connections. No call blocks.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use hallway_endpoint::member::RING_STREAM;
use hallway_endpoint::socket::count;
use hallway_unix::refuse_descriptors;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    accept4, connect, recv, send, setsockopt, shutdown, socket, sockopt, AddressFamily, MsgFlags,
    Shutdown, SockFlag, SockType, UnixAddr,
};

const FLAGS: SockFlag = SockFlag::SOCK_NONBLOCK.union(SockFlag::SOCK_CLOEXEC);

/// Connects to the listener of that type and path.
pub fn open(path: &Path, is_packets: bool) -> Result<OwnedFd, Errno> {
    let kind = match is_packets {
        true => SockType::SeqPacket,
        false => SockType::Stream,
    };
    let socket = socket(AddressFamily::Unix, kind, FLAGS, None)?;
    refuse_descriptors(&socket);
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

/// Takes a connection that has arrived.
pub fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fd = accept4(listener.as_raw_fd(), FLAGS)?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has a socket take each message that a ring of the usual size holds, where the host allows it
/// (`net.core.wmem_max`). Where it fails, long ones are refused.
pub fn fit_messages(socket: &OwnedFd) {
    let _ = setsockopt(socket, sockopt::SndBuf, &(RING_STREAM as usize));
}

/// Copies bytes that have arrived, and leaves them there.
pub fn peek(socket: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(socket.as_raw_fd(), bytes, flags)
}

/// Takes bytes that have arrived.
pub fn take(socket: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    recv(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT)
}

/// Length of the next message.
pub fn next_length(socket: &OwnedFd) -> Result<usize, Errno> {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes nothing to a buffer without bytes.
    count(unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), 0, flags) })
}

/// Sends a few bytes. A socket that is new has space for them.
pub fn say(socket: &OwnedFd, text: &str) -> Result<(), Errno> {
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    match send(socket.as_raw_fd(), text.as_bytes(), flags)? {
        length if length == text.len() => Ok(()),
        _ => Err(Errno::EAGAIN),
    }
}

/// Whether the other end has closed its socket: what is sent now reaches no program.
pub fn is_closed(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let hung_up = |fd: &PollFd<'_>| {
        fd.revents()
            .is_some_and(|it| it.contains(PollFlags::POLLHUP))
    };
    poll(&mut fds, PollTimeout::ZERO).is_ok() && hung_up(&fds[0])
}

/// Ends a direction. Where it fails, the connection is gone, and receiving says so.
pub fn end(socket: &impl AsFd, how: Shutdown) {
    let _ = shutdown(socket.as_fd().as_raw_fd(), how);
}
