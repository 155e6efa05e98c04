// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitor against a QEMU that the test plays.
#![allow(missing_docs)]

#[path = "../../unix/tests/lingering/mod.rs"]
mod lingering;
mod qemu;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hallway_qmp::{Error, Memory, MigrationState, Monitor, Plugged, Source};
use qemu::{done, gives, refuses, Guest, Machine, Qemu, GREETING};
use serde_json::{json, Value};

const PATIENCE: Duration = Duration::from_secs(20);

fn connect(qemu: &Qemu) -> Monitor {
    Monitor::connect(&qemu.path, PATIENCE).unwrap()
}

fn memory() -> Memory {
    Memory {
        id: "ring".into(),
        source: Source::File("/dev/shm/ring".into()),
        size: 4096,
    }
}

const MARKS: [&str; 2] = [
    "23a4cf7e-78e2-4a38-b599-3863e3039b68",
    "5b0c4b7e-6f52-4d6e-9a39-3f1c5d1b7a01",
];

/// Memory in no file, of a region of the same name.
fn unnamed(mark: &str) -> (File, Memory) {
    let file = File::open("/dev/null").unwrap();
    let memory = Memory {
        id: "ring".into(),
        source: Source::Descriptor {
            memory: file.try_clone().unwrap().into(),
            mark: mark.into(),
        },
        size: 4096,
    };
    (file, memory)
}

#[test]
fn a_monitor_that_another_client_has_is_named() {
    let qemu = Qemu::new("", Box::new(|_, _| done()));
    let error = Monitor::connect(&qemu.path, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::NoGreeting { .. }), "{error}");
    assert!(error.to_string().contains("another client"), "{error}");
}

