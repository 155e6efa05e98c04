// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitor against a QEMU that the test plays.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hallway_qmp::{Error, Memory, MigrationState, Monitor, Plugged};
use serde_json::{json, Value};

const PATIENCE: Duration = Duration::from_secs(20);
const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

/// Lines that answer a command: its name and arguments. `$id` is put in.
type Answer = Box<dyn FnMut(&str, &Value) -> Vec<Value> + Send>;

struct Qemu {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Qemu {
    fn new(greeting: &'static str, mut answer: Answer) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "qmp-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            if !greeting.is_empty() {
                writeln!(stream, "{greeting}").unwrap();
            }
            let reader = BufReader::new(stream.try_clone().unwrap());
            for line in reader.lines().map_while(Result::ok) {
                let message: Value = serde_json::from_str(&line).unwrap();
                let name = message["execute"].as_str().unwrap();
                let arguments = &message["arguments"];
                log.lock().unwrap().push((name.into(), arguments.clone()));
                let lines = match name {
                    "qmp_capabilities" => vec![json!({"return": {}, "id": "$id"})],
                    _ => answer(name, arguments),
                };
                for mut line in lines {
                    if line == "hang up" {
                        return stream.shutdown(std::net::Shutdown::Both).unwrap();
                    }
                    if line["id"] == "$id" {
                        line["id"] = message["id"].clone();
                    }
                    writeln!(stream, "{line}").unwrap();
                }
            }
        });
        Self {
            path,
            thread: Some(thread),
            asked,
        }
    }

    fn connect(&self) -> Monitor {
        Monitor::connect(&self.path, PATIENCE).unwrap()
    }

    fn asked(&self, command: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|(name, _)| name == command)
            .map(|(_, arguments)| arguments.clone())
            .collect()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join().unwrap();
        }
    }
}

fn done() -> Vec<Value> {
    vec![json!({"return": {}, "id": "$id"})]
}

fn gives(value: Value) -> Vec<Value> {
    vec![json!({"return": value, "id": "$id"})]
}

fn refuses(reason: &str) -> Vec<Value> {
    vec![json!({"error": {"class": "GenericError", "desc": reason}, "id": "$id"})]
}

/// A machine with devices and objects, q35 if it has ports.
#[derive(Default)]
struct Machine {
    /// Name and kind, and the bus that it is on.
    devices: Vec<(String, String, String)>,
    /// Name and file.
    objects: Vec<(String, String)>,
    /// What `device_add` says of a port.
    bad_port: Option<&'static str>,
    /// Events after `device_del`; whether the device goes.
    on_del: Option<(Vec<Value>, bool)>,
}

impl Machine {
    fn port(mut self, name: &str) -> Self {
        self.devices
            .push((name.into(), "pcie-root-port".into(), "/root/pcie.0".into()));
        self
    }

    fn answer(mut self) -> Answer {
        Box::new(move |name, arguments| self.run(name, arguments))
    }

    fn run(&mut self, name: &str, arguments: &Value) -> Vec<Value> {
        let text = |key: &str| arguments[key].as_str().unwrap_or_default().to_string();
        let last = |path: &str| path.rsplit('/').next().unwrap().to_string();
        match (name, text("path").as_str()) {
            ("qom-list", "/machine/peripheral") => gives(
                self.devices
                    .iter()
                    .map(|(name, kind, _)| json!({"name": name, "type": format!("child<{kind}>")}))
                    .collect(),
            ),
            ("qom-list", "/objects") => gives(
                self.objects
                    .iter()
                    .map(|(n, _)| json!({"name": n, "type": "child<memory-backend-file>"}))
                    .collect(),
            ),
            ("qom-list", _) => gives(json!([{"name": "type", "type": "string"}])),
            ("qom-get", path) if text("property") == "mem-path" => {
                let object = self.objects.iter().find(|(n, _)| *n == last(path)).unwrap();
                gives(json!(object.1))
            }
            ("qom-get", path) => {
                let device = self.devices.iter().find(|(n, ..)| *n == last(path));
                gives(json!(device.unwrap().2))
            }
            ("object-add", _) => {
                self.objects.push((text("id"), text("mem-path")));
                done()
            }
            ("object-del", _) => {
                self.objects.retain(|(name, _)| *name != text("id"));
                done()
            }
            ("device_add", _) if self.bad_port.is_some_and(|bad| bad == text("bus")) => {
                refuses("Bus does not support hotplugging")
            }
            ("device_add", _) => {
                let bus = text("bus");
                let bus = format!("/machine/peripheral/{bus}/{bus}");
                self.devices.push((text("id"), text("driver"), bus));
                done()
            }
            ("device_del", _) => {
                let (mut events, goes) = self.on_del.clone().unwrap();
                if goes {
                    self.devices.retain(|(name, ..)| *name != text("id"));
                }
                events.extend(done());
                events
            }
            _ => panic!("{name} {arguments}"),
        }
    }
}

fn memory() -> Memory {
    Memory {
        id: "ring".into(),
        file: "/dev/shm/ring".into(),
        size: 4096,
    }
}

#[test]
fn a_monitor_that_another_client_has_is_named() {
    let qemu = Qemu::new("", Box::new(|_, _| done()));
    let error = Monitor::connect(&qemu.path, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::NoGreeting { .. }), "{error}");
    assert!(error.to_string().contains("another client"), "{error}");
}

