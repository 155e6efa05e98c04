// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Life and limits of the program.

mod common;
#[path = "../../cpus/tests/ticks/mod.rs"]
mod ticks;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{free_port, pattern, policy, Conn, Host, Vm};
use hallway_abi::message as abi;
use hallway_endpoint::message::{Message, Other, CARRIER};
use hallway_outsource::orders::{Order, Policy, CONTROL_FD};
use nix::fcntl::{fcntl, FcntlArg};
use nix::sys::signal::{kill, Signal};
use nix::sys::socket::{getpeername, getsockopt, setsockopt, sockopt, SockaddrIn};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(30);

fn server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn sigterm_resets_all_and_ends() {
    let listener = server();
    let mut host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    vm.connect(listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    kill(Pid::from_raw(host.child.id() as i32), Signal::SIGTERM).unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(host.child.wait().unwrap().success());
}

#[test]
fn sigkill_resets_all() {
    let (listener, port) = (server(), free_port());
    let mut host = Host::start(policy(&[port]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let m = vm.next_endpoint();
    vm.listen(m, port, 5).unwrap();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let offer = vm.wait_offer(m);
    let mut accepted = vm.accept(offer);
    let mut ends = [(&mut conn, stream), (&mut accepted, client)];
    for (conn, end) in &mut ends {
        vm.write_all(conn, b"half of");
        end.read_exact(&mut [0; 7]).unwrap();
    }
    host.child.kill().unwrap();
    // FIN would say that this was all.
    for (_, end) in &mut ends {
        let error = end.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn it_goes_on_without_hallwayd() {
    let listener = server();
    let mut host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    host.hang_up();
    for _ in 0..10 {
        vm.write_all(&mut conn, b"still");
        stream.read_exact(&mut [0; 5]).unwrap();
        stream.write_all(b"there").unwrap();
        assert_eq!(vm.read_exact(&mut conn, 5), b"there");
    }
    vm.connect(listener.local_addr().unwrap()).unwrap();
}

#[test]
fn it_ends_with_hallwayd_before_its_first_order() {
    let mut host = Host::spawn();
    host.hang_up();
    assert!(host.child.wait().unwrap().success());
}

#[test]
fn it_is_confined() {
    let host = Host::start(policy(&[]));
    let pid = host.report().pid;
    assert_eq!(pid, host.child.id());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("Seccomp:\t2"), "{status}");
}

#[test]
fn others_of_its_user_do_not_reach_it() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // That user may not reach its folder.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_hallway-outsource")).unwrap();
    let above = fcntl(&program, FcntlArg::F_DUPFD_CLOEXEC(CONTROL_FD + 1)).unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{above}"));
    command.uid(65534).gid(65534);
    let host = Host::spawn_from(command);
    host.report();
    let status = format!("/proc/{}/status", host.child.id());
    let status = std::fs::read_to_string(status).unwrap();
    assert!(status.contains("Uid:\t65534"), "{status}");
    // This would be its own otherwise.
    let proc = std::fs::metadata(format!("/proc/{}/fd", host.child.id())).unwrap();
    assert_eq!(proc.uid(), 0);
}

#[test]
fn an_offer_that_is_not_known_is_declined() {
    let listener = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let own = vm.next_endpoint();
    let (tx, handle) = vm.peer.make_ring_of(4096).unwrap();
    let remote = listener.local_addr().unwrap();
    let mut offer = common::Vm::socket_offer(own, remote, &tx, handle);
    offer.kind = 77;
    vm.offer(offer);
    assert_eq!(vm.wait_other(abi::DECLINE, own).reason, 24);
    offer.kind = abi::KIND_SOCKET;
    offer.carrier = CARRIER + 2;
    vm.offer(offer);
    let errno = vm.wait_other(abi::DECLINE, own).position;
    assert_eq!(errno, libc::EINVAL as u64);
    offer.carrier = CARRIER;
    offer.answers = 9;
    vm.offer(offer);
    let errno = vm.wait_other(abi::DECLINE, own).position;
    assert_eq!(errno, libc::EINVAL as u64);
    for (offset, size) in [
        (0, 8192),
        (8 << 20, 8192),
        (handle.offset, 8193),
        (u64::MAX, 8192),
    ] {
        offer.answers = 0;
        offer.handle.offset = offset;
        offer.handle.size = size;
        vm.offer(offer);
        let errno = vm.wait_other(abi::DECLINE, own).position;
        assert_eq!(errno, libc::EINVAL as u64);
    }
    assert_eq!(host.report().corrupt, 4);
}

#[test]
fn a_listener_takes_the_families_that_the_guest_asks_for() {
    let port = free_port();
    let publish = vec![format!("tcp/{port}").parse().unwrap()];
    let host = Host::start(Policy {
        publish,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let (v4, v6) = (vm.next_endpoint(), vm.next_endpoint());
    vm.listen(v4, port, 5).unwrap();
    let at = format!("[::]:{port}").parse().unwrap();
    let flags = abi::SOCKET_IPV6 | abi::SOCKET_V6ONLY;
    // As nginx does: one for each family.
    vm.listen_at(v6, at, flags, 5).unwrap();
    let v4_client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(vm.wait_offer(v4).remote, v4_client.local_addr().unwrap());
    // A host may have no IPv6.
    if let Ok(client) = TcpStream::connect(("::1", port)) {
        let offer = vm.wait_offer(v6);
        assert_eq!(offer.remote, client.local_addr().unwrap());
        assert_eq!(offer.local.ip(), client.peer_addr().unwrap().ip());
    }
    let own = vm.next_endpoint();
    let taken = vm.listen_at(own, at, flags, 5);
    assert_eq!(taken, Err(libc::EADDRINUSE as u64));
}

#[test]
fn a_port_is_published_for_one_address_and_stays_native_at_the_others() {
    let port = free_port();
    let publish = ["tcp", "udp"].map(|name| format!("{name}/{port}"));
    let host = Host::start(Policy {
        publish: publish.map(|text| text.parse().unwrap()).into(),
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let at = |last| SocketAddr::from(([10, 1, 0, last], port));
    let own = [vm.next_endpoint(), vm.next_endpoint()];
    vm.listen_at(own[0], at(5), 0, 5).unwrap();
    let native = Err(libc::EACCES as u64);
    assert_eq!(vm.listen_at(own[1], at(6), 0, 5), native);
    vm.open_datagrams_at(at(5)).unwrap();
    assert_eq!(vm.open_datagrams_at(at(6)).err(), native.err());
    let refused = [("port of another socket".to_string(), 2)];
    assert_eq!(host.report().refused, refused);
}

#[test]
fn a_port_at_an_address_that_the_host_does_not_have_is_the_guests_own() {
    let port = free_port();
    let publish = ["tcp", "udp"].map(|name| format!("{name}/{port}=192.0.2.77:{port}"));
    let host = Host::start(Policy {
        publish: publish.map(|text| text.parse().unwrap()).into(),
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let own = vm.next_endpoint();
    assert_eq!(vm.listen(own, port, 5), Err(libc::EACCES as u64));
    let at = SocketAddr::from(([0, 0, 0, 0], port));
    assert_eq!(vm.open_datagrams_at(at).err(), Some(libc::EACCES as u64));
    let cause = "addresses of the host".to_string();
    assert_eq!(host.report().refused, [(cause, 2)]);
}

#[test]
fn memory_and_sockets_are_limited_and_used_again() {
    let listener = server();
    let address = listener.local_addr().unwrap();
    let host = Host::start(Policy {
        sockets: 1000,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let mut conns = Vec::new();
    let mut sizes = std::collections::BTreeSet::new();
    // The guest's slice is as large, so that its own rings are small.
    let errno = loop {
        let own = vm.next_endpoint();
        let (tx, handle) = vm.peer.make_ring_of(4096).unwrap();
        vm.offer(common::Vm::socket_offer(own, address, &tx, handle));
        let answer = vm.wait_message(|_| true);
        match answer {
            Message::Offer(offer) => {
                sizes.insert(offer.ring_size);
                conns.push((own, offer));
                drop(listener.accept().unwrap());
            }
            Message::Other(other) if other.r#type == abi::DECLINE => break other.position,
            Message::Other(_) => {}
        }
    };
    assert_eq!(errno, libc::EACCES as u64);
    assert_eq!(host.report().refused, [("memory".to_string(), 1)]);
    assert_eq!(
        sizes.into_iter().collect::<Vec<_>>(),
        [16384, 65536, 262_144]
    );
    // Half of the memory is for large ones, the other half for many.
    assert!(conns.len() >= 200, "{}", conns.len());
    for (own, offer) in conns {
        vm.send_other(Other {
            r#type: abi::DONE,
            from: own,
            to: offer.from,
            carrier: CARRIER,
            position: 0,
            reason: 1,
        });
    }
    // The mailbox has fewer places.
    while vm.peer.is_waiting() {
        vm.peer.flush();
    }
    host.wait_report(|report| report.sockets == 0);
    let conn = vm.connect(address).unwrap();
    assert_eq!(conn.offer.ring_size, 262_144);
}

/// A connection over which the guest has sent more than its other end has room for: both, and what
/// was sent.
fn send_much(vm: &mut Vm, listener: &TcpListener) -> (Conn, TcpStream, Vec<u8>) {
    setsockopt(listener, sockopt::RcvBuf, &4096).unwrap();
    let mut conn = vm.connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let bytes = pattern(30_000, 9);
    vm.write_all(&mut conn, &bytes);
    (conn, stream, bytes)
}

/// Checks that the other end gets all, and that the connection counts no more then.
fn check_all_is_sent(host: &Host, stream: &mut TcpStream, bytes: &[u8]) {
    let mut found = Vec::new();
    stream.read_to_end(&mut found).unwrap();
    assert!(found == bytes);
    host.wait_report(|report| report.closing == 0);
}

/// A connection that the guest has ended, though its other end has not read all: that and what
/// it has been sent.
fn end_before_it_is_read(host: &Host, vm: &mut Vm, listener: &TcpListener) -> (TcpStream, Vec<u8>) {
    let (mut conn, stream, bytes) = send_much(vm, listener);
    vm.send_done(&conn, 0);
    vm.end(&mut conn);
    assert_eq!(vm.wait_other(abi::DONE, conn.own).reason, 0);
    host.wait_report(|report| report.sent == bytes.len() as u64);
    (stream, bytes)
}

#[test]
fn what_is_not_sent_yet_counts_as_a_socket() {
    let listener = server();
    let host = Host::start(Policy {
        sockets: 1,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let (mut stream, bytes) = end_before_it_is_read(&host, &mut vm, &listener);
    check_it_counts(&host, &mut vm, &listener, &mut stream, &bytes);
}

/// Checks that a connection that the guest has ended counts until its other end has all.
fn check_it_counts(
    host: &Host,
    vm: &mut Vm,
    listener: &TcpListener,
    stream: &mut TcpStream,
    bytes: &[u8],
) {
    let report = host.report();
    assert_eq!((report.sockets, report.closing), (0, 1));
    let refused = vm.connect(listener.local_addr().unwrap()).err();
    assert_eq!(refused, Some(libc::EACCES as u64));
    check_all_is_sent(host, stream, bytes);
    vm.connect(listener.local_addr().unwrap()).unwrap();
}

#[test]
fn what_the_guest_still_reads_is_not_closed() {
    let listener = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (mut conn, mut stream, bytes) = send_much(&mut vm, &listener);
    vm.end(&mut conn);
    stream.write_all(b"answer").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(vm.wait_other(abi::DONE, conn.own).reason, 0);
    let report = host.report();
    assert_eq!((report.sockets, report.closing), (1, 0));
    assert_eq!(vm.read_to_end(&mut conn), b"answer");
    vm.send_done(&conn, 0);
    host.wait_report(|report| (report.sockets, report.closing) == (0, 1));
    check_all_is_sent(&host, &mut stream, &bytes);
}

/// A copy of the socket by which the program is connected to this port.
fn copy_socket(host: &Host, port: u16) -> OwnedFd {
    let pid = host.child.id();
    // SAFETY: the call has no pointers.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: nobody else has this descriptor.
    let process = unsafe { OwnedFd::from_raw_fd(i32::try_from(process).unwrap()) };
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let copies = numbers.filter_map(|entry| {
        let number: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        // SAFETY: the call has no pointers.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        // SAFETY: nobody else has this descriptor.
        (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy as i32) })
    });
    let leads_there = |copy: &OwnedFd| {
        let end: Result<SockaddrIn, _> = getpeername(copy.as_raw_fd());
        end.is_ok_and(|end| end.port() == port)
    };
    copies.into_iter().find(leads_there).unwrap()
}

#[test]
fn what_the_guest_has_left_in_its_ring_is_not_kept_for_ever() {
    let listener = server();
    let port = listener.local_addr().unwrap().port();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (mut conn, mut stream, mut bytes) = send_much(&mut vm, &listener);
    let socket = copy_socket(&host, port);
    // The kernel takes little then, however long the ring is.
    setsockopt(&socket, sockopt::SndBuf, &4096).unwrap();
    let more = pattern(conn.tx.size() as usize, 10);
    let written = vm.write(&mut conn, &more);
    bytes.extend(&more[..written]);
    vm.send_done(&conn, 0);
    vm.end(&mut conn);
    let end = Instant::now() + PATIENCE;
    while getsockopt(&socket, sockopt::TcpUserTimeout).unwrap() != 200_000 {
        assert!(Instant::now() < end, "the kernel may send in vain for ever");
        std::thread::yield_now();
    }
    let report = host.report();
    assert_eq!((report.sockets, report.closing), (1, 0));
    assert!(report.sent < bytes.len() as u64);
    let mut found = Vec::new();
    stream.read_to_end(&mut found).unwrap();
    assert!(found == bytes);
    host.wait_report(|report| (report.sockets, report.closing) == (0, 0));
}

#[test]
fn what_a_guest_has_left_is_sent_and_counts_for_the_next() {
    let listener = server();
    let host = Host::start(Policy {
        sockets: 1,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    let (mut stream, bytes) = end_before_it_is_read(&host, &mut vm, &listener);
    host.order(&Order::Departed, &[]);
    host.report();
    assert_idle(&host);
    let mut vm = host.join(22);
    check_it_counts(&host, &mut vm, &listener, &mut stream, &bytes);
}

#[test]
fn it_sleeps_after_a_guest_has_left_in_the_midst_of_its_work() {
    let listener = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut conns = Vec::new();
    for _ in 0..20 {
        conns.push(vm.connect(listener.local_addr().unwrap()).unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[1; 65536]).is_ok() {}
    }
    for conn in &mut conns {
        vm.write(conn, &[1; 60_000]);
    }
    // Both are there when it looks.
    kill(Pid::from_raw(host.child.id() as i32), Signal::SIGSTOP).unwrap();
    vm.peer.flush();
    host.order(&Order::Departed, &[]);
    kill(Pid::from_raw(host.child.id() as i32), Signal::SIGCONT).unwrap();
    assert_eq!(host.report().sockets, 0);
    assert_idle(&host);
}

#[test]
fn bytes_for_a_closed_socket_reset_it() {
    let listener = server();
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (mut stream, _) = end_before_it_is_read(&host, &mut vm, &listener);
    stream.write_all(b"for nobody").unwrap();
    host.wait_report(|report| report.closing == 0);
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn without_descriptors_any_address_may_be_the_hosts_own() {
    let rule = vec!["192.0.2.0/24".parse().unwrap()];
    let host = Host::start(Policy {
        connect: rule,
        ..policy(&[])
    });
    let mut vm = host.join(21);
    host.report();
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let pid = host.child.id() as libc::pid_t;
    // SAFETY: the limit lives until the call returns, which writes nothing.
    let result = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &none, std::ptr::null_mut()) };
    assert_eq!(result, 0);
    let refused = vm.connect("192.0.2.1:9".parse().unwrap()).err();
    assert_eq!(refused, Some(libc::EACCES as u64));
    assert_eq!(host.report().refused, [("no rule".to_string(), 1)]);
}

#[test]
fn listeners_take_turns() {
    let ports = [free_port(), free_port()];
    let host = Host::start(Policy {
        arrival_rate: 5,
        arrival_burst: 1,
        ..policy(&ports)
    });
    let mut vm = host.join(21);
    let listeners = ports.map(|port| {
        let own = vm.next_endpoint();
        vm.listen(own, port, 50).unwrap();
        own
    });
    let connect = |port| TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _crowd: Vec<_> = (0..20).map(|_| connect(ports[0])).collect();
    let _one = connect(ports[1]);
    vm.wait_offer(listeners[1]);
    let of_crowd = |message: &Message| matches!(message, Message::Offer(offer) if offer.listener == listeners[0]);
    let mut before = 0;
    while vm.has_message(of_crowd) {
        vm.wait_offer(listeners[0]);
        before += 1;
    }
    // Those that were taken before it came, and perhaps one that has not been looked at.
    assert!(before < 10, "{before} of the crowd came first");
}

#[test]
fn clients_wait_for_a_place_among_the_sockets() {
    let port = free_port();
    let host = Host::start(Policy {
        sockets: 1,
        ..policy(&[port])
    });
    let mut vm = host.join(21);
    let m = vm.next_endpoint();
    vm.listen(m, port, 5).unwrap();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        clients.push(client);
    }
    for _ in 0..4 {
        let offer = vm.wait_offer(m);
        let mut conn = vm.accept(offer);
        let is_it = |client: &&mut TcpStream| client.local_addr().unwrap() == offer.remote;
        let client = clients.iter_mut().find(is_it).unwrap();
        client.write_all(b"x").unwrap();
        assert_eq!(vm.read_exact(&mut conn, 1), b"x");
        assert_eq!(host.report().sockets, 1);
        vm.send_done(&conn, 0);
        vm.end(&mut conn);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    }
}

/// How often the program went to sleep until now.
fn count_sleeps(host: &Host) -> u64 {
    let path = format!("/proc/{}/status", host.child.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Asserts that the program does next to nothing. A token of a rate of one comes meanwhile.
fn assert_idle(host: &Host) {
    let before = (count_sleeps(host), ticks::count(host.child.id()));
    std::thread::sleep(Duration::from_secs(2));
    let after = (count_sleeps(host), ticks::count(host.child.id()));
    assert!(after.0 - before.0 < 20, "{before:?} {after:?}");
    assert!(after.1 - before.1 < 20, "{before:?} {after:?}");
}

#[test]
fn it_sleeps_while_nothing_can_be_done() {
    let listener = server();
    let address = listener.local_addr().unwrap();
    let port = free_port();
    let host = Host::start(policy(&[port]));
    let mut vm = host.join(21);
    // The guest does not read.
    let _unread = vm.connect(address).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[1; 65536]).is_ok() {}
    // The server does not read.
    let mut unsent = vm.connect(address).unwrap();
    let _idle = listener.accept().unwrap();
    while vm.write(&mut unsent, &[1; 65536]) > 0 || {
        vm.peer.flush();
        host.report();
        unsent.tx.count_space() > 0
    } {}
    // The guest reads no more, one side has ended, or nothing happens.
    let half = vm.connect(address).unwrap();
    let _open = listener.accept().unwrap();
    vm.send_done(&half, 0);
    let mut ended = vm.connect(address).unwrap();
    let _open = (_open, listener.accept().unwrap());
    vm.end(&mut ended);
    vm.connect(address).unwrap();
    drop(listener.accept().unwrap());
    // More clients than the backlog has.
    let m = vm.next_endpoint();
    vm.listen(m, port, 1).unwrap();
    let _first = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _second = TcpStream::connect(("127.0.0.1", port)).unwrap();
    vm.wait_offer(m);
    assert_eq!(host.report().sockets, 6);
    assert_idle(&host);
}

#[test]
fn it_sleeps_while_the_guest_does_not_read_what_came_before_a_reset() {
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let (mut conn, bytes) = common::reset_behind_full_ring(&host, &mut vm);
    vm.end(&mut conn);
    assert_idle(&host);
    assert!(vm.read_exact(&mut conn, bytes.len()) == bytes);
    vm.wait_other(abi::DONE, conn.own);
}

#[test]
fn it_sleeps_once_a_connection_that_waited_for_its_turn_is_gone() {
    let ports = [free_port(), free_port(), free_port()];
    let host = Host::start(Policy {
        arrival_rate: 1,
        arrival_burst: 1,
        ..policy(&ports)
    });
    let mut vm = host.join(21);
    for (port, what_ends) in ports.into_iter().zip(["client", "listener", "guest"]) {
        let m = vm.next_endpoint();
        let number = vm.listen(m, port, 5).unwrap();
        let _taken = TcpStream::connect(("127.0.0.1", port)).unwrap();
        vm.wait_offer(m);
        let waits = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // At the second one the program has looked at the backlog.
        (0..2).for_each(|_| drop(host.report()));
        match what_ends {
            "client" => {
                let at_once = libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                setsockopt(&waits, sockopt::Linger, &at_once).unwrap();
                drop(waits);
            }
            "listener" => vm.send_other(Other {
                r#type: abi::DONE,
                from: m,
                to: number,
                carrier: CARRIER,
                ..Other::default()
            }),
            _ => host.order(&Order::Departed, &[]),
        }
        assert_idle(&host);
    }
}
