// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UDP sockets of a guest, which the test plays, against sockets of this machine.

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use common::{guest_slice, own_slice, policy, Conn, Host, Vm, PATIENCE, SIZE};
use hallway_abi::{datagram, message as abi};
use hallway_endpoint::message::{Message, Other, CARRIER};
use hallway_outsource::orders::{Order, Policy};
use hallway_outsource::record::{Error, Head, HEAD};
use hallway_shm::Mapping;

/// An address that no rule of the policy names.
const REFUSED: &str = "127.0.0.2:9";

fn server() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn write(vm: &mut Vm, conn: &mut Conn, raw: &[u8]) {
    let runs = conn.tx.free_runs(raw.len() as u32);
    runs.write(raw);
    if conn.tx.publish(raw.len() as u32) {
        vm.peer.set_pending(conn.its);
    }
    vm.peer.flush();
}

fn record(head: &Head, payload: &[u8]) -> Vec<u8> {
    let mut raw = head.write().to_vec();
    raw.extend(payload);
    raw.resize(head.total(), 0);
    raw
}

fn send(vm: &mut Vm, conn: &mut Conn, to: SocketAddr, payload: &[u8]) {
    let head = Head::new(datagram::DATAGRAM_DATA, to, payload.len());
    write(vm, conn, &record(&head, payload));
}

/// The next record of the program: its head as it lies there, and its payload.
fn receive(vm: &mut Vm, conn: &mut Conn) -> (Vec<u8>, Vec<u8>) {
    while !conn.rx.arm() {
        vm.sleep();
    }
    let mut head = vec![0; HEAD];
    conn.rx.used_runs(HEAD as u32).read(&mut head);
    let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
    let total = (HEAD + length).next_multiple_of(8);
    let mut payload = vec![0; length];
    let runs = conn.rx.used_runs(total as u32);
    runs.part(HEAD, length).read(&mut payload);
    if conn.rx.consume(total as u32) {
        vm.peer.set_pending(conn.its);
    }
    (head, payload)
}

#[test]
fn datagrams_go_and_answers_come_back_over_many_rounds_of_the_ring() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    let (server, address) = server();
    for round in 0..40_u8 {
        let payload = vec![round; 3000 + usize::from(round)];
        send(&mut vm, &mut conn, address, &payload);
        let mut buffer = [0; 9000];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert!(buffer[..length] == payload);
        server.send_to(&buffer[..length], from).unwrap();
        let (head, back) = receive(&mut vm, &mut conn);
        let expected = Head::new(datagram::DATAGRAM_DATA, address, length).write();
        assert_eq!(head[..24], expected[..24]);
        assert!(back == payload);
    }
}

#[test]
fn what_is_refused_comes_back_before_done_to_a_socket_that_has_ended() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    conn.tx.end();
    vm.peer.set_pending(conn.its);
    let mut ended = vm.open_datagrams().unwrap();
    send(&mut vm, &mut ended, REFUSED.parse().unwrap(), b"1");
    ended.tx.end();
    vm.peer.set_pending(ended.its);
    for conn in [&conn, &ended] {
        let done = vm.wait_other(abi::DONE, conn.own);
        assert_eq!((done.reason, done.position), (0, conn.tx.position()));
    }
    assert_eq!(receive(&mut vm, &mut ended).1, b"1");
    vm.send_done(&conn, 0);
    vm.send_done(&ended, 0);
    host.wait_report(|report| report.datagrams == 0);
}

#[test]
fn what_the_policy_refuses_comes_back() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    let to = REFUSED.parse().unwrap();
    send(&mut vm, &mut conn, to, b"hello");
    let (head, back) = receive(&mut vm, &mut conn);
    let expected = Head::new(datagram::DATAGRAM_RETURNED, to, 5).write();
    assert_eq!((&head[..24], &back[..]), (&expected[..24], &b"hello"[..]));
}

