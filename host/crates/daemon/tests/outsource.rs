// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Outsourcers: their regions, their processes, and the orders that they get.
#![allow(missing_docs)]

mod common;
#[path = "../../unix/tests/lingering/mod.rs"]
mod lingering;
#[path = "../../qmp/tests/qemu/mod.rs"]
mod qemu;

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::{change, member_generation, member_state, member_uuid, memory_of, until, Daemon};
use hallway_abi::region as abi;
use hallway_control::{ask, Answer, Migration, Query, Release};
use hallway_membership::Uuid;
use hallway_outsource::orders::Order;
use hallway_shm::Mapping;
use nix::sys::signal::{kill, Signal};
use nix::unistd::{Pid, User};
use qemu::{Guest, Machine, GREETING};

const SIZE: u64 = 16 << 20;
const OUTSOURCE: &str = "[vm.outsource]\nmemory = \"16M\"\nsource = [\"10.0.0.5\"]\n\
                         connect = [\"!10.0.0.1\", \"::/0\"]\nsockets = 100\nlisteners = 8\n";

/// A VM: its monitor, and its guest.
struct Vm {
    name: &'static str,
    uuid: Uuid,
    monitor: qemu::Qemu,
    guest: Option<common::Qemu>,
}

impl Vm {
    fn new(name: &'static str) -> Self {
        let uuid = Uuid::random().unwrap();
        let machine = Machine {
            uuid: uuid.to_string(),
            guest: Guest::LetsGo,
            ..Machine::default()
        };
        Self {
            name,
            uuid,
            monitor: qemu::Qemu::new(GREETING, machine.answer()),
            guest: None,
        }
    }

    fn config(&self, more: &str) -> String {
        format!(
            "[[vm]]\nname = \"{}\"\nuuid = \"{}\"\nmonitor = \"{}\"\n{more}",
            self.name,
            self.uuid,
            self.monitor.path.display(),
        )
    }

    fn guest(&mut self) -> &mut common::Qemu {
        self.guest.as_mut().unwrap()
    }

    /// The guest's module starts.
    fn start(&mut self, daemon: &Daemon) {
        let mut guest = common::Qemu::new(daemon);
        guest.uuid = self.uuid;
        guest.ask(0, abi::COMMAND_HELLO, Uuid::default(), abi::MAJOR);
        assert_eq!(guest.reply(0), abi::STATUS_OK);
        self.guest = Some(guest);
    }

    /// The region of the VM and its outsourcer, once it is plugged in.
    fn region(&self) -> Mapping {
        until("its region is plugged in", || {
            !self.plugs("device_add").is_empty()
        });
        let last = self.monitor.asked("object-add").pop().unwrap();
        memory_of(last["mem-path"].as_str().unwrap(), SIZE)
    }

    /// Ids that its monitor was asked to add, or to remove.
    fn plugs(&self, command: &str) -> Vec<String> {
        let asked = self.monitor.asked(command).into_iter();
        asked.map(|a| a["id"].as_str().unwrap().into()).collect()
    }

    /// The guest rings its outsourcer, which rings back.
    fn reaches_outsourcer(&mut self, daemon: &Daemon) {
        let rings = || std::fs::metadata(daemon.dir.join("out/rings")).map_or(0, |one| one.len());
        let guest = self.guest();
        until("a doorbell id", || {
            guest.read();
            guest.doorbell(2) != 0
        });
        let before = rings();
        while guest.rung() {}
        guest.ring(guest.doorbell(2));
        until("its outsourcer rings back", || rings() > before);
        assert!(guest.rung());
    }
}

/// A daemon with the outsourcer of the tests, and the real host end.
fn daemon(config: &str) -> Daemon {
    // Another user writes there, which the folder of a run may keep out.
    std::env::set_var("TMPDIR", "/tmp");
    let daemon = Daemon::configured(&[], Some(config));
    let folder = daemon.dir.join("out");
    std::fs::create_dir(&folder).unwrap();
    // It is another user that runs it, and writes there.
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&folder, all.clone()).unwrap();
    let examples = Path::new(env!("CARGO_BIN_EXE_hallwayd")).with_file_name("examples");
    for (built, name) in [
        ("outsourcer", "hallway-outsource"),
        ("host-end", "hallway-host"),
    ] {
        let (built, program) = (examples.join(built), folder.join(name));
        std::fs::copy(&built, &program).unwrap_or_else(|error| {
            panic!("{}: {error}: run cargo build --examples", built.display())
        });
        std::fs::set_permissions(&program, all.clone()).unwrap();
    }
    until("all monitors answer", || {
        daemon.status().vms.iter().all(|m| m.connected)
    });
    daemon
}

