// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages over sockets of TCP. Packets of tunnels have their test between two VMs (tests/e2e).

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use hallway_tunnel::{Connection, Listener, MESSAGE_MAX};
use nix::libc::{EBADMSG, ECONNREFUSED, ECONNRESET, EINVAL, EMSGSIZE, EPIPE};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

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
    for wrong in ["vsock://5000", "vm2:5000", "no-such-service", "tcp://5000"] {
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
