// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program with a real region, whose guest these tests are.

use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hallway_abi::message as abi;
use hallway_abi::tunnel::{FRAME_ALIGN, TUNNEL_SEQPACKET, TUNNEL_STREAM};
use hallway_endpoint::member::{Member, Peer, Slice};
use hallway_endpoint::message::{Handle, Message, Offer, Other, Tunnel, CARRIER};
use hallway_endpoint::orders::{Order, Report};
use hallway_endpoint::server::Server;
use hallway_host::program::Host;
use hallway_host::Policy;
use hallway_ring::{Receiver, Sender};
use hallway_shm::sealed_memory;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    accept, bind, connect, listen, recv, send, sendmsg, setsockopt, socket, socketpair,
    sockopt::SndBuf, AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType,
    UnixAddr,
};

const SIZE: u64 = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
const RING: u32 = 16 << 10;

fn slice(slot: u32) -> Slice {
    Slice {
        slot,
        generation: 10 + slot,
        offset: 12288 + u64::from(slot - 1) * (8 << 20),
        size: 8 << 20,
    }
}

fn eventfd() -> OwnedFd {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .unwrap()
        .into()
}

fn at(path: &PathBuf, kind: SockType) -> OwnedFd {
    let fd = socket(
        AddressFamily::Unix,
        kind,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )
    .unwrap();
    bind(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&fd, Backlog::new(64).unwrap()).unwrap();
    fd
}

/// A connection, as the guest has it.
struct Conn {
    own: u32,
    its: u32,
    to_host: Sender,
    from_host: Receiver,
    /// Bytes of the host's ring.
    size: u32,
}

/// The guest, and what hallwayd has.
struct Vm {
    control: OwnedFd,
    doorbell: OwnedFd,
    peer: Peer,
    _member: Member,
    messages: Vec<Message>,
    path: PathBuf,
    next: u32,
}

impl Vm {
    fn start() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("hallway-host-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("vm");
        let (control, its) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        std::thread::spawn(move || Server::new(Host::default(), its, false).unwrap().run());
        let region = sealed_memory("tunnels", SIZE as usize).unwrap();
        let (host_doorbell, doorbell) = (eventfd(), eventfd());
        let listeners = [
            at(&path, SockType::Stream),
            at(&dir.join("vm.packets"), SockType::SeqPacket),
        ];
        let own = slice(1);
        let start = Order::Start {
            size: SIZE,
            slot: own.slot,
            generation: own.generation,
            slots: 3,
            slice_offset: own.offset,
            slice_size: own.size,
            policy: Policy {
                socket: path.clone(),
                sockets: 20,
            },
        };
        let guest = slice(2);
        let fds = [
            region.as_raw_fd(),
            host_doorbell.as_raw_fd(),
            listeners[0].as_raw_fd(),
            listeners[1].as_raw_fd(),
        ];
        order(&control, &start, &fds);
        let member = Member::join(region.try_clone().unwrap(), SIZE, 3, guest).unwrap();
        let peer = member.meet(own, host_doorbell).unwrap();
        let joined: Order<Policy> = Order::Guest {
            slot: guest.slot,
            generation: guest.generation,
            slice_offset: guest.offset,
            slice_size: guest.size,
        };
        order(&control, &joined, &[doorbell.as_raw_fd()]);
        Self {
            control,
            doorbell,
            peer,
            _member: member,
            messages: Vec::new(),
            path,
            next: 1,
        }
    }

    fn service(&self, port: u32) -> PathBuf {
        PathBuf::from(format!("{}_{port}", self.path.display()))
    }

