// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A listener for connections of messages.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process;

use nix::errno::Errno;
use nix::sys::socket::{getpeername, getsockname, SockType, VsockAddr};

use crate::address::{host_and_port, invalid, path_and_port, port};
use crate::connection::{over_host_end, over_tcp, over_tunnel, set_nonblocking, Connection};
use crate::error::{Error, Result};
use crate::{host_end, vsock};

/// A listener at one address, of tunnels or of TCP.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    carrier: Carrier,
    address: String,
}

/// What connections of a listener go by.
#[derive(Debug)]
enum Carrier {
    Tunnels,
    /// Tunnels from one guest: its host end connects to this file, which this process made.
    HostEnd(PathBuf, u32),
    Tcp,
}

impl Listener {
    /// Listens at an address: see [the crate](crate).
    ///
    /// # Errors
    /// EINVAL: it is no such address. EADDRNOTAVAIL: it is not one of this host. EADDRINUSE,
    /// EACCES for a tunnel's port below 1024, and all others of `socket()`, `bind()` and
    /// `listen()`.
    pub fn bind(at: &str) -> Result<Self> {
        if let Some(place) = at.strip_prefix("tcp://") {
            return Self::bind_tcp(at, place);
        }
        if let Some(place) = at.strip_prefix("unix://") {
            return Self::bind_host_end(place);
        }
        if at.contains(':') {
            let text =
                format!("{at:?}: write PORT for tunnels, unix:///PATH:PORT, or tcp://ADDRESS:PORT");
            return Err(invalid(text));
        }
        let socket = vsock::listen(SockType::SeqPacket, port(at)?)?;
        let bound: VsockAddr = getsockname(socket.as_raw_fd())
            .map_err(|errno| Error::call(format!("port {at} of tunnels"), errno))?;
        Ok(Self {
            socket,
            carrier: Carrier::Tunnels,
            address: bound.port().to_string(),
        })
    }

    fn bind_host_end(place: &str) -> Result<Self> {
        let (path, port) = path_and_port(place)?;
        let (socket, file) = host_end::listen(path, port)?;
        Ok(Self {
            socket,
            carrier: Carrier::HostEnd(file, process::id()),
            address: host_end::name(path, port),
        })
    }

    fn bind_tcp(at: &str, place: &str) -> Result<Self> {
        let failed = |error| Error::io(at, &error, Errno::EADDRNOTAVAIL);
        let (host, port) = host_and_port(place)?;
        let socket = TcpListener::bind((host, port)).map_err(failed)?;
        let address = format!("tcp://{}", socket.local_addr().map_err(failed)?);
        Ok(Self {
            socket: socket.into(),
            carrier: Carrier::Tcp,
            address,
        })
    }

    /// Where it listens: `PORT`, `unix:///PATH:PORT` or `tcp://ADDRESS:PORT`. Port 0 of TCP has
    /// become one.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Has [`Listener::accept`] give EAGAIN instead of waiting.
    ///
    /// # Errors
    /// Those of `fcntl()`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        set_nonblocking(self.as_fd(), on)
    }

    /// Takes the next connection, which blocks, as one of [`Connection::connect`] does.
    ///
    /// # Errors
    /// EAGAIN: there is none yet. EINTR. Those of `accept4()`, such as EMFILE.
    pub fn accept(&self) -> Result<Connection> {
        loop {
            match vsock::accept(self.as_fd()).and_then(|socket| self.connection(socket)) {
                // It was reset meanwhile: a peer must not end the loop of a server so.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                other => return other,
            }
        }
    }

    fn connection(&self, socket: OwnedFd) -> Result<Connection> {
        match &self.carrier {
            Carrier::Tunnels => {
                let peer: VsockAddr = getpeername(socket.as_raw_fd())
                    .map_err(|errno| Error::call("accepting", errno))?;
                Ok(over_tunnel(socket, peer.cid(), peer.port()))
            }
            Carrier::HostEnd(..) => over_host_end(socket, self.address.clone()),
            Carrier::Tcp => {
                let socket = TcpStream::from(socket);
                let peer = socket
                    .peer_addr()
                    .map_err(|error| Error::io("accepting", &error, Errno::ENOTCONN))?;
                over_tcp(socket, peer)
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        match &self.carrier {
            // A process that was forked may drop it, too. Where it fails, the next listener
            // replaces the file.
            Carrier::HostEnd(file, maker) if *maker == process::id() => {
                let _ = std::fs::remove_file(file);
            }
            _ => {}
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
