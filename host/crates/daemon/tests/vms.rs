// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VMs of the configuration: one that migrates, or stays after all, one that comes,
//! and one that is reset.
#![allow(missing_docs)]

mod common;
#[path = "../../qmp/tests/qemu/mod.rs"]
mod qemu;

use std::mem::offset_of;
use std::sync::{Arc, Mutex};

use common::{memory_of, until, Daemon, SIZE};
use hallway_abi::region as abi;
use hallway_control::{ask, Answer, Liveness, Migration, Query, Release};
use hallway_membership::Uuid;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use qemu::{Guest, Machine, State, GREETING};
use serde_json::Value;

/// The daemon ends first: a monitor waits for its client to go.
struct Vm {
    daemon: Daemon,
    guest: common::Qemu,
    monitor: qemu::Qemu,
    state: Arc<Mutex<State>>,
    uuid: Uuid,
}

/// A VM and its host. Its guest has said nothing yet.
fn vm(guest: Guest, run: &'static str, by_hand: &[&str]) -> Vm {
    let uuid = Uuid::random().unwrap();
    let state = Arc::new(Mutex::new(State {
        run,
        ..State::default()
    }));
    let machine = Machine {
        uuid: uuid.to_string(),
        guest,
        state: state.clone(),
        ..Machine::default()
    };
    let monitor = qemu::Qemu::new(GREETING, machine.memory(by_hand).answer());
    let config = format!(
        "[[group]]\nname = \"g\"\nisolation = \"shared\"\nsize = \"16M\"\n\
         [[vm]]\nname = \"web1\"\nuuid = \"{uuid}\"\nmonitor = \"{}\"\ngroups = [\"g\"]\n",
        monitor.path.display()
    );
    let daemon = Daemon::configured(&[], Some(&config));
    until("the monitor answers", || daemon.status().vms[0].connected);
    let mut guest = common::Qemu::new(&daemon);
    guest.uuid = uuid;
    Vm {
        daemon,
        guest,
        monitor,
        state,
        uuid,
    }
}

impl Vm {
    /// The guest's module starts, and gets the region.
    fn start(&mut self) {
        let hello = abi::COMMAND_HELLO;
        self.guest.ask(0, hello, Uuid::default(), abi::MAJOR);
        assert_eq!(self.guest.reply(0), abi::STATUS_OK);
        self.plugged(1);
    }

    fn plugged(&self, times: usize) {
        until("the region is plugged in", || {
            self.monitor.asked("device_add").len() == times
                && self.daemon.status().vms[0]
                    .plugs
                    .iter()
                    .any(|plug| plug.region == "g" && plug.plugged)
        });
    }

    /// Its daemon is killed, and the next one finds its QEMU so.
    fn taken_over(&mut self, state: State) {
        self.taken_over_with(state, &[]);
    }

    /// Its daemon is killed, and the next one finds its QEMU so, with these devices.
    fn taken_over_with(&mut self, state: State, devices: &[&str]) {
        // The socket of a monitor that a test plays takes one client only.
        self.daemon.kill();
        self.state = Arc::new(Mutex::new(state));
        let machine = Machine {
            uuid: self.uuid.to_string(),
            state: self.state.clone(),
            ..Machine::default()
        };
        let path = self.monitor.path.clone();
        self.monitor = qemu::Qemu::new(GREETING, machine.memory(devices).answer());
        std::fs::rename(&self.monitor.path, &path).unwrap();
        self.monitor.path = path;
        self.daemon.start();
    }

    /// As a member.
    fn liveness(&self) -> Liveness {
        let members = &self.daemon.status().regions[0].members;
        let own = members.iter().find(|m| m.uuid == self.uuid.to_string());
        own.unwrap().liveness
    }

    fn ask(&self, query: Query) -> Answer {
        ask(&self.daemon.run(), query).unwrap()
    }

    /// QEMU begins to migrate, and does not end.
    fn moves(&mut self) {
        self.migrate("active");
        until("QEMU migrates", || {
            matches!(self.migration(), Migration::Moving { .. })
        });
    }

    fn migrate(&self, migration: &'static str) {
        self.state.lock().unwrap().migration = migration;
        let (vm, uri) = ("web1".into(), "tcp:b:1".into());
        let begun = self.ask(Query::Migrate {
            vm,
            uri,
            reset_outsourced: false,
        });
        assert_eq!(begun, Answer::Migration(Migration::Unplugging));
    }

