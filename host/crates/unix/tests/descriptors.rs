// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that send descriptors.

mod lingering;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hallway_unix::{hang_up, receive, receive_now, wait_for_closes, Stream};
use nix::sys::socket::{send, socketpair, AddressFamily, MsgFlags, SockFlag, SockType};

#[test]
fn descriptors_of_a_peer_make_nothing_wait() {
    let begun = Instant::now();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (stream, _listener) = lingering::open();
    lingering::send(&theirs, &stream).unwrap();
    drop(stream);
    let refused = receive(&ours, &mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidData);
    drop(Stream::from(ours));

    // The thread goes on: what the next one has is closed, too.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut read, write) = UnixStream::pair().unwrap();
    lingering::send(&theirs, &write).unwrap();
    drop(write);
    drop(Stream::from(ours));
    read.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    assert_eq!(read.read(&mut [0]).unwrap(), 0);
    wait_for_closes();
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn descriptors_behind_empty_packets_are_left_for_no_copy_of_the_socket() {
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
    let copy = ours.try_clone().unwrap();
    send(theirs.as_raw_fd(), b"", MsgFlags::empty()).unwrap();
    let (stream, _listener) = lingering::open();
    lingering::send(&theirs, &stream).unwrap();
    drop(stream);
    hang_up(ours);
    wait_for_closes();
    let (sender, closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(copy);
        sender.send(()).unwrap();
    });
    closed.recv_timeout(Duration::from_secs(20)).unwrap();
}

#[test]
fn a_packet_is_received_without_a_wait() {
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
    let nothing = receive_now(&ours, &mut [0; 8]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    send(theirs.as_raw_fd(), b"abc", MsgFlags::empty()).unwrap();
    assert_eq!(receive_now(&ours, &mut [0; 8]).unwrap(), 3);
    lingering::send(&theirs, &theirs).unwrap();
    let refused = receive_now(&ours, &mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidData);
}

#[test]
fn bytes_are_received_one_run_after_another() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"abc").unwrap();
    let mut bytes = [0; 2];
    assert_eq!(receive(&ours, &mut bytes).unwrap(), 2);
    assert_eq!(&bytes, b"ab");
    drop(theirs);
    assert_eq!(receive(&ours, &mut bytes).unwrap(), 1);
    assert_eq!(receive(&ours, &mut bytes).unwrap(), 0);
}
