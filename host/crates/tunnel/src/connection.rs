// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages, over packets or over a byte stream.

use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::socket::{
    recv, send, sendmsg, setsockopt, shutdown, sockopt, MsgFlags, Shutdown, SockType,
    SockaddrStorage,
};

use crate::address::{endpoint, invalid, members, Endpoint};
use crate::error::{Error, Result};
use crate::{host_end, vsock};

/// Bytes of a message at most: what a tunnel's ring of 256 KiB holds. Where a VM is short of
/// memory its rings are smaller, but 16 KiB: then a longer message than they hold gives EMSGSIZE.
pub const MESSAGE_MAX: usize = (256 << 10) - 8;

/// Bytes before each message on a byte stream: its length, little-endian.
const HEADER: usize = 4;
/// For which connect() of TCP waits, for each address of a host.
const TCP_PATIENCE: Duration = Duration::from_secs(10);

/// A connection of messages. It blocks, unless [`Connection::set_nonblocking`] says otherwise.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    peer: String,
}

/// The half of a connection that sends.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<OwnedFd>,
    stream: bool,
    /// Bytes of a message that was taken, and that the stream has not taken yet.
    rest: Vec<u8>,
}

/// The half of a connection that receives.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<OwnedFd>,
    stream: bool,
    buffer: Vec<u8>,
    /// Bytes in the buffer, of a message that is not complete.
    got: usize,
    /// A reset was found. What the peer has sent before it comes first.
    is_reset: bool,
}

impl Connection {
    /// Connects to the first address of a list that can be reached: see [the crate](crate).
    ///
    /// It waits for each one: 2 s for a tunnel, as long before that for a host end, 10 s for each
    /// address of a host by TCP, and the resolver's time.
    ///
    /// # Errors
    /// The last address' number, and the texts of all. EINVAL: it is no address. ENODEV: no module
    /// `hallway` is loaded. EHOSTUNREACH: no VM or host has that name. ENOTUNIQ: several VMs have.
    /// ECONNRESET and ECONNREFUSED: nothing listens, by a tunnel and by TCP. ENOENT and
    /// ECONNREFUSED: there is no host end. EBADMSG: it is none. Those of `socket()` and
    /// `connect()`.
    pub fn connect(to: &str) -> Result<Self> {
        let mut texts = Vec::new();
        let mut last = Errno::EINVAL;
        for address in to.split(',') {
            match connect_one(address.trim()) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    last = Errno::from_raw(error.errno());
                    texts.push(error.to_string());
                }
            }
        }
        Err(Error::new(last, texts.join("; ")))
    }

    pub(crate) fn new(socket: OwnedFd, stream: bool, peer: String) -> Self {
        let socket = Arc::new(socket);
        let sender = Sender {
            socket: Arc::clone(&socket),
            stream,
            rest: Vec::new(),
        };
        let receiver = Receiver {
            socket,
            stream,
            buffer: Vec::new(),
            got: 0,
            is_reset: false,
        };
        Self {
            sender,
            receiver,
            peer,
        }
    }

    /// The other end: `vsock://CID:PORT`, `unix:///PATH:PORT` or `tcp://ADDRESS:PORT`. The host
    /// end does not give the port of a guest that has connected: it is the listener's then.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Has calls give EAGAIN instead of waiting. Wait for the descriptor by `poll()` then: for
    /// POLLIN before [`Connection::recv`], and for POLLOUT before [`Connection::send`] and, if
    /// [`Connection::flush`] gives EAGAIN, before calling it again.
    ///
    /// # Errors
    /// Those of `fcntl()`.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        set_nonblocking(self.as_fd(), on)
    }

    /// [`Sender::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.sender.send(message)
    }

    /// [`Sender::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&mut self) -> Result<()> {
        self.sender.flush()
    }

    /// [`Sender::shutdown`].
    ///
    /// # Errors
    /// As there.
    pub fn shutdown(&mut self) -> Result<()> {
        self.sender.shutdown()
    }

    /// [`Receiver::recv`].
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self) -> Result<Option<&[u8]>> {
        self.receiver.recv()
    }

    /// Both halves, for two threads. The connection is closed when both are dropped.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.socket.as_fd()
    }
}