    /// By its UUID, for a change.
    fn migration(&self) -> Migration {
        let vm = self.uuid.to_string();
        match self.ask(Query::Migration { vm }) {
            Answer::Migration(migration) => migration,
            other => panic!("{other:?}"),
        }
    }

    fn ends(&self) -> Migration {
        until("it ends", || {
            !matches!(
                self.migration(),
                Migration::Unplugging | Migration::Moving { .. }
            )
        });
        self.migration()
    }

    fn stays(&self, part: &str) {
        match self.ends() {
            Migration::Stayed { why } if why.contains(part) => {}
            other => panic!("not because of {part}: {other:?}"),
        }
    }

    fn release(&self) -> Release {
        let query = Query::Release {
            vm: "web1".into(),
            timeout: 30,
            reset_outsourced: false,
        };
        assert!(matches!(self.ask(query), Answer::Release(_)));
        until("the release ends", || self.stage() != Release::Unplugging);
        self.stage()
    }

    /// Stage of its release; asked for by its UUID, for a change.
    fn stage(&self) -> Release {
        let vm = self.uuid.to_string();
        match self.ask(Query::ReleaseStage { vm }) {
            Answer::Release(stage) => stage,
            other => panic!("{other:?}"),
        }
    }

    fn resume(&self) {
        let vm = "web1".into();
        assert_eq!(self.ask(Query::Resume { vm }), Answer::Resuming);
    }

    /// Its memory is out, and was plugged in as often before.
    fn stays_out(&self, times: usize) {
        self.a_second_passes();
        assert_eq!(self.monitor.asked("device_add").len(), times);
        let vm = &self.daemon.status().vms[0];
        assert!(vm.released && vm.plugs.is_empty(), "{vm:?}");
    }

    fn refused(&self, query: Query, part: &str) {
        match self.ask(query) {
            Answer::Error { message } if message.contains(part) => {}
            other => panic!("not because of {part}: {other:?}"),
        }
    }

    /// A second passes for the daemon.
    fn a_second_passes(&self) {
        let before = self.daemon.status().uptime_seconds;
        until("a second has passed", || {
            self.daemon.status().uptime_seconds > before + 1
        });
    }
}

#[test]
fn a_vm_that_stays_gets_its_memory_again_and_one_that_went_does_not() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    let name = || String::from("web1");
    let again = || Query::Migrate {
        vm: name(),
        uri: "tcp:b:1".into(),
        reset_outsourced: false,
    };
    vm.refused(Query::Migration { vm: name() }, "does not migrate");
    vm.refused(Query::CancelMigration { vm: name() }, "does not migrate");
    vm.refused(Query::Migration { vm: "web2".into() }, "no VM \"web2\"");

    vm.state.lock().unwrap().lingers = 2;
    vm.migrate("failed");
    vm.stays("QEMU failed to migrate");
    assert_eq!(vm.state.lock().unwrap().lingers, 0);
    vm.plugged(2);

    vm.moves();
    vm.refused(again(), "migrates already");
    vm.ask(Query::CancelMigration { vm: name() });
    vm.stays("cancelled");
    vm.plugged(3);

    vm.migrate("completed");
    let (downtime_ms, total_ms) = (3, 5);
    assert_eq!(
        vm.ends(),
        Migration::Done {
            downtime_ms,
            total_ms
        }
    );
    vm.refused(again(), "its QEMU here is to be ended");
    vm.a_second_passes();
    assert_eq!(vm.monitor.asked("device_add").len(), 3);
    let asked: Vec<Value> = vm.monitor.asked("migrate");
    assert!(asked.len() == 3 && asked.iter().all(|a| a["uri"] == "tcp:b:1"));

    // Its user has it go on here after all.
    vm.state.lock().unwrap().run = "running";
    vm.monitor.say("RESUME");
    vm.plugged(4);
}

#[test]
fn what_a_guest_holds_and_what_hallwayd_did_not_plug_in_keeps_it_here() {
    let mut held = vm(Guest::Refuses, "running", &[]);
    held.start();
    held.migrate("completed");
    held.stays("does not let device");
    let plug = held.daemon.status().vms[0].plugs[0].clone();
    let problem = plug.problem.unwrap_or_default();
    assert!(plug.plugged && problem.contains("does not let device"));
    let mut by_hand = vm(Guest::LetsGo, "running", &["ring7"]);
    by_hand.start();
    by_hand.migrate("completed");
    by_hand.stays("device_del ring7");
    for vm in [held, by_hand] {
        assert_eq!(vm.monitor.asked("migrate").len(), 0);
    }
}

