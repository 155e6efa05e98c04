// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ring memory as an `ivshmem-plain` device, plugged in and out.
//!
//! On QEMU's `pc` a device goes straight to the root bus; on `q35` each needs a
//! root port of its own, which has to be there from the start.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{json, Value};

use crate::{Error, Monitor, Result};

/// QOM paths of named devices, unnamed ones, and objects.
const NAMED: &str = "/machine/peripheral";
const UNNAMED: &str = "/machine/peripheral-anon";
const OBJECTS: &str = "/objects";
/// Tells descriptors that hallwayd hands to QEMU from those of other programs.
const OPAQUE: &str = "hallway";
/// Time between two looks at memory that is let go.
const LOOK: Duration = Duration::from_millis(10);
/// How long QEMU may take to let go of memory that was unplugged before.
const RELEASE: Duration = Duration::from_secs(5);
/// Devices with one hot-pluggable slot.
const PORTS: [&str; 3] = ["pcie-root-port", "ioh3420", "xio3130-downstream"];

/// Slots of a bus.
const SLOTS: u32 = 32;

/// What QEMU says of a PCI bus.
#[derive(Deserialize)]
struct Bus {
    bus: u32,
    devices: Vec<Place>,
}

/// What it says of a device there.
#[derive(Deserialize)]
struct Place {
    slot: u32,
}

/// Shared memory, as a device of one VM.
#[derive(Debug)]
pub struct Memory {
    /// Id of the device; that of its backend begins with it.
    pub id: String,
    /// Where the memory is.
    pub source: Source,
    /// Its bytes.
    pub size: u64,
}

/// Where QEMU finds memory.
#[derive(Debug)]
pub enum Source {
    /// In a file that QEMU can open.
    File(PathBuf),
    /// In no file: QEMU is handed the descriptor.
    Descriptor {
        /// The descriptor.
        memory: OwnedFd,
        /// A UUID that no other memory has: the backend shows it.
        mark: String,
    },
}

impl Memory {
    /// Id of the backend.
    fn backend(&self) -> String {
        match &self.source {
            Source::File(_) => format!("{}-memory", self.id),
            Source::Descriptor { mark, .. } => format!("{}-memory-{mark}", self.id),
        }
    }
}

/// Id of the device that a backend is, or was, that of.
fn device_of(backend: &str) -> Option<&str> {
    let is_mark =
        |mark: &str| mark.len() == 36 && mark.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let unmarked = backend
        .rsplit_once("-memory-")
        .filter(|(_, mark)| is_mark(mark))
        .map(|(id, _)| id);
    unmarked.or_else(|| backend.strip_suffix("-memory"))
}

/// What [`Monitor::plug`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugged {
    /// The device is new.
    Now,
    /// The VM had the file already: hallwayd plugged it in before, or a person.
    Before,
}

#[derive(Deserialize)]
struct Property {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Property {
    /// The type of a child object.
    fn child(&self) -> Option<&str> {
        self.kind.strip_prefix("child<")?.strip_suffix('>')
    }
}

impl Monitor {
    /// Plugs memory in. On a machine with root ports it goes to the first free one of
    /// `ports`, or of all if `ports` is empty.
    pub fn plug(&mut self, memory: &Memory, ports: &[String]) -> Result<Plugged> {
        let backend = memory.backend();
        for name in self.backends()? {
            let is_it = match &memory.source {
                Source::File(file) => {
                    let path = self.property(&format!("{OBJECTS}/{name}"), "mem-path")?;
                    path.as_str().map(Path::new) == Some(file)
                }
                Source::Descriptor { .. } => name == backend,
            };
            if is_it && (name != backend || self.has_device(&memory.id)?) {
                return Ok(Plugged::Before);
            }
        }
        // A hallwayd that ended half-way left something, or a region that is no more.
        self.unplug(&memory.id, RELEASE)?;
        match &memory.source {
            Source::File(file) => self.add_backend(memory, file)?,
            Source::Descriptor { memory: fd, .. } => self.hand_over(memory, fd.as_fd())?,
        }
        let added = self.add_device(memory, ports);
        if added.is_err() {
            let _ = self.execute("object-del", json!({ "id": backend }));
        }
        added.map(|()| Plugged::Now)
    }

