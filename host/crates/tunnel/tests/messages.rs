// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages over sockets of TCP, and over Unix sockets of a host end. Packets of tunnels have their
//! tests with VMs (tests/e2e).

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use hallway_tunnel::{Connection, Listener, MESSAGE_MAX};
use nix::libc::{
    EADDRINUSE, EBADMSG, ECONNREFUSED, ECONNRESET, EINVAL, EMSGSIZE, ENOENT, EPIPE, ETIMEDOUT,
};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    accept, bind, connect, getsockopt, listen, recv, send, setsockopt, socket, sockopt,
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr,
};
use nix::sys::time::{TimeVal, TimeValLike};

const LENGTHS: [usize; 8] = [1, 2, 3, 4, 5, 1000, 65536, MESSAGE_MAX];

/// Content that shows which message it is.
fn message(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + number) as u8).collect()
}

fn listener() -> Listener {
    Listener::bind("tcp://127.0.0.1:0").unwrap()
}

/// Both ends of a connection over TCP.
fn pair() -> (Connection, Connection) {
    let listener = listener();
    let one = Connection::connect(listener.address()).unwrap();
    (one, listener.accept().unwrap())
}

/// One end of a connection over TCP, and the bare socket at its other end.
fn bare() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", listener.local_addr().unwrap());
    (
        Connection::connect(&to).unwrap(),
        listener.accept().unwrap().0,
    )
}

#[test]
fn messages_lie_in_buffers_where_nothing_is_lent() {
    let (mut one, mut other) = pair();
    assert!(!one.is_lent());
    for (number, length) in LENGTHS.into_iter().enumerate() {
        let wanted = message(number, length);
        let mut space = one.reserve(length.max(10)).unwrap();
        space.copy_from(0, &wanted);
        let sender = std::thread::spawn(move || {
            one.commit(length).unwrap();
            one
        });
        for _ in 0..2 {
            let found = other.peek().unwrap().unwrap();
            let mut bytes = vec![0; found.len()];
            found.copy_to(0, &mut bytes);
            assert!(bytes == wanted);
        }
        // It is still the next one.
        match number % 2 {
            0 => assert!(other.recv().unwrap().unwrap() == wanted),
            _ => other.release().unwrap(),
        }
        assert_eq!(other.release().unwrap_err().errno(), EINVAL);
        one = sender.join().unwrap();
    }
    for length in [0, 11] {
        one.reserve(10).unwrap();
        assert_eq!(one.commit(length).unwrap_err().errno(), EINVAL);
    }
    one.reserve(10).unwrap();
    one.send(b"another").unwrap();
    assert_eq!(one.commit(10).unwrap_err().errno(), EINVAL);
    assert_eq!(one.reserve(MESSAGE_MAX + 1).unwrap_err().errno(), EMSGSIZE);
    assert_eq!(other.recv().unwrap(), Some(&b"another"[..]));
    one.shutdown().unwrap();
    assert!(other.peek().unwrap().is_none());
}

type Answer = fn(OwnedFd) -> Option<OwnedFd>;

/// A host end in a folder of its own, which is gone when the test ends.
struct HostEnd(PathBuf);

impl HostEnd {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hwt-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// A file beside its socket for bytes.
    fn file(&self, end: &str) -> PathBuf {
        self.0.join(format!("vm.sock{end}"))
    }

    /// What the library is given.
    fn address(&self, port: u32) -> String {
        format!("unix://{}:{port}", self.file("").display())
    }

    /// Has one program connect, and answers it. Returns its socket, unless that is closed.
    fn answer(&self, answer: Answer) -> JoinHandle<Option<OwnedFd>> {
        let listener = listen_at(&self.file(".packets"));
        std::thread::spawn(move || {
            // SAFETY: the descriptor is new, and nothing else owns it.
            let socket = unsafe { OwnedFd::from_raw_fd(accept(listener.as_raw_fd()).unwrap()) };
            assert_eq!(take(&socket), b"CONNECT 5000\n");
            answer(socket)
        })
    }

    /// Connects as the host end does where the guest connects to a port of the host.
    fn call(&self, port: u32) -> nix::Result<OwnedFd> {
        let socket = packets();
        let at = UnixAddr::new(&self.file(&format!("_{port}")))?;
        connect(socket.as_raw_fd(), &at)?;
        Ok(socket)
    }
}

impl Drop for HostEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A socket for packets, with room for the longest message.
fn packets() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    fit(&socket);
    socket
}

