// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `hallway-libvirt` does for `hallway`: that alone is linked with libvirt's library,
//! which guests lack.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::places;

const PROGRAM: &str = "hallway-libvirt";

/// Becomes `hallway-libvirt`, with a command and its words.
pub fn hand_over(command: &str, words: &[OsString]) -> Result<()> {
    for program in places::of(PROGRAM)? {
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