    /// Waits until something comes of a look at what the program has done.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            self.peer.flush();
            let _ = nix::unistd::read(&self.doorbell, &mut [0; 8]);
            let messages = self.peer.look(4096, |_| {});
            self.messages.extend(messages);
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < end, "{what} does not happen");
            let mut fds = [PollFd::new(self.doorbell.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(20_u16)).unwrap();
        }
    }

    fn hear(&mut self, what: &str, is_it: impl Fn(&Message) -> bool) -> Message {
        self.until(what, |vm| {
            let at = vm.messages.iter().position(&is_it)?;
            Some(vm.messages.remove(at))
        })
    }

    fn offer(&mut self, answers: u32, kind: u32, ports: (u32, u32)) -> (u32, Sender) {
        let own = self.next;
        self.next += 1;
        let (ring, handle) = self.peer.make_ring_of(RING).unwrap();
        self.peer.send(&Message::Offer(Offer {
            from: own,
            kind: abi::KIND_TUNNEL,
            answers,
            tunnel: Some(Tunnel {
                r#type: kind,
                local_port: ports.0,
                remote_port: ports.1,
            }),
            ring_size: RING,
            handle,
            ..Offer::default()
        }));
        self.peer.flush();
        (own, ring)
    }

    fn connect(&mut self, kind: u32, port: u32) -> Result<Conn, u32> {
        let (own, to_host) = self.offer(0, kind, (9999, port));
        let said = self.hear("an answer", |message| match message {
            Message::Offer(offer) => offer.answers == own,
            Message::Other(other) => other.to == own && other.r#type == abi::DECLINE,
        });
        let offer = match said {
            Message::Other(decline) => return Err(decline.reason),
            Message::Offer(offer) => offer,
        };
        assert_eq!(offer.tunnel.unwrap().local_port, port);
        Ok(Conn {
            own,
            its: offer.from,
            to_host,
            from_host: self.peer.take_up(offer.handle, offer.ring_size).unwrap(),
            size: offer.ring_size,
        })
    }

    fn accept(&mut self, port: u32) -> Conn {
        let said = self.hear("a request", |message| matches!(message, Message::Offer(_)));
        let Message::Offer(offer) = said else {
            unreachable!()
        };
        let names = offer.tunnel.unwrap();
        assert_eq!(names.remote_port, port);
        let from_host = self.peer.take_up(offer.handle, offer.ring_size).unwrap();
        let (own, to_host) = self.offer(offer.from, names.r#type, (port, names.local_port));
        Conn {
            own,
            its: offer.from,
            to_host,
            from_host,
            size: offer.ring_size,
        }
    }

    fn write(&mut self, conn: &mut Conn, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let runs = conn.to_host.free_runs(bytes.len() as u32);
            runs.write(&bytes[..runs.len()]);
            let count = runs.len();
            conn.to_host.publish(count as u32);
            bytes = &bytes[count..];
            self.peer.set_pending(conn.its);
            conn.to_host.arm(1, 1);
            if !bytes.is_empty() {
                self.until("space", |_| (conn.to_host.count_space() > 0).then_some(()));
            }
        }
        self.peer.flush();
    }

    fn read(&mut self, conn: &mut Conn, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            self.until("bytes", |_| conn.from_host.arm().then_some(()));
            let runs = conn.from_host.used_runs((length - done) as u32);
            assert!(!runs.is_empty(), "the end after {done} bytes");
            runs.read(&mut bytes[done..done + runs.len()]);
            done += runs.len();
            if conn.from_host.consume(runs.len() as u32) {
                self.peer.set_pending(conn.its);
            }
        }
        bytes
    }

    fn done(&mut self, conn: &Conn, reason: i32) {
        let position = conn.from_host.position();
        let done = Message::done(conn.own, conn.its, CARRIER, position, reason);
        self.peer.send(&done);
    }

    fn hear_done(&mut self, conn: &Conn) -> Other {
        let own = conn.own;
        let is_it = |message: &Message| matches!(message, Message::Other(other) if other.to == own && other.r#type == abi::DONE);
        match self.hear("DONE", is_it) {
            Message::Other(done) => done,
            Message::Offer(_) => unreachable!(),
        }
    }

    fn report(&mut self) -> Report {
        order(&self.control, &Order::<Policy>::Report { number: 1 }, &[]);
        let mut text = vec![0; 65536];
        let length = recv(self.control.as_raw_fd(), &mut text, MsgFlags::empty()).unwrap();
        serde_json::from_slice(&text[..length]).unwrap()
    }

    fn wait_closed(&mut self) {
        self.until("all is closed", |vm| {
            (vm.report().sockets == 0).then_some(())
        });
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.path.parent().unwrap());
    }
}

