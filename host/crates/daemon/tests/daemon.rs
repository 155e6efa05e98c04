// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon, from outside: over QEMU's socket, the guest's page, the region
//! and the control socket.
#![allow(missing_docs)]

mod common;
#[path = "../../unix/tests/lingering/mod.rs"]
mod lingering;
#[path = "../../cpus/tests/ticks/mod.rs"]
mod ticks;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::offset_of;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use hallway_abi::region as abi;
use hallway_control::{ask, Answer, Liveness, Query};
use hallway_membership::Uuid;
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{unshare, CloneFlags};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

#[test]
fn a_qemu_is_greeted_as_it_wants() {
    let daemon = Daemon::new();
    let qemu = Qemu::new(&daemon);
    assert_eq!(
        qemu.messages,
        [(0, false), (0, false), (-1, true), (1, true), (0, true)]
    );
    assert_eq!(qemu.page().read_u64(0), abi::PAGE_MAGIC);
    assert_eq!(qemu.page().read_u16(8), abi::MAJOR);
    let mode = std::fs::metadata(daemon.region_file())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn members_join_ring_each_other_and_leave() {
    let daemon = Daemon::new();
    let (region, memory) = (daemon.region(), region_memory(&daemon));
    let mut a = Qemu::new(&daemon);
    assert_eq!(a.join(region), abi::STATUS_OK);
    assert_eq!(
        (a.slot(), member_state(&memory, 1)),
        (1, abi::MEMBER_PRESENT)
    );
    assert_eq!(a.doorbell(0), abi::DAEMON_ID);
    let before = change(&memory);

    while a.rung() {}
    let mut b = Qemu::new(&daemon);
    b.ask(0, abi::COMMAND_JOIN, region, abi::MAJOR);
    until("both QEMUs have read, and both guests know", || {
        a.read();
        b.read();
        b.replied(0) == 1 && a.doorbell(2) != 0
    });
    assert_eq!(b.slot(), 2);
    assert_eq!(member_generation(&memory, 2), b.generation());
    assert_ne!(change(&memory), before);
    assert!(a.rung());
    a.reaches(&mut b);
    b.reaches(&mut a);

    let status = daemon.status();
    assert_eq!(status.regions[0].members.len(), 3);
    assert_eq!(status.regions[0].members[1].name, "guest?[1m");
    assert_eq!(status.regions[0].members[1].liveness, Liveness::Joining);
    assert_eq!(status.regions[0].members[0].liveness, Liveness::Alive);

    while a.rung() {}
    assert_eq!(b.leave(region), abi::STATUS_OK);
    until("a hears that b left", || a.rung());
    assert_eq!(member_state(&memory, 2), abi::MEMBER_ABSENT);
    assert_eq!((a.doorbell(2), b.doorbell(1)), (0, 0));

    // The same VM comes back: same slot, same doorbell, another generation.
    let (slot, generation) = (2, member_generation(&memory, 2));
    assert_eq!(b.join(region), abi::STATUS_OK);
    assert_eq!(b.slot(), slot);
    assert!(b.generation() > generation);
    a.reaches(&mut b);
    assert_eq!(a.messages.iter().filter(|(_, fd)| *fd).count(), 4);

    drop(b);
    until("b is noticed to be gone", || {
        member_state(&memory, 2) == abi::MEMBER_ABSENT
    });
    assert!(a.read());
}

#[test]
fn a_rebooted_guest_gets_a_new_generation_and_a_new_qemu_a_new_doorbell() {
    let daemon = Daemon::new();
    let region = daemon.region();
    let (mut a, mut b) = (Qemu::new(&daemon), Qemu::new(&daemon));
    a.join(region);
    b.join(region);
    let (slot, generation) = (b.slot(), b.generation());
    assert_eq!(b.join(region), abi::STATUS_OK);
    assert_eq!(b.slot(), slot);
    assert!(b.generation() > generation);
    a.reaches(&mut b);
    let id = a.doorbell(slot);

    let uuid = b.uuid;
    drop(b);
    let mut b = Qemu::new(&daemon);
    b.uuid = uuid;
    until("its UUID is free", || b.join(region) == abi::STATUS_OK);
    assert_eq!(b.slot(), slot);
    a.reaches(&mut b);
    assert!(a.doorbell(slot) > id, "an id was used twice");
}

#[test]
fn what_cannot_be_is_refused() {
    let daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    a.ask(0, abi::COMMAND_JOIN, region, abi::MAJOR + 6);
    assert_eq!(a.reply(0), abi::STATUS_VERSION);
    let versions = format!(
        "ABI version {}.{}, this hallwayd {}.{}",
        abi::MAJOR + 6,
        abi::MINOR,
        abi::MAJOR,
        abi::MINOR
    );
    assert!(daemon.log().contains(&versions));
    assert_eq!(a.join(Uuid::random().unwrap()), abi::STATUS_UNKNOWN);
    a.ask(0, 77, region, abi::MAJOR);
    assert_eq!(a.reply(0), abi::STATUS_INVALID);
    let uuid = std::mem::take(&mut a.uuid);
    assert_eq!(a.join(region), abi::STATUS_INVALID);
    a.uuid = uuid;
    assert_eq!(a.join(region), abi::STATUS_OK);

    // A second living VM with the same UUID.
    let mut twin = Qemu::new(&daemon);
    twin.uuid = a.uuid;
    let refusals = || -> Vec<_> {
        let all = daemon.status().connections.into_iter();
        all.filter_map(|one| one.refusal).collect()
    };
    assert!(refusals().is_empty(), "{:?}", refusals());
    assert_eq!(twin.join(region), abi::STATUS_DENIED);
    // Another request that is granted changes nothing about this one.
    assert_eq!(twin.leave(Uuid::random().unwrap()), abi::STATUS_OK);
    let refused = refusals();
    assert_eq!((refused.len(), &refused[0].vm), (1, &a.uuid.to_string()));
    assert!(refused[0].why.contains("start each QEMU with a -uuid"));
    drop(a);
    until("its UUID is free", || twin.join(region) == abi::STATUS_OK);
    assert!(refusals().is_empty(), "{:?}", refusals());

    // Four slots, one of them the host's.
    let mut others = [Qemu::new(&daemon), Qemu::new(&daemon)];
    for other in &mut others {
        assert_eq!(other.join(region), abi::STATUS_OK);
    }
    let mut last = Qemu::new(&daemon);
    assert_eq!(last.join(region), abi::STATUS_FULL);
    others[0].leave(region);
    assert_eq!(last.join(region), abi::STATUS_OK);
}

#[test]
fn a_scribbled_header_is_put_back() {
    let daemon = Daemon::new();
    let memory = region_memory(&daemon);
    let copy: [u8; 8320] = memory.read_bytes(0);
    memory.write_bytes(0, &[0xff; 8320]);
    until("the header is back", || {
        memory.read_bytes::<8320>(0) == copy
    });
    assert!(daemon.status().regions[0].repairs > 0);
}

/// A member may write another key into the region: guests compare it with this one.
#[test]
fn the_page_has_the_key_that_the_daemon_gave() {
    let daemon = Daemon::new();
    let (region, memory) = (daemon.region(), region_memory(&daemon));
    let at = offset_of!(abi::Region, key);
    let key: [u8; 8] = memory.read_bytes(at);
    let mut qemu = Qemu::new(&daemon);
    for entry in [0, 7] {
        assert_ne!(qemu.region_key(entry), key);
        memory.write_bytes(at, &[0x55; 16]);
        qemu.ask(entry, abi::COMMAND_JOIN, region, abi::MAJOR);
        assert_eq!(qemu.reply(entry), abi::STATUS_OK);
        assert_eq!(qemu.region_key(entry), key);
    }
}

#[test]
fn a_killed_daemon_is_replaced() {
    let mut daemon = Daemon::new();
    let (region, memory) = (daemon.region(), region_memory(&daemon));
    let (mut a, mut b) = (Qemu::new(&daemon), Qemu::new(&daemon));
    a.join(region);
    b.join(region);
    a.reaches(&mut b);
    let generations = (a.generation(), b.generation());

    daemon.kill();
    // Rings go on working; a QEMU that connects now waits; a guest asks; one
    // scribbles; one dies.
    a.reaches(&mut b);
    let mut c = Qemu::connect(&daemon);
    assert!(c.read());
    assert!(c.messages.is_empty());
    let mut d = Qemu::connect(&daemon);
    memory.write_bytes(0, &[0; 4096]);
    b.ask(0, abi::COMMAND_LEAVE, region, abi::MAJOR);
    daemon.start();
    assert_eq!(daemon.region(), region);
    assert_eq!(b.reply(0), abi::STATUS_OK);
    assert_eq!(member_state(&memory, 1), abi::MEMBER_PRESENT);
    assert_eq!(member_state(&memory, 2), abi::MEMBER_ABSENT);
    assert_eq!(b.join(region), abi::STATUS_OK);
    assert_eq!((a.slot(), b.slot(), a.generation()), (1, 2, generations.0));
    assert!(b.generation() > generations.1);

    // A VM booted afterwards is introduced to the old ones.
    for qemu in [&mut c, &mut d] {
        until("a greeting after all", || {
            qemu.read();
            qemu.messages.len() >= 5
        });
    }
    assert_eq!(c.join(region), abi::STATUS_OK);
    c.reaches(&mut a);
    b.reaches(&mut c);
    assert_eq!(daemon.status().recovered_connections, 2);

    // A VM that dies while there is no daemon is noticed by the next.
    daemon.kill();
    drop(c);
    daemon.start();
    until("c is noticed to be gone", || {
        member_state(&memory, 3) == abi::MEMBER_ABSENT
    });
    a.reaches(&mut b);
}

#[test]
fn killed_again_and_again() {
    let mut daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    a.join(region);
    for _ in 0..10 {
        let mut b = Qemu::new(&daemon);
        b.ask(0, abi::COMMAND_JOIN, region, abi::MAJOR);
        daemon.kill();
        daemon.start();
        assert_eq!(b.reply(0), abi::STATUS_OK);
        a.reaches(&mut b);
        b.reaches(&mut a);
    }
}

#[test]
fn a_killed_holder_is_replaced() {
    let mut daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    a.join(region);
    let first = daemon.holder_pid();
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    until("another holder", || {
        daemon.run().join("holder.sock").exists()
            && daemon.log().contains("starting another")
            && std::fs::read(format!("/proc/{first}/cmdline")).is_err_or_empty()
    });
    until("the state is safe again", || {
        daemon.status();
        daemon.holder_pid() != first
    });
    daemon.kill();
    daemon.start();
    assert_eq!(daemon.status().recovered_connections, 1);
    let mut b = Qemu::new(&daemon);
    b.join(region);
    b.reaches(&mut a);
}

trait ErrOrEmpty {
    fn is_err_or_empty(&self) -> bool;
}

impl ErrOrEmpty for std::io::Result<Vec<u8>> {
    fn is_err_or_empty(&self) -> bool {
        self.as_ref().map_or(true, Vec::is_empty)
    }
}

#[test]
fn a_qemu_that_does_not_read_holds_up_nobody() {
    let daemon = Daemon::new();
    let region = daemon.region();
    let mut deaf = Qemu::new(&daemon);
    deaf.join(region);
    deaf.reads = false;
    let mut a = Qemu::new(&daemon);
    assert_eq!(a.join(region), abi::STATUS_OK);
    assert_ne!(a.doorbell(deaf.slot()), 0);
    let heard = deaf.doorbells.len();
    assert_eq!(
        deaf.doorbell(a.slot()),
        0,
        "received an id that its QEMU has not read"
    );

    // Enough of them to fill its socket.
    let memory = region_memory(&daemon);
    for _ in 0..400 {
        until("the last one is missed", || {
            member_state(&memory, 3) == abi::MEMBER_ABSENT
        });
        let mut passing = Qemu::new(&daemon);
        until("a has read", || a.read());
        passing.ask(0, abi::COMMAND_JOIN, region, abi::MAJOR);
        until("the next one is in", || {
            passing.read() && a.read() && passing.replied(0) != 0
        });
        assert_eq!(passing.slot(), 3);
    }
    deaf.reads = true;
    a.reaches(&mut deaf);
    deaf.reaches(&mut a);
    assert!(deaf.doorbells.len() > heard);
}

#[test]
fn a_qemu_that_fills_its_doorbells_delays_no_other() {
    let mut daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    assert_eq!(a.join(region), abi::STATUS_OK);
    // The daemon reads from none that QEMU could have emptied just before.
    let ask = &a.doorbells[&abi::DAEMON_ID];
    assert!(nix::unistd::read(ask, &mut [0; 8]).is_ok());
    a.fill_doorbells();
    let mut b = Qemu::new(&daemon);
    assert_eq!(b.join(region), abi::STATUS_OK);
    daemon.kill();
    daemon.start();
    assert_eq!(b.leave(region), abi::STATUS_OK);
    assert_eq!(Qemu::new(&daemon).join(region), abi::STATUS_OK);
}

#[test]
fn of_one_users_qemus_the_newest_are_refused_once_they_are_too_many() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let daemon = Daemon::new();
    let mut all = vec![Qemu::new(&daemon)];
    all.extend((1..1024).map(|_| Qemu::connect(&daemon)));
    let mut last = Qemu::connect(&daemon);
    until("it hears that it is refused", || !last.read());
    assert!(last.messages.is_empty());
    assert!(daemon.log().contains("its user has 1024 connections"));
    assert_eq!(daemon.status().connections.len(), 1024);
    for _ in 0..500 {
        drop(Qemu::connect(&daemon));
    }
    until("they are counted", || {
        daemon.log().contains("refused within a second, too many")
    });
    let lines = daemon.log().matches("refused: its user").count();
    let seconds = daemon.status().uptime_seconds as usize + 1;
    assert!(lines <= 8 * (seconds + 1), "{lines} lines in {seconds} s");
    assert_eq!(all[0].join(daemon.region()), abi::STATUS_OK);

    // One leaves, and there is room for one.
    drop(all.pop());
    until("it is noticed to be gone", || {
        daemon.status().connections.len() < 1024
    });
    let mut next = Qemu::new(&daemon);
    assert_eq!(next.join(daemon.region()), abi::STATUS_OK);
}