impl Sender {
    /// Sends a message, whole or not at all.
    ///
    /// Without blocking, after a signal, or after the time of SO_SNDTIMEO, TCP may have taken a
    /// part of it: the rest is kept here, and goes out before the next message, or by
    /// [`Sender::flush`].
    ///
    /// # Errors
    /// EINVAL: it is empty. EMSGSIZE: it is longer than [`MESSAGE_MAX`], or than the tunnel's ring.
    /// EAGAIN and EINTR: nothing of it was taken. EPIPE and ECONNRESET: the peer has closed.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        if message.is_empty() {
            return Err(invalid("an empty message cannot be sent".into()));
        }
        if message.len() > MESSAGE_MAX {
            let text = format!("a message has {MESSAGE_MAX} bytes at most");
            return Err(Error::new(Errno::EMSGSIZE, text));
        }
        let failed = |errno| Error::call("sending", errno);
        if !self.stream {
            send(self.socket.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL).map_err(failed)?;
            return Ok(());
        }
        self.flush()?;
        let header = (message.len() as u32).to_le_bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(message)];
        let fd = self.socket.as_raw_fd();
        let sent = sendmsg::<SockaddrStorage>(fd, &parts, &[], MsgFlags::MSG_NOSIGNAL, None)
            .map_err(failed)?;
        if sent == HEADER + message.len() {
            return Ok(());
        }
        self.rest.extend_from_slice(&header[sent.min(HEADER)..]);
        self.rest
            .extend_from_slice(&message[sent.saturating_sub(HEADER)..]);
        match self.flush() {
            Err(error) if [Errno::EAGAIN as i32, Errno::EINTR as i32].contains(&error.errno()) => {
                Ok(())
            }
            other => other,
        }
    }

    /// Sends what is left of an earlier message.
    ///
    /// # Errors
    /// EAGAIN and EINTR: there is still a rest. EPIPE and ECONNRESET: the peer has closed.
    pub fn flush(&mut self) -> Result<()> {
        while !self.rest.is_empty() {
            match send(self.socket.as_raw_fd(), &self.rest, MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => drop(self.rest.drain(..count)),
                Err(errno) => return Err(Error::call("sending", errno)),
            }
        }
        Ok(())
    }

    /// Tells the peer that no message follows: it reads all, then the end.
    ///
    /// # Errors
    /// Those of [`Sender::flush`], which it does first, and of `shutdown()`.
    pub fn shutdown(&mut self) -> Result<()> {
        self.flush()?;
        shutdown(self.socket.as_raw_fd(), Shutdown::Write)
            .map_err(|errno| Error::call("shutting down", errno))
    }
}

impl Receiver {
    /// Receives a message; none if the peer has ended. It stays here until the next call.
    ///
    /// # Errors
    /// EAGAIN and EINTR: no message is complete; none is lost. ECONNRESET: the peer is gone, or
    /// has ended within a message. EBADMSG: by TCP, no length of a message came: that is no peer
    /// of this library, and the connection is of no use. EMSGSIZE: by a tunnel, a message longer
    /// than [`MESSAGE_MAX`] came, and is lost.
    pub fn recv(&mut self) -> Result<Option<&[u8]>> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; HEADER + MESSAGE_MAX];
        }
        let range = match self.stream {
            true => self.recv_stream()?,
            false => self.recv_packet()?,
        };
        Ok(Some(&self.buffer[range]).filter(|message| !message.is_empty()))
    }

    fn recv_packet(&mut self) -> Result<std::ops::Range<usize>> {
        let (fd, buffer) = (self.socket.as_raw_fd(), &mut self.buffer[..MESSAGE_MAX]);
        // It says how long the message is, not the part of it that the buffer has.
        let mut received = recv(fd, buffer, MsgFlags::MSG_TRUNC);
        if received == Err(Errno::ECONNRESET) {
            // A Unix socket says it once, and before what the host end has sent.
            self.is_reset = true;
            received = recv(fd, buffer, MsgFlags::MSG_TRUNC);
        }
        match received {
            Ok(0) | Err(_) if self.is_reset => Err(receiving(Errno::ECONNRESET)),
            Ok(count) if count > MESSAGE_MAX => {
                let text = format!("a message of {count} bytes came: {MESSAGE_MAX} are the most");
                Err(Error::new(Errno::EMSGSIZE, text))
            }
            Ok(count) => Ok(0..count),
            Err(errno) => Err(receiving(errno)),
        }
    }

    /// It never reads beyond a message, so poll() on the descriptor sees each further one.
    fn recv_stream(&mut self) -> Result<std::ops::Range<usize>> {
        loop {
            let end = match self.got {
                0..HEADER => HEADER,
                _ => HEADER + self.length()?,
            };
            let buffer = &mut self.buffer[self.got..end];
            let count = recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty());
            match count.map_err(receiving)? {
                0 if self.got == 0 => return Ok(0..0),
                0 => {
                    let text = "the peer has ended within a message";
                    return Err(Error::new(Errno::ECONNRESET, text));
                }
                count => self.got += count,
            }
            if self.got == end && end > HEADER {
                self.got = 0;
                return Ok(HEADER..end);
            }
        }
    }

    /// The length that the header in the buffer gives.
    fn length(&self) -> Result<usize> {
        let header = self.buffer[..HEADER].try_into().expect("it has that size");
        match u32::from_le_bytes(header) as usize {
            length @ 1..=MESSAGE_MAX => Ok(length),
            length => {
                let text = format!("a length of {length} bytes came: this is no peer of ours");
                Err(Error::new(Errno::EBADMSG, text))
            }
        }
    }
}