fn order(control: &OwnedFd, order: &Order<Policy>, fds: &[RawFd]) {
    let text = serde_json::to_vec(order).unwrap();
    let rights = [ControlMessage::ScmRights(fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights };
    let parts = [IoSlice::new(&text)];
    sendmsg::<()>(control.as_raw_fd(), &parts, rights, MsgFlags::empty(), None).unwrap();
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| ((n * 7 + seed) % 251) as u8).collect()
}

#[test]
fn a_guest_reaches_a_service_and_all_bytes_arrive() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(80)).unwrap();
    let mut conn = vm.connect(TUNNEL_STREAM, 80).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let (sent, back) = (bytes(300_000, 1), bytes(300_000, 2));
    let (there, answer) = (sent.clone(), back.clone());
    let service = std::thread::spawn(move || {
        let mut got = vec![0; there.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == there);
        stream.write_all(&answer).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    vm.write(&mut conn, &sent);
    assert!(vm.read(&mut conn, back.len()) == back);
    conn.to_host.end();
    vm.peer.set_pending(conn.its);
    assert_eq!(vm.hear_done(&conn).reason, 0);
    service.join().unwrap();
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
    vm.done(&conn, 0);
    vm.wait_closed();
    let report = vm.report();
    assert_eq!((report.sent, report.received), (300_000, 300_000));
    assert_eq!(report.corrupt, 0);
}

#[test]
fn a_program_of_the_host_reaches_the_guest() {
    let mut vm = Vm::start();
    let mut client = UnixStream::connect(&vm.path).unwrap();
    // What follows the line belongs to the connection already.
    client.write_all(b"CONNECT 22\nearly").unwrap();
    let mut conn = vm.accept(22);
    let mut said = [0; 8];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"OK 1024\n");
    assert_eq!(vm.read(&mut conn, 5), b"early");
    vm.write(&mut conn, b"hello");
    let mut got = [0; 5];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    drop(client);
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
    vm.done(&conn, 0);
    conn.to_host.end();
    vm.peer.set_pending(conn.its);
    vm.hear_done(&conn);
    vm.wait_closed();
}

#[test]
fn a_program_that_closes_is_known_at_once_and_one_that_has_more_to_read_is_served() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(6000)).unwrap();
    for closes_later in [false, true] {
        let mut conn = vm.connect(TUNNEL_STREAM, 6000).unwrap();
        let (mut client, _) = listener.accept().unwrap();
        if closes_later {
            client.shutdown(Shutdown::Write).unwrap();
            vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
            vm.write(&mut conn, b"hello");
            client.read_exact(&mut [0; 5]).unwrap();
        }
        drop(client);
        vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
        if !closes_later {
            // The end mark is there: what finds it finds this, too.
            assert!(!conn.to_host.end(), "the ring is not truncated");
        }
        // It comes although nothing was sent after the end.
        assert_eq!(vm.hear_done(&conn).reason, 0);
        vm.done(&conn, 0);
        vm.wait_closed();
    }
    assert_eq!(vm.report().corrupt, 0);
}

#[test]
fn a_program_that_dies_with_bytes_unread_resets_after_what_it_has_sent() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(6000)).unwrap();
    let mut conn = vm.connect(TUNNEL_STREAM, 6000).unwrap();
    let (mut client, _) = listener.accept().unwrap();
    vm.write(&mut conn, b"hello");
    client.read_exact(&mut [0; 4]).unwrap();
    client.write_all(b"last").unwrap();
    drop(client);
    assert_eq!(vm.read(&mut conn, 4), b"last");
    assert_eq!(vm.hear_done(&conn).reason, libc::ECONNRESET as u32);
    assert!(!conn.from_host.is_ended());
    vm.done(&conn, 0);
    vm.wait_closed();
}

#[test]
fn a_program_that_dies_with_bytes_unread_resets_though_the_guest_has_sent_all() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(6000)).unwrap();
    let mut conn = vm.connect(TUNNEL_STREAM, 6000).unwrap();
    let (mut client, _) = listener.accept().unwrap();
    vm.write(&mut conn, b"hello");
    conn.to_host.end();
    vm.peer.set_pending(conn.its);
    assert_eq!(vm.hear_done(&conn).reason, 0);
    client.read_exact(&mut [0; 4]).unwrap();
    client.write_all(b"last").unwrap();
    drop(client);
    assert_eq!(vm.read(&mut conn, 4), b"last");
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
    assert!(conn.from_host.is_reset(), "one byte was not read");
    vm.done(&conn, 0);
    vm.wait_closed();
}