#[test]
fn a_flood_of_requests_is_throttled_and_answered() {
    let daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    for _ in 0..80 {
        assert_eq!(a.join(region), abi::STATUS_OK);
    }
    let mut b = Qemu::new(&daemon);
    assert_eq!(b.join(region), abi::STATUS_OK);
}

#[test]
fn a_second_daemon_is_refused() {
    let daemon = Daemon::new();
    let said = daemon.refused(&[]);
    assert!(
        said.contains(&format!("runs already for {}", daemon.run().display())),
        "{said}"
    );
    assert!(said.contains(&daemon.child.id().to_string()), "{said}");
}

#[test]
fn a_daemon_that_is_refused_leaves_the_socket_of_another() {
    let (daemon, mut other) = (Daemon::new(), Daemon::new());
    other.kill();
    assert!(other.other(&["--stop"]).status.success());
    let socket = daemon.run().join("hallwayd.sock");
    let arguments = ["--socket", socket.to_str().unwrap()];
    assert!(other
        .refused(&arguments)
        .contains("another program listens"));
    // Nor does it leave a holder, which would have it start as its own successor.
    assert!(!other.run().join("holder.sock").exists());
    let stop = [arguments[0], arguments[1], "--stop"];
    std::fs::create_dir(other.run()).unwrap();
    assert!(other.other(&stop).status.success());
    let mut a = Qemu::new(&daemon);
    assert_eq!(a.join(daemon.region()), abi::STATUS_OK);
    // For the end of the test.
    other.start();
}