#[test]
fn datagrams_leave_from_the_source_of_the_policy_as_it_is() {
    let mut policy = policy(&[]);
    let host = Host::start(policy.clone());
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    let (server, address) = server();
    for source in ["127.0.0.1", "127.0.0.3", "127.0.0.4"] {
        policy.source = match source {
            "127.0.0.1" => Vec::new(),
            other => vec![other.parse().unwrap()],
        };
        let policy = policy.clone();
        host.order(&Order::Policy { policy }, &[]);
        host.report();
        send(&mut vm, &mut conn, address, b"1");
        let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(from.ip().to_string(), source);
    }
}

#[test]
fn a_rule_of_udp_is_about_datagrams_alone() {
    let mut policy = policy(&[]);
    policy
        .connect
        .insert(0, "!udp/127.0.0.1:1000-65535".parse().unwrap());
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    assert!(vm.connect(to).is_ok());
    let mut conn = vm.open_datagrams().unwrap();
    send(&mut vm, &mut conn, to, b"hello");
    let (head, _) = receive(&mut vm, &mut conn);
    let expected = Head::new(datagram::DATAGRAM_RETURNED, to, 5).write();
    assert_eq!(head[..24], expected[..24]);
    let refused = host.wait_report(|report| !report.refused.is_empty());
    let rule = "!udp/127.0.0.1/32:1000-65535".to_string();
    assert_eq!(refused.refused, [(rule, 1)]);
}

#[test]
fn a_stranger_is_not_heard() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    let ((server, address), (stranger, _)) = (self::server(), self::server());
    send(&mut vm, &mut conn, address, b"1");
    let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
    stranger.send_to(b"2", from).unwrap();
    server.send_to(b"3", from).unwrap();
    assert_eq!(receive(&mut vm, &mut conn).1, b"3");
}

#[test]
fn a_port_that_nothing_has_is_an_error() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    let (server, address) = server();
    drop(server);
    send(&mut vm, &mut conn, address, b"1");
    let (head, _) = receive(&mut vm, &mut conn);
    let expected = Head::new(datagram::DATAGRAM_ERROR, address, 0).write();
    assert_eq!(head[..24], expected[..24]);
    assert_eq!(head[32], libc::ECONNREFUSED as u8);
}

#[test]
fn what_is_in_the_ring_at_the_end_is_sent() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    let (server, address) = server();
    send(&mut vm, &mut conn, address, b"last");
    conn.tx.end();
    vm.send_done(&conn, 0);
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!((done.reason, conn.tx.finish(done.position)), (0, Some(0)));
    let mut buffer = [0; 9];
    assert_eq!(server.recv(&mut buffer).unwrap(), 4);
    host.wait_report(|report| report.corrupt == 0);
}

#[test]
fn records_that_are_impossible_end_the_socket() {
    let to = REFUSED.parse().unwrap();
    let good = Head::new(datagram::DATAGRAM_DATA, to, 8);
    let long = Head {
        length: datagram::DATAGRAM_MAX as usize + 1,
        ..good
    };
    let partial = Head { length: 16, ..good };
    let of_outsourcer = Head {
        r#type: datagram::DATAGRAM_RETURNED,
        ..good
    };
    let unknown = Head { r#type: 0, ..good };
    for head in [long, partial, of_outsourcer, unknown] {
        let host = Host::start(policy(&[]));
        let mut vm = host.join(21);
        let mut conn = vm.open_datagrams().unwrap();
        let mut raw = head.write().to_vec();
        raw.extend([0; 8]);
        write(&mut vm, &mut conn, &raw);
        let done = vm.wait_other(abi::DONE, conn.own);
        assert_eq!(done.reason, libc::ECONNRESET as u32);
        host.wait_report(|report| report.corrupt == 1);
    }
}

#[test]
fn an_impossible_index_is_counted_once_and_costs_nothing_more() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let conn = vm.open_datagrams().unwrap();
    let memory = Mapping::new(host.region.as_fd(), SIZE as usize).unwrap();
    let tail = (own_slice().offset + conn.offer.handle.offset) as usize
        + std::mem::offset_of!(hallway_abi::ring::Ring, tail);
    memory.write_u64(tail, 1 << 40);
    vm.peer.set_pending(conn.its);
    vm.peer.flush();
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
    // The guest never sends DONE. Each doorbell of it is a turn that finds nothing.
    for _ in 0..100 {
        vm.peer.set_pending(conn.its);
        vm.peer.flush();
        assert_eq!(host.report().corrupt, 1);
    }
}

