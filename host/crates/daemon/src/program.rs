// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that hallwayd starts.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Finds a program: the one that an environment variable names, for tests, or the one in the
/// directory of hallwayd.
pub fn find(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("/proc/self/exe")?;
    Ok(own.with_file_name(name))
}
