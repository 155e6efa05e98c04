// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors that take long to close, and how a peer sends them.

use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;
use nix::sys::socket::{sendmsg, setsockopt, sockopt, ControlMessage, MsgFlags, UnixAddr};

/// A TCP socket the last close of which waits, and the other end.
pub fn open() -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 65536]).is_ok() {}
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: libc::c_int::MAX,
    };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
    (stream, listener)
}

/// Sends a byte with a descriptor.
pub fn send(to: &impl AsFd, fd: &impl AsFd) -> nix::Result<usize> {
    let fds = [fd.as_fd().as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let part = [IoSlice::new(b"x")];
    sendmsg::<UnixAddr>(
        to.as_fd().as_raw_fd(),
        &part,
        &control,
        MsgFlags::empty(),
        None,
    )
}