#[test]
fn a_second_daemon_does_not_touch_the_regions_of_the_first() {
    let daemon = Daemon::new();
    let mut a = Qemu::new(&daemon);
    a.join(daemon.region());
    let other = |more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_hallwayd"))
            .arg("--run-dir")
            .arg(daemon.dir.join("other"))
            .arg("--region-dir")
            .arg(daemon.dir.join("mem"))
            .args(["--region", "default:16M:4"])
            .args(more)
            .output()
            .unwrap()
    };
    let output = other(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("served by another hallwayd"),
        "{said}"
    );
    assert!(other(&["--stop"]).status.success());
    assert!(daemon.region_file().exists());
    let present = |m: &&hallway_control::Member| m.liveness != Liveness::Absent && !m.host;
    assert_eq!(
        daemon.status().regions[0]
            .members
            .iter()
            .filter(present)
            .count(),
        1
    );
}

#[test]
fn memory_in_a_directory_of_others_is_refused() {
    let mut daemon = Daemon::new();
    daemon.kill();
    assert!(daemon.other(&["--stop"]).status.success());
    let dir = daemon.dir.join("mem");
    std::fs::create_dir_all(&dir).unwrap();
    let mode = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode));
    mode(0o777).unwrap();
    let said = daemon.refused(&[]);
    assert!(said.contains("give another --region-dir"), "{said}");
    mode(0o1777).unwrap();
    daemon.start();
}

