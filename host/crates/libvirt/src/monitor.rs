// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A domain's monitor: libvirt's own, by libvirt, which lets us in between its commands.
//!
//! libvirt marks a domain of which others use the monitor as tainted (custom-monitor), in
//! its log; nothing else follows from that.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void, CStr, CString};
use std::io::{IoSliceMut, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags, UnixAddr};
use serde_json::{json, Map, Value};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::sys;

use crate::places::Places;
use crate::step::within;

/// Where libvirt is, in libvirt's own variable.
const URI_VARIABLE: &str = "LIBVIRT_DEFAULT_URI";
const URI: &str = "qemu:///system";
/// Where libvirt writes the processes of its QEMUs.
const PROCESSES: &str = "/run/libvirt/qemu";
/// Seconds between two signs of life of libvirt, and how many may be missing.
const KEEP_ALIVE: (i32, u32) = (5, 6);
/// hallwayd reads at once; one that does not is stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a command waits for a place; hallwayd waits longer for its answer.
const PLACE: Duration = Duration::from_secs(5);
/// How long libvirtd, which may have to be started, has for a connection; hallwayd waits longer.
const CONNECT: Duration = Duration::from_secs(20);
/// Bytes of the longest command.
const LINE_MAX: usize = 64 << 10;

/// Connects with libvirt.
pub fn connect() -> Result<Connect> {
    let uri = std::env::var(URI_VARIABLE).unwrap_or(URI.into());
    // The library prints each error, too.
    virt::error::clear_error_callback();
    Connect::open(Some(&uri)).map_err(|error| {
        anyhow!(
            "libvirt does not answer at {uri}: {}: start libvirtd (or virtqemud), and be root \
                 or in group libvirt",
            error.message()
        )
    })
}

/// The places on the connections that all domains share.
static PLACES: Places = Places::new();

/// The connections that all domains share. The first one has the events.
struct Shared {
    all: Vec<Arc<Connect>>,
    /// libvirtd took no more clients: no other one is tried, which might hang as that did.
    is_full: bool,
}

/// A connection that all domains share, and its number: that one, or the first, if libvirtd takes
/// no more clients.
fn shared(number: usize) -> Result<(usize, Arc<Connect>)> {
    static SHARED: Mutex<Shared> = Mutex::new(Shared {
        all: Vec::new(),
        is_full: false,
    });
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    while shared.all.len() <= number {
        let begin = Instant::now();
        let first = shared.all.first().cloned();
        if let (Some(first), true) = (&first, shared.is_full) {
            return Ok((0, first.clone()));
        }
        // All other domains wait behind this one, and libvirt sets no limit.
        match (within(CONNECT, "connecting with libvirt", open), first) {
            (Ok(connect), first) => {
                if first.is_none() {
                    register(&connect)?;
                }
                shared.all.push(Arc::new(connect));
            }
            (Err(_), Some(first)) => {
                shared.is_full = true;
                return Ok((0, first));
            }
            // A thread hangs there, and the next try would have one more: hallwayd starts
            // the process again.
            (Err(error), None) if begin.elapsed() >= CONNECT => {
                hallway_log::print_error("hallway-libvirt", &error);
                std::process::exit(1);
            }
            (Err(error), None) => return Err(error),
        }
    }
    Ok((number, shared.all[number].clone()))
}

/// Opens a connection with the end of which the process ends.
fn open() -> Result<Connect> {
    let connect = connect()?;
    let _ = connect.set_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1);
    // SAFETY: the connection lives as long as the process, and the callback takes nothing.
    unsafe {
        sys::virConnectRegisterCloseCallback(
            connect.as_ptr(),
            Some(gone),
            std::ptr::null_mut(),
            None,
        );
    }
    Ok(connect)
}

/// Asks for the events of all QEMUs.
fn register(connect: &Connect) -> Result<()> {
    // All domains in one registration: of several for one domain each, libvirt's library asks
    // the daemon for the first alone.
    // SAFETY: the connection lives as long as the process, and the callback takes nothing.
    let number = unsafe {
        sys::virConnectDomainQemuMonitorEventRegister(
            connect.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null(),
            Some(forward),
            std::ptr::null_mut(),
            None,
            0,
        )
    };
    if number < 0 {
        bail!("libvirt: {}", virt::error::Error::last_error().message());
    }
    Ok(())
}

