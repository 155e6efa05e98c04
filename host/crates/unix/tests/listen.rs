// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets at paths where something is already.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;

use hallway_unix::{listen, remove_abandoned};
use nix::sys::socket::{
    bind, connect, listen as start, socket, AddressFamily, Backlog, SockFlag, SockType, UnixAddr,
};

/// A path of its own in a directory that goes with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hwu-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        Self(dir.join("socket"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

#[test]
fn an_abandoned_socket_makes_place_for_another() {
    let Place(path) = &Place::new("abandoned");
    drop(UnixListener::bind(path).unwrap());
    let _again = listen(path).unwrap();
    UnixStream::connect(path).unwrap();
}

#[test]
fn an_abandoned_socket_of_another_kind_makes_place_too() {
    let Place(path) = &Place::new("kind");
    drop(UnixDatagram::bind(path).unwrap());
    listen(path).unwrap();
    remove_abandoned(path, SockType::SeqPacket).unwrap();
    assert!(!path.exists());
    remove_abandoned(path, SockType::SeqPacket).unwrap();
}

#[test]
fn a_socket_at_which_a_program_listens_stays() {
    let Place(path) = &Place::new("listens");
    let listener = listen(path).unwrap();
    for kind in [SockType::Stream, SockType::SeqPacket] {
        let refused = remove_abandoned(path, kind).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse, "{refused}");
    }
    let client = UnixStream::connect(path).unwrap();
    drop((listener, client));
}

#[test]
fn a_program_that_accepts_nothing_makes_nothing_wait() {
    let Place(path) = &Place::new("full");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let open = || socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    let (listener, address) = (open(), UnixAddr::new(path).unwrap());
    bind(listener.as_raw_fd(), &address).unwrap();
    start(&listener, Backlog::new(0).unwrap()).unwrap();
    let waiting = open();
    connect(waiting.as_raw_fd(), &address).unwrap();
    let refused = listen(path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AddrInUse, "{refused}");
}

#[test]
fn what_is_no_socket_stays() {
    let Place(path) = &Place::new("file");
    std::fs::write(path, "kept").unwrap();
    let link = path.with_file_name("link");
    std::os::unix::fs::symlink(path, &link).unwrap();
    for place in [path, &link] {
        let refused = listen(place).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
    }
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(path).unwrap(), "kept");
}