fn fit(socket: &OwnedFd) {
    setsockopt(socket, sockopt::SndBuf, &MESSAGE_MAX).unwrap();
}

fn listen_at(path: &Path) -> OwnedFd {
    let listener = packets();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(8).unwrap()).unwrap();
    listener
}

fn give(socket: &OwnedFd, packet: &[u8]) {
    let sent = send(socket.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL);
    assert_eq!(sent, Ok(packet.len()));
}

fn take(socket: &OwnedFd) -> Vec<u8> {
    let mut packet = vec![0; MESSAGE_MAX + 1];
    let length = recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()).unwrap();
    packet.truncate(length);
    packet
}

/// Each message goes as a packet of its own, both ways.
fn exchange(connection: &mut Connection, socket: &OwnedFd) {
    for (number, length) in LENGTHS.into_iter().enumerate() {
        connection.send(&message(number, length)).unwrap();
        assert!(take(socket) == message(number, length));
        give(socket, &message(number, length));
        assert!(connection.recv().unwrap() == Some(&message(number, length)));
    }
}

/// Waits until the descriptor is readable or writable, or fails after a minute.
fn wait(connection: &Connection, events: PollFlags) {
    let mut fds = [PollFd::new(connection.as_fd(), events)];
    assert_eq!(poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap(), 1);
}

#[test]
fn messages_arrive_whole_both_ways() {
    let (mut one, mut other) = pair();
    let sender = std::thread::spawn(move || {
        for (number, length) in LENGTHS.into_iter().enumerate() {
            one.send(&message(number, length)).unwrap();
        }
        one.shutdown().unwrap();
        let mut came = Vec::new();
        while let Some(message) = one.recv().unwrap() {
            came.push(message.len());
        }
        came
    });
    for (number, length) in LENGTHS.into_iter().enumerate() {
        assert!(other.recv().unwrap() == Some(&message(number, length)));
    }
    assert_eq!(other.recv().unwrap(), None);
    assert_eq!(other.recv().unwrap(), None);
    for length in LENGTHS {
        other.send(&message(0, length)).unwrap();
    }
    drop(other);
    assert_eq!(sender.join().unwrap(), LENGTHS);
}

#[test]
fn by_tcp_a_length_goes_before_each_message() {
    let (mut one, mut other) = bare();
    one.send(b"abc").unwrap();
    one.send(&message(0, 0x1234)).unwrap();
    let mut seen = vec![0; 7 + 4 + 0x1234];
    other.read_exact(&mut seen).unwrap();
    assert_eq!(seen[..7], *b"\x03\0\0\0abc");
    assert_eq!(seen[7..11], *b"\x34\x12\0\0");
    // However the bytes come, and with what follows.
    other.write_all(b"\x01\0").unwrap();
    one.set_nonblocking(true).unwrap();
    wait(&one, PollFlags::POLLIN);
    assert_eq!(one.recv().unwrap_err().kind(), ErrorKind::WouldBlock);
    other.write_all(b"\0\0x\x02\0\0\0yz\x09").unwrap();
    wait(&one, PollFlags::POLLIN);
    one.set_nonblocking(false).unwrap();
    assert_eq!(one.recv().unwrap(), Some(&b"x"[..]));
    assert_eq!(one.recv().unwrap(), Some(&b"yz"[..]));
}