#[test]
fn a_descriptor_that_a_monitor_sends_makes_nothing_wait() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (stream, _listener) = lingering::open();
    lingering::send(&theirs, &stream).unwrap();
    drop(stream);
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(Monitor::over(ours, PATIENCE).is_err()));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn an_absent_qemu_is_distinguished_from_a_stranger() {
    let error = Monitor::connect(&std::env::temp_dir().join("qmp-none"), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("no QEMU answers"), "{error}");
    let stranger = Qemu::new(r#"{"hello": 1}"#, Box::new(|_, _| done()));
    let error = Monitor::connect(&stranger.path, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}

#[test]
fn a_vm_that_is_shut_off_is_distinguished_from_other_troubles() {
    let hear = |class: &str| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let error = json!({"error": {"class": class, "desc": "not now"}});
        writeln!(theirs, "{error}").unwrap();
        Monitor::over(ours, PATIENCE).unwrap_err()
    };
    for (class, is_off) in [("NotRunning", true), ("GenericError", false)] {
        let error = hear(class);
        assert_eq!(matches!(error, Error::NotRunning(_)), is_off, "{error:?}");
        assert_eq!(error.to_string(), "not now");
    }
}

#[test]
fn answers_are_found_among_events_and_old_answers() {
    let qemu = Qemu::new(
        GREETING,
        Box::new(|name, _| match name {
            "query-status" => vec![
                json!({"event": "NEVER_HEARD_OF", "data": {"x": [1]}, "timestamp": {}}),
                json!({"event": "DEVICE_DELETED", "data": {"device": "x".repeat(1000)}}),
                json!({"event": "RESET", "data": {"guest": true}, "timestamp": {}}),
                json!({"return": "stale", "id": 0}),
                json!({"return": {"running": true, "status": "running"}, "id": "$id"}),
                json!({"event": "RESUME", "timestamp": {}}),
            ],
            _ => refuses("no such thing"),
        }),
    );
    let mut monitor = connect(&qemu);
    assert!(monitor.status().unwrap().running);
    let deadline = Instant::now() + PATIENCE;
    let stop = monitor.wait_event(deadline, |event| event.name == "RESUME");
    assert!(stop.unwrap().is_some());
    let left: Vec<&str> = monitor
        .take_events()
        .unwrap()
        .0
        .into_iter()
        .map(|event| event.name)
        .collect();
    assert_eq!(left, ["RESET"]);
    let refused = monitor.execute("bogus", Value::Null).unwrap_err();
    assert!(refused.to_string().contains("no such thing"), "{refused}");
    assert!(!refused.is_final());
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(monitor.wait_event(soon, |_| true).unwrap(), None);
}

#[test]
fn a_line_that_is_too_long_ends_the_connection() {
    let long = json!({"event": "RESET", "data": "x".repeat(1 << 20)});
    let qemu = Qemu::new(GREETING, Box::new(move |_, _| vec![long.clone()]));
    let mut monitor = connect(&qemu);
    let error = monitor.status().unwrap_err();
    assert!(error.to_string().contains("a line without an end"));
    assert!(error.is_final());
}

#[test]
fn a_qemu_that_dies_is_noticed() {
    let qemu = Qemu::new(GREETING, Box::new(|_, _| vec![json!("hang up")]));
    let mut monitor = connect(&qemu);
    let error = monitor.status().unwrap_err();
    assert!(matches!(error, Error::Closed(_)) && error.is_final());
    assert!(monitor.take_events().is_err());
}

/// Events without end leave their reader time for other work.
#[test]
fn events_are_taken_a_part_at_a_time() {
    let answer = |_: &str, _: &Value| {
        let without_end = (0..1000).map(|_| json!({"event": "RTC_CHANGE"}));
        done().into_iter().chain(without_end).collect()
    };
    let qemu = Qemu::new(GREETING, Box::new(answer));
    let mut monitor = connect(&qemu);
    monitor.execute("stop", Value::Null).unwrap();
    let (events, has_more) = monitor.take_events().unwrap();
    assert!(events.is_empty() && has_more);
}

#[test]
fn a_migration_that_goes_on_pushes_no_event_out() {
    let migration = |status| json!({"event": "MIGRATION", "data": {"status": status}});
    let answer = move |_: &str, _: &Value| {
        let mut lines = vec![json!({"event": "RESET"})];
        lines.extend((0..300).map(|_| migration("active")));
        lines.push(migration("failed"));
        [lines, done()].concat()
    };
    let qemu = Qemu::new(GREETING, Box::new(answer));
    let mut monitor = connect(&qemu);
    monitor.execute("stop", Value::Null).unwrap();
    let (events, _) = monitor.take_events().unwrap();
    let names: Vec<_> = events.iter().map(|event| event.name).collect();
    assert_eq!(names, ["RESET", "MIGRATION"]);
}

#[test]
fn memory_goes_to_the_root_bus_once() {
    let qemu = Qemu::new(GREETING, Machine::default().answer());
    let mut monitor = connect(&qemu);
    assert_eq!(monitor.plug(&memory(), &[]).unwrap(), Plugged::Now);
    assert_eq!(monitor.plug(&memory(), &[]).unwrap(), Plugged::Before);
    let added = qemu.asked("device_add");
    assert_eq!(added.len(), 1);
    assert_eq!(added[0].get("bus"), None);
    assert_eq!(added[0]["addr"], "0x1e", "slot 31 has a device");
    assert_eq!(monitor.devices("ivshmem-plain").unwrap(), ["ring"]);
}

#[test]
fn memory_goes_where_qemu_takes_it_if_a_slot_is_refused() {
    let machine = Machine {
        bad_slot: Some("0x1e"),
        ..Machine::default()
    };
    let qemu = Qemu::new(GREETING, machine.answer());
    assert_eq!(connect(&qemu).plug(&memory(), &[]).unwrap(), Plugged::Now);
    let added = qemu.asked("device_add");
    assert_eq!(added.len(), 2);
    assert_eq!(added[1].get("addr"), None);
}

#[test]
fn memory_plugged_in_by_hand_is_not_plugged_in_again() {
    let mut machine = Machine::default();
    machine
        .objects
        .push(("ring0".into(), "/dev/shm/ring".into()));
    let qemu = Qemu::new(GREETING, machine.answer());
    let plugged = connect(&qemu).plug(&memory(), &[]).unwrap();
    assert_eq!(plugged, Plugged::Before);
}

#[test]
fn memory_in_no_file_is_handed_over_once_and_distinguished_from_memory_of_the_same_name() {
    let qemu = Qemu::new(GREETING, Machine::default().answer());
    let mut monitor = connect(&qemu);
    let (file, memory) = unnamed(MARKS[0]);
    assert_eq!(monitor.plug(&memory, &[]).unwrap(), Plugged::Now);
    assert_eq!(monitor.plug(&memory, &[]).unwrap(), Plugged::Before);
    let object = qemu.asked("object-add").remove(0);
    let path = object["mem-path"].as_str().unwrap();
    assert!(path.starts_with("/proc/self/fd/"), "{path}");
    let inode = |file: &File| file.metadata().unwrap().ino();
    assert_eq!(inode(&File::open(path).unwrap()), inode(&file));
    // What a hallwayd that was killed left there goes, too.
    assert_eq!(
        qemu.asked("remove-fd"),
        [101, 1].map(|id| json!({ "fdset-id": id }))
    );

    // A region that was made again under the name.
    let (_, other) = unnamed(MARKS[1]);
    assert_eq!(monitor.plug(&other, &[]).unwrap(), Plugged::Now);
    assert_eq!(qemu.asked("device_del"), [json!({"id": "ring"})]);
    let backend = |mark: &str| json!({ "id": format!("ring-memory-{mark}") });
    assert_eq!(qemu.asked("object-del"), [backend(MARKS[0])]);
    // The id alone counts, not that of a region with a longer name.
    let longer = Memory {
        id: "ring-memory".into(),
        ..unnamed(MARKS[0]).1
    };
    monitor.plug(&longer, &[]).unwrap();
    monitor.unplug("ring", PATIENCE).unwrap();
    assert_eq!(qemu.asked("object-del"), [MARKS[0], MARKS[1]].map(backend));
    assert_eq!(monitor.devices("ivshmem-plain").unwrap(), ["ring-memory"]);
}

#[test]
fn what_a_hallway_left_half_done_is_done_again() {
    let mut machine = Machine::default();
    machine
        .objects
        .push(("ring-memory".into(), "/dev/shm/ring".into()));
    let qemu = Qemu::new(GREETING, machine.answer());
    let plugged = connect(&qemu).plug(&memory(), &[]).unwrap();
    assert_eq!(plugged, Plugged::Now);
    assert_eq!(qemu.asked("object-del"), [json!({"id": "ring-memory"})]);
}

#[test]
fn each_device_gets_a_root_port_of_its_own() {
    let mut machine = Machine::default().port("a").port("b").port("c");
    machine.bad_port = Some("a");
    let qemu = Qemu::new(GREETING, machine.answer());
    let mut monitor = connect(&qemu);
    let more = |id: &str| Memory {
        id: id.into(),
        source: Source::File(PathBuf::from("/dev/shm").join(id)),
        size: 4096,
    };
    monitor.plug(&more("x"), &[]).unwrap();
    monitor.plug(&more("y"), &["c".into()]).unwrap();
    let buses: Vec<Value> = qemu
        .asked("device_add")
        .iter()
        .map(|a| a["bus"].clone())
        .collect();
    assert_eq!(buses, ["a", "b", "c"]);
    let full = monitor
        .plug(&more("z"), &["b".into(), "c".into()])
        .unwrap_err();
    assert!(matches!(full, Error::NoPort), "{full}");
    assert_eq!(qemu.asked("object-del"), [json!({"id": "z-memory"})]);
}

#[test]
fn memory_leaves_when_the_guest_lets_go_and_not_before() {
    let guests = [Guest::LetsGo, Guest::Refuses, Guest::Sleeps, Guest::Stays];
    for guest in guests {
        let machine = Machine {
            guest,
            ..Machine::default()
        };
        let qemu = Qemu::new(GREETING, machine.answer());
        let mut monitor = connect(&qemu);
        monitor.plug(&memory(), &[]).unwrap();
        let ended = monitor.unplug("ring", Duration::from_millis(50));
        let goes = guest == Guest::LetsGo;
        assert_eq!(qemu.asked("object-del").len(), usize::from(goes));
        if goes {
            ended.unwrap();
            // Once more does no harm.
            monitor.unplug("ring", PATIENCE).unwrap();
        } else {
            assert!(matches!(ended, Err(Error::Held { .. })), "{ended:?}");
        }
    }
}

#[test]
fn memory_comes_back_only_after_qemu_has_let_it_go() {
    let machine = Machine::default();
    let state = machine.state.clone();
    let qemu = Qemu::new(GREETING, machine.answer());
    let mut monitor = connect(&qemu);
    monitor.plug(&memory(), &[]).unwrap();
    state.lock().unwrap().lingers = 2;
    monitor.unplug("ring", PATIENCE).unwrap();
    assert_eq!(state.lock().unwrap().lingers, 0);
    // It was taken out by hand just now.
    state.lock().unwrap().lingers = 2;
    assert_eq!(monitor.plug(&memory(), &[]).unwrap(), Plugged::Now);
    state.lock().unwrap().lingers = u32::MAX;
    let error = monitor
        .unplug("ring", Duration::from_millis(50))
        .unwrap_err();
    assert!(
        matches!(error, Error::Lingers { .. }) && !error.is_final(),
        "{error}"
    );
}

#[test]
fn migrations_are_followed() {
    let mut states = ["setup", "active", "failed"].into_iter();
    let qemu = Qemu::new(
        GREETING,
        Box::new(move |name, _| match name {
            "query-migrate" => gives(json!({
                "status": states.next().unwrap(), "error-desc": "why", "ram": {"total": 1}
            })),
            _ => done(),
        }),
    );
    let mut monitor = connect(&qemu);
    monitor.migrate("unix:/x").unwrap();
    assert_eq!(qemu.asked("migrate"), [json!({"uri": "unix:/x"})]);
    let states: Vec<MigrationState> = (0..3)
        .map(|_| monitor.migration().unwrap().state())
        .collect();
    let (active, failed) = (MigrationState::Active, MigrationState::Failed);
    assert_eq!(states, [active, active, failed]);
    monitor.cancel_migration().unwrap();
}
