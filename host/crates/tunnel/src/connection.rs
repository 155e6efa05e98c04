// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole messages, over packets or over a byte stream.

use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    getsockopt, recv, send, sendmsg, setsockopt, shutdown, sockopt, MsgFlags, Shutdown, SockType,
    SockaddrStorage,
};
use nix::sys::time::TimeValLike;

use crate::address::{endpoint, invalid, members, Endpoint};
use crate::error::{Error, Result};
use crate::loan::{Found, Loan, Place};
use crate::message::{Message, Space};
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

/// What both halves use.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    /// The ring memory of a tunnel, once it was asked for. Nothing: there is none.
    loan: OnceLock<Option<Loan>>,
    carrier: Carrier,
    /// A reset was found. Unix sockets and TCP say it once, to either half, and an end after that.
    is_reset: AtomicBool,
}

/// What carries messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Tunnel,
    HostEnd,
    Tcp,
}

/// The half of a connection that sends.
#[derive(Debug)]
pub struct Sender {
    link: Arc<Link>,
    stream: bool,
    /// Bytes of a message that was taken, and that the stream has not taken yet.
    rest: Vec<u8>,
    /// Space of a loan that is reserved, whether the program has asked for it or not.
    space: Option<Place>,
    /// Bytes that the program has reserved, in that or in the buffer.
    reserved: Option<usize>,
    buffer: Vec<u8>,
}

/// The half of a connection that receives.
#[derive(Debug)]
pub struct Receiver {
    link: Arc<Link>,
    stream: bool,
    /// What was peeked at, and is not released.
    peeked: Option<Peeked>,
    /// The message after that, which the loan has found already.
    next: Option<Place>,
    /// The loan ends before the tunnel: its memory has gone.
    is_over: bool,
    buffer: Vec<u8>,
    /// Bytes in the buffer, of a message that is not complete.
    got: usize,
}

/// Where a message is that was peeked at.
#[derive(Debug, Clone)]
enum Peeked {
    Loan(Place),
    Buffer(Range<usize>),
}

impl Link {
    fn loan(&self) -> Option<&Loan> {
        let take = || match self.carrier {
            Carrier::Tunnel => Loan::take(self.socket.as_fd()).ok(),
            _ => None,
        };
        self.loan
            .get_or_init(take)
            .as_ref()
            .filter(|loan| loan.is_own())
    }

    /// The error of a call that failed.
    fn failed(&self, what: &str, errno: Errno) -> Error {
        if errno == Errno::ECONNRESET {
            self.is_reset.store(true, Ordering::Relaxed);
        }
        Error::call(what, errno)
    }

    /// Waits until the socket may be ready, as a call that blocks does.
    fn wait(&self, event: PollFlags) -> nix::Result<()> {
        let flags = OFlag::from_bits_retain(fcntl(&self.socket, FcntlArg::F_GETFL)?);
        if flags.contains(OFlag::O_NONBLOCK) {
            return Err(Errno::EAGAIN);
        }
        let limit = match event {
            PollFlags::POLLIN => getsockopt(&self.socket, sockopt::ReceiveTimeout)?,
            _ => getsockopt(&self.socket, sockopt::SendTimeout)?,
        };
        let limit = match limit.num_milliseconds() {
            0 => PollTimeout::NONE,
            limit => limit.try_into().unwrap_or(PollTimeout::MAX),
        };
        match poll(&mut [PollFd::new(self.socket.as_fd(), event)], limit)? {
            0 => Err(Errno::EAGAIN),
            _ => Ok(()),
        }
    }
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