#[test]
fn memory_that_was_released_stays_out_until_it_is_resumed() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    let region = vm.daemon.region();
    assert_eq!(vm.guest.join(region), abi::STATUS_OK);
    let name = || String::from("web1");
    let unknown = Query::Resume { vm: "web2".into() };
    vm.refused(unknown, "no VM \"web2\"");
    vm.refused(Query::ReleaseStage { vm: name() }, "was not asked");

    assert_eq!(vm.release(), Release::Out);
    assert_eq!(vm.liveness(), Liveness::Absent);
    assert_eq!(vm.release(), Release::Out);
    assert_eq!(vm.monitor.asked("device_del").len(), 1);
    vm.stays_out(1);
    // A reboot of its guest, and a pause, are in this QEMU.
    vm.monitor.say("RESET");
    until("it was reset", || vm.daemon.log().contains("was reset"));
    vm.guest
        .ask(0, abi::COMMAND_HELLO, Uuid::default(), abi::MAJOR);
    assert_eq!(vm.guest.reply(0), abi::STATUS_OK);
    vm.monitor.say("RESUME");
    vm.monitor.say_migration("active");
    vm.stays_out(1);

    vm.resume();
    vm.plugged(2);
    assert_eq!(vm.guest.join(region), abi::STATUS_OK);
    assert!(!vm.daemon.status().vms[0].released);
    vm.resume();
    vm.a_second_passes();
    assert_eq!(vm.monitor.asked("device_add").len(), 2);
}

#[test]
fn memory_that_was_released_comes_back_when_another_clients_migration_fails() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    for (times, end) in [(1, "failed"), (2, "cancelled")] {
        assert_eq!(vm.release(), Release::Out);
        vm.monitor.say_migration("active");
        vm.stays_out(times);
        vm.monitor.say_migration(end);
        vm.plugged(times + 1);
    }
}

#[test]
fn a_migration_that_failed_before_a_release_does_not_undo_it() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    vm.state.lock().unwrap().failed = true;
    assert_eq!(vm.release(), Release::Out);
    vm.stays_out(1);
}

#[test]
fn a_release_is_over_when_its_qemu_ends() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    assert_eq!(vm.release(), Release::Out);
    // The connection before goes; that of the monitor does not.
    vm.guest = common::Qemu::in_another_process(&vm.daemon);
    until("it is over", || !vm.daemon.status().vms[0].released);
    let stage = Query::ReleaseStage { vm: "web1".into() };
    vm.refused(stage, "was not asked");
}

#[test]
fn a_guest_that_does_not_release_its_memory_keeps_it() {
    for (guest, timeout, part) in [
        (Guest::Refuses, 30, "does not let device hallway-g go"),
        (Guest::Sleeps, 1, "does not let device hallway-g go"),
    ] {
        let mut vm = vm(guest, "running", &[]);
        vm.start();
        let query = Query::Release {
            vm: "web1".into(),
            timeout,
            reset_outsourced: false,
        };
        assert_eq!(vm.ask(query), Answer::Release(Release::Unplugging));
        until(
            "it fails",
            || matches!(vm.stage(), Release::Failed { why } if why.contains(part)),
        );
        let status = &vm.daemon.status().vms[0];
        assert!(!status.released && status.plugs[0].plugged, "{status:?}");
    }
    let mut by_hand = vm(Guest::LetsGo, "running", &["ring7"]);
    by_hand.start();
    match by_hand.release() {
        Release::Failed { why } if why.contains("device_del ring7") => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(by_hand.monitor.asked("device_del").len(), 0);
}

#[test]
fn a_daemon_that_takes_over_knows_what_was_released() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    assert_eq!(vm.release(), Release::Out);
    vm.taken_over(State::default());
    until("its monitor answers", || {
        vm.daemon.status().vms[0].connected
    });
    vm.stays_out(0);
    assert_eq!(vm.stage(), Release::Out);
    vm.resume();
    vm.plugged(1);
    vm.taken_over(State::default());
    vm.plugged(1);
}

#[test]
fn a_daemon_that_takes_over_follows_a_migration_that_goes_on() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    vm.moves();
    vm.taken_over(State {
        migration: "active",
        ..State::default()
    });
    until("the next one knows", || {
        let vm_name = String::from("web1");
        let answer = vm.ask(Query::Migration { vm: vm_name });
        matches!(answer, Answer::Migration(Migration::Moving { .. }))
    });
    assert_eq!(vm.monitor.asked("device_add").len(), 0);
    vm.state.lock().unwrap().migration = "failed";
    vm.stays("QEMU failed");
    vm.plugged(1);
}

