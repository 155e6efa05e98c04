// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitors of domains, for `hallwayd`.
//!
//! `hallwayd` holds the other end of the socket at descriptor 0. Each packet is the UUID
//! of a domain, and one end of a stream, which a thread then serves: it greets as QEMU
//! does, and adds UUID and process of that QEMU, which libvirt knows; or it says in one
//! line why there is no QEMU. Commands and answers go on, and events come from libvirt.
//! The process ends with that socket, and where libvirt goes: `hallwayd` starts it again.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags, UnixAddr};
use virt::event;

use crate::monitor;

/// Bytes of the longest packet: a UUID.
const PACKET_MAX: usize = 64;

/// Serves until `hallwayd` ends.
pub fn serve() -> Result<()> {
    // Before anything connects.
    event::event_register_default_impl()?;
    std::thread::Builder::new()
        .name("events".into())
        .spawn(|| loop {
            if event::event_run_default_impl().is_err() {
                std::process::exit(1);
            }
        })?;
    let control = std::io::stdin();
    while let Some((domain, stream)) = receive(control.as_raw_fd()).context("descriptor 0")? {
        let Some(stream) = stream else {
            continue;
        };
        std::thread::Builder::new()
            .name(domain.clone())
            .spawn(move || monitor::serve(&domain, UnixStream::from(stream)))?;
    }
    Ok(())
}

/// Takes the next packet, and the descriptor that came with it. Nothing: there are no more.
fn receive(control: RawFd) -> Result<Option<(String, Option<OwnedFd>)>> {
    let mut bytes = [0; PACKET_MAX];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let packet = loop {
        match recvmsg::<UnixAddr>(control, &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let mut fd = None;
    for message in packet.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel just made these descriptors for us.
            fd = fds.first().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    let length = packet.bytes;
    if length == 0 {
        return Ok(None);
    }
    let domain = String::from_utf8_lossy(&bytes[..length]).into_owned();
    Ok(Some((domain, fd)))
}
