// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon makes of members that the configuration before it admitted.
#![allow(missing_docs)]

mod common;
#[path = "../../qmp/tests/qemu/mod.rs"]
mod qemu;

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::{until, Daemon};
use hallway_abi::region as abi;
use hallway_control::{ask, Answer, Liveness, Query};
use hallway_membership::Uuid;
use nix::errno::Errno;
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use qemu::{Guest, Machine, GREETING};

const GROUP: &str = "[[group]]\nname = \"web\"\nisolation = \"shared\"\nsize = \"16M\"\n";

fn vm(uuid: Uuid, groups: &str, monitor: Option<&qemu::Qemu>) -> String {
    let monitor = monitor.map(|qemu| format!("monitor = \"{}\"\n", qemu.path.display()));
    let monitor = monitor.unwrap_or_default();
    format!("[[vm]]\nname = \"a\"\nuuid = \"{uuid}\"\ngroups = [{groups}]\n{monitor}")
}

/// Ends the daemon, and starts the next one with another configuration.
fn reconfigure(daemon: &mut Daemon, config: &str) {
    daemon.kill();
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    daemon.start();
}

fn is_member(daemon: &Daemon, slot: usize) -> bool {
    let status = daemon.status();
    let region = status.regions.iter().find(|one| one.name == "web").unwrap();
    let mut members = region.members.iter();
    members.any(|member| member.slot == slot && member.liveness != Liveness::Absent)
}

/// Descriptors that the daemon has open.
fn descriptors(daemon: &Daemon) -> usize {
    let dir = format!("/proc/{}/fd", daemon.child.id());
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_reload_changes_the_groups_and_loses_no_connection() {
    let uuid = Uuid::random().unwrap();
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", None));
    let mut daemon = Daemon::configured(&[], Some(&config));
    let path = daemon.dir.join("hallwayd.toml");
    let region = daemon.region();
    let mut member = common::Qemu::new(&daemon);
    member.uuid = uuid;
    assert_eq!(member.join(region), abi::STATUS_OK);
    let (slot, before) = (member.slot(), descriptors(&daemon));

    // What is wrong is said, and changes nothing.
    std::fs::write(&path, "[[group]]\nname = 1\n").unwrap();
    let Answer::Error { message } = ask(&daemon.run(), Query::Reload).unwrap() else {
        panic!("a bad configuration was taken");
    };
    assert!(message.contains("hallwayd.toml:2: "), "{message}");
    let run = daemon.run();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hallwayd"));
    let said = command.arg("--run-dir").arg(&run).arg("--reload").output();
    let said = said.unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("hallwayd.toml:2: "));
    daemon.signal(Signal::SIGHUP);
    until("the signal is refused, too", || {
        daemon
            .log()
            .matches("the configuration stays as it was")
            .count()
            == 3
    });
    assert!(is_member(&daemon, slot));

    // The group has one more VM: by a question, then by the signal.
    let other = Uuid::random().unwrap();
    let second = vm(other, "\"web\"", None).replace("\"a\"", "\"b\"");
    std::fs::write(&path, format!("{config}{second}")).unwrap();
    daemon.reload_by(|| {
        let answer = ask(&daemon.run(), Query::Reload).unwrap();
        assert_eq!(answer, Answer::Reloading);
    });
    let mut joins = common::Qemu::new(&daemon);
    joins.uuid = other;
    assert_eq!(joins.join(region), abi::STATUS_OK);
    assert!(is_member(&daemon, slot) && is_member(&daemon, joins.slot()));
    drop(joins);
    std::fs::write(&path, &config).unwrap();
    daemon.reload();
    assert!(is_member(&daemon, slot));
    assert!(
        daemon.child.try_wait().unwrap().is_none(),
        "the process is the same"
    );
    until("nothing is left open", || descriptors(&daemon) <= before);
}

#[test]
fn a_reload_that_would_change_a_region_in_use_is_refused() {
    let daemon = Daemon::configured(&[], Some(GROUP));
    let path = daemon.dir.join("hallwayd.toml");
    for (before, after) in [("16M", "32M"), ("\"16M\"\n", "\"16M\"\nslots = 2\n")] {
        std::fs::write(&path, GROUP.replace(before, after)).unwrap();
        let Answer::Error { message } = ask(&daemon.run(), Query::Reload).unwrap() else {
            panic!("the next daemon would not start");
        };
        assert!(
            message.contains("region web is in use with other dimensions"),
            "{message}"
        );
    }
    assert_eq!(daemon.status().regions[0].size, 16 << 20);
}

