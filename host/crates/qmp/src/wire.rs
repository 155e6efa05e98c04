// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connection: one JSON object a line, each way.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hallway_unix::Stream;
use nix::sys::socket::{getsockopt, sockopt};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{json, Map, Value};

use crate::{Error, Result, NOT_RUNNING};

/// Time that QEMU has for an answer: it answers at once, save while it starts or a
/// migration ends.
const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of the longest line that we accept.
const LINE_MAX: usize = 256 << 10;
/// Events that are kept until they are taken; older ones are forgotten.
const EVENTS_MAX: usize = 256;
/// Bytes of the longest device id.
const ID_MAX: usize = 256;
/// Events that are of use; all others are dropped, and migrations that go on.
const KEPT: [&str; 6] = [
    "DEVICE_DELETED",
    "DEVICE_UNPLUG_ERROR",
    "DEVICE_UNPLUG_GUEST_ERROR",
    "MIGRATION",
    "RESET",
    "RESUME",
];

/// A message that QEMU sends unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name, such as `DEVICE_DELETED`.
    pub name: &'static str,
    /// Id of the device that it is about.
    pub device: Option<String>,
    /// Whether it says that a migration ended, and that the guest stays.
    pub stays: bool,
}

impl Event {
    /// Whether the event has this name and is about this device.
    pub fn is_about(&self, name: &str, device: &str) -> bool {
        self.name == name && self.device.as_deref() == Some(device)
    }
}

/// Identity of a QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// UUID of its VM, from `-uuid`; zeros without.
    pub uuid: String,
    /// The process that listens at the socket: QEMU, unless another made the socket
    /// for it.
    pub pid: Option<i32>,
}

/// The answer to `query-status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RunState {
    /// Whether the vCPUs run.
    pub running: bool,
    /// QEMU's word for its state, such as `paused` or `inmigrate`.
    pub status: String,
}

/// A connection to a QEMU, ready for commands.
#[derive(Debug)]
pub struct Monitor {
    stream: Stream,
    /// What a trusted program at the other end says of the QEMU behind it.
    vouched: Option<Identity>,
    buffer: Vec<u8>,
    events: VecDeque<Event>,
    next_id: u64,
}

impl Monitor {
    /// Connects and negotiates. QEMU greets within `patience`, or is busy with
    /// another client.
    pub fn connect(path: &Path, patience: Duration) -> Result<Self> {
        let stream = hallway_unix::connect(path).map_err(|error| Error::Connect {
            path: path.into(),
            error,
        })?;
        let mut monitor = Self::new(stream);
        monitor
            .negotiate(patience)?
            .ok_or_else(|| Error::NoGreeting { path: path.into() })?;
        Ok(monitor)
    }

    /// Negotiates with a program that speaks for QEMU, at the other end of `stream`, which
    /// greets within `patience`. It is trusted: its greeting names UUID and process of the
    /// QEMU under `hallway`. In place of a greeting it may say why there is none.
    pub fn over(stream: UnixStream, patience: Duration) -> Result<Self> {
        #[derive(Deserialize)]
        struct Vouched {
            uuid: String,
            pid: i32,
        }
        let mut monitor = Self::new(stream);
        let greeting = monitor.negotiate(patience)?.ok_or(Error::Timeout {
            what: "libvirt answers".into(),
            limit: patience,
        })?;
        let vouched = greeting.get("hallway").cloned().unwrap_or(Value::Null);
        let Vouched { uuid, pid } =
            serde_json::from_value(vouched).map_err(|error| Error::Protocol(error.to_string()))?;
        monitor.vouched = Some(Identity {
            uuid,
            pid: Some(pid),
        });
        Ok(monitor)
    }

    fn new(stream: UnixStream) -> Self {
        Self {
            stream: stream.into(),
            vouched: None,
            buffer: Vec::new(),
            events: VecDeque::new(),
            next_id: 0,
        }
    }

    /// Takes the greeting, and negotiates. Nothing: none came in time.
    fn negotiate(&mut self, patience: Duration) -> Result<Option<Map<String, Value>>> {
        let Some(greeting) = self.line(Instant::now() + patience)? else {
            return Ok(None);
        };
        if greeting.get("QMP").is_none() {
            let error = greeting.get("error");
            let error = error.map(|error| (&error["class"], &error["desc"]));
            return Err(match error {
                Some((class, Value::String(why))) if class == NOT_RUNNING => {
                    Error::NotRunning(why.clone())
                }
                Some((_, Value::String(why))) => Error::Absent(why.clone()),
                _ => Error::Protocol(Value::Object(greeting).to_string()),
            });
        }
        self.execute("qmp_capabilities", Value::Null)?;
        Ok(Some(greeting))
    }

