// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of two VMs: from the guests' pages to the VMs' monitors.
#![allow(missing_docs)]

mod common;
#[path = "../../qmp/tests/qemu/mod.rs"]
mod qemu;

use std::mem::{offset_of, size_of};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{memory_of, until, Daemon, SIZE};
use hallway_abi::region as abi;
use hallway_abi::tunnel::cid;
use hallway_control::{ask, Answer, Migration, Query, Release};
use hallway_membership::Uuid;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use qemu::{Guest, Machine, State, GREETING};

/// A VM: its monitor, and its guest.
struct Vm {
    name: &'static str,
    uuid: Uuid,
    groups: Vec<&'static str>,
    /// More of its configuration.
    more: &'static str,
    monitor: qemu::Qemu,
    state: Arc<Mutex<State>>,
    guest: Option<common::Qemu>,
}

impl Vm {
    fn new(name: &'static str, guest: Guest) -> Self {
        let uuid = Uuid::random().unwrap();
        let machine = Machine {
            uuid: uuid.to_string(),
            guest,
            ..Machine::default()
        };
        let state = machine.state.clone();
        Self {
            name,
            uuid,
            groups: vec!["each"],
            more: "",
            monitor: qemu::Qemu::new(GREETING, machine.answer()),
            state,
            guest: None,
        }
    }

    fn config(&self) -> String {
        format!(
            "[[vm]]\nname = \"{}\"\nuuid = \"{}\"\nmonitor = \"{}\"\ngroups = {:?}\n{}\n",
            self.name,
            self.uuid,
            self.monitor.path.display(),
            self.groups,
            self.more
        )
    }

    fn guest(&mut self) -> &mut common::Qemu {
        self.guest.as_mut().unwrap()
    }

    /// The guest's module starts, at one address.
    fn start(&mut self, daemon: &Daemon, address: u8) {
        self.start_at(daemon, &[address]);
    }

    fn start_at(&mut self, daemon: &Daemon, addresses: &[u8]) {
        let mut guest = common::Qemu::new(daemon);
        guest.uuid = self.uuid;
        self.guest = Some(guest);
        self.home(addresses);
        assert_eq!(hello(self.guest()), abi::STATUS_OK);
    }

    /// Says where it is.
    fn home(&mut self, addresses: &[u8]) {
        let home = offset_of!(abi::Page, home);
        let guest = self.guest();
        let page = guest.page();
        let seq = page.read_u32(home + offset_of!(abi::Home, seq));
        for (n, address) in addresses.iter().enumerate() {
            let at = home + offset_of!(abi::Home, address) + n * 16;
            page.write_bytes(at, &[*address; 16]);
        }
        page.write_u32(home + offset_of!(abi::Home, count), addresses.len() as u32);
        page.write_u32(home + offset_of!(abi::Home, seq), seq + 2);
        guest.ring(abi::DAEMON_ID);
    }

    /// The list's number, and the addresses in it.
    fn candidates(&mut self) -> (u32, Vec<u8>) {
        let base = offset_of!(abi::Page, candidates);
        let page = self.guest().page();
        let count = page.read_u32(base + offset_of!(abi::Candidates, count)) as usize;
        let first = base + offset_of!(abi::Candidates, address);
        let addresses = (0..count).map(|n| page.read_bytes::<16>(first + n * 16)[0]);
        (page.read_u32(base), addresses.collect())
    }

    /// Says that there is traffic with these addresses and no others.
    fn want(&mut self, wanted: &[u8]) {
        let (seq, addresses) = self.candidates();
        let set = addresses
            .iter()
            .enumerate()
            .filter(|(_, address)| wanted.contains(address))
            .fold(0, |set, (n, _)| set | 1 << n);
        let base = offset_of!(abi::Page, wanted);
        let guest = self.guest();
        guest.page().write_u64(base, set);
        guest
            .page()
            .write_u32(base + offset_of!(abi::Wanted, seq), seq);
        guest.ring(abi::DAEMON_ID);
    }

    /// Path by which it can open the memory that its QEMU was handed last: QEMU is this
    /// process.
    fn memory(&self) -> String {
        let last = self.monitor.asked("object-add").pop().unwrap();
        last["mem-path"].as_str().unwrap().into()
    }