#[test]
fn a_reload_with_a_region_that_has_no_room_is_refused() {
    let daemon = Daemon::configured(&[], Some(GROUP));
    let path = daemon.dir.join("hallwayd.toml");
    // Each is smaller than what the host has, and all are not.
    let table = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = table
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10;
    let size = (total / 2).next_power_of_two() / 4;
    let more = (1..=8).map(|n| {
        let group = GROUP.replace("web", &format!("web{n}"));
        group.replace("16M", &size.to_string())
    });
    let config: String = std::iter::once(GROUP.into()).chain(more).collect();
    std::fs::write(&path, config).unwrap();
    let Answer::Error { message } = ask(&daemon.run(), Query::Reload).unwrap() else {
        panic!("the next daemon would not start");
    };
    assert!(
        message.contains("bytes of memory are available"),
        "{message}"
    );
    assert_eq!(daemon.status().regions.len(), 1);
}

#[test]
fn a_reload_with_a_region_by_hand_that_has_no_room_is_refused() {
    let daemon = Daemon::configured(&["default:16M:4"], Some(GROUP));
    let dir = daemon.region_file().parent().unwrap().to_owned();
    let stat = nix::sys::statvfs::statvfs(&dir).unwrap();
    let free = stat.blocks_available() * stat.fragment_size();
    let size = free.next_power_of_two() * 2;
    let group = GROUP
        .replace("web", "large")
        .replace("16M", &size.to_string());
    let config = format!(
        "{GROUP}{group}{}",
        vm(Uuid::random().unwrap(), "\"large\"", None)
    );
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    let Answer::Error { message } = ask(&daemon.run(), Query::Reload).unwrap() else {
        panic!("the next daemon would not start");
    };
    assert!(message.contains("region large"), "{message}");
    assert!(!dir.join("large").exists());
    assert_eq!(daemon.status().regions.len(), 2);
}

#[test]
fn a_reload_with_which_the_next_daemon_refused_its_directory_is_refused() {
    let daemon = Daemon::configured(&["default:16M:4"], Some(GROUP));
    let region = daemon.region();
    let mem = daemon.region_file().parent().unwrap().to_owned();
    // Any user could put another file in the place of a region's.
    std::fs::set_permissions(&mem, std::fs::Permissions::from_mode(0o777)).unwrap();
    let Answer::Error { message } = ask(&daemon.run(), Query::Reload).unwrap() else {
        panic!("the next daemon would not start");
    };
    assert!(message.contains("--region-dir"), "{message}");
    assert_eq!(daemon.region(), region);
    std::fs::set_permissions(&mem, std::fs::Permissions::from_mode(0o755)).unwrap();
    daemon.reload();
    assert_eq!(daemon.region(), region);
}

#[test]
fn a_signal_that_ends_the_daemon_is_not_lost_beside_one_that_reloads_it() {
    let mut daemon = Daemon::configured(&[], Some(GROUP));
    // It finds both at once.
    for signal in [
        Signal::SIGSTOP,
        Signal::SIGHUP,
        Signal::SIGTERM,
        Signal::SIGCONT,
    ] {
        daemon.signal(signal);
    }
    until("it ends", || daemon.child.try_wait().unwrap().is_some());
    assert!(daemon.log().contains("reads the configuration again"));
}

#[test]
fn without_a_connection_a_reload_keeps_the_socket() {
    let daemon = Daemon::configured(&[], Some(GROUP));
    let made = |daemon: &Daemon| {
        let socket = std::fs::metadata(daemon.run().join("hallwayd.sock")).unwrap();
        (
            daemon.holder_pid(),
            socket.ino(),
            socket.modified().unwrap(),
        )
    };
    let before = made(&daemon);
    assert_eq!(
        ask(&daemon.run(), Query::Reload).unwrap(),
        Answer::Reloading
    );
    until("it is ready again", || {
        daemon.log().matches(" ready").count() == 2
    });
    assert_eq!(made(&daemon), before);
    let plain = Daemon::new();
    let answer = ask(&plain.run(), Query::Reload).unwrap();
    assert!(matches!(answer, Answer::Error { message } if message.contains("--config")));
}

