// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that looks for more work before it sleeps.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::{policy, Conn, Host, Vm, PATIENCE};
use hallway_outsource::orders::Policy;

fn start(spin_us: u32) -> Host {
    Host::start(Policy {
        spin_us,
        ..policy(&[])
    })
}

fn connect(host: &Host) -> (Vm, Conn, TcpStream) {
    let mut vm = host.join(21);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (vm, conn, stream)
}

#[test]
fn bytes_of_the_guest_are_found_without_a_doorbell() {
    let host = start(u32::MAX);
    let (mut vm, mut conn, mut stream) = connect(&host);
    for round in 0..100 {
        // No doorbell: `flush` would write it.
        vm.write(&mut conn, &[round]);
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [round]);
    }
}

#[test]
fn space_that_the_guest_makes_is_found_without_a_doorbell() {
    let host = start(u32::MAX);
    let (mut vm, mut conn, mut stream) = connect(&host);
    let bytes = common::pattern(3 << 20, 1);
    let sent = bytes.clone();
    let writer = thread::spawn(move || stream.write_all(&sent).unwrap());
    let (mut back, start) = (Vec::new(), Instant::now());
    while back.len() < bytes.len() {
        assert!(start.elapsed() < PATIENCE, "{} bytes came", back.len());
        if vm.read(&mut conn, &mut back) == 0 {
            // It does not ask for a doorbell either.
            thread::yield_now();
        }
    }
    writer.join().unwrap();
    assert!(back == bytes);
}

/// Each pause ends the spin at another place, or not at all.
#[test]
fn no_byte_is_lost_where_spinning_ends() {
    let host = start(50);
    let (mut vm, mut conn, mut stream) = connect(&host);
    for round in 0..2000_u64 {
        let byte = [round as u8];
        vm.write_all(&mut conn, &byte);
        let mut got = [0];
        stream.read_exact(&mut got).unwrap();
        stream.write_all(&got).unwrap();
        assert_eq!(vm.read_exact(&mut conn, 1), byte);
        thread::sleep(Duration::from_micros(round % 100));
    }
}
