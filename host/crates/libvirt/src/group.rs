// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file of a group, which `hallway enable` writes and `hallwayd` reads
//! with the others in its directory.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// Time between two tries to get the lock.
const LOOK: Duration = Duration::from_millis(50);
const HEAD: &str = "# Written by hallway enable and hallway disable.\n\n";

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// `pair` or `shared`.
    pub isolation: String,
    /// Size of its region, if that is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Members of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// A VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// UUID of its domain.
    pub uuid: String,
    /// The group, or none while it leaves that.
    pub groups: Vec<String>,
    /// `libvirt`.
    pub monitor: String,
    /// Root ports for its ring memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
}

/// What such a file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// The group, alone.
    pub group: Vec<Group>,
    /// Its VMs.
    #[serde(default)]
    pub vm: Vec<Vm>,
}

/// Keeps all other commands from the files in a directory, until it is dropped. An error
/// where one is at work for longer than `limit`.
pub fn lock(dir: &Path, limit: Duration) -> Result<Flock<File>> {
    let shown = dir.display();
    make(dir)?;
    let mut file = File::open(dir).with_context(|| shown.to_string())?;
    let deadline = Instant::now() + limit;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
            Err((_, errno)) => bail!("{shown}: {}", errno.desc()),
        };
        if Instant::now() >= deadline {
            bail!(
                "{shown}: another hallway enable or disable is at work there for {} s",
                limit.as_secs()
            );
        }
        std::thread::sleep(LOOK);
    }
}

fn make(dir: &Path) -> Result<()> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(dir);
    made.with_context(|| format!("{}: cannot be made: run as root", dir.display()))
}

/// Path of a group's file.
pub fn path(dir: &Path, group: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if group.is_empty() || !group.chars().all(plain) {
        bail!("{group:?} is no name for a group: letters, digits, - _");
    }
    Ok(dir.join(format!("{group}.toml")))
}

/// Reads a file; nothing if there is none.
pub fn read(path: &Path) -> Result<Option<Content>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let content: Content = toml::from_str(&text).with_context(|| {
        format!(
            "{}: has more than hallway enable wrote: change it by hand, or name another --group",
            path.display()
        )
    })?;
    Ok(Some(content))
}

/// Writes a file, whole or not at all; one without a VM is removed.
pub fn write(path: &Path, content: &Content) -> Result<()> {
    if content.vm.is_empty() {
        return match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        };
    }
    make(path.parent().unwrap_or(Path::new("/")))?;
    let new = path.with_extension("new");
    let text = format!("{HEAD}{}", toml::to_string(content)?);
    let mut file = File::create(&new)
        .with_context(|| format!("{}: cannot be written: run as root", new.display()))?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path).with_context(|| path.display().to_string())
}