/// Starts a daemon with one VM, whose module runs.
fn with_one() -> (Vm, Daemon) {
    let mut a = Vm::new("a");
    let daemon = daemon(&a.config(OUTSOURCE));
    a.start(&daemon);
    (a, daemon)
}

/// The orders that it got: descriptors, state and generation in the region, order.
fn said(daemon: &Daemon) -> Vec<(usize, u32, u32, Order)> {
    let said = std::fs::read_to_string(daemon.dir.join("out/said")).unwrap_or_default();
    let whole = said.rfind('\n').map_or("", |end| &said[..end]);
    let parse = |line: &str| {
        let mut parts = line.splitn(4, ' ');
        let mut next = || parts.next().unwrap();
        let (count, state, generation) = (next(), next(), next());
        (
            count.parse().unwrap(),
            state.parse().unwrap(),
            generation.parse().unwrap(),
            serde_json::from_str(next()).unwrap(),
        )
    };
    whole.lines().map(parse).collect()
}

fn pid(daemon: &Daemon) -> u32 {
    let mut pid = None;
    until("an outsourcer runs", || {
        pid = daemon.status().vms[0]
            .outsourcer
            .as_ref()
            .map(|one| one.pid);
        pid.is_some()
    });
    pid.unwrap()
}

/// Whether a process runs. One that has ended and that nothing waits for does not.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn is_same_file(a: &str, b: &str) -> bool {
    std::fs::read_link(a).unwrap() == std::fs::read_link(b).unwrap()
}

#[test]
fn a_guest_and_its_outsourcer_have_a_region_and_ring_each_other() {
    let (mut a, mut b) = (Vm::new("a"), Vm::new("b"));
    let daemon = daemon(&(a.config(OUTSOURCE) + &b.config("")));
    assert!(daemon.status().regions.is_empty());
    a.start(&daemon);
    b.start(&daemon);
    let memory = a.region();
    assert_eq!(a.plugs("device_add"), ["hallway-out.a"]);
    assert!(b.plugs("device_add").is_empty());
    assert!(!daemon.dir.join("mem").exists());
    assert_eq!(daemon.status().regions[0].slots, 3);

    until("it learns what it is", || said(&daemon).len() == 1);
    let (count, state, generation, order) = said(&daemon).remove(0);
    assert_eq!((count, state), (2, abi::MEMBER_PRESENT));
    let Order::Start {
        size,
        slot,
        generation: own,
        slots,
        slice_offset,
        policy,
        ..
    } = order
    else {
        panic!("{order:?}");
    };
    assert_eq!((size, slot, own, slots), (SIZE, 2, generation, 3));
    assert_eq!(slice_offset as usize, common::slice_offset(&memory, 2));
    assert_eq!(policy.connect.len(), 2);
    assert_eq!((policy.sockets, policy.listeners), (100, 8));

    let region = daemon.region();
    assert_eq!(b.guest().join(region), abi::STATUS_DENIED);
    assert!(daemon
        .log()
        .contains("region of another VM and its outsourcer"));
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    assert_eq!((a.guest().slot(), a.guest().outsourcer(0)), (1, 2));
    assert_eq!(member_uuid(&memory, 1), a.uuid);
    until("it learns of its guest", || said(&daemon).len() == 2);
    let (count, state, generation, order) = said(&daemon).remove(1);
    assert_eq!((count, state), (1, abi::MEMBER_PRESENT));
    assert_eq!(generation, a.guest().generation());
    let is_its = |order: &Order| matches!(order, Order::Guest { slot: 1, generation: g, .. } if *g == generation);
    assert!(is_its(&order), "{order:?}");
    a.reaches_outsourcer(&daemon);

    // It leaves, and comes again as another member.
    assert_eq!(a.guest().leave(region), abi::STATUS_OK);
    assert_eq!(a.guest().outsourcer(0), 0);
    until("it learns that its guest left", || said(&daemon).len() == 3);
    assert_eq!(said(&daemon)[2].3, Order::Departed);
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    until("it learns that its guest is back", || {
        said(&daemon).len() == 4
    });
    assert_eq!(said(&daemon)[3].2, a.guest().generation());
    a.reaches_outsourcer(&daemon);

    // It goes with the VM.
    let process = pid(&daemon);
    a.guest = None;
    until("its region is no more", || {
        daemon.status().regions.is_empty()
    });
    until("its process has ended", || !runs(process));
    a.start(&daemon);
    assert!(runs(pid(&daemon)));
}

