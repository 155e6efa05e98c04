// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Peers that send descriptors.

mod lingering;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hallway_unix::{receive, wait_for_closes, Stream};

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