    /// Ids that its monitor was asked to add, and to remove.
    fn plugs(&self) -> (Vec<String>, Vec<String>) {
        let ids = |command| {
            let asked = self.monitor.asked(command).into_iter();
            asked.map(|a| a["id"].as_str().unwrap().into()).collect()
        };
        (ids("device_add"), ids("device_del"))
    }
}

/// The guest's module says which VM it is in.
fn hello(guest: &mut common::Qemu) -> u32 {
    guest.ask(0, abi::COMMAND_HELLO, Uuid::default(), abi::MAJOR);
    guest.reply(0)
}

fn daemon(before: &str, idle: u32, vms: &[&Vm]) -> Daemon {
    serving(&[], before, idle, vms)
}

/// Serves regions of the command line, with something more in the configuration.
fn serving(regions: &[&'static str], before: &str, idle: u32, vms: &[&Vm]) -> Daemon {
    let mut config =
        format!("{before}\n[[group]]\nname = \"each\"\nisolation = \"pair\"\nidle = {idle}\n");
    for vm in vms {
        config += &vm.config();
    }
    let daemon = Daemon::configured(regions, Some(&config));
    until("all monitors answer", || {
        daemon.status().vms.iter().all(|m| m.connected)
    });
    daemon
}

/// Groups that share a region each.
fn shared(names: &[&str]) -> String {
    let group =
        |name| format!("[[group]]\nname = \"{name}\"\nisolation = \"shared\"\nsize = \"16M\"\n");
    names.iter().map(group).collect()
}

fn regions(daemon: &Daemon) -> Vec<String> {
    let all = daemon.status().regions.into_iter();
    all.map(|region| region.name).collect()
}

#[test]
fn two_vms_get_a_region_that_no_third_one_may_join_and_lose_it_when_idle() {
    let mut a = Vm::new("a", Guest::LetsGo);
    let mut b = Vm::new("b", Guest::LetsGo);
    let mut c = Vm::new("c", Guest::LetsGo);
    let daemon = daemon("", 1, &[&a, &b, &c]);
    a.start(&daemon, 1);
    assert!(a.candidates().1.is_empty());
    b.start(&daemon, 2);
    c.start(&daemon, 3);
    until("all know where the others are", || {
        a.candidates().1 == [2, 3] && b.candidates().1 == [1, 3] && c.candidates().1 == [1, 2]
    });
    assert!(a.guest().rung());
    assert_eq!(regions(&daemon), [""; 0]);

    a.want(&[2]);
    let device = vec!["hallway-pair.a.b".to_string()];
    until("both have it", || {
        a.plugs().0 == device && b.plugs().0 == device
    });
    assert_eq!(regions(&daemon), ["pair.a.b"]);
    let region = daemon.region();
    assert_eq!(b.guest().join(region), abi::STATUS_OK);
    assert_eq!(c.guest().join(region), abi::STATUS_DENIED);
    assert!(daemon.log().contains("is not in this group"));
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    // Nothing has a path, and both QEMUs have the same memory.
    assert!(!daemon.dir.join("mem").exists());
    let header = |vm: &Vm| memory_of(vm.memory(), SIZE).read_bytes::<64>(0);
    assert_eq!(header(&a), header(&b));
    assert_eq!(header(&a)[24..40], region.0);
    let map = || memory_of(a.memory(), SIZE);
    assert!(map().read_u64(0) == abi::REGION_MAGIC);
    let held = |daemon: &Daemon| {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", daemon.holder_pid())).unwrap();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains("hallway-pair.a.b"))
            .count()
    };
    assert_eq!(held(&daemon), 1);

    // Not granted, and without a connection: it is removed, though no guest says that it
    // leaves, and one joins again and again.
    a.want(&[]);
    until("it is no more", || {
        a.guest().join(region);
        regions(&daemon).is_empty()
    });
    assert_eq!((a.plugs().1, b.plugs().1), (device.clone(), device));
    until("the holder lets it go", || held(&daemon) == 0);
    assert_eq!(c.plugs().0, [""; 0]);

    // New traffic, seen by the other side.
    b.want(&[1]);
    until("both have it again", || {
        a.plugs().0.len() == 2 && b.plugs().0.len() == 2
    });
    // Where a guest says that it is, it may be no more.
    c.home(&[]);
    until("the others know", || a.candidates().1 == [2]);
}

/// Ends the daemon; the next one knows the state that `change` makes of its state.
fn restart_with(daemon: &mut Daemon, config: &str, change: impl FnOnce(String) -> String) {
    let holder = daemon.holder_pid();
    let fds = std::fs::read_dir(format!("/proc/{holder}/fd")).unwrap();
    let is_state = |path: &std::path::PathBuf| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.to_string_lossy().contains("memfd:hallway-state")
    };
    daemon.kill();
    let state = fds.flatten().map(|fd| fd.path()).find(is_state).unwrap();
    let changed = change(std::fs::read_to_string(&state).unwrap());
    std::fs::write(&state, changed).unwrap();
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    daemon.start();
}