#[test]
fn an_outsourcer_is_confined() {
    let (_a, daemon) = with_one();
    let pid = pid(&daemon);
    until("it runs", || !said(&daemon).is_empty());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let has = |line: &str| status.lines().any(|one| one == line);
    assert!(has("NoNewPrivs:\t1"), "{status}");
    assert!(has("SigBlk:\t0000000000000000"), "{status}");
    if nix::unistd::geteuid().is_root() {
        let nobody = User::from_name("nobody").unwrap().unwrap();
        assert!(
            has(&format!("Uid:\t{0}\t{0}\t{0}\t{0}", nobody.uid)),
            "{status}"
        );
        assert!(
            has(&format!("Gid:\t{0}\t{0}\t{0}\t{0}", nobody.gid)),
            "{status}"
        );
        assert!(has("Groups:\t "), "{status}");
    }
    for set in ["Prm", "Eff", "Amb"] {
        assert!(has(&format!("Cap{set}:\t0000000000000000")), "{status}");
    }
    let net = format!("/proc/{pid}/ns/net");
    assert!(!is_same_file(&net, "/proc/self/ns/net"));
    let interfaces = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    assert_eq!(interfaces.lines().count(), 3, "{interfaces}");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for (what, most) in [("Max open files", 16448), ("Max data size", 256 << 20)] {
        let limit = limits.lines().find_map(|line| line.strip_prefix(what));
        let limit: Vec<&str> = limit.unwrap().split_whitespace().collect();
        assert_eq!(limit[..2], [most.to_string(), most.to_string()], "{what}");
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(environment.is_empty());
    // Standard input, output and error, the control socket, and what it opened or was
    // sent since: its logs, memory and doorbell.
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    assert_eq!(fds.count(), 8);
}

#[test]
fn an_outsourcer_is_in_the_namespace_that_its_configuration_names() {
    let mut a = Vm::new("a");
    let netns = "netns = \"/proc/self/ns/net\"\n";
    let daemon = daemon(&a.config(&(OUTSOURCE.to_string() + netns)));
    a.start(&daemon);
    let net = format!("/proc/{}/ns/net", pid(&daemon));
    assert!(is_same_file(&net, "/proc/self/ns/net"));
}

/// A cgroup for a daemon, marked as systemd marks one that it delegates.
struct Delegated(PathBuf);

impl Delegated {
    /// Nothing: the test may make none here.
    fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' ').skip(1));
        let root = mounts.find_map(|mut parts| {
            let root = parts.next()?;
            (parts.next() == Some("cgroup2")).then_some(root)
        })?;
        let made = Path::new(root).join(format!("hallwayd-{}-{name}", std::process::id()));
        std::fs::create_dir(&made).ok()?;
        Some(Self(made))
    }

    fn enter(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn mark(&self) {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&self.0, "user.delegate", b"1", none).unwrap();
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            let _ = std::fs::remove_dir(entry.path());
        }
        let is_gone = || std::fs::remove_dir(&self.0).is_ok();
        // A holder that has let go of all still ends.
        let tries = Instant::now();
        while !is_gone() && tries.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
    }
}

/// The cgroup of a process in version 2.
fn cgroup(pid: u32) -> String {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let mut cgroups = cgroups.lines();
    cgroups
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap()
        .into()
}