#[test]
fn a_program_that_closes_with_bytes_unread_is_known_at_once() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(6000)).unwrap();
    let mut conn = vm.connect(TUNNEL_STREAM, 6000).unwrap();
    let (client, _) = listener.accept().unwrap();
    // The socket takes no more, and then the ring does not: it stays full.
    let mut full = 0;
    while full < 10 {
        let runs = conn.to_host.free_runs(RING);
        full = if runs.is_empty() { full + 1 } else { 0 };
        conn.to_host.publish(runs.len() as u32);
        vm.peer.set_pending(conn.its);
        let mut looked = false;
        vm.until("a look", |_| {
            std::mem::replace(&mut looked, true).then_some(())
        });
    }
    drop(client);
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
    assert!(conn.from_host.is_reset(), "bytes are lost");
    assert!(!conn.to_host.end(), "the ring is not truncated");
    vm.hear_done(&conn);
    vm.done(&conn, 0);
    vm.wait_closed();
}

#[test]
fn messages_keep_their_boundaries() {
    let mut vm = Vm::start();
    let path = PathBuf::from(format!("{}.packets", vm.path.display()));
    let client = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let fd = client.as_raw_fd();
    connect(fd, &UnixAddr::new(&path).unwrap()).unwrap();
    send(fd, b"CONNECT 7\n", MsgFlags::empty()).unwrap();
    let mut conn = vm.accept(7);
    let mut said = [0; 100];
    let length = recv(fd, &mut said, MsgFlags::empty()).unwrap();
    assert_eq!(&said[..length], b"OK 1024\n");
    // More than the ring holds, over its end many times.
    let sender = std::thread::spawn(move || {
        for n in 1..300 {
            send(client.as_raw_fd(), &bytes(n * 20, n), MsgFlags::empty()).unwrap();
        }
        for n in 1..300 {
            let mut got = vec![0; 60_000];
            let length = recv(client.as_raw_fd(), &mut got, MsgFlags::empty()).unwrap();
            assert!(got[..length] == bytes(n * 20, n), "{n}");
        }
    });
    for n in 1..300 {
        let frame = vm.read(&mut conn, 8);
        let length = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
        assert_eq!(length, n * 20);
        let whole = length.next_multiple_of(FRAME_ALIGN as usize);
        assert!(vm.read(&mut conn, whole)[..length] == bytes(length, n));
    }
    for n in 1..300_usize {
        let length = n * 20;
        let message = frame(&bytes(length, n));
        let needed = message.len() as u32;
        vm.until("space", |_| conn.to_host.arm(needed, needed).then_some(()));
        vm.write(&mut conn, &message);
    }
    sender.join().unwrap();
}

fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = (message.len() as u64).to_le_bytes().to_vec();
    frame.extend(message);
    frame.resize(frame.len().next_multiple_of(FRAME_ALIGN as usize), 0);
    frame
}

#[test]
fn messages_of_a_program_arrive_though_it_has_closed_with_some_unread() {
    let mut vm = Vm::start();
    let listener = at(&vm.service(90), SockType::SeqPacket);
    let mut conn = vm.connect(TUNNEL_SEQPACKET, 90).unwrap();
    let program = accept(listener.as_raw_fd()).unwrap();
    // SAFETY: the descriptor is new, and nothing else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let fd = program.as_raw_fd();
    // The last three find no space in the ring: they are in the socket at the close.
    let count = conn.size as usize / frame(&[0; 4000]).len() + 3;
    for n in 0..count {
        send(fd, &bytes(4000, n), MsgFlags::empty()).unwrap();
    }
    vm.write(&mut conn, &[frame(b"A"), frame(b"B")].concat());
    let mut got = [0; 9];
    assert_eq!(recv(fd, &mut got, MsgFlags::empty()), Ok(1));
    assert_eq!(recv(fd, &mut got, MsgFlags::MSG_PEEK), Ok(1));
    assert_eq!(&got[..1], b"B");
    drop(program);
    for n in 0..count {
        let expected = frame(&bytes(4000, n));
        assert!(vm.read(&mut conn, expected.len()) == expected, "{n}");
    }
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
}

