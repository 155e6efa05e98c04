// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest connects and listens through the program.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use common::{free_port, pattern, policy, reset_behind_full_ring, Host, Vm};
use hallway_abi::message as abi;
use hallway_abi::ring::OPTION_CORK;
use hallway_endpoint::message::{Message, Other, CARRIER};
use hallway_outsource::orders::{Order, Policy};
use nix::sys::socket::{listen, send, Backlog, MsgFlags};

const PATIENCE: Duration = Duration::from_secs(30);

fn server() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn megabytes_are_echoed_and_both_directions_end() {
    let (listener, address) = server();
    let echo = thread::spawn(move || {
        let mut stream = accept(&listener);
        let mut buffer = vec![0; 50_000];
        let mut total = 0;
        loop {
            let count = stream.read(&mut buffer).unwrap();
            if count == 0 {
                return total;
            }
            stream.write_all(&buffer[..count]).unwrap();
            total += count;
        }
    });
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    assert_eq!(conn.offer.remote, address);
    assert!(conn.offer.local.ip().is_loopback() && conn.offer.local.port() != 0);
    let bytes = pattern(9 << 20, 3);
    let back = vm.exchange(&mut conn, &bytes);
    assert!(back == bytes, "{} bytes came back", back.len());
    assert_eq!(echo.join().unwrap(), bytes.len());
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!((done.from, done.reason), (conn.its, 0));
    assert_eq!(conn.tx.finish(done.position), Some(0));
    vm.send_done(&conn, 0);
    let report = host.wait_report(|report| report.sockets == 0);
    assert_eq!(report.sent, bytes.len() as u64);
    assert_eq!(report.received, bytes.len() as u64);
    assert_eq!(report.corrupt, 0);
}

#[test]
fn a_refused_connection_gives_its_errno_and_one_that_is_not_allowed_another() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (listener, address) = server();
    drop(listener);
    let refused = vm.connect(address).err();
    assert_eq!(refused, Some(libc::ECONNREFUSED as u64));
    let denied = vm.connect("127.0.0.2:80".parse().unwrap()).err();
    assert_eq!(denied, Some(libc::EACCES as u64));
    let report = host.wait_report(|report| report.sockets == 0);
    assert_eq!(report.refused, [("no rule".to_string(), 1)]);
    let policy = Policy {
        sockets: 0,
        ..policy(&[])
    };
    host.order(&Order::Policy { policy }, &[]);
    host.report();
    // The guest connects by its own stack then.
    let refused = vm.connect(address).err();
    assert_eq!(refused, Some(libc::EACCES as u64));
    let refused = host.report().refused;
    assert!(refused.contains(&("limit of sockets".to_string(), 1)));
}

#[test]
fn a_guest_that_chooses_its_port_is_refused() {
    let (_listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 40000));
    let refused = vm.connect_from(local, address).err();
    assert_eq!(refused, Some(libc::EINVAL as u64));
    assert_eq!(host.report().corrupt, 1);
}

#[test]
fn the_guest_ends_first_and_still_reads() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    vm.write_all(&mut conn, b"question");
    vm.end(&mut conn);
    let mut question = String::new();
    stream.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    stream.write_all(b"answer").unwrap();
    drop(stream);
    assert_eq!(vm.read_to_end(&mut conn), b"answer");
    assert_eq!(vm.wait_other(abi::DONE, conn.own).reason, 0);
}

#[test]
fn the_server_ends_first_and_still_reads() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    stream.write_all(b"hello").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(vm.read_to_end(&mut conn), b"hello");
    let bytes = pattern(300_000, 5);
    let expected = bytes.clone();
    let reader = thread::spawn(move || {
        let mut found = Vec::new();
        stream.read_to_end(&mut found).unwrap();
        assert!(found == expected);
    });
    vm.write_all(&mut conn, &bytes);
    // The program closes, as after close(): all is still sent.
    vm.send_done(&conn, 0);
    vm.end(&mut conn);
    reader.join().unwrap();
    assert_eq!(vm.wait_other(abi::DONE, conn.own).reason, 0);
    host.wait_report(|report| report.sockets == 0);
}