    fn new(socket: OwnedFd, carrier: Carrier, peer: String) -> Self {
        let link = Arc::new(Link {
            socket,
            loan: OnceLock::new(),
            carrier,
            is_reset: AtomicBool::new(false),
        });
        let stream = carrier == Carrier::Tcp;
        let sender = Sender {
            link: Arc::clone(&link),
            stream,
            rest: Vec::new(),
            space: None,
            reserved: None,
            buffer: Vec::new(),
        };
        let receiver = Receiver {
            link,
            stream,
            peeked: None,
            next: None,
            is_over: false,
            buffer: Vec::new(),
            got: 0,
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

    /// [`Sender::reserve`].
    ///
    /// # Errors
    /// As there.
    pub fn reserve(&mut self, length: usize) -> Result<Space<'_>> {
        self.sender.reserve(length)
    }

    /// [`Sender::commit`].
    ///
    /// # Errors
    /// As there.
    pub fn commit(&mut self, length: usize) -> Result<()> {
        self.sender.commit(length)
    }

    /// [`Receiver::peek`].
    ///
    /// # Errors
    /// As there.
    pub fn peek(&mut self) -> Result<Option<Message<'_>>> {
        self.receiver.peek()
    }

    /// [`Receiver::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&mut self) -> Result<()> {
        self.receiver.release()
    }

    /// [`Sender::is_lent`].
    pub fn is_lent(&self) -> bool {
        self.sender.is_lent()
    }

    /// Both halves, for two threads. The connection is closed when both are dropped.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.link.socket.as_fd()
    }
}

impl Sender {
    /// Whether [`Sender::reserve`] and [`Receiver::peek`] give ring memory. Else they give
    /// buffers: by TCP, to the host and on it, or where `/dev/hallway-loan` cannot be used.
    pub fn is_lent(&self) -> bool {
        self.link.loan().is_some()
    }

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
        check_length(message.len())?;
        let failed = |errno| self.link.failed("sending", errno);
        self.reserved = None;
        if let (Some(_), Some(loan)) = (self.space.take(), self.link.loan()) {
            // The ring takes no other message meanwhile.
            loan.send(0, 0).map_err(failed)?;
        }
        if !self.stream {
            send(
                self.link.socket.as_raw_fd(),
                message,
                MsgFlags::MSG_NOSIGNAL,
            )
            .map_err(failed)?;
            return Ok(());
        }
        self.flush()?;
        let header = (message.len() as u32).to_le_bytes();
        let parts = [IoSlice::new(&header), IoSlice::new(message)];
        let fd = self.link.socket.as_raw_fd();
        let sent = sendmsg::<SockaddrStorage>(fd, &parts, &[], MsgFlags::MSG_NOSIGNAL, None)
            .map_err(|errno| self.link.failed("sending", errno))?;
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

