// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's side of QEMU's ivshmem protocol, one connection at a time.
//!
//! # The protocol
//!
//! QEMU's `ivshmem-doorbell` connects to a Unix stream socket when the device
//! is realized, and never again. It sends nothing; the server sends messages of
//! 8 bytes, a little-endian signed number each, some with a file descriptor:
//!
//! | number            | descriptor | meaning                                    |
//! | ----------------- | ---------- | ------------------------------------------ |
//! | 0, first of all   | none       | protocol version                           |
//! | 0..65535, second  | none       | the device's own id                        |
//! | -1                | memory     | shared memory: becomes BAR2                |
//! | another id        | eventfd    | a peer: writing its id rings this eventfd  |
//! | own id            | eventfd    | rings the device's own interrupt           |
//! | another id, later | none       | the peer left (never sent here: see below) |
//!
//! QEMU reads in `realize`, blocked, up to the shared memory, so a server must
//! answer at once; only what comes after that may use the interrupt vectors,
//! hence the own id comes last. The n-th descriptor for an id belongs to vector
//! n-1; devices here have one vector. A further one is refused by QEMU with a
//! message and does no harm, so a server that does not know whether it sent one
//! may send it again. The same holds for all that a device waits for at its start,
//! once it has read it.
//!
//! # What this server does differently, and why
//!
//! QEMU leaves dangling pointers behind when a peer leaves, and when its id is
//! used again. So no peer ever leaves: each connection numbers its peers, counts up
//! and uses no id twice. As ids are local, every device can have id 0, which with
//! `master=on` spares it the migration blocker.
//!
//! # When does QEMU know a peer?
//!
//! Where a guest rings an id that its QEMU has not read yet, the ring is lost
//! without a sign. QEMU acknowledges nothing, but the kernel knows whether it has
//! read all ([`Session::drained`]). A moment after that the guest may ring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hallway_unix::Stream;
use nix::errno::Errno;
use nix::sys::socket::{recv, MsgFlags};

/// Version of QEMU's ivshmem protocol.
pub const PROTOCOL_VERSION: i64 = 0;
/// The id that every device gets as its own.
pub const OWN_ID: u16 = 0;
/// Highest id that QEMU accepts.
pub const ID_MAX: u16 = u16::MAX;
/// The number that comes with the shared memory.
const SHARED_MEMORY: i64 = -1;

/// One message that waits to be sent.
struct Message {
    number: i64,
    fd: Option<OwnedFd>,
}

/// One QEMU and its device.
pub struct Session {
    socket: OwnedFd,
    outbox: VecDeque<Message>,
}

impl Session {
    /// Takes over a connected socket. It becomes non-blocking: no QEMU can make its
    /// server wait.
    pub fn new(socket: Stream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: socket.into(),
            outbox: VecDeque::new(),
        })
    }

    /// Queues all that a new device waits for: `memory` becomes its BAR2, `peers`
    /// are there from the start, `own` rings the device itself.
    pub fn greet<'a>(
        &mut self,
        memory: BorrowedFd<'_>,
        peers: impl IntoIterator<Item = (u16, BorrowedFd<'a>)>,
        own: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.queue(PROTOCOL_VERSION, None)?;
        self.queue(OWN_ID.into(), None)?;
        self.queue(SHARED_MEMORY, Some(memory))?;
        for (id, eventfd) in peers {
            self.introduce(id, eventfd)?;
        }
        self.queue(OWN_ID.into(), Some(own))
    }

    /// Queues a peer: from when QEMU has read it, writing `id` into the
    /// doorbell register rings `eventfd`.
    pub fn introduce(&mut self, id: u16, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        debug_assert_ne!(id, OWN_ID);
        self.queue(id.into(), Some(eventfd))
    }

    /// How many messages wait for room in the socket. Each with a descriptor has a copy of it.
    pub fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// Sends nothing about a peer that has not been sent yet.
    pub fn withdraw(&mut self, id: u16) {
        self.outbox
            .retain(|message| id == OWN_ID || message.number != id.into());
    }

    fn queue(&mut self, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fd = fd.map(|fd| fd.try_clone_to_owned()).transpose()?;
        self.outbox.push_back(Message { number, fd });
        Ok(())
    }

    /// Sends what the socket takes; true once nothing is left to send.
    pub fn flush(&mut self) -> io::Result<bool> {
        while let Some(message) = self.outbox.front() {
            let bytes = message.number.to_le_bytes();
            let fd = message.fd.as_ref().map(AsFd::as_fd);
            match hallway_unix::send_now(&self.socket, &bytes, fd.as_slice()) {
                // A Unix socket takes a run this short whole or not at all.
                Ok(sent) if sent == bytes.len() => {
                    self.outbox.pop_front();
                }
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                // ETOOMANYREFS: too many descriptors are in flight already.
                Err(Errno::EAGAIN | Errno::ETOOMANYREFS | Errno::ENOBUFS) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Whether a message waits for room in the socket.
    pub fn congested(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether QEMU has read all that was queued.
    pub fn drained(&self) -> bool {
        if !self.outbox.is_empty() {
            return false;
        }
        let mut unread: libc::c_int = 0;
        // SAFETY: the request writes one int, to a valid place.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        result == 0 && unread == 0
    }

    /// Whether the connection is over: closed, or its peer sends bytes, which QEMU never does.
    /// They are not received, as descriptors may come with them.
    pub fn closed(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let seen = recv(self.socket.as_raw_fd(), &mut [0], flags);
        !matches!(seen, Err(Errno::EAGAIN | Errno::EINTR))
    }

    /// Ends the connection for each process that has the socket.
    pub fn hang_up(self) {
        hallway_unix::hang_up(self.socket);
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::EventFd;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Session, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Session::new(Stream::from(ours)).unwrap(), theirs)
    }

    #[test]
    fn greeting_has_the_order_that_qemu_wants() {
        let (mut server, mut qemu) = pair();
        let event = EventFd::new().unwrap();
        server
            .greet(event.as_fd(), [(1, event.as_fd())], event.as_fd())
            .unwrap();
        assert!(server.flush().unwrap());
        assert!(!server.drained());
        let mut numbers = [0; 40];
        qemu.set_nonblocking(true).unwrap();
        // A read ends at each message that carries a descriptor.
        let mut length = 0;
        while length < numbers.len() {
            length += qemu.read(&mut numbers[length..]).unwrap();
        }
        let numbers: Vec<i64> = numbers
            .chunks(8)
            .map(|n| i64::from_le_bytes(n.try_into().unwrap()))
            .collect();
        assert_eq!(numbers, [0, 0, -1, 1, 0]);
        assert!(server.drained());
    }

    #[test]
    fn a_qemu_that_never_reads_blocks_nobody() {
        let (mut server, qemu) = pair();
        let event = EventFd::new().unwrap();
        for id in 1..=5000 {
            server.introduce(id, event.as_fd()).unwrap();
            server.flush().unwrap();
            if server.congested() {
                break;
            }
        }
        assert!(server.congested());
        assert!(!server.drained());
        assert!(!server.closed());
        drop(qemu);
        assert!(server.closed());
    }

    #[test]
    fn what_sends_is_no_qemu() {
        let (server, mut qemu) = pair();
        assert!(!server.closed());
        qemu.write_all(b"x").unwrap();
        assert!(server.closed());
        server.hang_up();
        assert_eq!(qemu.read(&mut [0]).unwrap(), 0);
    }
}