#[test]
fn a_close_with_unread_bytes_resets() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    stream.write_all(b"unread").unwrap();
    while conn.rx.count_used() == 0 {
        if !conn.rx.arm() {
            vm.sleep();
        }
    }
    vm.send_done(&conn, 0);
    let error = stream.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    vm.wait_other(abi::DONE, conn.own);
    host.wait_report(|report| report.sockets == 0);
}

#[test]
fn bytes_that_the_guest_has_sent_before_its_reset_arrive() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    // With one doorbell for both.
    let sent = pattern(5000, 1);
    conn.tx.free_runs(5000).write(&sent);
    conn.tx.publish(5000);
    vm.send_done(&conn, libc::ECONNRESET as u32);
    let mut read = vec![0; 5000];
    stream.read_exact(&mut read).unwrap();
    assert!(read == sent);
    let error = stream.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn bytes_after_a_close_reset() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    vm.send_done(&conn, 0);
    host.report();
    stream.write_all(b"late").unwrap();
    let error = stream.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    vm.wait_other(abi::DONE, conn.own);
}

#[test]
fn a_reset_by_the_server_comes_after_its_bytes() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    vm.write_all(&mut conn, b"never read");
    stream.write_all(b"last words").unwrap();
    // Its close resets, since a byte of the guest is unread.
    stream.peek(&mut [0; 1]).unwrap();
    drop(stream);
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
    let mut bytes = Vec::new();
    vm.read(&mut conn, &mut bytes);
    assert_eq!(bytes, b"last words");
    assert!(!conn.rx.is_finished(), "the end mark would look like FIN");
    assert_eq!(host.report().sockets, 1);
    vm.send_done(&conn, 0);
    host.wait_report(|report| report.sockets == 0);
}

#[test]
fn a_reset_comes_after_bytes_that_the_ring_does_not_hold() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (mut conn, bytes) = reset_behind_full_ring(&host, &mut vm);
    assert!(vm.read_exact(&mut conn, bytes.len()) == bytes);
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
    assert!(!conn.rx.is_finished(), "the end mark would look like FIN");
    vm.send_done(&conn, 0);
    host.wait_report(|report| report.sockets == 0);
}

#[test]
fn a_guest_that_sends_on_after_a_reset_learns_of_it_at_once() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (mut conn, _) = reset_behind_full_ring(&host, &mut vm);
    vm.write_all(&mut conn, b"2");
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
}

#[test]
fn a_reset_after_the_servers_end_reaches_a_guest_that_sends_on() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    drop(accept(&listener));
    vm.read_to_end(&mut conn);
    // The server's kernel answers the first one with RST.
    vm.write_all(&mut conn, b"1");
    host.wait_report(|report| report.sent == 1);
    vm.write_all(&mut conn, b"2");
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
}

#[test]
fn a_reset_after_the_servers_end_reaches_a_guest_that_waits() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    drop(accept(&listener));
    vm.read_to_end(&mut conn);
    // The server's kernel answers with RST.
    vm.write_all(&mut conn, b"1");
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
}

#[test]
fn a_reset_while_the_guest_only_reads_reaches_it() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let stream = accept(&listener);
    vm.write_all(&mut conn, b"never read");
    vm.end(&mut conn);
    stream.peek(&mut [0; 1]).unwrap();
    drop(stream);
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
}