fn receiving(errno: Errno) -> Error {
    Error::call("receiving", errno)
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> Result<()> {
    let set = |errno| Error::call("fcntl", errno);
    let mut flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).map_err(set)?);
    flags.set(OFlag::O_NONBLOCK, on);
    fcntl(fd, FcntlArg::F_SETFL(flags)).map_err(set)?;
    Ok(())
}

/// A connection over TCP.
pub(crate) fn over_tcp(socket: TcpStream, peer: SocketAddr) -> Result<Connection> {
    socket
        .set_nodelay(true)
        .map_err(|error| Error::io("TCP_NODELAY", &error, Errno::EINVAL))?;
    Ok(Connection::new(
        socket.into(),
        true,
        format!("tcp://{peer}"),
    ))
}

/// A connection over a tunnel between the host and a guest.
pub(crate) fn over_host_end(socket: OwnedFd, peer: String) -> Result<Connection> {
    // It takes the longest message where the host allows that (net.core.wmem_max).
    setsockopt(&socket, sockopt::SndBuf, &MESSAGE_MAX)
        .map_err(|errno| Error::call("SO_SNDBUF", errno))?;
    Ok(Connection::new(socket, false, peer))
}

/// A connection over a tunnel.
pub(crate) fn over_tunnel(socket: OwnedFd, cid: u32, port: u32) -> Connection {
    Connection::new(socket, false, format!("vsock://{cid}:{port}"))
}

fn connect_one(address: &str) -> Result<Connection> {
    match endpoint(address, members)? {
        Endpoint::Tunnel { cid, port } => {
            let socket = vsock::connect(SockType::SeqPacket, cid, port)?;
            Ok(over_tunnel(socket, cid, port))
        }
        Endpoint::HostEnd { path, port } => {
            let socket = host_end::connect(&path, port)?;
            over_host_end(socket, host_end::name(&path, port))
        }
        Endpoint::Tcp {
            host,
            port,
            no_tunnel,
        } => connect_tcp(&host, port).map_err(|error| match no_tunnel {
            Some(why) => Error::new(
                Errno::from_raw(error.errno()),
                format!("{error} (and no tunnel: {why})"),
            ),
            None => error,
        }),
    }
}

fn connect_tcp(host: &str, port: u16) -> Result<Connection> {
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| Error::io(format!("host {host}"), &error, Errno::EHOSTUNREACH))?;
    let text = format!("host {host} has no address");
    let mut failed = Error::new(Errno::EHOSTUNREACH, text);
    for address in addresses {
        match TcpStream::connect_timeout(&address, TCP_PATIENCE) {
            Ok(socket) => return over_tcp(socket, address),
            Err(error) => {
                let what = format!("{host} ({address}) is not reached by TCP");
                failed = Error::io(what, &error, Errno::ECONNREFUSED);
            }
        }
    }
    Err(failed)
}