#[test]
fn done_without_an_end_mark_ends_the_socket() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let conn = vm.open_datagrams().unwrap();
    vm.send_done(&conn, 0);
    vm.wait_other(abi::DONE, conn.own);
}

#[test]
fn done_with_an_impossible_position_ends_the_socket() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    conn.tx.end();
    vm.peer.send(&Message::Other(Other {
        r#type: abi::DONE,
        from: conn.own,
        to: conn.its,
        carrier: CARRIER,
        position: 1 << 40,
        reason: 0,
    }));
    vm.peer.flush();
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::ECONNRESET as u32);
    host.wait_report(|report| report.corrupt == 1);
}

#[test]
fn a_datagram_that_is_too_long_is_one_error() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_large_datagrams();
    let (server, address) = server();
    let head = Head::new(
        datagram::DATAGRAM_DATA,
        address,
        datagram::DATAGRAM_MAX as usize,
    );
    write(&mut vm, &mut conn, &record(&head, &[0; 65527]));
    let (head, _) = receive(&mut vm, &mut conn);
    let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
    let error = Error {
        errno: libc::EMSGSIZE as u32,
        origin: libc::SO_EE_ORIGIN_LOCAL,
        info: mtu.trim().parse::<u32>().unwrap().min(65535),
        ..Error::default()
    };
    let expected = Head {
        error,
        ..Head::new(datagram::DATAGRAM_ERROR, address, 0)
    };
    assert_eq!(head, expected.write());
    // The next record is the answer to a good one.
    send(&mut vm, &mut conn, address, b"1");
    let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
    server.send_to(b"2", from).unwrap();
    assert_eq!(receive(&mut vm, &mut conn).1, b"2");
}

