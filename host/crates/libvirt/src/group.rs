// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file of a group, which `hallway enable` writes and `hallwayd` reads
//! with the others in its directory. What an operator adds to it stays, but for comments.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use hallway_log::with_remedy;
use hallway_membership::FileLock;
use serde::{Deserialize, Serialize};
use toml::Table;

/// Time between two tries to get the lock.
const LOOK: Duration = Duration::from_millis(50);
const HEAD: &str = "# Written by hallway enable and hallway disable, which keep what else \
                    hallwayd.toml may say of a group or a VM, but no comments.\n\n";

/// A group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// What an operator has added.
    #[serde(flatten)]
    pub more: Table,
}

/// A VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// What an operator has added.
    #[serde(flatten)]
    pub more: Table,
}

/// What such a file says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// The group, alone.
    pub group: Vec<Group>,
    /// Its VMs.
    #[serde(default)]
    pub vm: Vec<Vm>,
    /// What an operator has added.
    #[serde(flatten)]
    pub more: Table,
}

/// Keeps all other commands from the files in a directory, until it is dropped. An error
/// where one is at work for longer than `limit`.
pub fn lock(dir: &Path, limit: Duration) -> Result<FileLock> {
    let shown = dir.display();
    make(dir)?;
    let path = dir.join(".lock");
    let deadline = Instant::now() + limit;
    loop {
        let lock = FileLock::take(&path).map_err(with_remedy);
        let lock = lock.with_context(|| format!("{}: cannot be locked", path.display()))?;
        if let Some(lock) = lock {
            return Ok(lock);
        }
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
    let made = made.map_err(with_remedy);
    made.with_context(|| format!("{}: cannot be made", dir.display()))
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
            "{}: is not as hallway enable writes it: change it by hand, or name another --group",
            path.display()
        )
    })?;
    Ok(Some(content))
}

/// Writes a file, whole or not at all. One without a VM is removed, unless an operator has added
/// something.
pub fn write(path: &Path, content: &Content) -> Result<()> {
    let is_ours = content.more.is_empty() && content.group.iter().all(|one| one.more.is_empty());
    if content.vm.is_empty() && is_ours {
        return match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        };
    }
    make(path.parent().unwrap_or(Path::new("/")))?;
    let new = path.with_extension("new");
    let text = format!("{HEAD}{}", toml::to_string(content)?);
    let mut file = File::create(&new)
        .map_err(with_remedy)
        .with_context(|| format!("{}: cannot be written", new.display()))?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDITED: &str = r#"
[[group]]
name = "web"
isolation = "pair"
tunnels = [22]

[[vm]]
name = "web1"
uuid = "5b0c4b7e-6f52-4d6e-9a39-3f1c5d1b7a01"
groups = ["web"]
monitor = "libvirt"

[vm.outsource]
connect = ["10.0.0.0/8:443"]

[cpus]
busy = 80
"#;

    #[test]
    fn keeps_what_an_operator_has_added() {
        let dir = std::env::temp_dir().join(format!("hwl-{}-kept", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = path(&dir, "web").unwrap();
        std::fs::write(&path, EDITED).unwrap();
        let mut content = read(&path).unwrap().unwrap();
        let mut second = content.vm[0].clone();
        second.name = "web2".into();
        second.more = Table::new();
        content.vm.push(second);
        write(&path, &content).unwrap();
        let found: Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let edited: Table = EDITED.parse().unwrap();
        assert_eq!(found["group"], edited["group"]);
        assert_eq!(found["cpus"], edited["cpus"]);
        assert_eq!(found["vm"][0], edited["vm"][0]);
        assert_eq!(found["vm"][1].get("outsource"), None);
        content.vm.clear();
        write(&path, &content).unwrap();
        let found: Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        assert_eq!(found["cpus"], edited["cpus"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
