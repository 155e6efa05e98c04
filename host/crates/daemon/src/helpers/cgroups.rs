// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cgroup for each helper, below the one of the daemon. The sockets of a helper's process
//! belong to it, so the operator's nftables can tell one guest's from another's: `socket
//! cgroupv2`.
//!
//! A rule means the cgroup that had the path when the rule was loaded. So a cgroup is made
//! before the daemon is ready, and stays for as long as the configuration has the helper.
//!
//! A cgroup has one writer, which is systemd, until it delegates one: `Delegate=` of
//! outsource.conf. It marks that one with an extended attribute (systemd's document "Control
//! Group APIs and Delegation"). Where it delegates none, or the daemon cannot write there,
//! helpers are in the daemon's cgroup.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{access, getxattr, Access};
use tracing::{debug, error, info, warn};

use crate::cgroup::{self, UNIFIED};
use crate::regionspec::{OUTSOURCED, TUNNELED};

/// Attributes of a cgroup that is delegated. Only root can read the second one, which alone
/// comes from a systemd before 251.
const MARKS: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// The cgroups of all helpers.
pub struct Cgroups {
    /// The daemon's own, if systemd has delegated it.
    own: Option<Cgroup>,
}

/// A cgroup of version 2.
struct Cgroup {
    /// Its name in /proc, without the first slash.
    name: String,
    path: PathBuf,
}

impl Cgroups {
    /// Makes the cgroups of the helpers with these names, and removes those that have no
    /// helper any more. One that still has a process stays till a later daemon removes it.
    pub fn make(names: &[String]) -> Self {
        let own = find_own().filter(|own| is_delegated(&own.path));
        match &own {
            Some(own) => {
                let all = names.iter().map(|name| own.path.join(name));
                all.for_each(|path| make_one(&path));
                remove_others(&own.path, names);
            }
            None if names.is_empty() => {}
            None => info!("helpers share hallwayd's own cgroup: none is delegated to it"),
        }
        Self { own }
    }

    /// Whether a process is where one with this name would be started. Its sockets belong to
    /// the cgroup in which they were made, so it is not enough to move it.
    pub fn holds(&self, name: &str, pid: u32) -> bool {
        let Some(own) = &self.own else {
            return true;
        };
        let wanted = Path::new(&own.name).join(name);
        let name = cgroup::find_name(Path::new("/proc"), &pid.to_string(), UNIFIED);
        name.is_some_and(|its| Path::new(&its) == wanted)
    }

    /// Where a process writes `0` to be in the cgroup with this name. Nothing: it is to stay
    /// in the daemon's. A cgroup that could not be made is an error: rules that the operator
    /// has for it would not apply.
    pub fn open(&self, name: &str) -> Result<Option<File>> {
        let Some(own) = &self.own else {
            return Ok(None);
        };
        let path = own.path.join(name).join("cgroup.procs");
        let opened = File::options().write(true).open(&path);
        let opened = opened.with_context(|| {
            let path = path.display();
            format!(
                "{path}: hallwayd --reload makes the cgroup, then rules for it are to be loaded"
            )
        })?;
        Ok(Some(opened))
    }
}

/// Makes one, if it is not there. [`Cgroups::open`] fails where this did.
fn make_one(cgroup: &Path) {
    match fs::create_dir(cgroup) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            error!("cgroup {}: {error}", cgroup.display())
        }
        _ => {}
    }
}

fn remove_others(own: &Path, names: &[String]) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_helper = name.starts_with(OUTSOURCED) || name.starts_with(TUNNELED);
        if is_helper && !names.iter().any(|one| *one == name) {
            let removed = fs::remove_dir(entry.path());
            debug!(cgroup = %entry.path().display(), ?removed, "has no helper any more");
        }
    }
}

/// The cgroup of this process.
fn find_own() -> Option<Cgroup> {
    let name = cgroup::find_name(Path::new("/proc"), "self", UNIFIED)?;
    let path = cgroup::find_path(Path::new("/proc"), &name, UNIFIED)?;
    Some(Cgroup { name, path })
}

fn is_delegated(cgroup: &Path) -> bool {
    let is_marked = MARKS.iter().any(|mark| {
        let mut value = [0; 1];
        getxattr(cgroup, *mark, &mut value) == Ok(1) && value == *b"1"
    });
    // Another slice than outsource.conf names, a container, or cgroups of version 1 beside it.
    let written = access(cgroup, Access::WRITE_OK);
    if let (true, Err(error)) = (is_marked, written) {
        let path = cgroup.display();
        warn!("{path} is delegated, but: {error}: have ReadWritePaths= of outsource.conf name it");
    }
    is_marked && written.is_ok()
}