#[test]
fn an_outsourcer_has_a_cgroup_of_its_own_where_one_is_delegated() {
    let Some(delegated) = Delegated::new("own") else {
        eprintln!("this user may make no cgroup here");
        return;
    };
    let mut a = Vm::new("a");
    let config = a.config(OUTSOURCE);
    let daemon = daemon(&config);
    let own = daemon.child.id();
    delegated.enter(own);
    let count = |words| daemon.log().matches(words).count();
    // Nothing is made in a cgroup that is systemd's.
    let leaf = delegated.0.join("out.a");
    daemon.reload();
    assert_eq!(count("none is delegated to it"), 2);
    assert!(!leaf.exists());
    delegated.mark();
    // A rule can be loaded before there is a process.
    daemon.reload();
    assert!(leaf.exists());
    // A process that the rules would not apply to is not started.
    std::fs::remove_dir(&leaf).unwrap();
    a.start(&daemon);
    until("none is started", || {
        daemon.log().contains("no outsourcer can be started")
    });
    daemon.reload();
    let process = pid(&daemon);
    assert_eq!(cgroup(process), format!("{}/out.a", cgroup(own)));
    let inode = || std::fs::metadata(&leaf).unwrap().ino();
    let before = inode();
    kill(Pid::from_raw(process as i32), Signal::SIGKILL).unwrap();
    until("another one is there", || pid(&daemon) != process);
    let process = pid(&daemon);
    assert_eq!(cgroup(process), format!("{}/out.a", cgroup(own)));
    assert_eq!(inode(), before);
    // It goes with a daemon that finds it empty and without a table.
    std::fs::write(daemon.dir.join("hallwayd.toml"), a.config("")).unwrap();
    daemon.reload();
    until("its process has ended", || !runs(process));
    daemon.reload();
    assert!(!leaf.exists());
}

#[test]
fn an_outsourcer_in_another_cgroup_ends_with_its_daemon() {
    let Some(delegated) = Delegated::new("other") else {
        eprintln!("this user may make no cgroup here");
        return;
    };
    let (_a, daemon) = with_one();
    let (own, before) = (daemon.child.id(), pid(&daemon));
    delegated.enter(own);
    delegated.mark();
    daemon.reload();
    // Its sockets would stay in the cgroup in which they were made.
    until("its process has ended", || !runs(before));
    assert_eq!(cgroup(pid(&daemon)), format!("{}/out.a", cgroup(own)));
}

#[test]
fn an_outsourcer_that_is_killed_departs_and_another_one_comes() {
    let (mut a, daemon) = with_one();
    let memory = a.region();
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    a.reaches_outsourcer(&daemon);
    let (doorbell, before) = (a.guest().doorbell(2), pid(&daemon));
    until("it knows its guest", || said(&daemon).len() == 2);
    let (generation, changes) = (member_generation(&memory, 2), change(&memory));
    let since = Instant::now();
    kill(Pid::from_raw(before as i32), Signal::SIGKILL).unwrap();
    until("another one is there", || {
        member_generation(&memory, 2) != generation
            && member_state(&memory, 2) == abi::MEMBER_PRESENT
    });
    assert!(since.elapsed().as_secs() < 5);
    assert_eq!(change(&memory), changes + 2, "it was absent meanwhile");
    assert!(daemon.log().contains("its outsourcer ended: SIGKILL"));
    until("it knows its guest, too", || said(&daemon).len() == 4);
    assert_eq!(said(&daemon)[2].2, member_generation(&memory, 2));
    assert_ne!(pid(&daemon), before);
    a.reaches_outsourcer(&daemon);
    assert_eq!(a.guest().doorbell(2), doorbell);
    // One that fails again and again is not started without end.
    kill(Pid::from_raw(pid(&daemon) as i32), Signal::SIGKILL).unwrap();
    until("it is absent", || {
        member_state(&memory, 2) == abi::MEMBER_ABSENT
    });
    until("it is there again", || {
        member_state(&memory, 2) == abi::MEMBER_PRESENT
    });
}

#[test]
fn an_outsourcer_that_reads_no_orders_is_ended() {
    let (mut a, daemon) = with_one();
    a.region();
    let (region, before) = (daemon.region(), pid(&daemon));
    until("it has started", || !said(&daemon).is_empty());
    kill(Pid::from_raw(before as i32), Signal::SIGSTOP).unwrap();
    // Each time an order is owed. None of these waits for the process.
    for _ in 0..1000 {
        assert_eq!(a.guest().join(region), abi::STATUS_OK);
        assert_eq!(a.guest().leave(region), abi::STATUS_OK);
        if !runs(before) {
            break;
        }
    }
    assert!(!runs(before));
    assert!(daemon.log().contains("does not listen"));
    assert_ne!(pid(&daemon), before);
}