#[test]
fn a_socket_in_a_directory_of_others_is_refused() {
    let daemon = Daemon::new();
    let dir = daemon.dir.join("open");
    std::fs::create_dir(&dir).unwrap();
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&dir, mode).unwrap();
    let socket = dir.join("q.sock");
    let said = daemon.refused(&["--socket", socket.to_str().unwrap()]);
    assert!(said.contains("give another --socket"), "{said}");
}

#[test]
fn what_takes_the_place_of_the_socket_is_not_given_to_the_group() {
    let mut daemon = Daemon::new();
    // The holder keeps the listening socket.
    let _qemu = Qemu::new(&daemon);
    daemon.kill();
    let (socket, secret) = (
        daemon.run().join("hallwayd.sock"),
        daemon.dir.join("secret"),
    );
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, mode).unwrap();
    let group = nix::unistd::Group::from_gid(nix::unistd::getgid());
    let group = group.unwrap().unwrap().name;
    for hard in [false, true] {
        std::fs::remove_file(&socket).unwrap();
        if hard {
            std::fs::hard_link(&secret, &socket).unwrap();
        } else {
            std::os::unix::fs::symlink(&secret, &socket).unwrap();
        }
        let said = daemon.refused(&["--group", &group]);
        assert!(said.contains("is no socket"), "{said}");
        let after = std::fs::metadata(&secret).unwrap().permissions();
        assert_eq!(after.mode() & 0o7777, 0o600);
    }
}