#[test]
fn nobody_and_strangers_are_told_apart() {
    let error = Monitor::connect(&std::env::temp_dir().join("qmp-none"), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("no QEMU answers"), "{error}");
    let stranger = Qemu::new(r#"{"hello": 1}"#, Box::new(|_, _| done()));
    let error = Monitor::connect(&stranger.path, PATIENCE).unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}

#[test]
fn answers_are_found_among_events_and_old_answers() {
    let qemu = Qemu::new(
        GREETING,
        Box::new(|name, _| match name {
            "query-status" => vec![
                json!({"event": "NEVER_HEARD_OF", "data": {"x": [1]}, "timestamp": {}}),
                json!({"return": "stale", "id": 0}),
                json!({"return": {"running": true, "status": "running"}, "id": "$id"}),
                json!({"event": "STOP", "timestamp": {}}),
            ],
            _ => refuses("no such thing"),
        }),
    );
    let mut monitor = qemu.connect();
    assert!(monitor.status().unwrap().running);
    let deadline = Instant::now() + PATIENCE;
    let stop = monitor.wait_event(deadline, |event| event.name == "STOP");
    assert!(stop.unwrap().is_some());
    let left: Vec<String> = monitor
        .take_events()
        .unwrap()
        .into_iter()
        .map(|event| event.name)
        .collect();
    assert_eq!(left, ["NEVER_HEARD_OF"]);
    let refused = monitor.execute("bogus", Value::Null).unwrap_err();
    assert!(refused.to_string().contains("no such thing"), "{refused}");
    assert!(!refused.is_final());
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(monitor.wait_event(soon, |_| true).unwrap(), None);
}

#[test]
fn a_qemu_that_dies_is_noticed() {
    let qemu = Qemu::new(GREETING, Box::new(|_, _| vec![json!("hang up")]));
    let mut monitor = qemu.connect();
    let error = monitor.status().unwrap_err();
    assert!(matches!(error, Error::Closed(_)) && error.is_final());
    assert!(monitor.take_events().is_err());
}

#[test]
fn memory_goes_to_the_root_bus_once() {
    let qemu = Qemu::new(GREETING, Machine::default().answer());
    let mut monitor = qemu.connect();
    assert_eq!(monitor.plug(&memory(), &[]).unwrap(), Plugged::Now);
    assert_eq!(monitor.plug(&memory(), &[]).unwrap(), Plugged::Before);
    let added = qemu.asked("device_add");
    assert_eq!(added.len(), 1);
    assert_eq!(added[0].get("bus"), None);
    assert_eq!(monitor.devices("ivshmem-plain").unwrap(), ["ring"]);
}

#[test]
fn memory_plugged_in_by_hand_is_not_plugged_in_again() {
    let mut machine = Machine::default();
    machine
        .objects
        .push(("ring0".into(), "/dev/shm/ring".into()));
    let qemu = Qemu::new(GREETING, machine.answer());
    let plugged = qemu.connect().plug(&memory(), &[]).unwrap();
    assert_eq!(plugged, Plugged::Before);
}

#[test]
fn what_a_hallway_left_half_done_is_done_again() {
    let mut machine = Machine::default();
    machine
        .objects
        .push(("ring-memory".into(), "/dev/shm/ring".into()));
    let qemu = Qemu::new(GREETING, machine.answer());
    let plugged = qemu.connect().plug(&memory(), &[]).unwrap();
    assert_eq!(plugged, Plugged::Now);
    assert_eq!(qemu.asked("object-del"), [json!({"id": "ring-memory"})]);
}

#[test]
fn each_device_gets_a_root_port_of_its_own() {
    let mut machine = Machine::default().port("a").port("b").port("c");
    machine.bad_port = Some("a");
    let qemu = Qemu::new(GREETING, machine.answer());
    let mut monitor = qemu.connect();
    let more = |id: &str| Memory {
        id: id.into(),
        file: PathBuf::from("/dev/shm").join(id),
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
    let deleted = json!({"event": "DEVICE_DELETED", "data": {"device": "ring", "path": "/x"}});
    let refused = json!({"event": "DEVICE_UNPLUG_GUEST_ERROR", "data": {"device": "ring"}});
    for (events, goes) in [
        (vec![deleted], true),
        (vec![refused], false),
        (vec![], false),
    ] {
        let machine = Machine {
            on_del: Some((events, goes)),
            ..Machine::default()
        };
        let qemu = Qemu::new(GREETING, machine.answer());
        let mut monitor = qemu.connect();
        monitor.plug(&memory(), &[]).unwrap();
        let ended = monitor.unplug("ring", Duration::from_millis(50));
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
    let mut monitor = qemu.connect();
    monitor.migrate("unix:/x").unwrap();
    assert_eq!(qemu.asked("migrate"), [json!({"uri": "unix:/x"})]);
    let states: Vec<MigrationState> = (0..3)
        .map(|_| monitor.migration().unwrap().state())
        .collect();
    let (active, failed) = (MigrationState::Active, MigrationState::Failed);
    assert_eq!(states, [active, active, failed]);
    monitor.cancel_migration().unwrap();
}
