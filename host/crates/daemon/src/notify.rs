// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the service manager learns of the daemon: systemd's sd_notify(3).
//!
//! A unit with `Type=notify` has started once QEMU can connect, so those that come
//! after it, such as libvirtd with its VMs, find the socket.

use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;

use tracing::warn;

fn send(path: &OsStr, message: &[u8]) -> std::io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    // A manager that reads nothing must not make the daemon wait.
    socket.set_nonblocking(true)?;
    socket.send_to(message, path)
}

/// Says that QEMU can connect, if a service manager asked for that.
pub fn tell_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&path, b"READY=1") {
        warn!(path = ?path, %error, "cannot tell the service manager that hallwayd is ready");
    }
}