/// Runs a hallwayd that fails at once; what it says.
fn says(arguments: &[&str]) -> String {
    let mut hallwayd = Command::new(env!("CARGO_BIN_EXE_hallwayd"));
    let output = hallwayd.args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_options_are_named_with_a_remedy() {
    let dir = std::env::temp_dir().join(format!("hwo-{}", std::process::id()));
    let path = |name: &str| dir.join(name).to_str().unwrap().to_string();
    let (run, mem) = (path("run"), path("mem"));
    std::fs::create_dir_all(&mem).unwrap();
    let config = path("config");
    std::fs::write(&config, "").unwrap();
    let with = |more: &[&str]| says(&[&["--run-dir", &run, "--region-dir", &mem], more].concat());
    let long = path(&"x".repeat(100));
    assert!(says(&["--run-dir", &long]).contains("shorter --"));
    assert!(with(&["--group", "nosuch"]).contains("no group nosuch"));
    assert!(with(&["--group", "4294967294"]).contains("no group 4294967294"));
    assert!(with(&["--log-level", "loud"]).contains("[possible values: error, warn"));
    let check = ["--check-config", "--stop", "--config", &config];
    assert!(with(&check).contains("cannot be used with"));
    assert!(with(&["--region", "a:8M:2", "--region", "a:8M:2"]).contains("asked for twice"));
    assert!(!dir.join("mem/a").exists());
    nix::unistd::mkfifo(&dir.join("mem/a"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(with(&["--region", "a:8M:2"]).contains("is no plain file"));
    std::fs::remove_file(dir.join("mem/a")).unwrap();
    std::os::unix::fs::symlink(&config, dir.join("mem/a")).unwrap();
    assert!(with(&["--region", "a:8M:2"]).contains("is no plain file"));
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&config, open).unwrap();
    assert!(with(&["--config", &config]).contains("other users may change it"));
    let holder = Command::new(env!("CARGO_BIN_EXE_hallwayd"))
        .arg("--holder")
        .stdin(std::process::Stdio::null())
        .output();
    let said = String::from_utf8_lossy(&holder.unwrap().stderr).into_owned();
    assert!(said.contains("is for hallwayd itself"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_start_that_is_refused_leaves_nothing_behind() {
    let dir = std::env::temp_dir().join(format!("hwr-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_string();
    let said = says(&[
        "--run-dir",
        &path("run"),
        "--region-dir",
        &path("mem"),
        "--region",
        "good:8M:2",
        "--region",
        "huge:1048576G",
    ]);
    assert!(said.contains("make the region smaller"), "{said}");
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn stop_does_not_wait_for_what_only_has_a_regions_name() {
    let mut daemon = Daemon::new();
    daemon.kill();
    let holder = daemon.holder_pid();
    kill(Pid::from_raw(holder), Signal::SIGKILL).unwrap();
    let command = format!("/proc/{holder}/cmdline");
    until("the holder is gone", || {
        std::fs::read(&command).map_or(true, |words| words.is_empty())
    });
    std::fs::remove_file(daemon.region_file()).unwrap();
    nix::unistd::mkfifo(&daemon.region_file(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(daemon.other(&["--stop"]).status.success());
    assert!(daemon.region_file().exists());
}

#[test]
fn a_configuration_that_serves_nothing_says_so() {
    let daemon = Daemon::configured(&[], Some("[limits]\nhost = \"1G\"\n"));
    assert!(daemon.log().contains("all VMs stay on TCP"));
    let output = daemon.other(&["--check-config"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("no [[group]]"));
}

#[test]
fn idle_clients_of_the_control_socket_keep_no_other_out() {
    let daemon = Daemon::new();
    let path = hallway_control::socket(&daemon.run());
    let idle: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    assert_eq!(daemon.status().regions.len(), 1);
    assert!(daemon.other(&["--stop"]).status.success());
    drop(idle);
}

/// Has a new peer of a socket of the daemon send a descriptor the last close of which waits.
/// The daemon goes on once it has.
fn send_lingering(daemon: &Daemon, name: &str) -> UnixStream {
    let path = daemon.run().join(name);
    accept_descriptors(daemon.child.id(), &path);
    daemon.signal(Signal::SIGSTOP);
    let peer = UnixStream::connect(path).unwrap();
    let (stream, listener) = lingering::open();
    lingering::send(&peer, &stream).unwrap();
    // The last close is the daemon's, and waits as long as the other end is there.
    drop(stream);
    std::mem::forget(listener);
    daemon.signal(Signal::SIGCONT);
    peer
}

#[test]
fn descriptors_that_peers_send_make_the_daemon_wait_for_nothing() {
    let daemon = Daemon::new();
    for name in ["hallwayd.sock", "control.sock"] {
        let _peer = send_lingering(&daemon, name);
        assert!(answers(&daemon), "{name}");
    }
}

#[test]
fn descriptors_that_a_qemu_sends_which_cannot_be_served_make_the_daemon_wait_for_nothing() {
    let daemon = Daemon::new();
    let pid = daemon.child.id() as i32;
    let is_free = |fd: &u64| !Path::new(&format!("/proc/{pid}/fd/{fd}")).is_symlink();
    // The first one is for its socket.
    limit_descriptors(pid, (0..).filter(is_free).nth(1).unwrap());
    let _peer = send_lingering(&daemon, "hallwayd.sock");
    until("a refusal", || daemon.log().contains("cannot serve a QEMU"));
    limit_descriptors(pid, 1024);
    assert!(answers(&daemon));
}

const NOBODY: u32 = 65534;

/// Asks as another user with these groups: a thread that alone becomes that. It enters the
/// directory before, which may lie where that user may not go.
fn ask_as(daemon: &Daemon, gid: u32, groups: Vec<u32>, query: Query) -> anyhow::Result<Answer> {
    let run = daemon.run();
    let asked = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS).unwrap();
        nix::unistd::chdir(&run).unwrap();
        let count = groups.len();
        // SAFETY: the calls take numbers, and a vector that lives. libc's own would change
        // all threads.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_setgroups, count, groups.as_ptr()),
                libc::syscall(libc::SYS_setresgid, gid, gid, gid),
                libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY),
            ]
        };
        assert_eq!(results, [0; 3], "{}", std::io::Error::last_os_error());
        ask(Path::new("."), query)
    });
    asked.join().unwrap()
}

#[test]
fn members_of_the_status_group_may_ask_for_the_status_and_for_nothing_else() {
    if !nix::unistd::geteuid().is_root() {
        return; // It cannot become another user.
    }
    // A group that each Debian has.
    let name = "daemon";
    let group = nix::unistd::Group::from_name(name).unwrap().unwrap().gid;
    let group = group.as_raw();
    let mut daemon = Daemon::new();
    assert!(daemon.other(&["--stop"]).status.success());
    daemon.child.wait().unwrap();
    daemon.words = vec!["--status-group", name];
    daemon.start();
    // More groups than most have.
    let many: Vec<u32> = (70_000..70_100).chain([group]).collect();
    for (gid, groups) in [(NOBODY, vec![group]), (group, vec![]), (NOBODY, many)] {
        let answer = ask_as(&daemon, gid, groups.clone(), Query::Status).unwrap();
        assert!(matches!(answer, Answer::Status(_)), "{answer:?}");
        for query in [
            Query::Stop,
            Query::Reload,
            Query::Migration { vm: "a".into() },
            Query::Release {
                vm: "a".into(),
                timeout: 1,
                reset_outsourced: true,
            },
            Query::ReleaseStage { vm: "a".into() },
            Query::Resume { vm: "a".into() },
        ] {
            let answer = ask_as(&daemon, gid, groups.clone(), query).unwrap();
            let is_refused = matches!(&answer, Answer::Error { message } if message.starts_with("not permitted"));
            assert!(is_refused, "{answer:?}");
        }
    }
    let error = ask_as(&daemon, NOBODY, vec![], Query::Status).unwrap_err();
    assert!(error.to_string().contains("not permitted"), "{error}");
    assert!(ask(&daemon.run(), Query::Stop).is_ok());
    daemon.child.wait().unwrap();
}

#[test]
fn a_hangup_of_the_terminal_ends_nothing() {
    let daemon = Daemon::new();
    daemon.signal(Signal::SIGHUP);
    until("the signal is heard", || {
        daemon.log().contains("no configuration to read")
    });
    assert_eq!(daemon.status().pid, daemon.child.id());
}

#[test]
fn the_service_manager_is_notified_when_qemu_can_connect() {
    let mut daemon = Daemon::new();
    daemon.kill();
    let manager = UnixDatagram::bind(daemon.dir.join("notify.sock")).unwrap();
    let patience = Some(Duration::from_secs(60));
    manager.set_read_timeout(patience).unwrap();
    daemon.start();
    let mut message = [0; 100];
    let length = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
}

#[test]
fn lines_for_the_journal_have_a_priority() {
    let dir = std::env::temp_dir().join(format!("hwj-{}", std::process::id()));
    let start = |config: &str, is_journal: bool| {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let stream = nix::sys::stat::fstat(&writer).unwrap();
        // A program that a service has started inherits the name of the service's stream.
        let inode = stream.st_ino + u64::from(!is_journal);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hallwayd"));
        command
            .args(["--config", config, "--run-dir"])
            .arg(&dir)
            .env("JOURNAL_STREAM", format!("{}:{inode}", stream.st_dev))
            .stderr(writer);
        (
            command.spawn().unwrap(),
            BufReader::new(File::from(reader)).lines(),
        )
    };
    // The error at its end is a line like the others.
    for (is_journal, begin) in [(true, "<3>hallwayd: "), (false, "hallwayd: ")] {
        let (mut child, mut lines) = start("/nowhere", is_journal);
        let error = lines.next().unwrap().unwrap();
        assert!(error.starts_with(begin), "{error}");
        assert!(!child.wait().unwrap().success());
    }
    let (mut child, mut lines) = start("/dev/null", true);
    let mut next = || lines.next().unwrap().unwrap();
    let (warning, ready) = (next(), next());
    assert!(warning.starts_with("<4> WARN neither"), "{warning}");
    assert!(ready.starts_with("<6> INFO ready"), "{ready}");
    let pid = Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_holder_that_stands_still_is_named() {
    let mut daemon = Daemon::new();
    let _qemu = Qemu::new(&daemon);
    let holder = Pid::from_raw(daemon.holder_pid());
    daemon.kill();
    kill(holder, Signal::SIGSTOP).unwrap();
    for arguments in [&[][..], &["--stop"]] {
        let said = daemon.refused(arguments);
        assert!(said.contains("hallwayd-holder) does not answer"), "{said}");
    }
    kill(holder, Signal::SIGCONT).unwrap();
    daemon.start();
    assert_eq!(daemon.status().recovered_connections, 1);
}

#[test]
fn qemus_that_come_and_go_in_a_loop_do_not_fill_the_log() {
    let daemon = Daemon::new();
    for _ in 0..2000 {
        drop(UnixStream::connect(daemon.run().join("hallwayd.sock")).unwrap());
    }
    until("all are gone, and counted", || {
        daemon.status().connections.is_empty() && daemon.log().contains("too many to log each")
    });
    let lines = daemon.log().matches("QEMU connected").count();
    let seconds = daemon.status().uptime_seconds as usize + 1;
    assert!(lines <= 32 * (seconds + 1), "{lines} lines in {seconds} s");
    // Nor do those that are refused, or are members.
    let region = daemon.region();
    let begun = Instant::now();
    for _ in 0..500 {
        let mut member = Qemu::new(&daemon);
        let unknown = Uuid::random().unwrap();
        assert_ne!(member.join(unknown), abi::STATUS_OK);
        assert_eq!(member.join(region), abi::STATUS_OK);
    }
    until("all are gone", || daemon.status().connections.is_empty());
    let seconds = begun.elapsed().as_secs() as usize + 2;
    let log = daemon.log();
    let refused = log.matches("which is not served here").count();
    assert!(refused <= 8 * seconds, "{refused} in {seconds} s");
    let gone = log.matches("its QEMU is gone").count();
    assert!(gone <= lines + 64 * seconds, "{gone} in {seconds} s");
    // A member's end is not lost among those of others.
    let mut member = Qemu::new(&daemon);
    until("lines are left", || {
        assert_eq!(member.join(region), abi::STATUS_OK);
        for _ in 0..100 {
            drop(UnixStream::connect(daemon.run().join("hallwayd.sock")).unwrap());
        }
        let number = daemon.status().connections[0].connection;
        member = Qemu::new(&daemon);
        until("it is gone", || {
            let mut all = daemon.status().connections.into_iter();
            all.all(|one| one.connection != number)
        });
        let end = format!("(connection {number}, ");
        let log = daemon.log();
        let mut its = log.lines().filter(|line| line.contains(&end));
        its.any(|line| line.contains("its QEMU is gone"))
    });
}

#[test]
fn qemus_that_come_and_go_take_no_descriptors_for_one_that_does_not_read() {
    let daemon = Daemon::new();
    let (region, pid) = (daemon.region(), daemon.child.id() as i32);
    let mut member = Qemu::new(&daemon);
    assert_eq!(member.join(region), abi::STATUS_OK);
    member.reads = false;
    let before = descriptors(pid);
    for _ in 0..1000 {
        let mut other = Qemu::new(&daemon);
        assert_eq!(other.join(region), abi::STATUS_OK);
    }
    let grown = descriptors(pid) - before;
    assert!(grown < 300, "{grown} more");
    // What there was no place for comes once it reads.
    let mut last = Qemu::new(&daemon);
    assert_eq!(last.join(region), abi::STATUS_OK);
    member.reads = true;
    member.reaches(&mut last);
    last.reaches(&mut member);
}

fn descriptors(pid: i32) -> u64 {
    let folder = format!("/proc/{pid}/fd");
    std::fs::read_dir(folder).unwrap().count() as u64
}

#[test]
fn clients_without_a_descriptor_for_them_take_no_cpu() {
    let daemon = Daemon::new();
    let pid = daemon.child.id() as i32;
    let is_free = |fd: &u64| !Path::new(&format!("/proc/{pid}/fd/{fd}")).is_symlink();
    limit_descriptors(pid, (0..).find(is_free).unwrap());
    let client = UnixStream::connect(daemon.run().join("control.sock")).unwrap();
    let before = ticks::count(daemon.child.id());
    std::thread::sleep(Duration::from_secs(2));
    let spent = ticks::count(daemon.child.id()) - before;
    assert!(spent < 60, "{spent} of 200");
    limit_descriptors(pid, 1024);
    drop(client);
    daemon.status();
}

fn limit_descriptors(pid: i32, number: u64) {
    let limit = libc::rlimit {
        rlim_cur: number,
        rlim_max: 1024,
    };
    let kind = libc::RLIMIT_NOFILE;
    // SAFETY: the limit is read, and nothing is written.
    let result = unsafe { libc::prlimit(pid, kind, &limit, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// A holder that was just started has yet to load, and to take in what it was sent: the
/// state that has the one connection greeted comes last.
fn until_kept(holder: i32) {
    until("the holder has all", || {
        let fds = std::fs::read_dir(format!("/proc/{holder}/fd")).unwrap();
        fds.flatten().map(|fd| fd.path()).any(|fd| {
            let link = std::fs::read_link(&fd).unwrap_or_default();
            link.to_string_lossy().contains("memfd:hallway-state")
                && std::fs::read_to_string(&fd)
                    .is_ok_and(|state| state.contains(r#""greeted":true"#))
        })
    });
}

#[test]
fn a_holder_that_can_keep_no_more_ends_when_another_takes_its_place() {
    let mut daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    assert_eq!(a.join(region), abi::STATUS_OK);
    let first = daemon.holder_pid();
    until_kept(first);
    limit_descriptors(first, descriptors(first) + 1);
    let _b = Qemu::new(&daemon);
    until("the first one ends", || {
        std::fs::read(format!("/proc/{first}/cmdline")).is_err_or_empty()
    });
    until("another holder", || daemon.holder_pid() != first);
    daemon.status();
    daemon.kill();
    daemon.start();
    assert_eq!(daemon.status().recovered_connections, 2);
}

#[test]
fn a_holder_that_cannot_accept_a_daemon_keeps_the_vms() {
    let mut daemon = Daemon::new();
    let _qemu = Qemu::new(&daemon);
    let holder = daemon.holder_pid();
    until_kept(holder);
    limit_descriptors(holder, 3);
    daemon.kill();
    assert!(daemon.refused(&["--stop"]).contains("does not answer"));
    limit_descriptors(holder, 1024);
    daemon.start();
    assert_eq!(daemon.status().recovered_connections, 1);
}

#[test]
fn a_holder_that_could_not_be_started_is_started_later() {
    let daemon = Daemon::new();
    let (pid, first) = (daemon.child.id() as i32, daemon.holder_pid());
    limit_descriptors(pid, descriptors(pid));
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    until("it cannot be started", || {
        daemon.log().contains("no holder")
    });
    limit_descriptors(pid, 1024);
    until("another holder", || daemon.holder_pid() != first);
}

#[test]
fn the_daemon_takes_no_more_connections_than_it_has_descriptors_for() {
    let daemon = Daemon::new();
    limit_descriptors(daemon.child.id() as i32, 128);
    let _all: Vec<_> = (0..30).map(|_| Qemu::connect(&daemon)).collect();
    until("some are refused", || {
        daemon.log().contains("refused: hallwayd")
    });
    assert_eq!(daemon.status().connections.len(), 24);
    assert!(!daemon.log().contains("cannot"));
}

#[test]
fn a_qemu_that_runs_out_of_descriptors_is_named_before_it_has_none() {
    let daemon = Daemon::new();
    let mut sleep = Command::new("sleep");
    let (mut qemu, process) = Qemu::in_process(&daemon, {
        sleep.arg("1000");
        sleep
    });
    let limit = |number| limit_descriptors(process.0.id() as i32, number);
    // Its loader opens libraries before: 230 is clock_nanosleep().
    until("it sleeps", || {
        std::fs::read_to_string(format!("/proc/{}/syscall", process.0.id()))
            .is_ok_and(|call| call.starts_with("230 "))
    });
    let fds = descriptors(process.0.id() as i32);
    let problem = |daemon: &Daemon| daemon.status().connections[0].problem.clone();
    // A QEMU gets no descriptors of peers before its guest is a member.
    limit(fds);
    let before = daemon.status().uptime_seconds;
    until("the daemon had time to look", || {
        daemon.status().uptime_seconds > before + 1
    });
    assert_eq!(problem(&daemon), None);
    limit(2 * fds);
    assert_eq!(qemu.join(daemon.region()), abi::STATUS_OK);
    let before = daemon.status().uptime_seconds;
    until("the daemon has looked", || {
        daemon.status().uptime_seconds > before + 1
    });
    assert_eq!(problem(&daemon), None);
    limit(fds);
    let mut other = Qemu::new(&daemon);
    assert_eq!(other.join(daemon.region()), abi::STATUS_OK);
    qemu.read();
    until("that is shown", || problem(&daemon).is_some());
    assert!(daemon
        .log()
        .contains(&format!("has {fds} of {fds} descriptors")));
    limit(1024);
    until("that is over", || problem(&daemon).is_none());
}

/// The region's file, as a member of its group has it.
fn opened(daemon: &Daemon) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true);
    options.open(daemon.region_file()).unwrap()
}

#[test]
fn a_member_that_truncates_the_regions_file_ends_no_daemon_and_keeps_none_from_starting() {
    let mut daemon = Daemon::new();
    let (region, file) = (daemon.region(), opened(&daemon));
    let mut a = Qemu::new(&daemon);
    assert_eq!(a.join(region), abi::STATUS_OK);
    let is_whole = || file.metadata().unwrap().len() == SIZE;
    for length in [0, 100, 12288] {
        file.set_len(length).unwrap();
        until("the file is whole again", is_whole);
        assert_eq!(daemon.region(), region);
    }
    assert!(daemon
        .log()
        .contains("changed the length of the region's file"));
    daemon.kill();
    file.set_len(0).unwrap();
    daemon.start();
    until("the file is whole again", is_whole);
    assert!(file.metadata().unwrap().blocks() * 512 >= SIZE);
    let memory = region_memory(&daemon);
    assert_eq!(member_state(&memory, a.slot()), abi::MEMBER_PRESENT);
    let mut b = Qemu::new(&daemon);
    assert_eq!(b.join(region), abi::STATUS_OK);
    b.reaches(&mut a);
}

#[test]
fn a_member_that_truncates_the_regions_file_in_a_loop_keeps_the_daemon_from_nothing() {
    let daemon = Daemon::new();
    let file = opened(&daemon);
    let begun = Instant::now();
    let mut mends = 0;
    while begun.elapsed() < Duration::from_millis(1500) {
        if file.metadata().unwrap().len() == SIZE {
            mends += 1;
            file.set_len(0).unwrap();
        }
        // The loop looks whenever it has something to do.
        daemon.status();
    }
    assert!(mends <= 3, "{mends} times");
}

#[test]
fn a_member_that_locks_the_regions_file_keeps_no_daemon_from_starting() {
    let mut daemon = Daemon::new();
    let mut a = Qemu::new(&daemon);
    a.join(daemon.region());
    daemon.kill();
    let file = opened(&daemon);
    let _lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    daemon.start();
    assert_eq!(daemon.status().recovered_connections, 1);
}

#[test]
fn a_file_in_use_stays_when_the_directory_for_files_is_another() {
    let mut daemon = Daemon::new();
    let mut a = Qemu::new(&daemon);
    let region = daemon.region();
    a.join(region);
    daemon.kill();
    daemon.mem = "mem2";
    daemon.start();
    assert_eq!(daemon.region(), region);
    assert!(daemon.log().contains("until hallwayd --stop"));
    assert!(daemon.region_file().exists() && !daemon.dir.join("mem2/default").exists());
}

#[test]
fn foreign_region_files_are_refused() {
    let mut daemon = Daemon::new();
    daemon.kill();
    assert!(daemon.other(&["--stop"]).status.success());
    std::fs::create_dir_all(daemon.dir.join("mem")).unwrap();
    std::fs::create_dir_all(daemon.run()).unwrap();
    std::fs::write(daemon.region_file(), vec![7; SIZE as usize]).unwrap();
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(daemon.region_file(), permissions).unwrap();
    };
    mode(0o644);
    let said = daemon.refused(&[]);
    assert!(said.contains("chmod 0600"), "{said}");
    mode(0o600);
    let said = daemon.refused(&[]);
    assert!(said.contains("is not a Hallway region"), "{said}");
}

#[test]
fn stop_leaves_nothing_behind() {
    let mut daemon = Daemon::new();
    let mut a = Qemu::new(&daemon);
    a.join(daemon.region());
    let holder = daemon.holder_pid();
    let output = daemon.other(&["--stop"]);
    assert!(output.status.success(), "{output:?}");
    daemon.child.wait().unwrap();
    until("its QEMU hears of it", || !a.read());
    assert!(!daemon.run().exists() && !daemon.dir.join("mem").exists());
    until("the holder is gone", || {
        std::fs::read(format!("/proc/{holder}/cmdline")).is_err_or_empty()
    });

    // Likewise after a crash.
    daemon.start();
    let a = Qemu::new(&daemon);
    daemon.kill();
    assert!(daemon.other(&["--stop"]).status.success());
    assert!(!daemon.run().exists() && !daemon.dir.join("mem").exists());
    drop(a);
    // And when there was nothing.
    assert!(daemon.other(&["--stop"]).status.success());
}

#[test]
fn a_signal_keeps_vms_and_only_them() {
    let mut daemon = Daemon::new();
    let region = daemon.region();
    let mut a = Qemu::new(&daemon);
    a.join(region);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.child.wait().unwrap().success());
    assert!(a.read());
    daemon.start();
    assert_eq!(daemon.status().recovered_connections, 1);
    assert_eq!(a.join(region), abi::STATUS_OK);

    drop(a);
    until("a is noticed to be gone", || {
        daemon.status().connections.is_empty()
    });
    let holder = daemon.holder_pid();
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.child.wait().unwrap().success());
    until("the holder is gone", || {
        std::fs::read(format!("/proc/{holder}/cmdline")).is_err_or_empty()
    });
    assert!(!daemon.run().join("hallwayd.sock").exists());
    // A file that stayed could be spoilt, and the next daemon would refuse it.
    assert!(!daemon.region_file().exists());
    daemon.start();
    assert_ne!(daemon.region(), region);
}

#[test]
fn a_member_shows_what_it_publishes() {
    let daemon = Daemon::new();
    let memory = region_memory(&daemon);
    let mut a = Qemu::new(&daemon);
    a.join(daemon.region());
    let base = slice_offset(&memory, a.slot());
    memory.write_u32(base + 8, a.generation());
    memory.write_u32(base + 20, 1);
    memory.write_u64(base + 24, 1000);
    memory.write_u32(base + 40, 3);
    memory.write_bytes(
        base + 64,
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1],
    );
    memory.write_u64(base, abi::SLICE_MAGIC);
    let member = daemon.status().regions[0].members[1].clone();
    assert_eq!(member.liveness, Liveness::Alive);
    assert_eq!((member.tx_bytes, member.channels), (1000, 3));
    assert_eq!(member.addresses[0].to_string(), "192.0.2.1");
    // It says it has more addresses than there is room for.
    memory.write_u32(base + 20, u32::MAX);
    assert!(daemon.status().regions[0].members[1].addresses.is_empty());
}

#[test]
fn the_control_socket_survives_nonsense() {
    let daemon = Daemon::new();
    let path = hallway_control::socket(&daemon.run());
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"what?\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.contains("unknown question"), "{said}");
    let mut flood = UnixStream::connect(&path).unwrap();
    let _ = flood.write_all(&[b'x'; 100_000]);
    let silent: Vec<_> = (0..8)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    daemon.status();
    drop(silent);
}