/// Another VM gets the name of one that has a region.
fn another_has_the_name(change: impl FnOnce(String) -> String) {
    let (mut a, mut b, mut daemon) = two_with_a_region(Guest::LetsGo);
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    assert_eq!(b.guest().join(region), abi::STATUS_OK);
    let _former = a.guest.take();
    a.uuid = Uuid::random().unwrap();
    // A monitor that a test plays takes one client only: both are silent now.
    let path = std::env::temp_dir().display().to_string();
    let group = "[[group]]\nname = \"each\"\nisolation = \"pair\"\n";
    let config = format!("{group}{}{}", a.config(), b.config()).replace(&path, "/nowhere");
    restart_with(&mut daemon, &config, change);
    a.start(&daemon, 1);
    assert_eq!(a.guest().join(region), abi::STATUS_DENIED);
    // b had the memory, too.
    b.guest = None;
    until("it is no more", || regions(&daemon).is_empty());
    b.start(&daemon, 2);
    until("a knows b", || a.candidates().1 == [2]);
    a.want(&[2]);
    until("there is another", || regions(&daemon) == ["pair.a.b"]);
    assert_ne!(daemon.region(), region);
    assert_eq!(a.guest().join(daemon.region()), abi::STATUS_OK);
}

/// Two VMs of a pair, of which the first is given a CID; the second one has joined.
fn one_has_a_cid() -> (Vm, Vm, Daemon, Uuid) {
    let mut a = Vm::new("a", Guest::LetsGo);
    let mut b = Vm::new("b", Guest::LetsGo);
    a.more = "cid = 42";
    let daemon = daemon("", 60, &[&a, &b]);
    a.start(&daemon, 1);
    b.start(&daemon, 2);
    until("a knows b", || a.candidates().1 == [2]);
    a.want(&[2]);
    until("both have it", || {
        a.plugs().0.len() == 1 && b.plugs().0.len() == 1
    });
    let region = daemon.region();
    assert_eq!(b.guest().join(region), abi::STATUS_OK);
    (a, b, daemon, region)
}