#[test]
fn an_index_that_changes_all_the_time_ends_the_socket_alone() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let to = REFUSED.parse().unwrap();
    for round in 1..=2000 {
        let mut conn = vm.open_datagrams().unwrap();
        let raw = record(&Head::new(datagram::DATAGRAM_DATA, to, 8), &[0; 8]);
        let runs = conn.tx.free_runs(raw.len() as u32);
        runs.write(&raw);
        let head = (guest_slice(21).offset + conn.handle().offset) as usize
            + std::mem::offset_of!(hallway_abi::ring::Ring, head);
        let is_over = AtomicBool::new(false);
        let region = host.region.as_fd();
        let is_over = &is_over;
        thread::scope(|scope| {
            scope.spawn(move || {
                let memory = Mapping::new(region, SIZE as usize).unwrap();
                let start = Instant::now();
                while !is_over.load(Ordering::Relaxed) && start.elapsed() < 2 * PATIENCE {
                    for index in [raw.len() as u64, 1 << 40] {
                        memory.write_u64(head, index);
                        (0..round % 200).for_each(|_| std::hint::spin_loop());
                    }
                }
            });
            // The program may find the good index each time that it looks.
            while host.report().corrupt < round {
                vm.peer.set_pending(conn.its);
                vm.peer.flush();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let done = vm.wait_other(abi::DONE, conn.own);
        assert_eq!(done.reason, libc::ECONNRESET as u32);
        vm.send_done(&conn, 0);
        vm.free(&conn);
        assert_eq!(host.report().corrupt, round);
    }
}

#[test]
fn no_record_waits_for_the_next_one() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    // No event of a socket hides a doorbell that is missed.
    let to = REFUSED.parse().unwrap();
    for round in 0..50_000_u32 {
        // The second one comes at each point of the work on the first.
        send(&mut vm, &mut conn, to, &round.to_le_bytes());
        (0..round % 5000).for_each(|_| std::hint::spin_loop());
        send(&mut vm, &mut conn, to, &round.to_be_bytes());
        for expected in [round.to_le_bytes(), round.to_be_bytes()] {
            assert_eq!(receive(&mut vm, &mut conn).1, expected);
        }
    }
}

/// A port of the guest, and a policy that publishes it on all addresses.
fn published() -> (u16, Policy) {
    let port = UdpSocket::bind("[::]:0").unwrap().local_addr().unwrap();
    let port = port.port();
    let mut policy = policy(&[]);
    policy.publish = vec![format!("udp/{port}").parse().unwrap()];
    (port, policy)
}

fn client(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
fn a_published_port_is_heard_and_answers() {
    let (port, policy) = published();
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let mut conn = vm.open_datagrams_at(any).unwrap();
    // Answers leave from the address that was asked.
    for (number, to) in ["127.0.0.1", "127.0.0.3"].into_iter().enumerate() {
        let client = client("127.0.0.1");
        client.send_to(&[7; 3000], (to, port)).unwrap();
        let (head, payload) = receive(&mut vm, &mut conn);
        let from = client.local_addr().unwrap();
        let expected = Head::new(datagram::DATAGRAM_DATA, from, 3000).write();
        assert_eq!(head[..24], expected[..24]);
        assert!(payload == [7; 3000]);
        send(&mut vm, &mut conn, from, b"answer");
        let mut buffer = [0; 99];
        let (length, answerer) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"answer");
        assert_eq!(answerer.to_string(), format!("{to}:{port}"));
        let report = host.report();
        assert_eq!((report.datagrams, report.listeners), (1, 1));
        assert_eq!(report.received, 3000 * (number as u64 + 1));
    }
}

#[test]
fn a_published_socket_of_both_families_has_clients_of_both() {
    let (port, policy) = published();
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let any = format!("[::]:{port}").parse().unwrap();
    let mut conn = vm.open_datagrams_with(any, abi::SOCKET_IPV6).unwrap();
    for address in ["127.0.0.1", "::1"] {
        let client = client(address);
        client.send_to(b"1", (address, port)).unwrap();
        assert_eq!(receive(&mut vm, &mut conn).1, b"1");
        let from = client.local_addr().unwrap();
        send(&mut vm, &mut conn, from, b"2");
        let (_, answerer) = client.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(answerer, SocketAddr::new(from.ip(), port));
    }
}

#[test]
fn a_host_without_ipv6_has_ports_of_ipv4_and_the_guest_sends_the_rest() {
    let (port, mut policy) = published();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let tcp = tcp.unwrap().port();
    policy.publish.push(format!("tcp/{tcp}").parse().unwrap());
    policy.connect.push("2001:db8::/32".parse().unwrap());
    let host = Host::spawn_without_ipv6().begin(policy);
    let mut vm = host.join(21);
    let any = |port: u16| format!("[::]:{port}").parse().unwrap();
    let mut conn = vm.open_datagrams_with(any(port), abi::SOCKET_IPV6).unwrap();
    let client = client("127.0.0.1");
    client.send_to(b"1", ("127.0.0.1", port)).unwrap();
    assert_eq!(receive(&mut vm, &mut conn).1, b"1");
    let own = vm.next_endpoint();
    vm.listen_at(own, any(tcp), abi::SOCKET_IPV6, 5).unwrap();
    let _client = TcpStream::connect(("127.0.0.1", tcp)).unwrap();
    vm.wait_offer(own);

    let mut conn = vm.open_datagrams().unwrap();
    let to = "[2001:db8::1]:53".parse().unwrap();
    for _ in 0..2 {
        send(&mut vm, &mut conn, to, b"query");
        let (head, payload) = receive(&mut vm, &mut conn);
        let expected = Head::new(datagram::DATAGRAM_RETURNED, to, 5).write();
        assert_eq!((&head, &payload[..]), (&expected.to_vec(), &b"query"[..]));
    }
    let refused = host.report().refused;
    assert_eq!(refused, [("address families of the host".to_string(), 1)]);
}

/// As Java binds them.
#[test]
fn a_published_socket_at_a_mapped_address_has_clients_of_ipv4() {
    let (port, policy) = published();
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let local = SocketAddr::from(([10, 0, 0, 5], port));
    let mut conn = vm.open_datagrams_with(local, abi::SOCKET_IPV6).unwrap();
    let client = client("127.0.0.1");
    client.send_to(b"1", ("127.0.0.1", port)).unwrap();
    assert_eq!(receive(&mut vm, &mut conn).1, b"1");
}

#[test]
fn any_socket_that_shares_a_port_answers() {
    let (port, policy) = published();
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let flags = abi::SOCKET_REUSEPORT;
    let mut conns = [0; 2].map(|_| vm.open_datagrams_with(any, flags).unwrap());
    for round in 1..=20 {
        let client = client("127.0.0.1");
        client.send_to(b"1", ("127.0.0.1", port)).unwrap();
        // The kernel of the host hands it to one of them.
        host.wait_report(|report| report.received == round);
        let heard = usize::from(conns[0].rx.used_runs(1).is_empty());
        assert_eq!(receive(&mut vm, &mut conns[heard]).1, b"1");
        let from = client.local_addr().unwrap();
        send(&mut vm, &mut conns[1 - heard], from, b"2");
        let (_, answerer) = client.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(answerer.port(), port);
    }
}

#[test]
fn a_published_socket_answers_and_sends_to_no_other() {
    let (port, policy) = published();
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let mut conn = vm.open_datagrams_at(any).unwrap();
    let (stranger, address) = server();
    send(&mut vm, &mut conn, address, b"1");
    // Behind it an answer.
    let client = client("127.0.0.1");
    client.send_to(b"2", ("127.0.0.1", port)).unwrap();
    receive(&mut vm, &mut conn);
    send(&mut vm, &mut conn, client.local_addr().unwrap(), b"3");
    client.recv_from(&mut [0; 9]).unwrap();
    stranger.set_nonblocking(true).unwrap();
    stranger.recv_from(&mut [0; 9]).unwrap_err();
    assert_eq!(host.report().sent, 1);
}

#[test]
fn an_end_that_a_rule_is_against_is_not_heard() {
    let (port, policy) = published();
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let mut conn = vm.open_datagrams_at(any).unwrap();
    let refused = client("127.0.0.2");
    refused.send_to(b"1", ("127.0.0.1", port)).unwrap();
    let heard = client("127.0.0.1");
    heard.send_to(b"2", ("127.0.0.1", port)).unwrap();
    assert_eq!(receive(&mut vm, &mut conn).1, b"2");
    send(&mut vm, &mut conn, refused.local_addr().unwrap(), b"3");
    send(&mut vm, &mut conn, heard.local_addr().unwrap(), b"4");
    heard.recv_from(&mut [0; 9]).unwrap();
    let report = host.report();
    assert_eq!((report.sent, report.received), (1, 1));
    assert_eq!(report.refused, [("no rule".to_string(), 1)]);
}

#[test]
fn answers_honour_another_policy() {
    let (port, mut policy) = published();
    policy.connect.push("127.0.0.2".parse().unwrap());
    let host = Host::start(policy.clone());
    let mut vm = host.join(21);
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let mut conn = vm.open_datagrams_at(any).unwrap();
    let clients = ["127.0.0.2", "127.0.0.1"].map(client);
    for client in &clients {
        client.send_to(b"ask", ("127.0.0.1", port)).unwrap();
        receive(&mut vm, &mut conn);
    }
    policy.connect.insert(0, "!127.0.0.2".parse().unwrap());
    host.order(&Order::Policy { policy }, &[]);
    host.report();
    for client in &clients {
        let to = client.local_addr().unwrap();
        send(&mut vm, &mut conn, to, b"answer");
    }
    clients[1].recv_from(&mut [0; 9]).unwrap();
    clients[0].set_nonblocking(true).unwrap();
    clients[0].recv_from(&mut [0; 9]).unwrap_err();
    let report = host.report();
    assert_eq!(report.sent, 6);
    assert_eq!(report.refused, [("!127.0.0.2/32".to_string(), 1)]);
}

#[test]
fn what_is_not_published_or_taken_is_refused() {
    let (port, mut policy) = published();
    policy
        .publish
        .push(format!("tcp/{}", port ^ 1).parse().unwrap());
    let host = Host::start(policy.clone());
    let mut vm = host.join(21);
    let at = |port| SocketAddr::from(([0, 0, 0, 0], port));
    let refused = vm.open_datagrams_at(at(port ^ 1)).err();
    assert_eq!(refused, Some(libc::EACCES as u64));
    let taken = UdpSocket::bind(at(port)).unwrap();
    let refused = vm.open_datagrams_at(at(port)).err();
    assert_eq!(refused, Some(libc::EADDRINUSE as u64));
    drop(taken);
    let conn = vm.open_datagrams_at(at(port)).unwrap();
    UdpSocket::bind(at(port)).unwrap_err();
    // Another policy takes it away.
    policy.publish.clear();
    host.order(&Order::Policy { policy }, &[]);
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, libc::EACCES as u32);
    UdpSocket::bind(at(port)).unwrap();
    vm.send_done(&conn, 0);
    host.wait_report(|report| (report.datagrams, report.listeners) == (0, 0));
}

