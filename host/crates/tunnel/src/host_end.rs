// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unix sockets of a host end: packets between programs of the host and a guest.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use hallway_unix::{refuse_descriptors, remove_abandoned};
use nix::errno::Errno;
use nix::sys::socket::{
    bind, connect as start, listen as wait, recv, send, setsockopt, socket, sockopt, AddressFamily,
    Backlog, MsgFlags, SockFlag, SockType, UnixAddr,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::error::{Error, Result};
use crate::vsock::BACKLOG;

/// Seconds that connect() waits at most for the host end, and then for the guest.
const PATIENCE: i64 = 2;
/// The longest answer: `OK 4294967295\n`.
const ANSWER: usize = 14;

fn open() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(|errno| Error::call("a Unix socket", errno))?;
    refuse_descriptors(&socket);
    Ok(socket)
}

/// The address of a port.
pub(crate) fn name(path: &str, port: u32) -> String {
    format!("unix://{path}:{port}")
}

fn set_patience(socket: &OwnedFd, seconds: i64) -> nix::Result<()> {
    let time = TimeVal::seconds(seconds);
    setsockopt(socket, sockopt::SendTimeout, &time)?;
    setsockopt(socket, sockopt::ReceiveTimeout, &time)
}

/// Connects to a port of the guest whose host end listens at `path`.
pub(crate) fn connect(path: &str, port: u32) -> Result<OwnedFd> {
    let socket = open()?;
    let place = format!("{path}.packets");
    set_patience(&socket, PATIENCE)
        .and_then(|()| start(socket.as_raw_fd(), &UnixAddr::new(place.as_str())?))
        .map_err(|errno| not_reached(&place, errno))?;
    ask(&socket, path, port)?;
    set_patience(&socket, 0).map_err(|errno| not_reached(&place, errno))?;
    Ok(socket)
}

fn not_reached(place: &str, errno: Errno) -> Error {
    let what = match errno {
        Errno::ENOENT | Errno::ECONNREFUSED => {
            "no host end listens there: give the path `socket` of [vm.tunnels], and see hallway status"
        }
        Errno::EACCES => "this user may not connect: see `access` of [vm.tunnels]",
        // The queue of those that connect is full.
        Errno::EAGAIN => return late(format!("the host end at {place}")),
        _ => "the host end is not reached",
    };
    Error::call(format!("{place}: {what}"), errno)
}

fn late(what: String) -> Error {
    Error::new(
        Errno::ETIMEDOUT,
        format!("{what} did not answer within {PATIENCE} s"),
    )
}

/// Has the host end connect the socket to a port of the guest.
fn ask(socket: &OwnedFd, path: &str, port: u32) -> Result<()> {
    let (fd, line) = (socket.as_raw_fd(), format!("CONNECT {port}\n"));
    let mut answer = [0; ANSWER];
    let received = send(fd, line.as_bytes(), MsgFlags::MSG_NOSIGNAL)
        .and_then(|_| recv(fd, &mut answer, MsgFlags::empty()));
    match received {
        Ok(length) if answer[..length].starts_with(b"OK ") => Ok(()),
        Ok(0) | Err(Errno::EPIPE | Errno::ECONNRESET) => {
            let text = format!(
                "nothing listens at port {port} of the guest of {path}, or its host end has no \
                 place: see hallway status"
            );
            Err(Error::new(Errno::ECONNRESET, text))
        }
        Ok(_) => {
            let text = format!("{path}.packets: the answer is not that of a host end");
            Err(Error::new(Errno::EBADMSG, text))
        }
        Err(Errno::EAGAIN) => Err(late(format!("the guest of {path}"))),
        Err(errno) => Err(Error::call(format!("port {port} of {path}"), errno)),
    }
}

/// Listens for connections from the guest whose host end listens at `path` to a port of the
/// host. Returns the file of the socket, too.
pub(crate) fn listen(path: &str, port: u32) -> Result<(OwnedFd, PathBuf)> {
    let place = format!("{path}_{port}");
    let failed = |errno| Error::call(format!("listening at {place}"), errno);
    let socket = open()?;
    let address = UnixAddr::new(place.as_str()).map_err(failed)?;
    // No listener has this type: none gets a connection that is only a look.
    remove_abandoned(Path::new(&place), SockType::Datagram)
        .map_err(|error| Error::io(&place, &error, Errno::EADDRINUSE))?;
    bind(socket.as_raw_fd(), &address)
        .and_then(|()| wait(&socket, Backlog::new(BACKLOG)?))
        .map_err(failed)?;
    Ok((socket, place.into()))
}