#[test]
fn a_published_port_serves_clients() {
    let port = free_port();
    let host = Host::start(policy(&[port]));
    let mut vm = host.join(21);
    let m = vm.next_endpoint();
    let number = vm.listen(m, port, 10).unwrap();
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let bytes = pattern(2 << 20, 9);
        let mut other = stream.try_clone().unwrap();
        let sent = bytes.clone();
        let writer = thread::spawn(move || {
            other.write_all(&sent).unwrap();
            other.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        writer.join().unwrap();
        (stream.local_addr().unwrap(), back)
    });
    let offer = vm.wait_offer(m);
    assert_eq!(offer.local.port(), port);
    let mut conn = vm.accept(offer);
    let answer = pattern(3 << 20, 4);
    let found = vm.exchange(&mut conn, &answer);
    assert!(found == pattern(2 << 20, 9));
    let (address, back) = client.join().unwrap();
    assert_eq!(address, offer.remote);
    assert!(back == answer);
    vm.wait_other(abi::DONE, conn.own);
    vm.send_done(&conn, 0);
    vm.send_other(Other {
        r#type: abi::DONE,
        from: m,
        to: number,
        carrier: CARRIER,
        ..Other::default()
    });
    vm.wait_other(abi::DONE, m);
    host.wait_report(|report| report.sockets == 0 && report.listeners == 0);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn connections_beyond_the_backlog_wait_and_declined_ones_are_reset() {
    let port = free_port();
    let host = Host::start(policy(&[port]));
    let mut vm = host.join(21);
    let m = vm.next_endpoint();
    vm.listen(m, port, 2).unwrap();
    let clients: Vec<TcpStream> = (0..3)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    let offers = [vm.wait_offer(m), vm.wait_offer(m)];
    assert_eq!(host.report().sockets, 2);
    vm.send_other(Other {
        r#type: abi::DECLINE,
        to: offers[0].from,
        carrier: CARRIER,
        ..Other::default()
    });
    let third = vm.wait_offer(m);
    let mut conn = vm.accept(third);
    let find = |address: SocketAddr| {
        let is_it = |client: &&TcpStream| client.local_addr().unwrap() == address;
        clients.iter().find(is_it).unwrap()
    };
    let mut declined = find(offers[0].remote);
    declined.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = declined.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    find(third.remote).write_all(b"hi").unwrap();
    assert_eq!(vm.read_exact(&mut conn, 2), b"hi");
}

#[test]
fn only_published_ports_that_are_free_are_listened_at() {
    let (listener, address) = server();
    let taken = address.port();
    let port = free_port();
    let host = Host::start(policy(&[taken]));
    let mut vm = host.join(21);
    let m = vm.next_endpoint();
    assert_eq!(vm.listen(m, port, 5), Err(libc::EACCES as u64));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(vm.listen(m, taken, 5), Err(libc::EADDRINUSE as u64));
    drop(listener);
    vm.listen(m, taken, 5).unwrap();
    // A port that is published no more is closed.
    let policy = policy(&[]);
    host.order(&Order::Policy { policy }, &[]);
    let done = vm.wait_other(abi::DONE, m);
    assert_eq!(done.reason, libc::EACCES as u32);
    assert!(TcpStream::connect(("127.0.0.1", taken)).is_err());
}

#[test]
fn a_listener_that_is_given_up_before_its_answer_frees_the_port() {
    let port = free_port();
    let host = Host::start(policy(&[port]));
    let mut vm = host.join(21);
    let (first, second) = (vm.next_endpoint(), vm.next_endpoint());
    let its = vm.listen(first, port, 5).unwrap();
    vm.send_other(Other {
        r#type: abi::DECLINE,
        from: first,
        ..Other::default()
    });
    vm.listen(second, port, 5).unwrap();
    assert_eq!(vm.wait_other(abi::DONE, first).reason, 0);
    assert_eq!(host.report().listeners, 2);
    vm.send_other(Other {
        r#type: abi::DONE,
        from: first,
        to: its,
        carrier: CARRIER,
        ..Other::default()
    });
    host.wait_report(|report| report.listeners == 1);
    TcpStream::connect(("127.0.0.1", port)).unwrap();
}

#[test]
fn a_departure_resets_all_and_another_guest_is_served() {
    let port = free_port();
    let (listener, address) = server();
    let host = Host::start(policy(&[port]));
    host.report();
    let before = host.count_fds();
    for generation in 21..24 {
        let mut vm = host.join(generation);
        let m = vm.next_endpoint();
        vm.listen(m, port, 5).unwrap();
        let mut waiting = TcpStream::connect(("127.0.0.1", port)).unwrap();
        vm.wait_offer(m);
        let conns: Vec<_> = (0..10).map(|_| vm.connect(address).unwrap()).collect();
        let mut streams: Vec<_> = conns.iter().map(|_| accept(&listener)).collect();
        assert_eq!(host.report().sockets, 11);
        if generation == 22 {
            // The next one takes its place without a word.
            drop(host.join(99));
        } else {
            host.order(&Order::Departed, &[]);
        }
        streams.push(waiting.try_clone().unwrap());
        waiting.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(waiting.read(&mut [0; 1]).is_err());
        for stream in &mut streams[..10] {
            let error = stream.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        host.order(&Order::Departed, &[]);
        let report = host.report();
        assert_eq!((report.sockets, report.listeners), (0, 0));
        assert_eq!(host.count_fds(), before);
    }
}

#[test]
fn many_short_connections_leave_nothing() {
    let (listener, address) = server();
    let server = thread::spawn(move || {
        for _ in 0..300 {
            let mut stream = accept(&listener);
            let mut found = Vec::new();
            stream.read_to_end(&mut found).unwrap();
            stream.write_all(&found).unwrap();
        }
    });
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    host.report();
    let before = host.count_fds();
    for n in 0..300 {
        let mut conn = vm.connect(address).unwrap();
        let bytes = pattern(n * 7, n as u64);
        assert!(vm.exchange(&mut conn, &bytes) == bytes);
        let done = vm.wait_other(abi::DONE, conn.own);
        assert_eq!((done.position, done.reason), (bytes.len() as u64, 0));
        vm.send_done(&conn, 0);
        vm.free(&conn);
    }
    server.join().unwrap();
    let report = host.wait_report(|report| report.sockets == 0);
    assert_eq!(report.corrupt, 0);
    assert_eq!(host.count_fds(), before);
}

/// A listener whose queue is full: it answers no SYN.
fn silent_server() -> (TcpListener, TcpStream, SocketAddr) {
    let (listener, address) = server();
    let backlog = Backlog::new(0).unwrap();
    listen(&listener, backlog).unwrap();
    let first = TcpStream::connect(address).unwrap();
    (listener, first, address)
}

#[test]
fn a_connect_that_is_given_up_ends() {
    let (_listener, _first, address) = silent_server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let own = vm.next_endpoint();
    let (tx, handle) = vm.peer.make_ring_of(4096).unwrap();
    vm.offer(Vm::socket_offer(own, address, &tx, handle));
    host.wait_report(|report| report.sockets == 1);
    for (from, left) in [(own + 1, 1), (own, 0)] {
        vm.peer.send(&Message::Other(Other {
            r#type: abi::DECLINE,
            from,
            to: 0,
            carrier: CARRIER,
            ..Other::default()
        }));
        vm.peer.flush();
        host.wait_report(|report| report.sockets == left);
    }
    let declined = vm.wait_other(abi::DECLINE, own);
    assert_eq!(declined.position, libc::ECONNABORTED as u64);
}

#[test]
fn bytes_after_urgent_data_are_read() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    // More than the ring holds: what follows waits in the host's socket.
    let bytes = pattern(conn.offer.ring_size as usize + 1000, 5);
    stream.write_all(&bytes).unwrap();
    let urgent = MsgFlags::MSG_OOB;
    assert_eq!(send(stream.as_raw_fd(), b"!", urgent), Ok(1));
    stream.write_all(b"after").unwrap();
    host.wait_report(|report| report.received == u64::from(conn.offer.ring_size));
    let back = vm.read_exact(&mut conn, bytes.len() + 5);
    assert!(back[..bytes.len()] == bytes && back.ends_with(b"after"));
}

#[test]
fn bytes_held_back_leave_when_the_cork_is_pulled_and_put_back() {
    let (listener, address) = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(address).unwrap();
    let mut stream = accept(&listener);
    let mut fastest = PATIENCE;
    for round in 1..=10 {
        host.set_option(&mut vm, &conn, OPTION_CORK, 1);
        host.report();
        vm.write_all(&mut conn, b"held");
        host.wait_report(|report| report.sent == 4 * round);
        let start = Instant::now();
        host.set_option(&mut vm, &conn, OPTION_CORK, 1);
        stream.read_exact(&mut [0; 4]).unwrap();
        fastest = fastest.min(start.elapsed());
    }
    // The kernel lets go by itself after 200 ms.
    assert!(fastest < Duration::from_millis(150), "{fastest:?}");
}

#[test]
fn a_listener_that_is_to_be_elsewhere_is_closed() {
    let port = free_port();
    let host = Host::start(policy(&[port]));
    let mut vm = host.join(21);
    let own = vm.next_endpoint();
    vm.listen(own, port, 5).unwrap();
    let change = |policy| {
        host.order(&Order::Policy { policy }, &[]);
        host.report();
    };
    change(Policy {
        sockets: 50,
        ..policy(&[port])
    });
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    change(Policy {
        publish: vec![format!("tcp/{port}=127.0.0.2:{port}").parse().unwrap()],
        ..policy(&[])
    });
    let done = vm.wait_other(abi::DONE, own);
    assert_eq!(done.reason, libc::EACCES as u32);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn the_guest_is_asked_for_listeners_once_others_are_published() {
    let port = free_port();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let own = vm.next_endpoint();
    assert_eq!(vm.listen(own, port, 5), Err(libc::EACCES as u64));
    let change = |policy| host.order(&Order::Policy { policy }, &[]);
    // What publishes no others asks for nothing.
    change(Policy {
        sockets: 50,
        ..policy(&[])
    });
    change(policy(&[port]));
    let is_question = |message: &Message| matches!(message, Message::Offer(offer) if offer.kind == abi::KIND_LISTENER);
    let Message::Offer(question) = vm.wait_message(is_question) else {
        unreachable!()
    };
    vm.send_other(Other {
        r#type: abi::DECLINE,
        to: question.from,
        ..Other::default()
    });
    vm.listen(own, port, 5).unwrap();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    vm.wait_offer(own);
    change(Policy {
        listeners: 11,
        ..policy(&[port])
    });
    vm.wait_message(is_question);
    vm.connect(server().1).unwrap();
    assert!(!vm.has_message(is_question));
    // Sockets of UDP that found no place are natively published.
    change(Policy {
        listeners: 11,
        sockets: 1000,
        ..policy(&[port])
    });
    vm.wait_message(is_question);
    assert_eq!(host.report().corrupt, 0);
    drop(client);
}

/// Has the guest begin this many connects at once. Returns their endpoints.
fn begin(vm: &mut Vm, address: SocketAddr, count: usize) -> Vec<u32> {
    let one = |_| {
        let own = vm.next_endpoint();
        let (tx, handle) = vm.peer.make_ring_of(4096).unwrap();
        let offer = Vm::socket_offer(own, address, &tx, handle);
        vm.peer.send(&Message::Offer(offer));
        own
    };
    (0..count).map(one).collect()
}

/// Waits for the answer to a connect that the guest has begun; the error is the errno.
fn wait_answer(vm: &mut Vm) -> (u32, Result<(), u64>) {
    match vm.wait_message(|_| true) {
        Message::Offer(offer) => (offer.answers, Ok(())),
        Message::Other(other) => (other.to, Err(other.position)),
    }
}

#[test]
fn connects_above_the_rate_wait_for_their_turn() {
    let (_listener, address) = server();
    let host = Host::start(Policy {
        rate: 10,
        burst: 2,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let start = Instant::now();
    for own in begin(&mut vm, address, 6) {
        assert_eq!(wait_answer(&mut vm), (own, Ok(())));
    }
    assert!(start.elapsed() >= Duration::from_millis(390));
    let report = host.report();
    assert_eq!((report.delayed, report.refused.len()), (4, 0));
}

#[test]
fn a_connect_that_waits_for_too_long_times_out_and_one_that_is_given_up_ends() {
    let (_listener, address) = server();
    let host = Host::start(Policy {
        rate: 1,
        burst: 1,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let begun = begin(&mut vm, address, 14);
    assert_eq!(wait_answer(&mut vm), (begun[0], Ok(())));
    vm.send_other(Other {
        r#type: abi::DECLINE,
        from: begun[1],
        ..Other::default()
    });
    let aborted = Err(libc::ECONNABORTED as u64);
    assert_eq!(wait_answer(&mut vm), (begun[1], aborted));
    let start = Instant::now();
    let answers: Vec<_> = begun[2..].iter().map(|_| wait_answer(&mut vm)).collect();
    let late = answers.iter().filter(|(_, answer)| answer.is_err()).count();
    for (at, answer) in answers.iter().enumerate() {
        let expected = if at < answers.len() - late {
            Ok(())
        } else {
            Err(libc::ETIMEDOUT as u64)
        };
        assert_eq!(*answer, (begun[at + 2], expected));
    }
    // A busy machine misses turns.
    assert!((1..=6).contains(&late), "{late}");
    assert!(start.elapsed() < Duration::from_secs(20));
    let report = host.report();
    assert_eq!(report.refused, [("rate".into(), late as u64)]);
    assert_eq!(report.sockets as usize, 1 + answers.len() - late);
}

#[test]
fn a_connect_that_waits_is_native_if_the_policy_forbids_it_meanwhile() {
    let (_listener, address) = server();
    let rated = |connect| Policy {
        rate: 2,
        burst: 1,
        connect,
        ..policy(&[])
    };
    let host = Host::start(rated(policy(&[]).connect));
    let mut vm = host.join(21);
    let begun = begin(&mut vm, address, 2);
    assert_eq!(wait_answer(&mut vm), (begun[0], Ok(())));
    let policy = rated(Vec::new());
    host.order(&Order::Policy { policy }, &[]);
    let refused = Err(libc::EACCES as u64);
    assert_eq!(wait_answer(&mut vm), (begun[1], refused));
    assert_eq!(host.report().sockets, 1);
}

#[test]
fn a_connect_that_waits_leaves_from_the_source_of_the_policy_of_its_turn() {
    let (listener, address) = server();
    let from = |source: &str| Policy {
        rate: 2,
        burst: 1,
        source: vec![source.parse().unwrap()],
        ..policy(&[])
    };
    let host = Host::start(from("127.0.0.3"));
    let mut vm = host.join(21);
    let begun = begin(&mut vm, address, 2);
    assert_eq!(wait_answer(&mut vm), (begun[0], Ok(())));
    let policy = from("127.0.0.4");
    host.order(&Order::Policy { policy }, &[]);
    assert_eq!(wait_answer(&mut vm), (begun[1], Ok(())));
    for source in ["127.0.0.3", "127.0.0.4"] {
        assert_eq!(listener.accept().unwrap().1.ip().to_string(), source);
    }
}

#[test]
fn connections_that_arrive_above_the_rate_wait_for_their_turn() {
    let port = free_port();
    let host = Host::start(Policy {
        arrival_rate: 10,
        arrival_burst: 2,
        ..policy(&[port])
    });
    let mut vm = host.join(21);
    let m = vm.next_endpoint();
    vm.listen(m, port, 20).unwrap();
    let start = Instant::now();
    let _clients: Vec<_> = (0..6)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    for _ in 0..6 {
        vm.wait_offer(m);
    }
    assert!(start.elapsed() >= Duration::from_millis(390));
    let report = host.report();
    assert_eq!((report.delayed, report.refused.len()), (4, 0));
}
