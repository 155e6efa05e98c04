// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rings of connections are short, and grow.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use common::{free_port, guest_slice, pattern, policy, Conn, Host, Vm};
use hallway_abi::message as abi;
use hallway_outsource::orders::Policy;
use nix::libc::ECONNRESET;

const SHORT: u32 = 16384;

/// A guest that supports rings that grow, a connection of it, and the other end.
fn connect(host: &Host) -> (Vm, Conn, TcpStream) {
    let mut vm = host.join(21);
    vm.features = abi::FEATURE_GROWTH;
    let (conn, stream) = connect_one(&mut vm);
    (vm, conn, stream)
}

fn connect_one(vm: &mut Vm) -> (Conn, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(conn.offer.features, abi::FEATURE_GROWTH);
    assert_eq!(conn.offer.ring_size, SHORT);
    (conn, listener.accept().unwrap().0)
}

/// Ends a connection at both sides, without regard to bytes.
fn reset(vm: &mut Vm, conn: &Conn) {
    vm.send_done(conn, 1);
    vm.wait_other(abi::DONE, conn.own);
    vm.free(conn);
}

#[test]
fn bytes_to_the_guest_pass_through_a_ring_that_grows() {
    let host = Host::start(policy(&[]));
    let (mut vm, mut conn, mut stream) = connect(&host);
    let bytes = pattern(3 << 20, 5);
    let sent = bytes.clone();
    let writer = thread::spawn(move || stream.write_all(&sent).unwrap());
    // More than a short ring holds, though the guest reads none.
    host.wait_report(|report| report.received == u64::from(SHORT) + 262_144);
    assert!(vm.read_exact(&mut conn, bytes.len()) == bytes);
    writer.join().unwrap();
}

#[test]
fn bytes_of_the_guest_pass_through_a_ring_that_grows() {
    let host = Host::start(policy(&[]));
    let (mut vm, mut conn, mut stream) = connect(&host);
    let bytes = pattern(3 << 20, 5);
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let before = vm.write(&mut conn, &bytes[..9000]);
    vm.peer.grow_ring(&mut conn.tx, 0).unwrap();
    assert_eq!(conn.tx.count_space(), 262_144);
    assert!(vm.exchange(&mut conn, &bytes[before..]).is_empty());
    assert!(reader.join().unwrap() == bytes);
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(conn.tx.finish(done.position), Some(0));
}

#[test]
fn a_connection_that_arrives_is_short_once_the_guest_is_known() {
    let port = free_port();
    let host = Host::start(policy(&[port]));
    let (mut vm, _conn, _stream) = connect(&host);
    vm.listen(1000, port, 5).unwrap();
    let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let offer = vm.wait_offer(1000);
    assert_eq!(
        (offer.ring_size, offer.features),
        (SHORT, abi::FEATURE_GROWTH)
    );
}

#[test]
fn a_guest_that_knows_no_such_rings_has_large_ones() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(conn.offer.ring_size, 262_144);
}

/// All memory comes back: else some connection would stay short.
#[test]
fn memory_of_rings_that_grew_is_used_again() {
    let host = Host::start(policy(&[]));
    let (mut vm, conn, stream) = connect(&host);
    reset(&mut vm, &conn);
    drop(stream);
    let mut received = 0;
    // The slice has memory for 30 such rings.
    for _ in 0..100 {
        let (conn, mut stream) = connect_one(&mut vm);
        let bytes = vec![7; SHORT as usize + 100_000];
        stream.write_all(&bytes).unwrap();
        received += bytes.len() as u64;
        host.wait_report(|report| report.received == received);
        reset(&mut vm, &conn);
    }
}

#[test]
fn a_ring_without_memory_to_grow_goes_on_and_grows_later() {
    let host = Host::start(Policy {
        sockets: 400,
        ..policy(&[])
    });
    let (mut vm, first, stream) = connect(&host);
    let mut held = vec![(first, stream)];
    let mut received = 0;
    // Half of the memory is kept for short rings of others.
    let (mut conn, mut stream) = loop {
        let (conn, mut stream) = connect_one(&mut vm);
        stream.write_all(&vec![7; SHORT as usize + 50_000]).unwrap();
        let report = host.wait_report(|report| report.received >= received + u64::from(SHORT));
        let some = report.received - received;
        received = report.received;
        if some == u64::from(SHORT) {
            let again = host.report().received;
            if again == received {
                break (conn, stream);
            }
            received = again;
        }
        held.push((conn, stream));
        assert!(held.len() < 100);
    };
    let bytes = pattern(1 << 20, 3);
    let sent = bytes.clone();
    let writer = thread::spawn(move || {
        stream.write_all(&sent).unwrap();
        stream
    });
    let first = SHORT as usize + 50_000;
    let mut back = vm.read_exact(&mut conn, first + 300_000);
    for (conn, _) in &held {
        reset(&mut vm, conn);
    }
    let rest = first + bytes.len() - back.len();
    back.extend(vm.read_exact(&mut conn, rest));
    assert!(back[first..] == bytes);
    let mut stream = writer.join().unwrap();
    let before = host.report().received;
    stream
        .write_all(&vec![7; SHORT as usize + 100_000])
        .unwrap();
    host.wait_report(|report| report.received == before + u64::from(SHORT) + 100_000);
}

#[test]
fn an_area_that_is_not_in_the_slice_resets_the_connection() {
    let host = Host::start(policy(&[]));
    let (mut vm, mut conn, mut stream) = connect(&host);
    let slice = guest_slice(21);
    let (_, area) = vm.peer.make_ring_of(65536).unwrap();
    let at = (slice.offset + area.offset) as usize;
    conn.tx.grow(at, 65536, (slice.size - 4096, 65536));
    vm.write_all(&mut conn, b"bytes");
    let done = vm.wait_other(abi::DONE, conn.own);
    assert_eq!(done.reason, ECONNRESET as u32);
    assert!(stream.read(&mut [0]).is_err());
    host.wait_report(|report| report.corrupt == 1);
}