#[test]
fn poll_sees_each_message() {
    let (mut one, mut other) = pair();
    for number in 0..100 {
        other.send(&message(number, 10)).unwrap();
    }
    one.set_nonblocking(true).unwrap();
    for number in 0..100 {
        let came = loop {
            wait(&one, PollFlags::POLLIN);
            match one.recv() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                came => break came.unwrap().map(<[u8]>::to_vec),
            }
        };
        assert_eq!(came, Some(message(number, 10)));
    }
    assert_eq!(one.recv().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_hostile_peer_gets_an_error() {
    for length in [0, MESSAGE_MAX as u32 + 1, u32::MAX] {
        let (mut one, mut other) = bare();
        other.write_all(&length.to_le_bytes()).unwrap();
        other.write_all(b"\x01\0\0\0x").unwrap();
        // Also later: where a message begins is not known any more.
        for _ in 0..2 {
            assert_eq!(one.recv().unwrap_err().errno(), EBADMSG);
        }
    }
    for part in [&b"\x05\0"[..], b"\x05\0\0\0", b"\x05\0\0\0abc"] {
        let (mut one, mut other) = bare();
        other.write_all(part).unwrap();
        drop(other);
        assert_eq!(one.recv().unwrap_err().errno(), ECONNRESET);
    }
}

#[test]
fn without_blocking_no_byte_is_lost() {
    let (mut one, mut other) = pair();
    one.set_nonblocking(true).unwrap();
    let mut sent = 0;
    loop {
        match one.send(&message(sent, 100_000)) {
            Ok(()) => sent += 1,
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(sent > 0);
    // Unless the buffers end with a message, one was taken in part.
    if let Err(error) = one.flush() {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(one.shutdown().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    let reader = std::thread::spawn(move || {
        let mut came = 0;
        while let Some(found) = other.recv().unwrap() {
            assert!(found == message(came, 100_000));
            came += 1;
        }
        came
    });
    // What was taken in part goes out before a later one.
    let last = sent + 20;
    while sent < last {
        match one.send(&message(sent, 100_000)) {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                wait(&one, PollFlags::POLLOUT);
            }
        }
    }
    while let Err(error) = one.flush() {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        wait(&one, PollFlags::POLLOUT);
    }
    one.shutdown().unwrap();
    assert_eq!(reader.join().unwrap(), sent);
}

#[test]
fn what_is_no_message_is_refused() {
    let (mut one, mut other) = pair();
    assert_eq!(one.send(b"").unwrap_err().errno(), EINVAL);
    let long = vec![0; MESSAGE_MAX + 1];
    assert_eq!(one.send(&long).unwrap_err().errno(), EMSGSIZE);
    one.send(b"x").unwrap();
    assert_eq!(other.recv().unwrap(), Some(&b"x"[..]));
    other.shutdown().unwrap();
    assert_eq!(other.send(b"x").unwrap_err().errno(), EPIPE);
}

#[test]
fn two_threads_have_a_half_each() {
    let (one, mut other) = pair();
    let (mut sender, mut receiver) = one.split();
    let echo = std::thread::spawn(move || {
        while let Some(message) = other.recv().unwrap() {
            let message = message.to_vec();
            other.send(&message).unwrap();
        }
    });
    let reader = std::thread::spawn(move || {
        let mut total = 0;
        while let Some(message) = receiver.recv().unwrap() {
            total += message.len();
        }
        total
    });
    // More than all buffers between them hold.
    for number in 0..200 {
        sender.send(&message(number, 200_000)).unwrap();
    }
    sender.shutdown().unwrap();
    assert_eq!(reader.join().unwrap(), 200 * 200_000);
    echo.join().unwrap();
}

#[test]
fn the_first_address_that_connects_is_taken() {
    let listener = listener();
    let closed = self::listener().address().to_string();
    let to = format!("{closed}, vsock://no-such-vm:5000, {}", listener.address());
    let mut one = Connection::connect(&to).unwrap();
    assert_eq!(one.peer(), listener.address());
    let mut other = listener.accept().unwrap();
    assert!(other.peer().starts_with("tcp://127.0.0.1:"));
    one.send(b"x").unwrap();
    assert_eq!(other.recv().unwrap(), Some(&b"x"[..]));

    let error = Connection::connect(&format!("vsock://no-such-vm:5000,{closed}")).unwrap_err();
    assert_eq!(error.errno(), ECONNREFUSED);
    let text = error.to_string();
    assert!(text.contains("is not reached by TCP"), "{text}");
    assert!(text.contains("hallway"), "{text}");
    // It could have been a name of a VM.
    let error = Connection::connect("host.invalid:5000").unwrap_err();
    assert!(error.to_string().contains("no tunnel"), "{error}");
}

#[test]
fn a_listener_says_what_is_wrong() {
    let listener = listener();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let again = Listener::bind(listener.address()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    for wrong in [
        "vsock://5000",
        "vm2:5000",
        "no-such-service",
        "tcp://5000",
        "unix://vm.sock:5000",
    ] {
        assert_eq!(
            Listener::bind(wrong).unwrap_err().errno(),
            EINVAL,
            "{wrong}"
        );
    }
    let any = Listener::bind("tcp://[::]:0").unwrap();
    let (_, port) = any.address().rsplit_once(':').unwrap();
    Connection::connect(&format!("tcp://127.0.0.1:{port}")).unwrap();
}

#[test]
fn a_program_of_the_host_connects_to_a_guest() {
    let host_end = HostEnd::new("connect");
    let guest = host_end.answer(|socket| {
        give(&socket, b"OK 1024\n");
        Some(socket)
    });
    let to = format!("unix:///nowhere/vm.sock:5000, {}", host_end.address(5000));
    let mut connection = Connection::connect(&to).unwrap();
    assert_eq!(connection.peer(), host_end.address(5000));
    // The time limit of connect() does not apply to messages.
    for time in [
        getsockopt(&connection, sockopt::ReceiveTimeout),
        getsockopt(&connection, sockopt::SendTimeout),
    ] {
        assert_eq!(time.unwrap(), TimeVal::zero());
    }
    let guest = guest.join().unwrap().unwrap();
    fit(&guest);
    exchange(&mut connection, &guest);
    let long = vec![0; MESSAGE_MAX + 1];
    assert_eq!(connection.send(&long).unwrap_err().errno(), EMSGSIZE);
    connection.set_nonblocking(true).unwrap();
    let error = connection.recv().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    connection.shutdown().unwrap();
    assert_eq!(take(&guest), b"");
    drop(guest);
    assert_eq!(connection.recv().unwrap(), None);
}

#[test]
fn where_no_guest_is_reached_the_reason_is_said() {
    let host_end = HostEnd::new("errors");
    let refused = |errno, word: &str| {
        let error = Connection::connect(&host_end.address(5000)).unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(ENOENT, "`socket` of [vm.tunnels]");
    drop(listen_at(&host_end.file(".packets")));
    refused(ECONNREFUSED, "`socket` of [vm.tunnels]");
    let another: Answer = |socket| {
        give(&socket, b"HELLO\n");
        None
    };
    for (answer, errno, word) in [
        (
            (|_| None) as Answer,
            ECONNRESET,
            "nothing listens at port 5000",
        ),
        (another, EBADMSG, "not that of a host end"),
        (Some, ETIMEDOUT, "did not answer within 2 s"),
    ] {
        std::fs::remove_file(host_end.file(".packets")).unwrap();
        let guest = host_end.answer(answer);
        refused(errno, word);
        drop(guest.join().unwrap());
    }
}

#[test]
fn a_guest_connects_to_a_program_of_the_host() {
    let host_end = HostEnd::new("listen");
    let listener = Listener::bind(&host_end.address(7000)).unwrap();
    assert_eq!(listener.address(), host_end.address(7000));
    let guest = host_end.call(7000).unwrap();
    let mut connection = listener.accept().unwrap();
    assert_eq!(connection.peer(), listener.address());
    exchange(&mut connection, &guest);

    let again = Listener::bind(&host_end.address(7000)).unwrap_err();
    assert_eq!(again.errno(), EADDRINUSE, "{again}");
    // The attempt is no connection.
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(listener);
    assert!(!host_end.file("_7000").exists());
    exchange(&mut connection, &guest);

    // A program that was killed has left its file.
    drop(listen_at(&host_end.file("_7000")));
    let _listener = Listener::bind(&host_end.address(7000)).unwrap();
    host_end.call(7000).unwrap();
    let _bytes = UnixListener::bind(host_end.file("_7001")).unwrap();
    let error = Listener::bind(&host_end.address(7001)).unwrap_err();
    assert_eq!(error.errno(), EADDRINUSE, "{error}");
}

#[test]
fn what_a_guest_has_sent_is_received_before_its_reset() {
    let host_end = HostEnd::new("reset");
    let listener = Listener::bind(&host_end.address(7000)).unwrap();
    // The kernel says it once: to the half that sends, if that looks first.
    for sends in [false, true] {
        let guest = host_end.call(7000).unwrap();
        let mut connection = listener.accept().unwrap();
        connection.send(b"unread").unwrap();
        give(&guest, b"one");
        give(&guest, b"two");
        drop(guest);
        if sends {
            assert_eq!(connection.send(b"x").unwrap_err().errno(), ECONNRESET);
        }
        assert_eq!(connection.recv().unwrap(), Some(&b"one"[..]));
        assert_eq!(connection.recv().unwrap(), Some(&b"two"[..]));
        for _ in 0..2 {
            assert_eq!(connection.recv().unwrap_err().errno(), ECONNRESET);
        }
    }
}

#[test]
fn a_reset_over_tcp_is_no_end_whichever_half_finds_it() {
    for sends in [false, true] {
        let (mut one, other) = bare();
        one.send(b"unread").unwrap();
        drop(other);
        wait(&one, PollFlags::POLLHUP);
        if sends {
            assert_eq!(one.send(b"x").unwrap_err().errno(), ECONNRESET);
        }
        for _ in 0..2 {
            assert_eq!(one.recv().unwrap_err().errno(), ECONNRESET);
        }
    }
}