/// Sends the host end that listens at the path a descriptor the last close of which waits, as
/// before Linux 6.16, and returns once it waits. The close ends with what is returned.
fn have_it_wait(pid: u32, path: &Path) -> TcpListener {
    common::accept_descriptors(pid, path);
    let process = Pid::from_raw(pid as i32);
    kill(process, Signal::SIGSTOP).unwrap();
    let mut program = UnixStream::connect(path).unwrap();
    let (stream, listener) = lingering::open();
    lingering::send(&program, &stream).unwrap();
    drop(stream);
    // It hangs up on a program that says this, and closes what came along.
    program.write_all(b"\n").unwrap();
    kill(process, Signal::SIGCONT).unwrap();
    let close = format!("{} ", libc::SYS_close);
    until("it waits in close()", || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
        call.is_ok_and(|call| call.starts_with(&close))
    });
    listener
}

#[test]
fn a_descriptor_that_a_host_end_is_sent_makes_no_other_vm_wait() {
    // No other user may look into the process.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let folder = PathBuf::from(format!("/tmp/hwt-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("a.sock");
    let tunnels = format!(
        "[vm.tunnels]\nmemory = \"16M\"\nsocket = \"{}\"\n",
        path.display()
    );
    let (mut a, mut b) = (Vm::new("a"), Vm::new("b"));
    let daemon = daemon(&(a.config(&tunnels) + &b.config(OUTSOURCE)));
    a.start(&daemon);
    b.start(&daemon);
    let mut pid = 0;
    until("a host end listens", || {
        let vms = daemon.status().vms;
        pid = vms[0].host_end.as_ref().map_or(0, |one| one.pid);
        pid != 0 && common::find_listening(pid, &path).is_some()
    });
    b.region();
    let regions = daemon.status().regions;
    let own = regions.iter().find(|region| region.name == "out.b");
    let region = own.unwrap().uuid.parse().unwrap();

    let waits = have_it_wait(pid, &path);
    assert!(common::answers(&daemon));
    assert_eq!(b.guest().join(region), abi::STATUS_OK);
    b.reaches_outsourcer(&daemon);
    assert_eq!(daemon.status().vms[0].host_end.as_ref().unwrap().pid, pid);
    drop(waits);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_guest_that_is_reset_gets_another_region_and_outsourcer() {
    let (mut a, daemon) = with_one();
    a.region();
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    a.reaches_outsourcer(&daemon);
    let (before, doorbell) = (pid(&daemon), a.guest().doorbell(2));
    a.monitor.say("RESET");
    until("its process has ended", || !runs(before));
    until("its region is no more", || {
        daemon.status().regions.is_empty()
    });
    // Its module runs again.
    let guest = a.guest();
    guest.ask(0, abi::COMMAND_HELLO, Uuid::default(), abi::MAJOR);
    assert_eq!(guest.reply(0), abi::STATUS_OK);
    until("the next one is plugged in", || {
        a.plugs("device_add").len() == 2
    });
    assert_eq!(a.plugs("device_del"), ["hallway-out.a"]);
    assert_ne!(daemon.region(), region);
    assert_eq!(a.guest().join(daemon.region()), abi::STATUS_OK);
    a.reaches_outsourcer(&daemon);
    // QEMU could not forget another one.
    assert_eq!(a.guest().doorbell(2), doorbell);
}

#[test]
fn a_program_that_cannot_be_started_leaves_its_slot_empty() {
    let (mut a, daemon) = {
        let a = Vm::new("a");
        let daemon = daemon(&a.config(OUTSOURCE));
        std::fs::remove_file(daemon.dir.join("out/hallway-outsource")).unwrap();
        (a, daemon)
    };
    a.start(&daemon);
    let memory = a.region();
    assert_eq!(a.guest().join(daemon.region()), abi::STATUS_OK);
    until("that is logged", || {
        daemon.log().contains("no outsourcer can be started")
    });
    until("it is absent", || {
        member_state(&memory, 2) == abi::MEMBER_ABSENT
    });
    assert_eq!(a.guest().slot(), 1);
    let lacking = || daemon.status().vms[0].not_running.clone();
    until("it says when it is tried again", || {
        lacking().iter().any(|one| one.next_try_seconds > 0)
    });
    let one = &lacking()[0];
    assert_eq!(one.helper, "outsourcer");
    assert!(one.why.contains("hallway-outsource"), "{one}");
    // It goes with the guest.
    a.guest = None;
    until("nothing is lacking", || lacking().is_empty());
}

#[test]
fn an_outsourcer_goes_on_under_the_next_daemon() {
    let (mut a, mut daemon) = with_one();
    let memory = a.region();
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    a.reaches_outsourcer(&daemon);
    until("it knows its guest", || said(&daemon).len() == 2);
    let (before, generation) = (pid(&daemon), member_generation(&memory, 2));
    let (doorbell, orders) = (a.guest().doorbell(2), said(&daemon));

    // One that dies, and one that ends in order.
    daemon.kill();
    daemon.start();
    assert_eq!(pid(&daemon), before);
    daemon.signal(Signal::SIGTERM);
    daemon.child.wait().unwrap();
    assert!(runs(before));
    let config = a.config(&OUTSOURCE.replace("sockets = 100", "sockets = 200"));
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    daemon.start();
    assert_eq!(pid(&daemon), before);
    assert_eq!(member_generation(&memory, 2), generation);
    assert_eq!(member_state(&memory, 2), abi::MEMBER_PRESENT);
    a.reaches_outsourcer(&daemon);
    assert_eq!(a.guest().doorbell(2), doorbell);

    // Each gave its policy, and named the guest again.
    until("all orders have come", || said(&daemon).len() == 6);
    let later = said(&daemon).split_off(2);
    assert!(later[1] == orders[1] && later[3] == orders[1], "{later:?}");
    let sockets = |at: usize| match &later[at].3 {
        Order::Policy { policy } => policy.sockets,
        other => panic!("{other:?}"),
    };
    assert_eq!((sockets(0), sockets(2)), (100, 200));
    // Its end is noticed, though another process started it.
    kill(Pid::from_raw(before as i32), Signal::SIGKILL).unwrap();
    until("another one is there", || {
        member_generation(&memory, 2) > generation
            && member_state(&memory, 2) == abi::MEMBER_PRESENT
    });
    a.reaches_outsourcer(&daemon);
}

/// The doorbell of a guest's outsourcer: which one of the kernel's it is.
fn doorbell(guest: &common::Qemu) -> String {
    let fd = guest.doorbells[&guest.doorbell(2)].as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let id = info.lines().find(|line| line.starts_with("eventfd-id:"));
    id.unwrap().into()
}

#[test]
fn an_outsourcer_its_region_and_doorbell_are_not_for_another_vm_of_the_same_name() {
    let (mut a, mut daemon) = with_one();
    let (region, process) = (daemon.region(), pid(&daemon));
    let joins = |vm: &mut Vm, region| {
        assert_eq!(vm.guest().join(region), abi::STATUS_OK);
        until("it knows its outsourcer", || {
            vm.guest().read();
            vm.guest().doorbell(2) != 0
        });
    };
    joins(&mut a, region);
    let before = doorbell(a.guest());
    let _former = a.guest.take();
    a.uuid = Uuid::random().unwrap();
    daemon.kill();
    // A monitor that a test plays takes one client only: it is silent now.
    let config = a.config(OUTSOURCE).replace("qmp-", "none-");
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    daemon.start();
    until("its process ends", || !runs(process));
    a.start(&daemon);
    until("there is another region", || {
        let regions = daemon.status().regions;
        regions.iter().any(|one| one.uuid != region.to_string())
    });
    assert_ne!(a.guest().join(region), abi::STATUS_OK);
    let region = daemon.region();
    joins(&mut a, region);
    assert_ne!(doorbell(a.guest()), before);
}

#[test]
fn an_outsourcer_whose_place_is_another_ends_with_its_daemon() {
    let (mut a, mut daemon) = with_one();
    let memory = a.region();
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    a.reaches_outsourcer(&daemon);
    let (before, generation) = (pid(&daemon), member_generation(&memory, 2));
    daemon.kill();
    let config = a.config(&(OUTSOURCE.to_string() + "netns = \"/proc/self/ns/net\"\n"));
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    daemon.start();
    assert!(!runs(before));
    until("another one is there", || {
        member_generation(&memory, 2) > generation
            && member_state(&memory, 2) == abi::MEMBER_PRESENT
    });
    a.reaches_outsourcer(&daemon);
}

#[test]
fn stop_leaves_no_outsourcer() {
    let (_a, daemon) = with_one();
    let process = pid(&daemon);
    assert!(daemon.other(&["--stop"]).status.success());
    assert!(!runs(process));

    let (_a, mut daemon) = with_one();
    let process = pid(&daemon);
    until("it runs", || !said(&daemon).is_empty());
    daemon.kill();
    assert!(runs(process));
    assert!(daemon.other(&["--stop"]).status.success());
    assert!(!runs(process));
}

#[test]
fn what_the_configuration_no_longer_has_is_taken_out() {
    let (mut a, mut daemon) = with_one();
    let memory = a.region();
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    daemon.kill();
    // The socket of a monitor that a test plays takes one client only.
    let path = a.monitor.path.clone();
    let device = ["hallway-out.a", "ivshmem-plain", "x"].map(String::from);
    let machine = Machine {
        uuid: a.uuid.to_string(),
        devices: vec![device.into()],
        ..Machine::default()
    };
    a.monitor = qemu::Qemu::new(GREETING, machine.answer());
    std::fs::rename(&a.monitor.path, &path).unwrap();
    a.monitor.path = path;
    std::fs::write(daemon.dir.join("hallwayd.toml"), a.config("")).unwrap();
    daemon.start();
    until("it is no more", || daemon.status().regions.is_empty());
    assert_eq!(a.plugs("device_del"), ["hallway-out.a"]);
    assert_eq!(member_state(&memory, 1), abi::MEMBER_ABSENT);
    assert_eq!(daemon.status().vms[0].outsourcer, None);
}

#[test]
fn its_report_is_shown_and_live_connections_keep_the_vm_from_migrating() {
    let (mut vm, daemon) = with_one();
    pid(&daemon);
    assert_eq!(vm.guest().join(daemon.region()), abi::STATUS_OK);
    let refused = "!10.0.0.1/32\u{1b}[31m";
    let report = serde_json::json!({
        "sockets": 3, "listeners": 1, "sent": 10, "received": 20, "refused": [[refused, 2]],
        "delayed": 4,
    });
    let path = daemon.dir.join("out/report");
    std::fs::write(&path, report.to_string()).unwrap();
    let shown = || daemon.status().vms[0].outsourcer.clone().unwrap();
    until("it is shown", || shown().sockets == 3);
    let one = shown();
    assert_eq!(
        (
            one.listeners,
            one.sent_bytes,
            one.received_bytes,
            one.delayed
        ),
        (1, 10, 20, 4)
    );
    assert_eq!(one.refused, [("!10.0.0.1/32?[31m".into(), 2)].into());

    let migrate = |reset_outsourced| {
        let (vm, uri) = ("a".into(), "tcp:b:1".into());
        let query = Query::Migrate {
            vm,
            uri,
            reset_outsourced,
        };
        ask(&daemon.run(), query).unwrap()
    };
    let release = |reset_outsourced| {
        let query = Query::Release {
            vm: "a".into(),
            timeout: 30,
            reset_outsourced,
        };
        ask(&daemon.run(), query).unwrap()
    };
    for answer in [migrate(false), release(false)] {
        match answer {
            Answer::Error { message } => {
                assert!(message.contains("3 outsourced connections"), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
    // While it drains it gets no more, and rules count for answers; the policy comes back once
    // nothing asks any more.
    let policies = || {
        let orders = said(&daemon).into_iter();
        let policy = |one: (_, _, _, Order)| match one.3 {
            Order::Policy { policy } => {
                Some((policy.is_draining, policy.sockets, policy.connect.len()))
            }
            _ => None,
        };
        orders.filter_map(policy).collect::<Vec<_>>()
    };
    let drain = || ask(&daemon.run(), Query::Drain { vm: "a".into() }).unwrap();
    let draining = |connections| Answer::Draining { connections };
    // What it reported before does not count.
    assert_eq!(drain(), draining(1));
    until("it reports again", || drain() == draining(3));
    until("it is drained", || policies() == [(true, 0, 2)]);
    until("it has its policy again", || {
        policies() == [(true, 0, 2), (false, 100, 2)]
    });
    assert_eq!(release(true), Answer::Release(Release::Unplugging));
    until("its region is out", || {
        daemon.status().vms[0].plugs.is_empty()
    });
    assert_eq!(migrate(true), Answer::Migration(Migration::Unplugging));
}

#[test]
fn one_that_reports_nonsense_is_replaced() {
    let (mut vm, daemon) = with_one();
    let first = pid(&daemon);
    assert_eq!(vm.guest().join(daemon.region()), abi::STATUS_OK);
    let path = daemon.dir.join("out/report");
    std::fs::write(&path, "[").unwrap();
    until("it is replaced", || !runs(first));
    std::fs::remove_file(&path).unwrap();
    until("another one runs", || pid(&daemon) != first);
}