#[test]
fn a_group_that_is_taken_out_of_the_configuration_admits_no_vm() {
    let uuid = Uuid::random().unwrap();
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", None));
    let mut daemon = Daemon::configured(&[], Some(&config));
    let region = daemon.region();
    let (mut member, mut other) = (common::Qemu::new(&daemon), common::Qemu::new(&daemon));
    member.uuid = uuid;
    assert_eq!(member.join(region), abi::STATUS_OK);
    assert_eq!(other.join(region), abi::STATUS_DENIED);
    let slot = member.slot();
    for _ in 0..2 {
        reconfigure(&mut daemon, "[limits]\nhost = \"1G\"\n");
        assert_eq!(daemon.region(), region);
        assert!(!is_member(&daemon, slot));
        assert_eq!(other.join(region), abi::STATUS_DENIED);
        assert_eq!(member.join(region), abi::STATUS_DENIED);
    }
    assert!(daemon.log().contains("has no monitor by which"));
    reconfigure(&mut daemon, &config);
    assert_eq!(member.join(region), abi::STATUS_OK);
    assert_eq!(other.join(region), abi::STATUS_DENIED);
}

/// A QEMU with such memory, that is played.
fn play(uuid: Uuid, guest: Guest, devices: &[&str]) -> qemu::Qemu {
    let machine = Machine {
        uuid: uuid.to_string(),
        guest,
        ..Machine::default()
    };
    qemu::Qemu::new(GREETING, machine.memory(devices).answer())
}

/// A daemon, a VM that is a member of its group's region and has the memory, and its monitor, which
/// lives as long as the daemon uses it.
fn joined(uuid: Uuid) -> (Daemon, common::Qemu, qemu::Qemu) {
    let monitor = play(uuid, Guest::LetsGo, &[]);
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", Some(&monitor)));
    let daemon = Daemon::configured(&[], Some(&config));
    let mut guest = common::Qemu::new(&daemon);
    guest.uuid = uuid;
    assert_eq!(guest.join(daemon.region()), abi::STATUS_OK);
    until("the region is plugged in", || {
        monitor.asked("device_add").len() == 1
    });
    (daemon, guest, monitor)
}

#[test]
fn a_vm_that_is_taken_out_of_its_group_loses_membership_and_memory() {
    let uuid = Uuid::random().unwrap();
    let (mut daemon, mut guest, _before) = joined(uuid);
    let region = daemon.region();
    while guest.rung() {}
    // A monitor that a test plays takes one client only. First the guest keeps its memory.
    let busy = play(uuid, Guest::Sleeps, &["hallway-web"]);
    reconfigure(
        &mut daemon,
        &format!("{GROUP}{}", vm(uuid, "", Some(&busy))),
    );
    until("the guest is asked", || busy.asked("device_del").len() == 1);
    assert!(is_member(&daemon, guest.slot()));
    let after = play(uuid, Guest::LetsGo, &["hallway-web"]);
    reconfigure(
        &mut daemon,
        &format!("{GROUP}{}", vm(uuid, "", Some(&after))),
    );
    until("its membership ends", || !is_member(&daemon, guest.slot()));
    until("the guest is asked", || {
        after.asked("device_del").len() == 1
    });
    until("the guest is rung", || guest.rung());
    assert_eq!(guest.doorbell(0), 0);
    until("the region is plugged out", || {
        daemon.log().contains("plugged out")
    });
    assert_eq!(guest.join(region), abi::STATUS_DENIED);
    assert_eq!(after.asked("device_add").len(), 0);
    daemon.kill();
}

#[test]
fn the_region_of_a_group_that_is_gone_is_freed_once_no_vm_can_have_it() {
    let uuid = Uuid::random().unwrap();
    for stays in [true, false] {
        let (mut daemon, guest, _before) = joined(uuid);
        let after = play(uuid, Guest::LetsGo, &["hallway-web"]);
        if stays {
            reconfigure(&mut daemon, &vm(uuid, "", Some(&after)));
        } else {
            // Without a monitor of its own nothing shows what it has.
            reconfigure(&mut daemon, "[limits]\nhost = \"1G\"\n");
            let seconds = daemon.status().uptime_seconds + 3;
            until("three seconds pass", || {
                daemon.status().uptime_seconds >= seconds
            });
            assert_eq!(daemon.status().regions.len(), 1);
            drop(guest);
        }
        until("it is freed", || daemon.status().regions.is_empty());
        daemon.kill();
    }
}

#[test]
fn memory_that_a_daemon_before_plugged_in_and_the_configuration_does_not_grant_is_taken_out() {
    let uuid = Uuid::random().unwrap();
    let devices = ["hallway-old", "hallway-web", "ring7"];
    let monitor = play(uuid, Guest::LetsGo, &devices);
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", Some(&monitor)));
    let mut daemon = Daemon::configured(&[], Some(&config));
    until("it is taken out", || daemon.log().contains("plugged out"));
    let asked = monitor.asked("device_del");
    assert_eq!(asked, [serde_json::json!({"id": "hallway-old"})]);
    daemon.kill();
}