#[test]
fn a_vm_keeps_the_cid_that_it_is_given_while_its_qemu_runs_and_no_other_one_has_it() {
    let (mut a, mut b, mut daemon, region) = one_has_a_cid();
    let (of_a, of_b) = (cid(&a.uuid.0), cid(&b.uuid.0));
    // Of each guest: its own, and that of the other one.
    let cids = |a: &Vm, b: &Vm| {
        let [a, b] = [a, b].map(|vm| vm.guest.as_ref().unwrap());
        [(a.cid(), a.peer_cid(0)), (b.cid(), b.peer_cid(0))]
    };
    let join = |vm: &mut Vm| assert_eq!(vm.guest().join(region), abi::STATUS_OK);
    join(&mut a);
    assert_eq!(cids(&a, &b), [(42, of_b), (0, 42)]);
    let shown = |vm: &Vm, daemon: &Daemon| {
        let members = daemon.status().regions.remove(0).members.into_iter();
        let mut members = members.filter(|one| one.uuid == vm.uuid.to_string());
        members.next().unwrap().cid
    };
    let both = |a: &Vm, b: &Vm, daemon: &Daemon| (shown(a, daemon), shown(b, daemon));
    assert_eq!(both(&a, &b, &daemon), (Some(42), Some(of_b)));

    // The configuration gives it to the other one, which begins again, while the first
    // one has left by its own word alone.
    (a.more, b.more) = ("", "cid = 42");
    let group = "[[group]]\nname = \"each\"\nisolation = \"pair\"\n";
    // A monitor that a test plays takes one client only: both are silent now.
    let path = std::env::temp_dir().display().to_string();
    let config = format!("{group}{}{}", a.config(), b.config()).replace(&path, "/nowhere");
    restart_with(&mut daemon, &config, |state| state);
    assert_eq!(a.guest().leave(region), abi::STATUS_OK);
    assert_eq!(both(&a, &b, &daemon), (None, Some(of_b)));
    join(&mut b);
    assert!(daemon.log().contains("another VM has this CID"));
    join(&mut a);
    assert_eq!(cids(&a, &b), [(42, of_b), (0, 42)]);

    // It gets it once the QEMU of the first one has ended.
    a.guest = None;
    a.start(&daemon, 1);
    join(&mut b);
    join(&mut a);
    assert_eq!(cids(&a, &b), [(0, 42), (42, of_a)]);

    // A module of an older release believes that it has that of its UUID.
    b.guest().minor = abi::MINOR_CIDS - 1;
    join(&mut b);
    assert_eq!(cids(&a, &b), [(0, of_b), (0, of_a)]);
    b.guest().minor = abi::MINOR_CIDS;
    join(&mut b);
    assert_eq!(cids(&a, &b), [(0, 42), (42, of_a)]);
}

/// The guest of the other one takes it with the table.
#[test]
fn a_page_has_the_cid_of_a_peer_before_the_table_has_the_peer() {
    let (mut a, b, _daemon, region) = one_has_a_cid();
    let (of_a, table) = (cid(&a.uuid.0), memory_of(a.memory(), SIZE));
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    let entry = offset_of!(abi::Region, member) + a.guest().slot() * size_of::<abi::Member>();
    let generation = || table.read_u32(entry + offset_of!(abi::Member, generation));
    let b = b.guest.as_ref().unwrap();
    // As many as a guest may ask for at once.
    for round in 0..50 {
        let (minor, in_page, in_table) = match round % 2 {
            0 => (abi::MINOR_CIDS - 1, of_a, 0),
            _ => (abi::MINOR_CIDS, 42, 42),
        };
        let (before, since) = (generation(), Instant::now());
        a.guest().minor = minor;
        a.guest().ask(0, abi::COMMAND_JOIN, region, abi::MAJOR);
        while generation() == before {
            assert!(since.elapsed() < Duration::from_secs(20), "no join");
        }
        let given = table.read_u32(entry + offset_of!(abi::Member, cid));
        assert_eq!((b.peer_cid(0), given), (in_page, in_table), "round {round}");
        assert_eq!(a.guest().reply(0), abi::STATUS_OK);
    }
}

#[test]
fn another_vm_of_the_same_name_never_gets_the_memory_of_the_former() {
    another_has_the_name(|state| state);
}

#[test]
fn another_vm_of_the_same_name_gets_no_memory_that_an_older_daemon_kept() {
    another_has_the_name(|state| {
        let mut state: serde_json::Value = serde_json::from_str(&state).unwrap();
        for region in state["regions"].as_array_mut().unwrap() {
            region.as_object_mut().unwrap().remove("owners");
        }
        state.to_string()
    });
}

#[test]
fn a_qemu_that_keeps_the_memory_of_a_region_that_is_no_more_keeps_none_of_its_pages() {
    let (mut a, _b, daemon) = two_with_a_region(Guest::LetsGo);
    let kept = std::fs::File::open(a.memory()).unwrap();
    assert!(kept.metadata().unwrap().blocks() > 0);
    a.want(&[]);
    until("it is no more", || regions(&daemon).is_empty());
    until("its pages are free", || {
        kept.metadata().unwrap().blocks() == 0
    });
    assert_eq!(kept.metadata().unwrap().len(), SIZE);
}

