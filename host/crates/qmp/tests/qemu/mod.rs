// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A QEMU's monitor that a test plays.
#![allow(dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags, UnixAddr};
use serde_json::{json, Value};

pub const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

/// Lines that answer a command: its name and arguments. `$id` is put in.
pub type Answer = Box<dyn FnMut(&str, &Value) -> Vec<Value> + Send>;

pub struct Qemu {
    pub path: PathBuf,
    thread: Option<JoinHandle<()>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    client: Arc<Mutex<Option<UnixStream>>>,
}

/// Lines and descriptors, as they come.
struct Reader {
    stream: UnixStream,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Reader {
    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line = self.bytes.drain(..=end).collect();
                return String::from_utf8(line).ok();
            }
            let mut bytes = [0; 4096];
            let mut space = nix::cmsg_space!([RawFd; 1]);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let raw = self.stream.as_raw_fd();
            let message = recvmsg::<UnixAddr>(raw, &mut parts, Some(&mut space), flags).ok()?;
            for control in message.cmsgs().unwrap() {
                if let ControlMessageOwned::ScmRights(fds) = control {
                    // SAFETY: the kernel just made this descriptor for us.
                    self.fds.push(unsafe { OwnedFd::from_raw_fd(fds[0]) });
                }
            }
            let count = message.bytes;
            if count == 0 {
                return None;
            }
            self.bytes.extend_from_slice(&bytes[..count]);
        }
    }
}

impl Qemu {
    pub fn new(greeting: &'static str, answer: Answer) -> Self {
        Self::at(&std::env::temp_dir(), greeting, answer)
    }

    /// One with its monitor in this directory.
    pub fn at(folder: &Path, greeting: &'static str, mut answer: Answer) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "qmp-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = folder.join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let client = Arc::new(Mutex::new(None));
        let speaker = client.clone();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            *speaker.lock().unwrap() = stream.try_clone().ok();
            if !greeting.is_empty() {
                let _ = writeln!(stream, "{greeting}");
            }
            let mut reader = Reader {
                stream: stream.try_clone().unwrap(),
                bytes: Vec::new(),
                fds: Vec::new(),
            };
            // A hallwayd that was killed left the one, another program has the other.
            let mut sets = BTreeMap::from([(101, json!("hallway")), (102, json!("libvirt"))]);
            while let Some(line) = reader.line() {
                let message: Value = serde_json::from_str(&line).unwrap();
                let name = message["execute"].as_str().unwrap();
                let arguments = &message["arguments"];
                log.lock().unwrap().push((name.into(), arguments.clone()));
                let lines = match name {
                    "qmp_capabilities" => done(),
                    "query-fdsets" => {
                        let set = |(id, opaque): (&usize, &Value)| {
                            let fds = json!([{ "fd": id, "opaque": opaque }]);
                            json!({ "fdset-id": id, "fds": fds })
                        };
                        gives(sets.iter().map(set).collect())
                    }
                    "remove-fd" => {
                        let id = arguments["fdset-id"].as_u64().unwrap();
                        let set = sets.remove(&(id as usize));
                        set.map_or(refuses("File descriptor set not found"), |_| done())
                    }
                    // It stays open: this process is the QEMU that maps it by its number.
                    "add-fd" => {
                        let fd = reader.fds.last().map(AsRawFd::as_raw_fd);
                        fd.map_or(refuses("No file descriptor"), |fd| {
                            sets.insert(reader.fds.len(), arguments["opaque"].clone());
                            gives(json!({"fd": fd, "fdset-id": reader.fds.len()}))
                        })
                    }
                    _ => answer(name, arguments),
                };
                for mut line in lines {
                    if line == "hang up" {
                        return stream.shutdown(Shutdown::Both).unwrap();
                    }
                    if line["id"] == "$id" {
                        line["id"] = message["id"].clone();
                    }
                    // The asking daemon may have ended, as daemons do at the end of a test.
                    if tell(&stream, &line).is_err() {
                        return;
                    }
                }
            }
        });
        Self {
            path,
            thread: Some(thread),
            asked,
            client,
        }
    }

    /// What QEMU says of its own accord.
    pub fn say(&self, event: &str) {
        let client = self.client.lock().unwrap();
        tell(client.as_ref().unwrap(), &json!({ "event": event })).unwrap();
    }

    /// QEMU says that a device went.
    pub fn say_deleted(&self, device: &str) {
        let client = self.client.lock().unwrap();
        let data = json!({ "device": device, "path": "/x" });
        let event = json!({ "event": "DEVICE_DELETED", "data": data });
        tell(client.as_ref().unwrap(), &event).unwrap();
    }

    /// QEMU says how its migration goes.
    pub fn say_migration(&self, status: &str) {
        let client = self.client.lock().unwrap();
        let event = json!({ "event": "MIGRATION", "data": { "status": status } });
        tell(client.as_ref().unwrap(), &event).unwrap();
    }

    /// QEMU dies.
    pub fn hang_up(&self) {
        let client = self.client.lock().unwrap();
        let ended = client.as_ref().unwrap().shutdown(Shutdown::Both);
        ended.unwrap();
    }

    pub fn asked(&self, command: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|(name, _)| name == command)
            .map(|(_, arguments)| arguments.clone())
            .collect()
    }
}

/// At once: an event may come while an answer is on its way.
fn tell(mut stream: &UnixStream, line: &Value) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Should nobody ever have come.
        let _ = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join().unwrap();
        }
    }
}

pub fn done() -> Vec<Value> {
    vec![json!({"return": {}, "id": "$id"})]
}