/// libvirt has hung up: hallwayd starts us again once it looks for a domain.
unsafe extern "C" fn gone(_: sys::virConnectPtr, _: c_int, _: *mut c_void) {
    std::process::exit(0);
}

/// Serves a stream for the domain with this UUID, until either ends.
pub fn serve(uuid: &str, stream: UnixStream) {
    let line = Arc::new(Line(Mutex::new(stream)));
    if let Err(error) = try_serve(uuid, &line) {
        line.send(&failed(&error));
    }
    line.end();
}

/// The stream's way to hallwayd: whole lines, from two threads.
struct Line(Mutex<UnixStream>);

impl Line {
    fn send(&self, message: &Value) {
        let mut text = message.to_string();
        text.push('\n');
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = stream
            .set_write_timeout(Some(PATIENCE))
            .and_then(|()| stream.write_all(text.as_bytes()));
        if sent.is_err() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn reader(&self) -> Result<UnixStream> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(stream.try_clone()?)
    }

    fn end(&self) {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn try_serve(uuid: &str, line: &Arc<Line>) -> Result<()> {
    let (number, connect) = shared(PLACES.emptiest())?;
    let find = || {
        let found = connect.lookup_domain_by_uuid_string(uuid);
        found.map_err(|_| anyhow!("libvirt has no domain with UUID {uuid}"))
    };
    let domain = find()?;
    let name = domain.name()?;
    let Some(id) = domain.id() else {
        return Err(NotRunning(name).into());
    };
    let (pid, process) = process(&name)?;
    // The process is of this run of the domain only if that goes on.
    if find()?.id() != Some(id) {
        bail!("libvirt starts domain {name}");
    }
    // Without a place there is nothing to greet for.
    drop(PLACES.take(number, uuid, PLACE)?);
    let _events = Events::of(&domain, line);
    let reader = line.reader()?;
    line.send(&json!({
        "QMP": { "version": {}, "capabilities": [] },
        "hallway": { "uuid": uuid, "pid": pid },
    }));
    let mut commands = Commands {
        stream: reader,
        buffer: Vec::new(),
        fds: Vec::new(),
    };
    while let Some((mut command, fd)) = commands.next(&process)? {
        let id = command.remove("id").unwrap_or(Value::Null);
        let answer = match command.get("execute") {
            // libvirt did that.
            Some(word) if word == "qmp_capabilities" => json!({ "return": {} }),
            _ => {
                // Where it is not there, another stream finds another connection.
                let _place = PLACES.take(number, uuid, PLACE)?;
                execute(&domain, &Value::Object(command), fd).unwrap_or_else(|error| failed(&error))
            }
        };
        let mut answer = answer;
        answer["id"] = id;
        line.send(&answer);
    }
    Ok(())
}

fn failed(error: &anyhow::Error) -> Value {
    let class = match error.is::<NotRunning>() {
        true => NOT_RUNNING,
        false => "GenericError",
    };
    json!({ "error": { "class": class, "desc": format!("{error:#}") } })
}

/// Class of that error, as hallwayd's client of monitors has it.
const NOT_RUNNING: &str = "NotRunning";

/// The domain with this name is shut off.
#[derive(Debug)]
struct NotRunning(String);

impl std::fmt::Display for NotRunning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "libvirt does not run domain {}", self.0)
    }
}

impl std::error::Error for NotRunning {}

