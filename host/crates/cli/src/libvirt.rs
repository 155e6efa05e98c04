// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `hallway-libvirt` does for `hallway`: that alone is linked with libvirt's library,
//! which guests lack.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, Context, Result};

const PROGRAM: &str = "hallway-libvirt";
/// Where it is, if not beside `hallway`: with hallwayd.
const FOLDERS: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];

/// Becomes `hallway-libvirt`, with a command and its words.
pub fn hand_over(command: &str, words: &[OsString]) -> Result<()> {
    let own = std::env::current_exe().context("/proc/self/exe")?;
    let beside = own.with_file_name(PROGRAM);
    let others = FOLDERS.map(|folder| PathBuf::from(folder).join(PROGRAM));
    for program in std::iter::once(beside).chain(others) {
        let error = Command::new(&program).arg(command).args(words).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(error).with_context(|| program.display().to_string());
        }
    }
    bail!(
        "{PROGRAM} is not installed: hallway {command} is for a host with libvirt; for a QEMU \
         without it hallway qemu-args says what to add"
    )
}
