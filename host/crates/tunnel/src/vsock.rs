// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets of AF_VSOCK, for programs that want a descriptor and no more.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::socket::{
    accept4, bind, connect as start, listen as wait, socket, AddressFamily, Backlog, SockFlag,
    SockType, VsockAddr,
};

use crate::error::{Error, Result};

/// Connections that wait at most to be accepted.
pub(crate) const BACKLOG: i32 = 128;
const ANY: u32 = u32::MAX; // VMADDR_CID_ANY

fn new(kind: SockType) -> Result<OwnedFd> {
    socket(AddressFamily::Vsock, kind, SockFlag::SOCK_CLOEXEC, None).map_err(|errno| {
        Error::call(
            "there is no AF_VSOCK here: run modprobe hallway_vsock",
            errno,
        )
    })
}

/// Connects to a port of a VM. It waits for 2 s at most. With `SOCK_DGRAM` it only sets where
/// datagrams go.
///
/// # Errors
/// Those of `socket()` and `connect()`: ECONNRESET where nothing listens, EHOSTUNREACH where no VM
/// has this CID (`docs/tunnels.md` has all).
pub fn connect(kind: SockType, cid: u32, port: u32) -> Result<OwnedFd> {
    let socket = new(kind)?;
    start(socket.as_raw_fd(), &VsockAddr::new(cid, port)).map_err(|errno| {
        Error::call(
            format!("CID {cid}, port {port} is not reached by a tunnel"),
            errno,
        )
    })?;
    Ok(socket)
}

/// Listens at a port for connections from VMs, or receives there, with `SOCK_DGRAM`.
///
/// # Errors
/// Those of `socket()`, `bind()` and `listen()`: EADDRINUSE, EACCES for a port below 1024.
pub fn listen(kind: SockType, port: u32) -> Result<OwnedFd> {
    let socket = new(kind)?;
    bind(socket.as_raw_fd(), &VsockAddr::new(ANY, port))
        .and_then(|()| match kind {
            SockType::Datagram => Ok(()),
            _ => wait(&socket, Backlog::new(BACKLOG)?),
        })
        .map_err(|errno| Error::call(format!("port {port} of tunnels"), errno))?;
    Ok(socket)
}

/// Takes the next connection of a listener.
///
/// # Errors
/// Those of `accept4()`: EAGAIN where it would block, EINTR.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    let fd = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| Error::call("accepting", errno))?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
