// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stands in for `hallway-outsource` in tests: writes down its orders, and rings its
//! guest whenever that rings it.
//!
//! It writes to the file `said` beside itself: each order, with the number of descriptors
//! that came along and with what the region says of the slot that it is about; and to the
//! file `rings` a byte for each time that it rang its guest. Its report is in the file `report`. Unlike the real one it lives
//! on for no more than a while after its daemon, in which a test sees whether it is ended.

use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use hallway_abi::region as abi;
use hallway_outsource::orders::{Order, CONTROL_FD, PACKET_MAX};
use hallway_shm::Mapping;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags, UnixAddr};

/// An order, as text, and its descriptors.
fn receive(control: BorrowedFd<'_>) -> (String, Vec<OwnedFd>) {
    let mut bytes = vec![0; PACKET_MAX];
    let mut space = nix::cmsg_space!([RawFd; 8]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message =
        recvmsg::<UnixAddr>(control.as_raw_fd(), &mut parts, Some(&mut space), flags).unwrap();
    let mut received = Vec::new();
    for one in message.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(fds) = one {
            // SAFETY: the kernel just made these descriptors for us.
            received.extend(fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
    let length = message.bytes;
    (
        String::from_utf8(bytes[..length].to_vec()).unwrap(),
        received,
    )
}

/// State and generation of a slot, as the region has them.
fn member(memory: &OwnedFd, slot: u32) -> (u32, u32) {
    let head = Mapping::new(memory, abi::HEADER_SIZE).unwrap();
    assert_eq!(head.read_u64(0), abi::REGION_MAGIC);
    let at = offset_of!(abi::Region, member) + slot as usize * size_of::<abi::Member>();
    (
        head.read_u32(at + offset_of!(abi::Member, state)),
        head.read_u32(at + offset_of!(abi::Member, generation)),
    )
}

fn main() {
    let own = std::env::current_exe().unwrap();
    let open = |name| {
        let mut options = File::options();
        let options = options.append(true).create(true);
        options.open(own.with_file_name(name)).unwrap()
    };
    let (mut said, mut rings) = (open("said"), open("rings"));
    let report = own.with_file_name("report");
    // SAFETY: what started this program left the descriptor for it.
    let control = unsafe { OwnedFd::from_raw_fd(CONTROL_FD) };
    let (mut memory, mut own, mut guest) = (None, None::<OwnedFd>, None::<OwnedFd>);
    // A guest may ring before it is known.
    let mut was_rung = false;
    loop {
        if let Some(guest) = guest.as_ref().filter(|_| was_rung) {
            nix::unistd::write(guest, &1u64.to_ne_bytes()).unwrap();
            rings.write_all(b"r").unwrap();
            was_rung = false;
        }
        let mut fds = vec![PollFd::new(control.as_fd(), PollFlags::POLLIN)];
        let doorbell = own.as_ref().map(AsFd::as_fd);
        fds.extend(doorbell.map(|doorbell| PollFd::new(doorbell, PollFlags::POLLIN)));
        poll(&mut fds, PollTimeout::NONE).unwrap();
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap()).collect();
        if ready.get(1) == Some(&true) {
            nix::unistd::read(own.as_ref().unwrap(), &mut [0; 8]).unwrap();
            was_rung = true;
        }
        if !ready[0] {
            continue;
        }
        let (text, fds) = receive(control.as_fd());
        if text.is_empty() {
            if memory.is_some() {
                std::thread::sleep(Duration::from_secs(30));
            }
            return;
        }
        let (count, mut fds) = (fds.len(), fds.into_iter());
        let mut place = (0, 0);
        match serde_json::from_str(&text).unwrap() {
            Order::Start { slot, .. } => {
                (memory, own) = (fds.next(), fds.next());
                place = member(memory.as_ref().unwrap(), slot);
            }
            Order::Guest { slot, .. } => {
                guest = fds.next();
                place = member(memory.as_ref().unwrap(), slot);
            }
            Order::Departed => guest = None,
            Order::Policy { .. } => {}
            // Its answer is what the test has written there.
            Order::Report { number } => {
                let report = std::fs::read_to_string(&report).unwrap_or_else(|_| "{}".into());
                let mut numbered = report.clone();
                if let Ok(mut fields) = serde_json::from_str::<serde_json::Map<_, _>>(&report) {
                    fields.insert("number".into(), number.into());
                    numbered = serde_json::Value::Object(fields).to_string();
                }
                nix::unistd::write(&control, numbered.as_bytes()).unwrap();
                continue;
            }
        }
        writeln!(said, "{count} {} {} {text}", place.0, place.1).unwrap();
    }
}
