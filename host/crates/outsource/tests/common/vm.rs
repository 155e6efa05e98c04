// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest: a member that offers, answers, writes and reads.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use hallway_abi::message as abi;
use hallway_abi::region::ENDPOINTS_MAX;
use hallway_endpoint::member::Peer;
use hallway_endpoint::message::{Handle, Message, Offer, Other, CARRIER};
use hallway_ring::{Receiver, Sender};

use super::{wait_readable, PATIENCE};

/// The guest.
pub struct Vm {
    pub peer: Peer,
    doorbell: OwnedFd,
    messages: VecDeque<Message>,
    next: u32,
    /// `FEATURE_*` of its OFFERs.
    pub features: u16,
}

/// The guest's end of a connection.
pub struct Conn {
    pub own: u32,
    pub its: u32,
    pub tx: Sender,
    pub rx: Receiver,
    pub offer: Offer,
    handle: Handle,
}

impl Conn {
    /// Memory of the own ring.
    pub fn handle(&self) -> Handle {
        self.handle
    }
}

impl Vm {
    pub fn new(peer: Peer, doorbell: OwnedFd) -> Self {
        Self {
            peer,
            doorbell,
            messages: VecDeque::new(),
            next: 0,
            features: 0,
        }
    }

    /// Numbers come again: a quick machine opens more sockets than there are.
    pub fn next_endpoint(&mut self) -> u32 {
        self.next = self.next % (ENDPOINTS_MAX as u32 - 1) + 1;
        self.next
    }

    /// Sleeps until the doorbell rings.
    pub fn sleep(&mut self) {
        self.peer.flush();
        assert!(wait_readable(&self.doorbell, PATIENCE), "no doorbell");
        let _ = nix::unistd::read(&self.doorbell, &mut [0; 8]);
        let messages = self.peer.look(4096, |_| {});
        self.messages.extend(messages);
    }

    /// Waits for a message to this endpoint. OFFERs are to endpoint 0.
    pub fn wait_message(&mut self, is_it: impl Fn(&Message) -> bool) -> Message {
        loop {
            if let Some(at) = self.messages.iter().position(&is_it) {
                return self.messages.remove(at).unwrap();
            }
            self.sleep();
        }
    }

    /// Whether a message has come that was not waited for.
    pub fn has_message(&self, is_it: impl Fn(&Message) -> bool) -> bool {
        self.messages.iter().any(is_it)
    }

    pub fn wait_other(&mut self, r#type: u16, to: u32) -> Other {
        let is_it = |message: &Message| matches!(message, Message::Other(other) if other.r#type == r#type && other.to == to);
        match self.wait_message(is_it) {
            Message::Other(other) => other,
            Message::Offer(_) => unreachable!(),
        }
    }

    pub fn offer(&mut self, offer: Offer) {
        self.peer.send(&Message::Offer(offer));
        self.peer.flush();
    }

    pub fn socket_offer(from: u32, remote: SocketAddr, ring: &Sender, handle: Handle) -> Offer {
        Offer {
            from,
            kind: abi::KIND_SOCKET,
            remote,
            ring_size: ring.size(),
            handle,
            ..Offer::default()
        }
    }

    /// Connects; the error is the errno.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<Conn, u64> {
        self.connect_from("[::]:0".parse().unwrap(), remote)
    }

    /// Connects from an address; the error is the errno.
    pub fn connect_from(&mut self, local: SocketAddr, remote: SocketAddr) -> Result<Conn, u64> {
        let size = if self.features == 0 { 65536 } else { 16384 };
        self.call(abi::KIND_SOCKET, (local, 0), remote, size)
    }

    fn call(
        &mut self,
        kind: u16,
        (local, flags): (SocketAddr, u32),
        remote: SocketAddr,
        size: u32,
    ) -> Result<Conn, u64> {
        let own = self.next_endpoint();
        let (tx, handle) = self.peer.make_ring_of(size).unwrap();
        self.offer(Offer {
            kind,
            features: self.features,
            local,
            flags,
            ..Self::socket_offer(own, remote, &tx, handle)
        });
        let answer = self.wait_message(|message| match message {
            Message::Offer(offer) => offer.answers == own,
            Message::Other(other) => other.to == own,
        });
        match answer {
            Message::Offer(offer) => Ok(self.conn(own, tx, handle, offer)),
            Message::Other(other) => {
                assert_eq!(other.r#type, abi::DECLINE);
                self.peer.free_ring(handle);
                Err(other.position)
            }
        }
    }

    /// Opens a UDP socket.
    pub fn open_datagrams(&mut self) -> Result<Conn, u64> {
        self.open_datagrams_at("[::]:0".parse().unwrap())
    }

    /// Opens one that is bound to an address and port.
    pub fn open_datagrams_at(&mut self, local: SocketAddr) -> Result<Conn, u64> {
        self.open_datagrams_with(local, 0)
    }

    /// Opens one with flags, too.
    pub fn open_datagrams_with(&mut self, local: SocketAddr, flags: u32) -> Result<Conn, u64> {
        let remote = "[::]:0".parse().unwrap();
        self.call(abi::KIND_DATAGRAM, (local, flags), remote, 65536)
    }

    /// Opens one with a ring for the longest datagram.
    pub fn open_large_datagrams(&mut self) -> Conn {
        let none = "[::]:0".parse().unwrap();
        self.call(abi::KIND_DATAGRAM, (none, 0), none, 262_144)
            .unwrap()
    }

    /// Takes the ring of an OFFER up.
    pub fn conn(&mut self, own: u32, tx: Sender, handle: Handle, offer: Offer) -> Conn {
        assert_eq!((offer.to, offer.carrier), (0, CARRIER));
        let rx = self.peer.take_up_stream(&offer).unwrap();
        Conn {
            own,
            its: offer.from,
            tx,
            rx,
            offer,
            handle,
        }
    }

    /// Frees the own ring, after DONE.
    pub fn free(&mut self, conn: &Conn) {
        self.peer.free_ring(conn.handle);
    }

    /// Listens; returns the outsourcer's number, or the errno.
    pub fn listen(&mut self, own: u32, port: u16, backlog: u32) -> Result<u32, u64> {
        self.listen_at(own, SocketAddr::from(([0, 0, 0, 0], port)), 0, backlog)
    }

    pub fn listen_at(
        &mut self,
        own: u32,
        local: SocketAddr,
        flags: u32,
        backlog: u32,
    ) -> Result<u32, u64> {
        self.offer(Offer {
            from: own,
            kind: abi::KIND_LISTENER,
            flags,
            local,
            remote: "0.0.0.0:0".parse().unwrap(),
            ring_size: backlog,
            ..Offer::default()
        });
        let answer = self.wait_message(|message| match message {
            Message::Offer(_) => false,
            Message::Other(other) => other.to == own,
        });
        let Message::Other(other) = answer else {
            unreachable!()
        };
        match other.r#type {
            abi::ACCEPT => Ok(other.from),
            abi::DECLINE => Err(other.position),
            other => panic!("message {other}"),
        }
    }