#[test]
fn a_region_that_is_plugged_in_and_not_joined_is_shown_with_what_to_do() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    let problem = |vm: &Vm| vm.daemon.status().vms[0].plugs[0].problem.clone();
    assert_eq!(problem(&vm), None);
    until("that is shown", || {
        problem(&vm).is_some_and(|problem| problem.contains("pref64-reserve"))
    });
    until("it is logged", || vm.daemon.log().contains("not joined"));
    assert_eq!(vm.guest.join(vm.daemon.region()), abi::STATUS_OK);
    assert_eq!(problem(&vm), None);
    vm.a_second_passes();
    assert_eq!(vm.daemon.log().matches("not joined").count(), 1);
}

#[test]
fn ring_memory_outlives_daemon_and_holder() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    assert!(!vm.daemon.dir.join("mem").exists());
    let memory = |vm: &Vm| {
        let last = vm.monitor.asked("object-add").pop().unwrap();
        memory_of(last["mem-path"].as_str().unwrap(), SIZE)
    };
    let (ring, word) = (SIZE as usize - 8, 0x1234_5678);
    memory(&vm).write_u64(ring, word);
    let first = vm.daemon.holder_pid();
    for kills_holder in [false, true] {
        if kills_holder {
            kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
            until("another holder has all", || {
                vm.daemon.status();
                vm.daemon.log().contains("starting another") && vm.daemon.holder_pid() != first
            });
        }
        let region = vm.daemon.region();
        vm.taken_over(State::default());
        vm.plugged(1);
        assert_eq!(vm.daemon.region(), region);
        let memory = memory(&vm);
        assert_eq!(memory.read_bytes::<16>(24), region.0);
        assert_eq!(memory.read_u64(ring), word);
    }
}

#[test]
fn a_migration_that_ends_while_no_daemon_runs_leaves_no_member() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    assert_eq!(vm.guest.join(vm.daemon.region()), abi::STATUS_OK);
    let ends = |vm: &mut Vm| {
        vm.taken_over(State {
            run: "postmigrate",
            migration: "completed",
            ..State::default()
        });
        until("the next one says how it ended", || {
            let answer = vm.ask(Query::Migration { vm: "web1".into() });
            matches!(answer, Answer::Migration(Migration::Done { .. }))
        });
    };
    ends(&mut vm);
    assert_eq!(vm.liveness(), Liveness::Absent);
    assert_eq!(vm.daemon.status().connections[0].uuid, None);
    vm.a_second_passes();
    assert_eq!(vm.monitor.asked("device_add").len(), 0);

    // It went to another QEMU of this host, and is a member again.
    let mut there = common::Qemu::in_another_process(&vm.daemon);
    there.uuid = vm.uuid;
    assert_eq!(there.join(vm.daemon.region()), abi::STATUS_OK);
    ends(&mut vm);
    assert_eq!(vm.liveness(), Liveness::Joining);
}

#[test]
fn a_migration_that_had_not_begun_when_its_daemon_was_killed_is_none() {
    let mut vm = vm(Guest::Sleeps, "running", &[]);
    vm.start();
    vm.migrate("none");
    until("the guest is asked to let go", || {
        vm.monitor.asked("device_del").len() == 1
    });
    vm.taken_over(State::default());
    vm.plugged(1);
    let name = String::from("web1");
    vm.refused(Query::Migration { vm: name }, "it stays here");
}

#[test]
fn of_a_qemu_that_dies_while_it_migrates_nobody_says_that_its_guest_stays() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    vm.moves();
    vm.monitor.hang_up();
    assert!(matches!(vm.ends(), Migration::Unknown { .. }));
}

#[test]
fn what_a_monitor_says_while_it_is_asked_is_heard() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    vm.state.lock().unwrap().meanwhile = Some("RESET");
    vm.monitor.say("RESUME");
    until("it was reset", || {
        let plugs = &vm.daemon.status().vms[0].plugs;
        plugs[0].problem.as_deref() == Some("its guest was reset")
    });
}

#[test]
fn events_without_end_do_not_fill_the_log() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    for _ in 0..1000 {
        vm.monitor.say("RESET");
    }
    until("they are counted", || {
        vm.daemon.log().contains("too many to log each")
    });
    let lines = vm.daemon.log().matches("was reset").count();
    let seconds = vm.daemon.status().uptime_seconds as usize + 1;
    assert!(lines <= 8 * (seconds + 1), "{lines} lines in {seconds} s");
}