    fn add_backend(&mut self, memory: &Memory, path: &Path) -> Result<()> {
        let object = json!({
            "qom-type": "memory-backend-file", "id": memory.backend(), "share": true,
            "mem-path": path, "size": memory.size,
        });
        self.execute("object-add", object).map(drop)
    }

    /// Adds the backend of memory that is in no file. QEMU opens the descriptor that it
    /// was handed once more, under the one name that it can open without privileges,
    /// and needs the first no longer.
    fn hand_over(&mut self, memory: &Memory, fd: BorrowedFd<'_>) -> Result<()> {
        #[derive(Deserialize)]
        struct Passed {
            fd: u32,
            #[serde(rename = "fdset-id")]
            set: u64,
        }
        self.remove_leftovers()?;
        let answer = self.execute_with("add-fd", json!({ "opaque": OPAQUE }), Some(fd))?;
        let passed: Passed = serde_json::from_value(answer)
            .map_err(|error| Error::Protocol(format!("the answer to add-fd: {error}")))?;
        let path = format!("/proc/self/fd/{}", passed.fd);
        let added = self.add_backend(memory, Path::new(&path));
        // Where it fails, QEMU closes it with this connection.
        let _ = self.execute("remove-fd", json!({ "fdset-id": passed.set }));
        added
    }

    /// Removes descriptors that a hallwayd handed over and did not live to remove.
    fn remove_leftovers(&mut self) -> Result<()> {
        #[derive(Deserialize)]
        struct Descriptor {
            opaque: Option<String>,
        }
        #[derive(Deserialize)]
        struct Set {
            #[serde(rename = "fdset-id")]
            id: u64,
            fds: Vec<Descriptor>,
        }
        let sets: Vec<Set> = self.query("query-fdsets", Value::Null)?;
        let is_ours = |set: &&Set| {
            let mut fds = set.fds.iter();
            fds.any(|fd| fd.opaque.as_deref() == Some(OPAQUE))
        };
        for set in sets.iter().filter(is_ours) {
            self.execute("remove-fd", json!({ "fdset-id": set.id }))?;
        }
        Ok(())
    }