/// The next socket may have another family.
#[test]
fn a_port_is_free_for_the_next_socket_once_the_guest_has_closed_one() {
    for (next, flags) in [("0.0.0.0", 0), ("[::]", abi::SOCKET_IPV6)] {
        let (port, policy) = published();
        let host = Host::start(policy);
        let mut vm = host.join(21);
        let any = SocketAddr::from(([0, 0, 0, 0], port));
        let client = client("127.0.0.1");
        let mut conn = vm.open_datagrams_at(any).unwrap();
        client.send_to(b"ask", ("127.0.0.1", port)).unwrap();
        receive(&mut vm, &mut conn);
        let to = client.local_addr().unwrap();
        for number in 0..200_u8 {
            let raw = record(&Head::new(datagram::DATAGRAM_DATA, to, 1), &[number]);
            write(&mut vm, &mut conn, &raw);
        }
        conn.tx.end();
        // All is there when the doorbell of this one comes.
        let next = format!("{next}:{port}").parse().unwrap();
        vm.open_datagrams_with(next, flags).unwrap();
        let done = vm.wait_other(abi::DONE, conn.own);
        assert_eq!((done.reason, done.position), (0, conn.tx.position()));
        for number in 0..200_u8 {
            let mut buffer = [0; 9];
            assert_eq!(client.recv(&mut buffer).unwrap(), 1);
            assert_eq!(buffer[0], number);
        }
        assert_eq!(host.report().listeners, 2);
        vm.send_done(&conn, 0);
        host.wait_report(|report| report.listeners == 1);
    }
}