#[test]
fn a_vm_that_comes_is_known_by_its_page_and_gets_memory_once_it_runs() {
    let mut coming = vm(Guest::LetsGo, "inmigrate", &[]);
    coming.refused(
        Query::Migrate {
            vm: "web1".into(),
            uri: "tcp:b:1".into(),
            reset_outsourced: false,
        },
        "has yet to arrive",
    );
    comes(&mut coming, abi::COMMAND_LEAVE);
    // Of one that never had a region there.
    comes(&mut vm(Guest::LetsGo, "inmigrate", &[]), abi::COMMAND_HELLO);
}

/// QEMU copies the page here, with what the guest last asked the host before,
/// which had listed a candidate; and once more before the guest runs.
fn comes(vm: &mut Vm, command: u32) {
    let candidates = offset_of!(abi::Page, candidates);
    let count = candidates + offset_of!(abi::Candidates, count);
    let copy = |vm: &Vm| {
        vm.guest.page().write_u32(candidates, 6);
        vm.guest.page().write_u32(count, 1);
    };
    copy(vm);
    let strange = Uuid::random().unwrap();
    vm.guest.ask(0, command, strange, abi::MAJOR);
    assert_eq!(vm.guest.reply(0), abi::STATUS_OK);
    vm.a_second_passes();
    assert_eq!(vm.monitor.asked("device_add").len(), 0);
    copy(vm);

    vm.state.lock().unwrap().run = "running";
    vm.monitor.say("RESUME");
    vm.plugged(1);
    assert_eq!(vm.daemon.status().connections[0].uuid, Some(vm.uuid.into()));
    until("it learns that it has no candidate here", || {
        let page = vm.guest.page();
        page.read_u32(count) == 0 && page.read_u32(candidates) == 8
    });
}

#[test]
fn a_vm_that_is_reset_is_no_member_and_gets_its_memory_again_when_its_module_runs() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    let region = vm.daemon.region();
    assert_eq!(vm.guest.join(region), abi::STATUS_OK);
    assert_eq!(vm.liveness(), Liveness::Joining);
    vm.monitor.say("RESET");
    until("it is no member", || vm.liveness() == Liveness::Absent);
    let status = vm.daemon.status();
    assert_eq!(status.connections[0].uuid, None);
    let problem = status.vms[0].plugs[0].problem.as_deref();
    assert_eq!(problem, Some("its guest was reset"));
    vm.a_second_passes();
    assert_eq!(vm.monitor.asked("device_del").len(), 0);

    let hello = abi::COMMAND_HELLO;
    vm.guest.ask(0, hello, Uuid::default(), abi::MAJOR);
    assert_eq!(vm.guest.reply(0), abi::STATUS_OK);
    vm.plugged(2);
    assert_eq!(vm.monitor.asked("device_del").len(), 1);
    assert_eq!(vm.guest.join(region), abi::STATUS_OK);
    assert_eq!(vm.liveness(), Liveness::Joining);
}

#[test]
fn a_vm_that_is_reset_before_another_daemon_starts_gets_its_memory_again_when_its_module_runs() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    assert_eq!(vm.guest.join(vm.daemon.region()), abi::STATUS_OK);
    vm.monitor.say("RESET");
    until("it is no member", || vm.liveness() == Liveness::Absent);
    // What one answer says is saved before the next one.
    vm.daemon.status();
    vm.taken_over_with(State::default(), &["hallway-g"]);
    until("that is known again", || {
        let plugs = &vm.daemon.status().vms[0].plugs;
        plugs
            .iter()
            .any(|plug| plug.problem.as_deref() == Some("its guest was reset"))
    });
    vm.a_second_passes();
    assert_eq!(vm.monitor.asked("device_add").len(), 0);
    assert_eq!(vm.monitor.asked("device_del").len(), 0);

    vm.start();
    assert_eq!(vm.monitor.asked("device_del").len(), 1);
}

#[test]
fn an_event_of_a_device_that_had_the_id_before_takes_nothing_out() {
    let mut vm = vm(Guest::LetsGo, "running", &[]);
    vm.start();
    vm.monitor.say_deleted("hallway-g");
    vm.monitor.say("RESET");
    until("both are heard", || vm.daemon.log().contains("was reset"));
    assert!(!vm.daemon.log().contains("plugged out by another"));
    vm.daemon.kill();
}