#[test]
fn what_is_not_there_is_refused() {
    let mut vm = Vm::start();
    assert_eq!(vm.connect(TUNNEL_STREAM, 80).err(), Some(3));
    assert_eq!(vm.connect(77, 80).err(), Some(3));
    let _listener = UnixListener::bind(vm.service(81)).unwrap();
    assert_eq!(vm.connect(TUNNEL_SEQPACKET, 81).err(), Some(3));
    for line in ["CONNECT x\n", "CONNECT 111111111111111111111", "\n"] {
        let mut client = UnixStream::connect(&vm.path).unwrap();
        client.write_all(line.as_bytes()).unwrap();
        // What was not read resets it.
        let end = client.read(&mut [0; 9]);
        assert!(matches!(end, Ok(0) | Err(_)), "{line:?}");
    }
    // The guest declines.
    let mut client = UnixStream::connect(&vm.path).unwrap();
    client.write_all(b"CONNECT 5\n").unwrap();
    let said = vm.hear("a request", |message| matches!(message, Message::Offer(_)));
    let Message::Offer(offer) = said else {
        unreachable!()
    };
    vm.peer.send(&Message::Other(Other {
        r#type: abi::DECLINE,
        to: offer.from,
        carrier: CARRIER,
        reason: 3,
        ..Other::default()
    }));
    vm.peer.flush();
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    vm.wait_closed();
}

#[test]
fn there_are_no_more_connections_than_allowed() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(80)).unwrap();
    let mut kept = Vec::new();
    for _ in 0..20 {
        let conn = vm.connect(TUNNEL_STREAM, 80).unwrap();
        kept.push((conn, listener.accept().unwrap()));
    }
    assert_eq!(vm.connect(TUNNEL_STREAM, 80).err(), Some(6));
    // The program learns of no connection that it cannot have.
    listener.set_nonblocking(true).unwrap();
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    let mut client = UnixStream::connect(&vm.path).unwrap();
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    let (conn, _accepted) = kept.pop().unwrap();
    vm.done(&conn, libc::ECONNRESET);
    assert_eq!(vm.hear_done(&conn).reason, libc::ECONNRESET as u32);
    vm.connect(TUNNEL_STREAM, 80).unwrap();
}

#[test]
fn programs_that_do_not_say_where_to_stall_no_other_and_are_hung_up_on() {
    let mut vm = Vm::start();
    let _listener = UnixListener::bind(vm.service(80)).unwrap();
    let mut silent: Vec<UnixStream> = (0..20)
        .map(|_| {
            let mut one = UnixStream::connect(&vm.path).unwrap();
            one.write_all(b"CONN").unwrap();
            one
        })
        .collect();
    vm.until("all are taken up", |vm| {
        (vm.report().sockets == 20).then_some(())
    });
    // The guest, and a program that does say it, get the places of the first two.
    vm.connect(TUNNEL_STREAM, 80).unwrap();
    let mut client = UnixStream::connect(&vm.path).unwrap();
    client.write_all(b"CONNECT 22\n").unwrap();
    vm.accept(22);
    client.read_exact(&mut [0; 8]).unwrap();
    // All others are hung up on in time.
    for one in &mut silent {
        one.set_read_timeout(Some(PATIENCE)).unwrap();
        // What was not read resets it.
        let end = one.read(&mut [0; 9]).map_err(|error| error.kind());
        let is_over = matches!(end, Ok(0) | Err(std::io::ErrorKind::ConnectionReset));
        assert!(is_over, "{end:?}");
    }
    let report = vm.report();
    assert_eq!(report.sockets, 2);
    assert_eq!(report.refused, [("no CONNECT".into(), 20)]);
}

#[test]
fn what_a_guest_has_sent_arrives_after_it_has_departed() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(80)).unwrap();
    let mut conn = vm.connect(TUNNEL_STREAM, 80).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    // Without a doorbell: the program has not looked yet.
    let runs = conn.to_host.free_runs(10_000);
    runs.write(&bytes(10_000, 3));
    conn.to_host.publish(10_000);
    order(&vm.control, &Order::Departed, &[]);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == bytes(10_000, 3));
}

