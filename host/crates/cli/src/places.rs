// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the host's other programs are.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Where packages and `make install` put them, if not near `hallway`.
const FOLDERS: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];

/// The paths that a program may have: beside `hallway`, in `sbin` beside its `bin`, and in the
/// usual folders.
pub fn of(program: &str) -> Result<Vec<PathBuf>> {
    let own = std::env::current_exe().context("/proc/self/exe")?;
    let folder = own.parent();
    let near = folder.into_iter().map(PathBuf::from);
    let sbin = folder.and_then(|bin| Some(bin.parent()?.join("sbin")));
    let all = near.chain(sbin).chain(FOLDERS.map(PathBuf::from));
    Ok(all.map(|folder| folder.join(program)).collect())
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    of(program).is_ok_and(|paths| paths.iter().any(|path| path.exists()))
}
