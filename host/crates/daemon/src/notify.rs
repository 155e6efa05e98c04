// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the service manager learns of the daemon: systemd's sd_notify(3).
//!
//! A unit with `Type=notify` has started once QEMU can connect, so those that come
//! after it, such as libvirtd with its VMs, find the socket.

use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;

use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};
use tracing::warn;

fn send(path: &OsStr, message: &[u8]) -> std::io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    // A manager that reads nothing must not make the daemon wait.
    socket.set_nonblocking(true)?;
    socket.send_to(message, path)
}

/// Says that QEMU can connect, if a service manager asked for that.
pub fn tell_ready() {
    tell("READY=1");
}

/// Says that the daemon reads its configuration again; [`tell_ready`] is the end of that.
pub fn tell_reloading() {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(TimeSpec::new(0, 0));
    let micros = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

fn tell(message: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&path, message.as_bytes()) {
        warn!(path = ?path, %error, "cannot tell the service manager: {message}");
    }
}