#[test]
fn a_frame_that_is_longer_than_what_is_there_breaks_the_connection() {
    let mut vm = Vm::start();
    let _listener = at(&vm.service(90), SockType::SeqPacket);
    for length in [9_u32, 1 << 20, u32::MAX] {
        let mut conn = vm.connect(TUNNEL_SEQPACKET, 90).unwrap();
        let before = vm.report().corrupt;
        let frame = [length.to_le_bytes(), [0; 4], [0; 4], [0; 4]].concat();
        vm.write(&mut conn, &frame);
        assert_eq!(vm.hear_done(&conn).reason, libc::ECONNRESET as u32);
        assert_eq!(vm.report().corrupt, before + 1);
    }
}

#[test]
fn a_guest_that_has_read_to_the_end_resets_by_its_ring() {
    let mut vm = Vm::start();
    let listener = UnixListener::bind(vm.service(6000)).unwrap();
    let mut conn = vm.connect(TUNNEL_STREAM, 6000).unwrap();
    let (mut client, _) = listener.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
    vm.done(&conn, 0);
    vm.write(&mut conn, b"last");
    conn.to_host.reset();
    vm.peer.set_pending(conn.its);
    assert_eq!(vm.hear_done(&conn).reason, libc::ECONNRESET as u32);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last");
    vm.wait_closed();
    assert_eq!(vm.report().corrupt, 0);
}

#[test]
fn a_guest_that_reads_on_learns_of_a_message_that_is_too_long() {
    let mut vm = Vm::start();
    let listener = at(&vm.service(90), SockType::SeqPacket);
    let mut conn = vm.connect(TUNNEL_SEQPACKET, 90).unwrap();
    let program = accept(listener.as_raw_fd()).unwrap();
    // SAFETY: the descriptor is new, and nothing else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    conn.to_host.end();
    vm.peer.set_pending(conn.its);
    assert_eq!(vm.hear_done(&conn).reason, 0);
    let message = vec![0; conn.size as usize];
    setsockopt(&program, SndBuf, &(2 * message.len())).unwrap();
    send(program.as_raw_fd(), &message, MsgFlags::empty()).unwrap();
    vm.until("the end", |_| conn.from_host.is_ended().then_some(()));
    assert!(conn.from_host.is_reset());
}

/// A small generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[test]
fn garbage_breaks_its_own_connections_alone() {
    let mut vm = Vm::start();
    let listener = at(&vm.service(80), SockType::Stream);
    let _packets = at(&vm.service(90), SockType::SeqPacket);
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..3000 {
        let number = |random: &mut Random| match random.below(4) {
            0 => random.below(1 << 32) as u32,
            _ => random.below(30) as u32,
        };
        let (from, to) = (number(&mut random), number(&mut random));
        let message = match random.below(3) {
            0 => Message::Other(Other {
                r#type: random.below(8) as u16,
                from,
                to,
                carrier: random.below(3) as u32,
                position: random.below(70_000),
                reason: random.below(3) as u32,
            }),
            _ => Message::Offer(Offer {
                from,
                to: if random.below(8) == 0 { to } else { 0 },
                carrier: random.below(3) as u32,
                kind: abi::KIND_TUNNEL - random.below(2) as u16,
                answers: if random.below(2) == 0 { 0 } else { to },
                tunnel: (random.below(8) > 0).then(|| Tunnel {
                    r#type: random.below(4) as u32,
                    local_port: number(&mut random),
                    remote_port: 80 + 10 * random.below(2) as u32,
                }),
                ring_size: if random.below(4) == 0 {
                    number(&mut random)
                } else {
                    RING
                },
                handle: Handle {
                    offset: random.below(2048) * 4096,
                    size: u64::from(RING) + 4096,
                },
                ..Offer::default()
            }),
        };
        vm.peer.send(&message);
        if round % 50 == 0 {
            vm.until("the mailbox is taken", |vm| {
                vm.messages.clear();
                (!vm.peer.is_waiting()).then_some(())
            });
            vm.report();
        }
        while let Ok(fd) = accept(listener.as_raw_fd()) {
            let _ = nix::unistd::close(fd);
        }
    }
    assert!(vm.report().corrupt > 0);
    order(&vm.control, &Order::Departed, &[]);
    vm.wait_closed();
}