    /// Runs a command and returns what QEMU answers; arguments `null`: none.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.execute_with(command, arguments, None)
    }

    /// Runs a command that has a descriptor for QEMU, too.
    pub(crate) fn execute_with(
        &mut self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Value> {
        let deadline = Instant::now() + ANSWER;
        self.next_id += 1;
        let id = json!(self.next_id);
        let mut message = json!({ "execute": command, "id": id });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        self.send(&message, fd)?;
        loop {
            let timeout = || Error::Timeout {
                what: format!("QEMU answers {command}"),
                limit: ANSWER,
            };
            let mut line = self.line(deadline)?.ok_or_else(timeout)?;
            // An answer to a command that timed out earlier is dropped.
            if line.get("id") != Some(&id) {
                self.keep_event(&line);
                // Events without end are no answer either.
                if Instant::now() >= deadline {
                    return Err(timeout());
                }
            } else if let Some(value) = line.remove("return") {
                return Ok(value);
            } else {
                return Err(Error::Refused {
                    command: command.into(),
                    reason: match line.get("error").map(|error| &error["desc"]) {
                        Some(Value::String(reason)) => reason.clone(),
                        _ => Value::Object(line).to_string(),
                    },
                });
            }
        }
    }

    /// Runs a command, and returns the answer in the form that the caller wants.
    pub fn query<T: DeserializeOwned>(&mut self, command: &str, arguments: Value) -> Result<T> {
        let answer = self.execute(command, arguments)?;
        serde_json::from_value(answer)
            .map_err(|error| Error::Protocol(format!("the answer to {command}: {error}")))
    }

    /// Waits for the next event that fits, and takes it. Nothing: none came before the
    /// deadline.
    pub fn wait_event(
        &mut self,
        deadline: Instant,
        fits: impl Fn(&Event) -> bool,
    ) -> Result<Option<Event>> {
        let mut late = false;
        loop {
            if let Some(at) = self.events.iter().position(&fits) {
                return Ok(self.events.remove(at));
            }
            // Lines without end do not move the deadline.
            if late {
                return Ok(None);
            }
            match self.line(deadline)? {
                Some(line) => self.keep_event(&line),
                None => return Ok(None),
            }
            late = Instant::now() >= deadline;
        }
    }

    /// Takes the events that came, without waiting, and says whether there may be more: a
    /// QEMU may send lines without end. An error: QEMU is gone.
    pub fn take_events(&mut self) -> Result<(Vec<Event>, bool)> {
        for _ in 0..EVENTS_MAX {
            let Some(line) = self.line(Instant::now())? else {
                return Ok((self.events.drain(..).collect(), false));
            };
            self.keep_event(&line);
        }
        Ok((self.events.drain(..).collect(), true))
    }

    /// Forgets the events about a device.
    pub(crate) fn forget_events(&mut self, device: &str) {
        self.events
            .retain(|event| event.device.as_deref() != Some(device));
    }

    /// Asks for QEMU's identity.
    pub fn identity(&mut self) -> Result<Identity> {
        #[derive(Deserialize)]
        #[allow(non_snake_case)]
        struct Uuid {
            UUID: String,
        }
        if let Some(vouched) = &self.vouched {
            return Ok(vouched.clone());
        }
        Ok(Identity {
            uuid: self.query::<Uuid>("query-uuid", Value::Null)?.UUID,
            pid: getsockopt(&self.stream, sockopt::PeerCredentials)
                .ok()
                .map(|peer| peer.pid()),
        })
    }

    /// Asks for the threads of its vCPUs, as QEMU itself numbers them.
    pub fn vcpus(&mut self) -> Result<Vec<i32>> {
        #[derive(Deserialize)]
        struct Vcpu {
            #[serde(rename = "thread-id")]
            thread: i32,
        }
        let all: Vec<Vcpu> = self.query("query-cpus-fast", Value::Null)?;
        Ok(all.into_iter().map(|one| one.thread).collect())
    }

    /// Asks whether the guest runs.
    pub fn status(&mut self) -> Result<RunState> {
        self.query("query-status", Value::Null)
    }

    fn send(&mut self, message: &Value, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut line = message.to_string();
        line.push('\n');
        let line = line.as_bytes();
        self.stream
            .set_write_timeout(Some(ANSWER))
            .and_then(|()| {
                // The first bytes take the descriptor along.
                let sent = fd.map_or(Ok(0), |fd| hallway_unix::send(&self.stream, line, &[fd]))?;
                (&*self.stream).write_all(&line[sent..])
            })
            .map_err(|error| Error::Closed(error.to_string()))
    }

    /// Reads the next line. Nothing: the deadline has passed.
    fn line(&mut self, deadline: Instant) -> Result<Option<Map<String, Value>>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|error| Error::Protocol(error.to_string()));
            }
            if self.buffer.len() > LINE_MAX {
                return Err(Error::Protocol("a line without an end".into()));
            }
            // A timeout of zero would mean none at all.
            let left = deadline
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1));
            let mut bytes = [0; 8192];
            let read = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| hallway_unix::receive(&self.stream, &mut bytes));
            match read {
                Ok(0) => return Err(Error::Closed("end of file".into())),
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(Error::Closed(error.to_string())),
            }
        }
    }

    fn keep_event(&mut self, line: &Map<String, Value>) {
        let name = line.get("event").and_then(Value::as_str);
        let Some(name) = KEPT.into_iter().find(|kept| Some(*kept) == name) else {
            return;
        };
        let data = line.get("data").unwrap_or(&Value::Null);
        let device = data["device"].as_str().map(String::from);
        if device.as_ref().is_some_and(|device| device.len() > ID_MAX) {
            return;
        }
        let stays =
            name == "MIGRATION" && matches!(data["status"].as_str(), Some("failed" | "cancelled"));
        // One comes with each pass over the guest's memory.
        if name == "MIGRATION" && !stays {
            return;
        }
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            name,
            device,
            stays,
        });
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