#[test]
fn what_a_guest_holds_is_not_made_again_and_goes_with_its_qemu() {
    let (mut a, _b, daemon) = two_with_a_region(Guest::Refuses);
    let region = daemon.region();
    assert_eq!(a.guest().join(region), abi::STATUS_OK);
    a.want(&[]);
    until("a holds it, and that is shown", || {
        let machines = daemon.status().vms;
        let plug = machines[0].plugs.first().filter(|plug| plug.plugged);
        let problem = plug.and_then(|plug| plug.problem.clone());
        problem.is_some_and(|problem| problem.contains("does not let device"))
    });
    assert_eq!(regions(&daemon), ["pair.a.b"]);
    a.guest = None;
    until("it is no more", || regions(&daemon).is_empty());
}

#[test]
fn what_a_guest_has_yet_to_let_go_is_shown_as_there() {
    let (mut a, _b, daemon) = two_with_a_region(Guest::Sleeps);
    a.want(&[]);
    until("a is asked to let it go", || a.plugs().1.len() == 1);
    assert!(daemon.status().vms[0].plugs[0].plugged);
}

#[test]
fn a_vm_that_migrates_lets_all_its_regions_go_and_has_them_again_if_it_stays() {
    let (mut a, mut b) = (Vm::new("a", Guest::LetsGo), Vm::new("b", Guest::LetsGo));
    a.groups.extend(["s1", "s2"]);
    let daemon = daemon(&shared(&["s1", "s2"]), 60, &[&a, &b]);
    a.start(&daemon, 1);
    b.start(&daemon, 2);
    until("a knows b", || a.candidates().1 == [2]);
    a.want(&[2]);
    let has_all = || {
        let plugs = &daemon.status().vms[0].plugs;
        plugs.len() == 3 && plugs.iter().all(|plug| plug.plugged)
    };
    until("it has all", has_all);

    let vm = || String::from("a");
    let migration = || match ask(&daemon.run(), Query::Migration { vm: vm() }) {
        Ok(Answer::Migration(stage)) => stage,
        other => panic!("{other:?}"),
    };
    a.state.lock().unwrap().migration = "active";
    let uri = "tcp:b:1".into();
    ask(
        &daemon.run(),
        Query::Migrate {
            vm: vm(),
            uri,
            reset_outsourced: false,
        },
    )
    .unwrap();
    until("QEMU migrates", || {
        matches!(migration(), Migration::Moving { .. })
    });
    let all = ["hallway-pair.a.b", "hallway-s1", "hallway-s2"];
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(a.plugs().1), all);
    assert_eq!(sorted(a.plugs().0), all);

    a.state.lock().unwrap().migration = "failed";
    until("it has all again", has_all);
    assert!(matches!(migration(), Migration::Stayed { .. }));
    assert_eq!(sorted(a.plugs().0.split_off(3)), all);
    assert_eq!(b.plugs().1, [""; 0]);
}

#[test]
fn a_vm_that_has_released_its_memory_gets_no_region_with_another() {
    let mut a = Vm::new("a", Guest::LetsGo);
    let mut b = Vm::new("b", Guest::LetsGo);
    let mut c = Vm::new("c", Guest::LetsGo);
    let daemon = daemon("", 60, &[&a, &b, &c]);
    a.start(&daemon, 1);
    b.start(&daemon, 2);
    c.start(&daemon, 3);
    until("b knows both", || b.candidates().1 == [1, 3]);
    let vm = || String::from("a");
    let release = Query::Release {
        vm: vm(),
        timeout: 30,
        reset_outsourced: false,
    };
    ask(&daemon.run(), release).unwrap();
    until("a has released all", || {
        let stage = ask(&daemon.run(), Query::ReleaseStage { vm: vm() });
        matches!(stage, Ok(Answer::Release(Release::Out)))
    });

    // Both are decided about at the same time.
    b.want(&[1, 3]);
    let with_c = "hallway-pair.b.c";
    until("b and c have one", || {
        b.plugs().0 == [with_c] && c.plugs().0 == [with_c]
    });
    assert_eq!(regions(&daemon), ["pair.b.c"]);
    ask(&daemon.run(), Query::Resume { vm: vm() }).unwrap();
    let with_b = "hallway-pair.a.b";
    until("a and b have one", || {
        a.plugs().0 == [with_b] && b.plugs().0 == [with_c, with_b]
    });
}