    /// Waits for a connection at a listener.
    pub fn wait_offer(&mut self, listener: u32) -> Offer {
        let is_it = |message: &Message| matches!(message, Message::Offer(offer) if offer.listener == listener);
        match self.wait_message(is_it) {
            Message::Offer(offer) => offer,
            Message::Other(_) => unreachable!(),
        }
    }

    /// Takes a connection that was offered.
    pub fn accept(&mut self, offer: Offer) -> Conn {
        let own = self.next_endpoint();
        let (tx, handle) = self.peer.make_ring_of(65536).unwrap();
        let mut answer = Self::socket_offer(own, offer.remote, &tx, handle);
        answer.answers = offer.from;
        self.offer(answer);
        self.conn(own, tx, handle, offer)
    }

    pub fn send_other(&mut self, other: Other) {
        self.peer.send(&Message::Other(other));
        self.peer.flush();
    }

    /// Says that the guest reads no more.
    pub fn send_done(&mut self, conn: &Conn, reason: u32) {
        self.send_other(Other {
            r#type: abi::DONE,
            from: conn.own,
            to: conn.its,
            carrier: CARRIER,
            position: conn.rx.position(),
            reason,
        });
    }

    /// Writes what there is space for.
    pub fn write(&mut self, conn: &mut Conn, bytes: &[u8]) -> usize {
        let runs = conn.tx.free_runs(bytes.len() as u32);
        let mut from = bytes;
        for (to, length) in runs.0 {
            // SAFETY: the run has as many bytes, which nothing in this process refers
            // to; the program only reads them.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, length) };
            from = &from[length..];
        }
        if conn.tx.publish(runs.len() as u32) {
            self.peer.set_pending(conn.its);
        }
        runs.len()
    }

    /// Reads what is there.
    pub fn read(&mut self, conn: &mut Conn, bytes: &mut Vec<u8>) -> usize {
        let runs = conn.rx.used_runs(u32::MAX);
        for (from, length) in runs.0 {
            let at = bytes.len();
            bytes.resize(at + length, 0);
            // SAFETY: the run has as many bytes, which the program does not write
            // before they are consumed.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes[at..].as_mut_ptr(), length) };
        }
        if conn.rx.consume(runs.len() as u32) {
            self.peer.set_pending(conn.its);
        }
        runs.len()
    }

    /// Writes `out` and the end mark, and reads until the other end mark.
    pub fn exchange(&mut self, conn: &mut Conn, mut out: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let sent = self.write(conn, out);
            out = &out[sent..];
            if out.is_empty() && !conn.tx.is_ended() && conn.tx.end() {
                self.peer.set_pending(conn.its);
            }
            let read = self.read(conn, &mut bytes);
            if conn.rx.is_finished() && conn.tx.is_ended() {
                self.peer.flush();
                return bytes;
            }
            assert!(!conn.rx.is_broken() && !conn.tx.is_broken());
            if sent == 0 && read == 0 {
                let may_write = !out.is_empty() && conn.tx.arm(1, 16384);
                let may_read = !conn.rx.is_finished() && conn.rx.arm();
                if !may_write && !may_read {
                    self.sleep();
                }
            }
        }
    }

    /// Reads this many bytes.
    pub fn read_exact(&mut self, conn: &mut Conn, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            if self.read(conn, &mut bytes) == 0 {
                assert!(!conn.rx.is_finished(), "only {} bytes", bytes.len());
                if !conn.rx.arm() {
                    self.sleep();
                }
            }
        }
        bytes
    }

    /// Reads to the end mark.
    pub fn read_to_end(&mut self, conn: &mut Conn) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let read = self.read(conn, &mut bytes);
            if conn.rx.is_finished() {
                return bytes;
            }
            if read == 0 && !conn.rx.arm() {
                self.sleep();
            }
        }
    }

    /// Writes all, and rings.
    pub fn write_all(&mut self, conn: &mut Conn, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let sent = self.write(conn, bytes);
            bytes = &bytes[sent..];
            self.peer.flush();
            if sent == 0 && !conn.tx.arm(1, 4096) {
                self.sleep();
            }
        }
    }

    /// Sets the end mark.
    pub fn end(&mut self, conn: &mut Conn) {
        if conn.tx.end() {
            self.peer.set_pending(conn.its);
        }
        self.peer.flush();
    }
}