#[test]
fn a_region_that_was_asked_for_once_keeps_its_members_and_admits_no_other() {
    let mut daemon = Daemon::serving(&["web:16M"]);
    let region = daemon.region();
    let (mut member, mut other) = (common::Qemu::new(&daemon), common::Qemu::new(&daemon));
    assert_eq!(member.join(region), abi::STATUS_OK);
    daemon.regions = vec!["other:16M"];
    daemon.kill();
    daemon.start();
    let regions = daemon.status().regions;
    assert!(regions.iter().any(|served| served.name == "web"));
    assert!(is_member(&daemon, member.slot()));
    assert_eq!(other.join(region), abi::STATUS_DENIED);
    assert!(daemon.log().contains("was not asked for again"));
    assert_eq!(member.join(region), abi::STATUS_OK);
}

/// A monitor that a test plays, at a path of the daemon's directory.
fn monitor(uuid: Uuid, path: &Path) -> qemu::Qemu {
    let machine = Machine {
        uuid: uuid.to_string(),
        ..Machine::default()
    };
    let mut monitor = qemu::Qemu::new(GREETING, machine.answer());
    std::fs::rename(&monitor.path, path).unwrap();
    monitor.path = path.into();
    monitor
}

fn problem(daemon: &Daemon, vm: usize, part: &str) {
    until("the monitor is refused", || {
        let problem = daemon.status().vms[vm].problem.clone();
        problem.is_some_and(|problem| problem.contains(part))
    });
    assert!(!daemon.status().vms[vm].connected);
}