#[test]
fn published_sockets_are_limited() {
    let (port, mut policy) = published();
    policy.listeners = 1;
    let host = Host::start(policy);
    let mut vm = host.join(21);
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    let flags = abi::SOCKET_REUSEPORT;
    vm.open_datagrams_with(any, flags).unwrap();
    let refused = vm.open_datagrams_with(any, flags).err();
    assert_eq!(refused, Some(libc::EACCES as u64));
    let refused = host.report().refused;
    assert_eq!(refused, [("limit of listeners".to_string(), 1)]);
}

#[test]
fn datagrams_to_other_ends_above_the_rate_are_lost() {
    let servers = [server(), server(), server()];
    let mut policy = policy(&[]);
    (policy.rate, policy.burst) = (1, 3);
    let host = Host::start(policy.clone());
    let mut vm = host.join(21);
    let mut conn = vm.open_datagrams().unwrap();
    for (_, address) in &servers {
        send(&mut vm, &mut conn, *address, b"1");
    }
    for port in 1..=20 {
        let other = SocketAddr::new(servers[0].1.ip(), port);
        send(&mut vm, &mut conn, other, b"x");
    }
    // Ends that are known cost nothing, also where another policy allows them.
    policy.listeners += 1;
    host.order(&Order::Policy { policy }, &[]);
    host.report();
    for (_, address) in servers.iter().cycle().take(9) {
        send(&mut vm, &mut conn, *address, b"1");
    }
    for (server, _) in &servers {
        for _ in 0..4 {
            let mut buffer = [0; 9];
            assert_eq!(server.recv(&mut buffer).unwrap(), 1);
        }
    }
    let report = host.report();
    let (cause, count) = &report.refused[0];
    assert_eq!(cause, "rate");
    assert!((17..=20).contains(count), "{count}");
}
