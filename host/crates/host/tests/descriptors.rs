// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program without descriptors. The limit is the process's, so this is a test of its own.
#![allow(missing_docs)]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use hallway_endpoint::poller::{Poller, PROGRAM};
use hallway_endpoint::server::Program;
use hallway_host::program::Host;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

fn listen(name: &str) -> (OwnedFd, std::path::PathBuf) {
    let name = format!("hallway-descriptors-{}-{name}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    (listener.into(), path)
}

#[test]
fn a_listener_waits_while_there_is_no_descriptor_and_the_loop_sleeps() {
    let (bytes, path) = listen("bytes");
    let (packets, other) = listen("packets");
    let mut client = UnixStream::connect(&path).unwrap();
    for path in [path, other] {
        std::fs::remove_file(path).unwrap();
    }
    let poller = Poller::new().unwrap();
    let mut host = Host::default();
    host.start(vec![bytes, packets], &poller).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let take = |host: &mut Host| {
        let events = poller.wait(Some(0)).unwrap();
        for (tag, flags) in &events {
            assert_eq!(*tag, PROGRAM);
            host.take_event(None, &poller, *tag, *flags);
        }
        events.len()
    };
    assert_eq!(take(&mut host), 1);
    assert_eq!(take(&mut host), 0);
    // Still none: it is tried once a beat.
    host.beat(None, &poller);
    assert_eq!((take(&mut host), take(&mut host)), (1, 0));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    host.beat(None, &poller);
    assert_eq!((take(&mut host), take(&mut host)), (1, 0));
    // Without a guest it is hung up on.
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}