#[test]
fn a_qemu_that_was_one_vm_is_refused_as_another() {
    let (a, b) = (Uuid::random().unwrap(), Uuid::random().unwrap());
    let dir = std::env::temp_dir().join(format!("hwm-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let config = |name: &str, uuid: Uuid| {
        let path = dir.join(name);
        format!(
            "[[vm]]\nname = \"{name}\"\nuuid = \"{uuid}\"\nmonitor = \"{}\"\n",
            path.display()
        )
    };
    let config = config("a", a) + &config("b", b);
    let of_a = monitor(a, &dir.join("a"));
    let mut daemon = Daemon::configured(&["web:16M"], Some(&config));
    until("the monitor answers", || daemon.status().vms[0].connected);
    let mut guest = common::Qemu::new(&daemon);
    guest.uuid = a;
    assert_eq!(guest.join(daemon.region()), abi::STATUS_OK);
    // The same QEMU listens in the place of b.
    let of_b = monitor(b, &dir.join("b"));
    problem(&daemon, 1, "stands in for b");
    guest.uuid = b;
    assert_eq!(guest.join(daemon.region()), abi::STATUS_DENIED);
    daemon.kill();
    drop(of_b);
    let of_b = monitor(b, &dir.join("b"));
    daemon.start();
    problem(&daemon, 1, "stands in for b");
    // Nothing answers any more, and it is known what this QEMU was.
    daemon.kill();
    drop((of_a, of_b));
    daemon.start();
    assert_eq!(guest.join(daemon.region()), abi::STATUS_DENIED);
    guest.uuid = a;
    assert_eq!(guest.join(daemon.region()), abi::STATUS_OK);
    daemon.kill();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn memory_goes_to_no_other_process_than_the_one_with_the_doorbell() {
    let uuid = Uuid::random().unwrap();
    let machine = Machine {
        uuid: uuid.to_string(),
        ..Machine::default()
    };
    let monitor = qemu::Qemu::new(GREETING, machine.answer());
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", Some(&monitor)));
    let daemon = Daemon::configured(&[], Some(&config));
    until("the monitor answers", || daemon.status().vms[0].connected);
    let mut guest = common::Qemu::in_another_process(&daemon);
    guest.uuid = uuid;
    assert_eq!(guest.join(daemon.region()), abi::STATUS_OK);
    until("that is shown", || {
        let plugs = daemon.status().vms.remove(0).plugs;
        let problem = plugs.first().and_then(|plug| plug.problem.clone());
        problem.is_some_and(|problem| problem.contains("the process at its monitor is"))
    });
    assert_eq!(monitor.asked("object-add").len(), 0);
    assert_eq!(monitor.asked("add-fd").len(), 0);
}

/// Starts a process with a pid that was another one's. It listens at a socket that this
/// process has, so that peers take it for the process there.
fn listen_as(pid: i32, socket: RawFd) -> Forked {
    let args = libc::clone_args {
        exit_signal: libc::SIGCHLD as u64,
        set_tid: (&raw const pid) as u64,
        set_tid_size: 1,
        // SAFETY: zeros are good values of all fields.
        ..unsafe { std::mem::zeroed() }
    };
    let (listens, says) = nix::unistd::pipe().unwrap();
    // SAFETY: the arguments live; the child makes system calls alone.
    let forked = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    match Errno::result(forked).unwrap() {
        0 => {
            // SAFETY: the calls take numbers, and one byte that lives.
            unsafe {
                libc::listen(socket, 8);
                libc::write(says.as_raw_fd(), c"".as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        child => {
            let child = Forked(Pid::from_raw(child as i32));
            assert_eq!(nix::unistd::read(listens, &mut [0]).unwrap(), 1);
            child
        }
    }
}

/// A process that ends with the test.
struct Forked(Pid);

impl Drop for Forked {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGKILL).unwrap();
        waitpid(self.0, None).unwrap();
    }
}

#[test]
fn memory_goes_to_no_process_that_has_the_pid_of_the_one_with_the_doorbell() {
    if !nix::unistd::geteuid().is_root() {
        return; // It cannot choose a pid.
    }
    let uuid = Uuid::random().unwrap();
    let machine = Machine {
        uuid: uuid.to_string(),
        ..Machine::default()
    };
    let monitor = qemu::Qemu::new(GREETING, machine.answer());
    let socket = common::find_listening(std::process::id(), &monitor.path).unwrap();
    let aside = monitor.path.with_extension("aside");
    std::fs::rename(&monitor.path, &aside).unwrap();
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", Some(&monitor)));
    let daemon = Daemon::configured(&[], Some(&config));
    let mut guest = common::Qemu::in_another_process(&daemon);
    guest.uuid = uuid;
    assert_eq!(guest.join(daemon.region()), abi::STATUS_OK);

    let pid = daemon.status().connections[0].pid.unwrap();
    let _process = listen_as(pid, socket);
    std::fs::rename(&aside, &monitor.path).unwrap();
    until("that is shown", || {
        let plugs = daemon.status().vms.remove(0).plugs;
        let problem = plugs.first().and_then(|plug| plug.problem.clone());
        problem.is_some_and(|problem| problem.contains("the process at its monitor is"))
    });
    assert_eq!(monitor.asked("add-fd").len(), 0);
}

#[test]
fn a_monitor_of_another_user_in_a_sticky_directory_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        return; // It cannot become another user.
    }
    let uuid = Uuid::random().unwrap();
    let made = std::thread::spawn(move || {
        // SAFETY: the call takes numbers. libc's own would change all threads.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(result, 0);
        let machine = Machine {
            uuid: uuid.to_string(),
            ..Machine::default()
        };
        // The directory for temporary files may be this user's alone.
        qemu::Qemu::at(Path::new("/tmp"), GREETING, machine.answer())
    });
    let monitor = made.join().unwrap();
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", Some(&monitor)));
    let daemon = Daemon::configured(&[], Some(&config));
    problem(&daemon, 0, "other users may put a monitor");
}

#[test]
fn what_a_monitor_says_cannot_steer_a_terminal_or_forge_a_line() {
    let machine = Machine {
        uuid: format!("\x1b[31m\nhallwayd: all is well{}", "x".repeat(5000)),
        ..Machine::default()
    };
    let monitor = qemu::Qemu::new(GREETING, machine.answer());
    let uuid = Uuid::random().unwrap();
    let mut daemon = Daemon::configured(&[], Some(&vm(uuid, "", Some(&monitor))));
    problem(&daemon, 0, "?[31m?hallwayd: all is well");
    let said = daemon.status().vms[0].problem.clone().unwrap();
    assert!(
        said.len() < 1000 && !daemon.log().contains("\nhallwayd"),
        "{said}"
    );
    daemon.kill();
}

#[test]
fn a_monitor_in_a_directory_of_others_is_refused() {
    let uuid = Uuid::random().unwrap();
    let dir = std::env::temp_dir().join(format!("hwo-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&dir, mode).unwrap();
    let monitor = monitor(uuid, &dir.join("m"));
    let mut daemon = Daemon::configured(&[], Some(&vm(uuid, "", Some(&monitor))));
    problem(&daemon, 0, "other users may put a monitor of theirs there");
    daemon.kill();
    drop(monitor);
    std::fs::remove_dir_all(&dir).unwrap();
}
