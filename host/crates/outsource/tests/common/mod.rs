// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the program as hallwayd does, and plays the guest in a real region.

#![allow(dead_code)] // Each test uses a part.

mod vm;

#[allow(unused_imports)] // Each test uses a part.
pub use vm::{Conn, Vm};

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::offset_of;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use hallway_abi::ring;
use hallway_endpoint::member::{Member, Slice};
use hallway_outsource::orders::{Order, Policy, Report, CONTROL_FD};
use hallway_shm::sealed_memory;
use nix::libc;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    recv, sendmsg, setsockopt, socketpair, sockopt, AddressFamily, ControlMessage, MsgFlags,
    SockFlag, SockType,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

pub const SIZE: u64 = 32 << 20;
const SLOTS: u32 = 3;
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn own_slice() -> Slice {
    Slice {
        slot: 1,
        generation: 11,
        offset: 12288,
        size: 8 << 20,
    }
}

pub fn guest_slice(generation: u32) -> Slice {
    Slice {
        slot: 2,
        generation,
        offset: 12288 + (8 << 20),
        size: 8 << 20,
    }
}

/// A free port to be published, below those that the kernel gives to clients.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() as u16 % 100 * 100;
    loop {
        let port = 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub fn policy(publish: &[u16]) -> Policy {
    let publish = publish
        .iter()
        .map(|port| format!("tcp/{port}=127.0.0.1:{port}"));
    Policy {
        connect: vec!["127.0.0.1/32".parse().unwrap(), "::1".parse().unwrap()],
        publish: publish.map(|text| text.parse().unwrap()).collect(),
        sockets: 100,
        listeners: 10,
        ..Policy::default()
    }
}

/// The program, and what hallwayd has.
pub struct Host {
    pub child: Child,
    control: OwnedFd,
    pub region: OwnedFd,
    /// The doorbell of the program.
    doorbell: OwnedFd,
}

fn eventfd() -> OwnedFd {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .unwrap()
        .into()
}

impl Host {
    pub fn start(policy: Policy) -> Self {
        Self::spawn().begin(policy)
    }

    /// Gives the program its first order.
    pub fn begin(self, policy: Policy) -> Self {
        let own = own_slice();
        let start = Order::Start {
            size: SIZE,
            slot: own.slot,
            generation: own.generation,
            slots: SLOTS,
            slice_offset: own.offset,
            slice_size: own.size,
            policy,
        };
        let fds = [self.region.as_raw_fd(), self.doorbell.as_raw_fd()];
        self.order(&start, &fds);
        self
    }

    /// The program, without any order.
    pub fn spawn() -> Self {
        Self::spawn_from(Command::new(env!("CARGO_BIN_EXE_hallway-outsource")))
    }

    /// The program on a host without IPv6, and without any order.
    pub fn spawn_without_ipv6() -> Self {
        let condition = SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            libc::AF_INET6 as u64,
        );
        let rule = SeccompRule::new(vec![condition.unwrap()]).unwrap();
        let filter = SeccompFilter::new(
            [(libc::SYS_socket, vec![rule])].into(),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EAFNOSUPPORT as u32),
            std::env::consts::ARCH.try_into().unwrap(),
        );
        let filter: BpfProgram = filter.unwrap().try_into().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hallway-outsource"));
        let apply = move || seccompiler::apply_filter(&filter).map_err(std::io::Error::other);
        // SAFETY: without an error the closure makes system calls only.
        unsafe { command.pre_exec(apply) };
        Self::spawn_from(command)
    }

    /// The program as a command has it, without any order.
    pub fn spawn_from(mut command: Command) -> Self {
        let (control, its) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let fd = its.as_raw_fd();
        let give = move || {
            // SAFETY: both calls take numbers only. Where the numbers are equal, dup2
            // leaves the flag that closes the descriptor.
            unsafe {
                libc::dup2(fd, CONTROL_FD);
                libc::fcntl(CONTROL_FD, libc::F_SETFD, 0);
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(give) };
        Self {
            child: command.spawn().unwrap(),
            control,
            region: sealed_memory("region", SIZE as usize).unwrap(),
            doorbell: eventfd(),
        }
    }

    pub fn order(&self, order: &Order, fds: &[RawFd]) {
        let text = serde_json::to_vec(order).unwrap();
        let rights = [ControlMessage::ScmRights(fds)];
        let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
        let vectors = [IoSlice::new(&text)];
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.control.as_raw_fd(), &vectors, rights, flags, None).unwrap();
    }

    pub fn report(&self) -> Report {
        self.order(&Order::Report { number: 1 }, &[]);
        assert!(wait_readable(&self.control, PATIENCE), "no report");
        let mut text = vec![0; 65536];
        let length = recv(self.control.as_raw_fd(), &mut text, MsgFlags::empty()).unwrap();
        assert!(length > 0, "the program has ended");
        serde_json::from_slice(&text[..length]).unwrap()
    }

    pub fn count_fds(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).unwrap().count()
    }

    /// A guest joins.
    pub fn join(&self, generation: u32) -> Vm {
        let slice = guest_slice(generation);
        let region = self.region.try_clone().unwrap();
        let member = Member::join(region, SIZE, SLOTS, slice).unwrap();
        let rung = self.doorbell.try_clone().unwrap();
        let peer = member.meet(own_slice(), rung).unwrap();
        let doorbell = eventfd();
        let order = Order::Guest {
            slot: slice.slot,
            generation,
            slice_offset: slice.offset,
            slice_size: slice.size,
        };
        self.order(&order, &[doorbell.as_raw_fd()]);
        Vm::new(peer, doorbell)
    }

    /// The guest sets an option, also to the value that it has.
    pub fn set_option(&self, vm: &mut Vm, conn: &Conn, number: u32, value: i32) {
        let file = File::from(self.region.try_clone().unwrap());
        let ring = guest_slice(0).offset + conn.handle().offset;
        let options = ring + offset_of!(ring::Ring, options) as u64;
        let values = options + offset_of!(ring::Options, value) as u64;
        file.write_all_at(&value.to_le_bytes(), values + 4 * u64::from(number))
            .unwrap();
        let changed = options + offset_of!(ring::Options, changed) as u64;
        file.write_all_at(&(1_u64 << number).to_le_bytes(), changed)
            .unwrap();
        vm.peer.set_pending(conn.its);
        vm.peer.flush();
    }

    /// hallwayd ends.
    pub fn hang_up(&mut self) {
        self.control = eventfd();
    }

    /// Waits until the report is as it should be.
    pub fn wait_report(&self, is_good: impl Fn(&Report) -> bool) -> Report {
        let end = Instant::now() + PATIENCE;
        loop {
            let report = self.report();
            if is_good(&report) {
                return report;
            }
            assert!(Instant::now() < end, "{report:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_readable(fd: impl AsFd, time: Duration) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    let time = PollTimeout::try_from(time).unwrap();
    poll(&mut fds, time).unwrap() > 0
}

/// A connection that the server has reset, behind more bytes than the guest's ring takes; the
/// guest reads none of them. Its byte is the first that can't be sent.
pub fn reset_behind_full_ring(host: &Host, vm: &mut Vm) -> (Conn, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let full = conn.offer.ring_size as usize;
    let bytes = pattern(full + 10_000, 7);
    stream.write_all(&bytes[..full]).unwrap();
    host.wait_report(|report| report.received == full as u64);
    // There is space in the socket, which the program reads no more.
    stream.write_all(&bytes[full..]).unwrap();
    let mut unacked = 1;
    let end = Instant::now() + PATIENCE;
    while unacked > 0 {
        assert!(Instant::now() < end, "{unacked} bytes do not arrive");
        // SAFETY: the kernel writes an int, which lives until the call returns.
        unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unacked) };
    }
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &at_once).unwrap();
    let (client, server) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
    drop(stream);
    wait_until_reset(client.port(), server.port());
    vm.write_all(&mut conn, b"1");
    // The program has looked at it.
    while !conn.tx.arm(conn.tx.size(), conn.tx.size()) {
        vm.sleep();
    }
    (conn, bytes)
}

/// Waits until the reset of a connection of 127.0.0.1 has arrived at the end with the first port.
fn wait_until_reset(port: u16, peer: u16) {
    let end = Instant::now() + PATIENCE;
    // Another test's connection, in TIME_WAIT even, may have one of the two.
    let pair = format!(" 0100007F:{port:04X} 0100007F:{peer:04X} ");
    let find = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table
            .lines()
            .find(|line| line.contains(&pair))
            .map(str::to_owned)
    };
    while let Some(line) = find() {
        assert!(Instant::now() < end, "not reset: {line}");
        std::thread::yield_now();
    }
}

/// Bytes that no two places of a stream have alike.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
