// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process `hallway-libvirt`, by which monitors of libvirt's VMs are reached.
//!
//! It alone is linked with libvirt's library: a call of that may never return, and hosts
//! without libvirt do not have it. For each VM it gets one end of a stream, and the UUID of
//! a domain; on that stream it speaks QMP for the domain's QEMU. It ends with the socket
//! by which it gets these.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use hallway_membership::Uuid;
use nix::sys::socket::{socketpair, AddressFamily, SockFlag, SockType};

use crate::program;

/// Names another program in place of the one beside hallwayd.
const PROGRAM_VARIABLE: &str = "HALLWAY_LIBVIRT";
const PROGRAM: &str = "hallway-libvirt";

struct Process {
    child: Child,
    control: OwnedFd,
}

/// The process, if it was needed yet.
#[derive(Default)]
pub struct Bridge(Mutex<Option<Process>>);

impl Bridge {
    /// Opens a stream to the monitor of a domain. What is wrong with the domain is said
    /// on the stream.
    pub fn connect(&self, domain: Uuid) -> Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut process = self.process();
        if let Some(running) = process.as_mut() {
            if running.send(domain, &theirs).is_ok() {
                return Ok(ours);
            }
            // It ends whenever libvirt does.
            running.end();
        }
        let started = process.insert(Process::start()?);
        started
            .send(domain, &theirs)
            .context("hallway-libvirt ended at once")?;
        Ok(ours)
    }

    /// Ends the process.
    pub fn end(&self) {
        if let Some(mut process) = self.process().take() {
            process.end();
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    fn start() -> Result<Self> {
        let kind = SockType::SeqPacket;
        let (control, theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        let program = program::find(PROGRAM, PROGRAM_VARIABLE)?;
        let child = Command::new(&program)
            .arg("serve")
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| {
                format!(
                    "{}: cannot be started, and monitor = \"libvirt\" needs it",
                    program.display()
                )
            })?;
        Ok(Self { child, control })
    }

    fn send(&self, domain: Uuid, stream: &UnixStream) -> Result<()> {
        let text = domain.to_string();
        hallway_unix::send_now(&self.control, text.as_bytes(), &[stream.as_fd()])?;
        Ok(())
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