/// A QEMU's process, as libvirt wrote it down: its number, and what tells of its end.
fn process(name: &str) -> Result<(i32, OwnedFd)> {
    let path = Path::new(PROCESSES).join(format!("{name}.pid"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let pid: i32 = text
        .trim()
        .parse()
        .with_context(|| path.display().to_string())?;
    // SAFETY: pidfd_open takes two numbers, and makes a descriptor.
    let fd = Errno::result(unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
}

/// A command, and the descriptor that came with it.
type Command = (Map<String, Value>, Option<OwnedFd>);

/// Commands, as they come.
struct Commands {
    stream: UnixStream,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Commands {
    /// The next command. Nothing: hallwayd hung up, or the QEMU has ended.
    fn next(&mut self, process: &OwnedFd) -> Result<Option<Command>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some((serde_json::from_slice(&line)?, self.fds.pop())));
            }
            if self.buffer.len() > LINE_MAX {
                bail!("a command without an end");
            }
            let mut fds = [
                PollFd::new(self.stream.as_fd(), PollFlags::POLLIN),
                PollFd::new(process.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            if fds[1].any() == Some(true) {
                return Ok(None);
            }
            if !self.receive()? {
                return Ok(None);
            }
        }
    }

    /// Takes what came. `false`: the end.
    fn receive(&mut self) -> Result<bool> {
        let mut bytes = [0; 8192];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let fd = self.stream.as_raw_fd();
        let packet = match recvmsg::<UnixAddr>(fd, &mut parts, Some(&mut space), flags) {
            Ok(packet) => packet,
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(true),
            Err(Errno::ECONNRESET) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        for message in packet.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = message {
                // SAFETY: the kernel just made these descriptors for us.
                let fds = fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
                self.fds = fds.collect();
            }
        }
        let length = packet.bytes;
        self.buffer.extend_from_slice(&bytes[..length]);
        Ok(length > 0)
    }
}

/// Has QEMU execute a command, with a descriptor if there is one.
fn execute(domain: &Domain, command: &Value, fd: Option<OwnedFd>) -> Result<Value> {
    let text = CString::new(command.to_string())?;
    let mut fds: Vec<c_int> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
    let mut returned: c_uint = 0;
    let mut returned_fds: *mut c_int = std::ptr::null_mut();
    let mut result: *mut c_char = std::ptr::null_mut();
    // SAFETY: all pointers are to what lives beyond the call. What libvirt allocates in it
    // is freed below; it returns no descriptors yet.
    let ended = unsafe {
        sys::virDomainQemuMonitorCommandWithFiles(
            domain.as_ptr(),
            text.as_ptr(),
            fds.len() as c_uint,
            if fds.is_empty() {
                std::ptr::null_mut()
            } else {
                fds.as_mut_ptr()
            },
            &mut returned,
            &mut returned_fds,
            &mut result,
            0,
        )
    };
    if ended < 0 || result.is_null() {
        bail!("libvirt: {}", virt::error::Error::last_error().message());
    }
    // SAFETY: it is a string, allocated by malloc, and ours.
    let answer = unsafe {
        let text = CStr::from_ptr(result).to_string_lossy().into_owned();
        nix::libc::free(result.cast());
        nix::libc::free(returned_fds.cast());
        text
    };
    Ok(serde_json::from_str(&answer)?)
}

/// Events of a QEMU's monitor, which go to a line while this lives.
struct Events(Key, Arc<Line>);

/// A run of a domain: its UUID, and the number that libvirt gave the run.
type Key = ([u8; UUID], c_uint);
const UUID: usize = sys::VIR_UUID_BUFLEN as usize;

/// The lines of all runs.
static LINES: Mutex<BTreeMap<Key, Arc<Line>>> = Mutex::new(BTreeMap::new());

fn key(domain: sys::virDomainPtr) -> Key {
    let mut uuid = [0; UUID];
    // SAFETY: the domain lives, and the UUID has its place.
    let id = unsafe {
        sys::virDomainGetUUID(domain, uuid.as_mut_ptr());
        sys::virDomainGetID(domain)
    };
    (uuid, id)
}

fn lines() -> MutexGuard<'static, BTreeMap<Key, Arc<Line>>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    fn of(domain: &Domain, line: &Arc<Line>) -> Self {
        // SAFETY: the domain lives beyond the call.
        let key = key(unsafe { domain.as_ptr() });
        lines().insert(key, line.clone());
        Self(key, line.clone())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut lines = lines();
        // Another line of the same run may have taken the place.
        if lines
            .get(&self.0)
            .is_some_and(|line| Arc::ptr_eq(line, &self.1))
        {
            lines.remove(&self.0);
        }
    }
}

/// Sends an event on.
unsafe extern "C" fn forward(
    _connect: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    event: *const c_char,
    _seconds: c_longlong,
    _micros: c_uint,
    details: *const c_char,
    _opaque: *mut c_void,
) {
    let Some(line) = lines().get(&key(domain)).cloned() else {
        return;
    };
    // SAFETY: libvirt gives strings, or null.
    let text = |text: *const c_char| unsafe {
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    let details = text(details).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    line.send(&json!({ "event": text(event), "data": details.unwrap_or_default() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_is_shut_off_has_a_class_of_its_own() {
        let off = failed(&NotRunning("web1".into()).into());
        assert_eq!(off["error"]["class"], hallway_qmp::NOT_RUNNING);
        assert_eq!(off["error"]["desc"], "libvirt does not run domain web1");
        assert_eq!(failed(&anyhow!("no"))["error"]["class"], "GenericError");
    }
}