    /// Has the guest let a device go, waits until it has, and removes the memory from
    /// QEMU. A device that is not there is gone already. After [`Error::Held`] and
    /// [`Error::Lingers`] it may still go: call again.
    pub fn unplug(&mut self, id: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        if self.has_device(id)? {
            self.forget_events(id);
            match self.execute("device_del", json!({ "id": id })) {
                // An earlier request is still going on.
                Err(Error::Refused { reason, .. }) if reason.contains("in the process") => {}
                // It went just now.
                Err(Error::Refused { .. }) if !self.has_device(id)? => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            self.wait_gone(id, deadline)?;
        }
        for backend in self.backends()? {
            if device_of(&backend) == Some(id) {
                self.execute("object-del", json!({ "id": backend }))?;
            }
        }
        self.wait_released(id, deadline)
    }

    /// Waits until QEMU says that a device went, and shows none of that id: the event may
    /// be one of a device that had the id before.
    fn wait_gone(&mut self, id: &str, deadline: Instant) -> Result<()> {
        loop {
            let event = self.wait_event(deadline, |event| {
                event.is_about("DEVICE_DELETED", id)
                    || event.is_about("DEVICE_UNPLUG_GUEST_ERROR", id)
                    || event.is_about("DEVICE_UNPLUG_ERROR", id)
            })?;
            if !self.has_device(id)? {
                return Ok(());
            }
            let is_early = event.is_some_and(|event| event.name == "DEVICE_DELETED");
            if !is_early || Instant::now() >= deadline {
                return Err(Error::Held { device: id.into() });
            }
        }
    }

    /// Waits until QEMU has also let go of the memory of a device that was unplugged:
    /// some of its threads may still read there. A migration that begins before takes
    /// the memory along, and fails. Memory plugged in under the same id before makes
    /// QEMU abort.
    fn wait_released(&mut self, id: &str, deadline: Instant) -> Result<()> {
        while self
            .ram_blocks()?
            .iter()
            .any(|block| device_of(block) == Some(id))
        {
            if Instant::now() >= deadline {
                return Err(Error::Lingers { device: id.into() });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Ids of the devices of which QEMU still has memory, whether they are there or not.
    pub fn memories(&mut self) -> Result<BTreeSet<String>> {
        let mut all = self.backends()?;
        all.append(&mut self.ram_blocks()?);
        let ids = all.iter().filter_map(|name| device_of(name));
        Ok(ids.map(String::from).collect())
    }

    /// Names, without the paths before them, of all memory that a migration takes along.
    /// Only the monitor for people has a stable command for them.
    fn ram_blocks(&mut self) -> Result<Vec<String>> {
        let ask = json!({ "command-line": "info ramblock" });
        let answer: String = self.query("human-monitor-command", ask)?;
        let names = answer
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.rsplit('/').next());
        Ok(names.map(String::from).collect())
    }

    /// Whether there is a device of that id.
    pub fn has_device(&mut self, id: &str) -> Result<bool> {
        Ok(self.list(NAMED)?.iter().any(|device| device.name == id))
    }

    /// Ids of the devices of one kind, such as `ivshmem-plain`.
    pub fn devices(&mut self, kind: &str) -> Result<Vec<String>> {
        let all = self.list(NAMED)?;
        Ok(all
            .into_iter()
            .filter(|device| device.child() == Some(kind))
            .map(|device| device.name)
            .collect())
    }

    fn add_device(&mut self, memory: &Memory, ports: &[String]) -> Result<()> {
        let device = json!({
            "driver": "ivshmem-plain", "id": memory.id, "memdev": memory.backend(),
        });
        let all: Vec<String> = self
            .list(NAMED)?
            .into_iter()
            .filter(|device| device.child().is_some_and(|kind| PORTS.contains(&kind)))
            .map(|device| device.name)
            .collect();
        if all.is_empty() {
            return self.add_to_root(device);
        }
        let taken = self.taken()?;
        let mut refused = Error::NoPort;
        for port in all {
            if !ports.is_empty() && !ports.contains(&port)
                || taken.contains(&format!("{NAMED}/{port}/{port}"))
            {
                continue;
            }
            let mut device = device.clone();
            device["bus"] = json!(port);
            match self.execute("device_add", device) {
                Ok(_) => return Ok(()),
                // A port without hot-plug, or taken just now: try the next.
                Err(error @ Error::Refused { .. }) => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Adds a device to the root bus, in its last free slot: libvirt, which does not know of this
    /// device, gives its own the first ones.
    fn add_to_root(&mut self, device: Value) -> Result<()> {
        let buses: Vec<Bus> = self.query("query-pci", Value::Null)?;
        let used = buses.iter().filter(|bus| bus.bus == 0);
        let used: BTreeSet<_> = used
            .flat_map(|bus| &bus.devices)
            .map(|at| at.slot)
            .collect();
        if let Some(slot) = (1..SLOTS).rev().find(|slot| !used.contains(slot)) {
            let mut device = device.clone();
            device["addr"] = json!(format!("{slot:#x}"));
            match self.execute("device_add", device) {
                // A slot without hot-plug, or taken just now.
                Err(Error::Refused { .. }) => {}
                ended => return ended.map(drop),
            }
        }
        self.execute("device_add", device).map(drop)
    }

    /// Paths of the buses that have a device on them.
    fn taken(&mut self) -> Result<BTreeSet<String>> {
        let mut taken = BTreeSet::new();
        for folder in [NAMED, UNNAMED] {
            for device in self.list(folder)? {
                if device.child().is_none() {
                    continue;
                }
                let bus = self.property(&format!("{folder}/{}", device.name), "parent_bus");
                if let Ok(Value::String(path)) = bus {
                    taken.insert(path);
                }
            }
        }
        Ok(taken)
    }

    fn backends(&mut self) -> Result<Vec<String>> {
        let all = self.list(OBJECTS)?;
        Ok(all
            .into_iter()
            .filter(|object| object.child() == Some("memory-backend-file"))
            .map(|object| object.name)
            .collect())
    }

    fn list(&mut self, path: &str) -> Result<Vec<Property>> {
        self.query("qom-list", json!({ "path": path }))
    }

    fn property(&mut self, path: &str, property: &str) -> Result<Value> {
        self.execute("qom-get", json!({ "path": path, "property": property }))
    }
}