pub fn gives(value: Value) -> Vec<Value> {
    vec![json!({"return": value, "id": "$id"})]
}

pub fn refuses(reason: &str) -> Vec<Value> {
    vec![json!({"error": {"class": "GenericError", "desc": reason}, "id": "$id"})]
}

/// A machine with devices and objects, q35 if it has ports.
#[derive(Default)]
pub struct Machine {
    pub uuid: String,
    /// Name and kind, and the bus that it is on.
    pub devices: Vec<(String, String, String)>,
    /// Name and file.
    pub objects: Vec<(String, String)>,
    /// Without hot-plug.
    pub bad_port: Option<&'static str>,
    /// A slot that takes no device.
    pub bad_slot: Option<&'static str>,
    pub guest: Guest,
    /// The object that went last.
    pub removed: String,
    pub state: Arc<Mutex<State>>,
}

/// What a test decides while a machine runs.
pub struct State {
    /// State of the guest, such as `inmigrate`.
    pub run: &'static str,
    /// An event that comes while it is asked for that.
    pub meanwhile: Option<&'static str>,
    /// An event of a migration that failed before comes when a device goes.
    pub failed: bool,
    /// State of the migration.
    pub migration: &'static str,
    /// How often memory is seen yet after its removal.
    pub lingers: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            run: "running",
            meanwhile: None,
            failed: false,
            migration: "none",
            lingers: 0,
        }
    }
}

/// What the guest does when a device is to go.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Guest {
    #[default]
    LetsGo,
    Refuses,
    Sleeps,
    /// QEMU says that the device went, and it is there.
    Stays,
}

impl Machine {
    pub fn port(mut self, name: &str) -> Self {
        self.devices
            .push((name.into(), "pcie-root-port".into(), "/root/pcie.0".into()));
        self
    }

    pub fn memory(mut self, names: &[&str]) -> Self {
        let devices = names.iter();
        let devices = devices.map(|name| (name.to_string(), "ivshmem-plain".into(), String::new()));
        self.devices.extend(devices);
        self
    }

    pub fn answer(mut self) -> Answer {
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
            ("object-add", _)
                if self.removed == text("id") && self.state.lock().unwrap().lingers > 0 =>
            {
                vec![json!("hang up")] // QEMU aborts.
            }
            ("object-add", _) => {
                self.objects.push((text("id"), text("mem-path")));
                done()
            }
            ("object-del", _) => {
                self.removed = text("id");
                self.objects.retain(|(name, _)| *name != self.removed);
                done()
            }
            ("device_add", _) if self.bad_port.is_some_and(|bad| bad == text("bus")) => {
                refuses("Bus does not support hotplugging")
            }
            ("device_add", _) if self.bad_slot.is_some_and(|bad| bad == text("addr")) => {
                refuses("PCI: slot is not available")
            }
            ("query-pci", _) => {
                let devices: Vec<_> = [0, 1, 31].map(|slot| json!({ "slot": slot })).into();
                gives(json!([{"bus": 0, "devices": devices}, {"bus": 1, "devices": []}]))
            }
            ("device_add", _) => {
                let bus = text("bus");
                let bus = format!("/machine/peripheral/{bus}/{bus}");
                self.devices.push((text("id"), text("driver"), bus));
                done()
            }
            ("device_del", _) => {
                let event = match self.guest {
                    Guest::LetsGo | Guest::Stays => "DEVICE_DELETED",
                    Guest::Refuses => "DEVICE_UNPLUG_GUEST_ERROR",
                    Guest::Sleeps => return done(),
                };
                if self.guest == Guest::LetsGo {
                    self.devices.retain(|(name, ..)| *name != text("id"));
                }
                let event = json!({"event": event, "data": {"device": text("id"), "path": "/x"}});
                let failed = json!({"event": "MIGRATION", "data": {"status": "failed"}});
                let is_failed = self.state.lock().unwrap().failed;
                let failed = Some(failed).filter(|_| is_failed);
                [failed.into_iter().collect(), vec![event], done()].concat()
            }
            ("query-status", _) => {
                let mut state = self.state.lock().unwrap();
                let event = state
                    .meanwhile
                    .take()
                    .map(|event| json!({ "event": event }));
                let status = json!({"running": state.run == "running", "status": state.run});
                event.into_iter().chain(gives(status)).collect()
            }
            ("query-migrate", _) => gives(json!({
                "status": self.state.lock().unwrap().migration, "downtime": 3, "total-time": 5,
            })),
            ("migrate_cancel", _) => {
                self.state.lock().unwrap().migration = "cancelled";
                done()
            }
            ("migrate", _) => {
                let mut kinds = self.devices.iter().map(|(_, kind, _)| kind);
                if kinds.any(|kind| kind == "ivshmem-plain") {
                    return refuses("Migration is disabled when using feature 'peer mode'");
                }
                assert_eq!(self.state.lock().unwrap().lingers, 0, "Unknown ramblock");
                done()
            }
            ("human-monitor-command", _) => {
                let mut state = self.state.lock().unwrap();
                let seen = state.lingers > 0;
                state.lingers = state.lingers.saturating_sub(1);
                let block = format!("0000:00:09.0/{}    4 KiB  0x0 0x1000\n", self.removed);
                gives(json!(format!(
                    "pc.ram  4 KiB\n{}",
                    if seen { &block } else { "" }
                )))
            }
            ("query-uuid", _) => gives(json!({ "UUID": self.uuid })),
            _ => panic!("{name} {arguments}"),
        }
    }
}