    /// Reserves space for a message of this length, in ring memory if [`Connection::is_lent`],
    /// and gives up a reservation before it. The bytes there are any, until
    /// [`Sender::commit`] sends them.
    ///
    /// # Errors
    /// EINVAL, EMSGSIZE, EPIPE and ECONNRESET, as [`Sender::send`]. EAGAIN and EINTR: there is no
    /// space yet.
    pub fn reserve(&mut self, length: usize) -> Result<Space<'_>> {
        check_length(length)?;
        self.reserved = None;
        let failed = |errno| Error::call("reserving", errno);
        let Some(loan) = self.link.loan() else {
            if self.buffer.is_empty() {
                self.buffer = vec![0; MESSAGE_MAX];
            }
            self.reserved = Some(length);
            let place = Place::of(&mut self.buffer[..length]);
            // SAFETY: the buffer is this half's, and is never another one.
            return Ok(unsafe { Space::new(place) });
        };
        let is_enough = |place: &Place| place.length >= length;
        while !self.space.as_ref().is_some_and(is_enough) {
            self.space = None;
            self.space = loan.send(0, length).map_err(failed)?;
            if self.space.is_none() {
                self.link.wait(PollFlags::POLLOUT).map_err(failed)?;
            }
        }
        self.reserved = Some(length);
        let start = self.space.expect("it was found").start;
        // SAFETY: the link keeps the loan, and the reservation is this half's alone.
        Ok(unsafe { Space::new(Place { start, length }) })
    }

    /// Sends a message that lies in what was reserved: the first bytes of it.
    ///
    /// # Errors
    /// EINVAL: it is empty, or longer than what was reserved. EAGAIN and EINTR: nothing of it was
    /// taken, and it stays reserved. EPIPE and ECONNRESET: the peer has closed.
    pub fn commit(&mut self, length: usize) -> Result<()> {
        check_length(length)?;
        let Some(reserved) = self.reserved.filter(|reserved| length <= *reserved) else {
            return Err(invalid(format!("{length} bytes are not reserved")));
        };
        if let Some(loan) = self.link.loan() {
            self.reserved = None;
            let space = self.space.take().map_or(0, |space| space.length);
            // The next message is likely as long.
            self.space = loan
                .send(length, space.min(reserved))
                .map_err(|errno| Error::call("sending", errno))?;
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        let sent = self.send(&buffer[..length]);
        self.buffer = buffer;
        if let Err(error) = &sent {
            if [Errno::EAGAIN as i32, Errno::EINTR as i32].contains(&error.errno()) {
                self.reserved = Some(reserved);
            }
        }
        sent
    }

    /// Sends what is left of an earlier message.
    ///
    /// # Errors
    /// EAGAIN and EINTR: there is still a rest. EPIPE and ECONNRESET: the peer has closed.
    pub fn flush(&mut self) -> Result<()> {
        while !self.rest.is_empty() {
            match send(
                self.link.socket.as_raw_fd(),
                &self.rest,
                MsgFlags::MSG_NOSIGNAL,
            ) {
                Ok(count) => drop(self.rest.drain(..count)),
                Err(errno) => return Err(self.link.failed("sending", errno)),
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
        shutdown(self.link.socket.as_raw_fd(), Shutdown::Write)
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
        self.next = None;
        let range = match self.peeked.take() {
            // It is in the ring still.
            Some(Peeked::Loan(_)) | None => self.recv_range()?,
            Some(Peeked::Buffer(range)) => range,
        };
        Ok(Some(&self.buffer[range]).filter(|message| !message.is_empty()))
    }

    fn recv_range(&mut self) -> Result<Range<usize>> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; HEADER + MESSAGE_MAX];
        }
        match self.stream {
            true => self.recv_stream(),
            false => self.recv_packet(),
        }
    }

    /// Gives the next message where it lies, in ring memory if [`Connection::is_lent`]; none if
    /// the peer has ended. It stays the next one until it is released, or received.
    ///
    /// # Errors
    /// Those of [`Receiver::recv`].
    pub fn peek(&mut self) -> Result<Option<Message<'_>>> {
        if self.link.loan().is_none() {
            // They may be a parent's.
            self.next = None;
            self.peeked
                .take_if(|peeked| matches!(peeked, Peeked::Loan(_)));
        }
        if self.peeked.is_none() {
            self.peeked = self.find()?;
        }
        let place = match self.peeked.clone() {
            None => return Ok(None),
            Some(Peeked::Loan(place)) => place,
            Some(Peeked::Buffer(range)) => Place::of(&mut self.buffer[range]),
        };
        // SAFETY: the link keeps the loan, and this half the buffer, while it is peeked at.
        Ok(Some(unsafe { Message::new(place) }))
    }

    /// Where the next message lies. Nothing: the peer has ended.
    fn find(&mut self) -> Result<Option<Peeked>> {
        if let Some(place) = self.next.take() {
            return Ok(Some(Peeked::Loan(place)));
        }
        while let Some(loan) = self.link.loan().filter(|_| !self.is_over) {
            match loan.look(false) {
                Ok(Found::Message(place)) => return Ok(Some(Peeked::Loan(place))),
                Ok(Found::End) => return Ok(None),
                Ok(Found::Nothing) => self.link.wait(PollFlags::POLLIN).map_err(receiving)?,
                // What is left is a copy, which recv() gives.
                Err(Errno::EREMCHG) => self.is_over = true,
                Err(errno) => return Err(receiving(errno)),
            }
        }
        let range = self.recv_range()?;
        Ok((!range.is_empty()).then_some(Peeked::Buffer(range)))
    }

    /// Takes the message that was peeked at: its bytes are no longer there.
    ///
    /// # Errors
    /// EINVAL: there is none. ECONNRESET: the peer has gone, and what was read may not be what it
    /// has sent. EREMCHG: the same, and [`Receiver::peek`] gives the message again.
    pub fn release(&mut self) -> Result<()> {
        let failed = |errno| Error::call("releasing", errno);
        match self.peeked.take() {
            None => Err(invalid("no message was peeked at".into())),
            Some(Peeked::Buffer(_)) => Ok(()),
            Some(Peeked::Loan(_)) => {
                let Some(loan) = self.link.loan() else {
                    return Err(invalid("the message is a parent's".into()));
                };
                let found = loan.look(true);
                self.is_over |= found == Err(Errno::EREMCHG);
                if let Found::Message(place) = found.map_err(failed)? {
                    self.next = Some(place);
                }
                Ok(())
            }
        }
    }

    fn recv_packet(&mut self) -> Result<Range<usize>> {
        let (fd, buffer) = (
            self.link.socket.as_raw_fd(),
            &mut self.buffer[..MESSAGE_MAX],
        );
        // It says how long the message is, not the part of it that the buffer has.
        let mut received = recv(fd, buffer, MsgFlags::MSG_TRUNC);
        if received == Err(Errno::ECONNRESET) {
            // A Unix socket says it before what the host end has sent.
            self.link.is_reset.store(true, Ordering::Relaxed);
            received = recv(fd, buffer, MsgFlags::MSG_TRUNC);
        }
        match received {
            // What comes before the reset may be there yet.
            Err(Errno::EINTR) => Err(receiving(Errno::EINTR)),
            Ok(0) | Err(_) if self.link.is_reset.load(Ordering::Relaxed) => {
                Err(receiving(Errno::ECONNRESET))
            }
            Ok(count) if count > MESSAGE_MAX => {
                let text = format!("a message of {count} bytes came: {MESSAGE_MAX} are the most");
                Err(Error::new(Errno::EMSGSIZE, text))
            }
            Ok(count) => Ok(0..count),
            Err(errno) => Err(receiving(errno)),
        }
    }

    /// It never reads beyond a message, so poll() on the descriptor sees each further one.
    fn recv_stream(&mut self) -> Result<Range<usize>> {
        loop {
            let end = match self.got {
                0..HEADER => HEADER,
                _ => HEADER + self.length()?,
            };
            let buffer = &mut self.buffer[self.got..end];
            let count = recv(self.link.socket.as_raw_fd(), buffer, MsgFlags::empty());
            match count.map_err(|errno| self.link.failed("receiving", errno))? {
                0 if self.link.is_reset.load(Ordering::Relaxed) => {
                    return Err(receiving(Errno::ECONNRESET));
                }
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

fn check_length(length: usize) -> Result<()> {
    if length == 0 {
        return Err(invalid("an empty message cannot be sent".into()));
    }
    if length > MESSAGE_MAX {
        let text = format!("a message has {MESSAGE_MAX} bytes at most");
        return Err(Error::new(Errno::EMSGSIZE, text));
    }
    Ok(())
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
        Carrier::Tcp,
        format!("tcp://{peer}"),
    ))
}

/// A connection over a tunnel between the host and a guest.
pub(crate) fn over_host_end(socket: OwnedFd, peer: String) -> Result<Connection> {
    // It takes the longest message where the host allows that (net.core.wmem_max).
    setsockopt(&socket, sockopt::SndBuf, &MESSAGE_MAX)
        .map_err(|errno| Error::call("SO_SNDBUF", errno))?;
    Ok(Connection::new(socket, Carrier::HostEnd, peer))
}

/// A connection over a tunnel.
pub(crate) fn over_tunnel(socket: OwnedFd, cid: u32, port: u32) -> Connection {
    Connection::new(socket, Carrier::Tunnel, format!("vsock://{cid}:{port}"))
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