#[test]
fn stop_finds_by_the_configuration_what_a_dead_holder_knew() {
    let uuid = Uuid::random().unwrap();
    let by_hand = format!("[[vm]]\nname = \"a\"\nuuid = \"{uuid}\"\ngroups = [\"s\"]\n");
    let config = shared(&["s", "t"]) + &by_hand;
    let mut daemon = Daemon::configured(&[], Some(&config));
    let holder = daemon.holder_pid();
    daemon.kill();
    kill(Pid::from_raw(holder), Signal::SIGKILL).unwrap();
    until("the holder has ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{holder}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
    let mem = daemon.dir.join("mem");
    assert!(mem.join("s").exists() && !mem.join("t").exists());
    // An older hallwayd made files for pairs, too.
    std::fs::copy(mem.join("s"), mem.join("pair.a.a")).unwrap();
    let output = daemon.other(&["--stop"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!daemon.run().exists() && !mem.exists());
}

/// Two VMs, and the first knows the second; what their guests do, and after how
/// many seconds a region is idle.
fn two(first: Guest, idle: u32) -> (Vm, Vm, Daemon) {
    let mut a = Vm::new("a", first);
    let mut b = Vm::new("b", Guest::LetsGo);
    let daemon = daemon("", idle, &[&a, &b]);
    a.start(&daemon, 1);
    b.start(&daemon, 2);
    until("a knows b", || a.candidates().1 == [2]);
    (a, b, daemon)
}

/// Two VMs that have a region, which is idle after a second.
fn two_with_a_region(first: Guest) -> (Vm, Vm, Daemon) {
    let (mut a, b, daemon) = two(first, 1);
    a.want(&[2]);
    until("both have it", || {
        a.plugs().0.len() == 1 && b.plugs().0.len() == 1
    });
    (a, b, daemon)
}

/// Three VMs, and limits that leave room for one region, which the first two have.
/// The daemon is the last, to end first: a monitor waits for its client to go.
fn three_with_room_for_one(regions: &[&'static str], limits: &str) -> (Vm, Vm, Vm, Daemon) {
    let mut a = Vm::new("a", Guest::LetsGo);
    let mut b = Vm::new("b", Guest::LetsGo);
    let mut c = Vm::new("c", Guest::LetsGo);
    let daemon = serving(regions, limits, 60, &[&a, &b, &c]);
    a.start(&daemon, 1);
    b.start(&daemon, 2);
    c.start(&daemon, 3);
    until("a knows both", || a.candidates().1 == [2, 3]);
    a.want(&[2]);
    until("b has it", || b.plugs().0.len() == 1);
    (a, b, c, daemon)
}

const OF_A_VM: &str = "[limits]\nvm = \"16M\"";

#[test]
fn memory_of_a_vm_has_a_limit() {
    let (mut a, _b, c, daemon) = three_with_room_for_one(&[], OF_A_VM);
    a.want(&[2, 3]);
    until("it is refused, with a reason", || {
        daemon
            .log()
            .contains("the regions of a would have more than limits.vm allows")
    });
    for (vm, other) in [(0, "c"), (2, "a")] {
        let plugs = daemon.status().vms.remove(vm).plugs;
        let lacking = plugs.iter().find(|plug| plug.region == "pair.a.c").unwrap();
        let why = lacking.problem.as_deref().unwrap();
        let what = format!("its region with {other} cannot be made: the regions of a would");
        assert!(!lacking.plugged && why.starts_with(&what), "{why}");
    }
    assert_eq!(regions(&daemon), ["pair.a.b"]);
    assert_eq!(c.plugs().0, [""; 0]);
}

#[test]
fn memory_of_the_host_has_a_limit_and_regions_of_the_command_line_take_of_it() {
    let limits = "[limits]\nhost = \"32M\"";
    let (mut a, _b, c, daemon) = three_with_room_for_one(&["more:16M"], limits);
    a.want(&[2, 3]);
    until("it is refused, with a reason", || {
        daemon
            .log()
            .contains("the regions of this host would have more than limits.host allows")
    });
    assert_eq!(regions(&daemon), ["more", "pair.a.b"]);
    assert_eq!(c.plugs().0, [""; 0]);

    let said = daemon.refused(&["--region", "large:32M"]);
    assert!(
        said.contains("limits.host allows: make one smaller"),
        "{said}"
    );
}

#[test]
fn a_vm_gets_no_region_more_than_it_can_join() {
    let (mut a, mut b) = (Vm::new("a", Guest::LetsGo), Vm::new("b", Guest::LetsGo));
    let mut c = Vm::new("c", Guest::LetsGo);
    let names = ["s1", "s2", "s3", "s4", "s5", "s6", "s7"];
    assert_eq!(names.len() + 1, abi::PAGE_ENTRIES);
    a.groups.extend(names);
    let daemon = daemon(&shared(&names), 60, &[&a, &b, &c]);
    a.start(&daemon, 1);
    b.start(&daemon, 2);
    c.start(&daemon, 3);
    until("a knows both", || a.candidates().1 == [2, 3]);
    a.want(&[2]);
    until("a has as many as it can join", || {
        a.plugs().0.len() == abi::PAGE_ENTRIES && b.plugs().0.len() == 1
    });
    a.want(&[2, 3]);
    until("one more is refused, with a reason", || {
        daemon
            .log()
            .contains("a has 8 regions, which is all that a VM can join")
    });
    assert_eq!(a.plugs().0.len(), abi::PAGE_ENTRIES);
    assert_eq!(c.plugs().0, [""; 0]);
}

#[test]
fn an_idle_pair_makes_room() {
    let (mut a, b, c, daemon) = three_with_room_for_one(&[], OF_A_VM);
    a.want(&[]);
    let before = daemon.status().uptime_seconds;
    until("it was not used for a while", || {
        daemon.status().uptime_seconds > before + 5
    });
    assert_eq!(regions(&daemon), ["pair.a.b"]);
    a.want(&[3]);
    until("the other is made in its place", || {
        regions(&daemon) == ["pair.a.c"] && c.plugs().0.len() == 1
    });
    assert_eq!(b.plugs().1, ["hallway-pair.a.b"]);
    assert!(!daemon.log().contains("cannot be made"));
}

#[test]
fn the_monitor_of_another_vm_is_not_used() {
    let a = Vm::new("a", Guest::LetsGo);
    let mut other = Vm::new("b", Guest::LetsGo);
    other.monitor = qemu::Qemu::new(
        GREETING,
        Machine {
            uuid: a.uuid.to_string(),
            state: Arc::new(Mutex::new(State {
                run: "paused",
                ..State::default()
            })),
            ..Machine::default()
        }
        .answer(),
    );
    let config = format!(
        "[[group]]\nname = \"each\"\nisolation = \"pair\"\n{}",
        other.config()
    );
    let daemon = Daemon::configured(&[], Some(&config));
    until("that is shown", || {
        let machines = daemon.status().vms;
        let problem = machines[0].problem.clone();
        problem.is_some_and(|problem| problem.contains("correct the one or the other"))
    });
    other.start(&daemon, 1);
    assert!(!daemon.status().vms[0].connected);
    // Nor is what happens to it heard.
    other.monitor.say("RESET");
    other.monitor.say("RESUME");
    until("that was read, and whether it runs is asked again", || {
        other.monitor.asked("query-status").len() == 2
    });
    assert_eq!(daemon.status().connections[0].uuid, Some(other.uuid.into()));
}

#[test]
fn the_qemu_of_a_monitor_is_its_vm_and_no_other() {
    let (mut a, mut b) = (Vm::new("a", Guest::LetsGo), Vm::new("b", Guest::LetsGo));
    let config = format!(
        "[[group]]\nname = \"each\"\nisolation = \"pair\"\n{}{}",
        a.config(),
        b.config()
    );
    // Neither is there yet.
    let path = a.monitor.path.clone();
    for vm in [&mut a, &mut b] {
        let aside = vm.monitor.path.with_extension("aside");
        std::fs::rename(&vm.monitor.path, &aside).unwrap();
        vm.monitor.path = aside;
    }
    let daemon = Daemon::configured(&[], Some(&config));
    let mut guest = common::Qemu::new(&daemon);
    guest.uuid = b.uuid;
    assert_eq!(hello(&mut guest), abi::STATUS_OK);
    assert_eq!(daemon.status().connections[0].uuid, Some(b.uuid.into()));

    // It is a, by the monitor of this very process.
    std::fs::rename(&a.monitor.path, &path).unwrap();
    a.monitor.path = path;
    until("it is b no more", || {
        daemon.status().connections[0].uuid.is_none()
    });
    assert_eq!(hello(&mut guest), abi::STATUS_DENIED);
    assert!(daemon.log().contains("its QEMU is not that VM's"));
    let mut other = common::Qemu::in_another_process(&daemon);
    other.uuid = a.uuid;
    assert_eq!(hello(&mut other), abi::STATUS_DENIED);
    (guest.uuid, other.uuid) = (a.uuid, b.uuid);
    assert_eq!(hello(&mut guest), abi::STATUS_OK);
    assert_eq!(hello(&mut other), abi::STATUS_OK);
}

#[test]
fn a_region_that_is_removed_while_a_machine_boots_is_not_taken_for_the_next_one() {
    let (mut a, b, daemon) = two(Guest::LetsGo, 1);
    a.want(&[2]);
    let device = vec!["hallway-pair.a.b".to_string()];
    until("both have it", || {
        a.plugs().0 == device && b.plugs().0 == device
    });
    a.monitor.say("RESET");
    until("it is no more", || regions(&daemon).is_empty());
    assert_eq!(a.plugs().1, [""; 0]);

    // Its module runs again.
    assert_eq!(hello(a.guest()), abi::STATUS_OK);
    until("the old one is taken out", || a.plugs().1 == device);
    until("a knows b again", || a.candidates().1 == [2]);
    a.want(&[2]);
    until("both have the next one", || {
        a.plugs().0.len() == 2 && b.plugs().0.len() == 2
    });
}

#[test]
fn of_more_candidates_than_a_page_holds_each_vm_has_as_many_listed_and_wanted() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut vms = names.map(|name| Vm::new(name, Guest::LetsGo));
    let daemon = daemon("", 60, &vms.each_ref());
    let [a, others @ ..] = &mut vms;
    a.start(&daemon, 1);
    for (vm, first) in others.iter_mut().zip((10..).step_by(abi::HOME_MAX)) {
        let home: Vec<u8> = (first..).take(abi::HOME_MAX).collect();
        vm.start_at(&daemon, &home);
    }
    // Each has 16, of 64 places that five VMs share: one has a place fewer.
    let share = abi::CANDIDATES_MAX / 5;
    let listed = |first: u8| (first..).take(share).collect::<Vec<u8>>();
    let is_listed = |found: &[u8]| {
        let firsts = (10..).step_by(abi::HOME_MAX).take(5);
        firsts
            .map(listed)
            .all(|all| all.iter().all(|one| found.contains(one)))
    };
    until("a knows as many of each", || {
        let found = a.candidates().1;
        found.len() == abi::CANDIDATES_MAX && is_listed(&found)
    });
    a.want(&[74]);
    until("f has it", || others[4].plugs().0.len() == 1);
    assert_eq!(regions(&daemon), ["pair.a.f"]);
}

#[test]
fn a_guest_that_moves_all_the_time_is_followed_at_a_bounded_rate() {
    let (mut a, mut b, daemon) = two(Guest::LetsGo, 60);
    let before = a.candidates().0;
    let uptime = daemon.status().uptime_seconds;
    for n in 0..1000 {
        b.home(&[3 + n as u8 % 2]);
        // It has looked once it answers.
        daemon.status();
    }
    let lists = u64::from(a.candidates().0 - before) / 2;
    let seconds = daemon.status().uptime_seconds - uptime + 1;
    assert!(lists <= 64 + 32 * seconds, "{lists} in {seconds} s");
    b.home(&[7]);
    until("a knows where it is in the end", || a.candidates().1 == [7]);
}
