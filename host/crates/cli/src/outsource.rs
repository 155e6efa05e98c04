// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In a guest: the programs that may have sockets outsourced. `hallway outsource`, `hallway exec`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use hallway_log::with_remedy;
use hallway_netlink::CGROUPS_MAX;

use crate::guest::client;

/// Where cgroups are, in version 2.
const ROOT: &str = "/sys/fs/cgroup";
/// The cgroup of the programs that `hallway exec` runs.
const EXEC: &str = "/sys/fs/cgroup/hallway.exec";

/// The id of a cgroup: the number of its directory.
fn find_id(cgroup: &Path) -> Result<u64> {
    let shown = cgroup.display();
    ensure!(
        // Those of version 1 have none.
        cgroup.join("cgroup.controllers").is_file(),
        "{shown} is no cgroup of version 2: give a directory below {ROOT}"
    );
    Ok(fs::metadata(cgroup)
        .with_context(|| shown.to_string())?
        .ino())
}

/// Turns outsourcing of new sockets on, for these cgroups or for all programs, or off.
pub fn switch(on: bool, cgroups: &[PathBuf]) -> Result<()> {
    ensure!(
        on || cgroups.is_empty(),
        "--cgroup says where outsourcing is on: it does not go with off"
    );
    ensure!(
        cgroups.len() <= CGROUPS_MAX,
        "{} cgroups are given, and {CGROUPS_MAX} are the most: name one above them",
        cgroups.len()
    );
    let ids: Result<Vec<u64>> = cgroups.iter().map(|cgroup| find_id(cgroup)).collect();
    client()?.set_outsourcing(on, &ids?)?;
    let what = match (on, cgroups.len()) {
        (false, _) => {
            "off: new sockets are native, and no port is published; those that are connected remain"
        }
        (true, 0) => "on, for what the host's policy allows",
        (true, _) => "on in these cgroups alone, for what the host's policy allows",
    };
    writeln!(io::stdout(), "outsourcing is {what}")?;
    Ok(())
}

/// Has outsourcing be on for the programs of `hallway exec`, besides those for which it is.
fn include_exec() -> Result<()> {
    let mut client = client()?;
    let module = client.get()?;
    let id = find_id(Path::new(EXEC))?;
    let mut cgroups = Vec::new();
    if module.outsourcing {
        cgroups = module.cgroups;
        if cgroups.is_empty() || cgroups.contains(&id) {
            return Ok(());
        }
    }
    ensure!(
        cgroups.len() < CGROUPS_MAX,
        "outsourcing is on for {CGROUPS_MAX} cgroups, the most: turn it on for fewer, or for all"
    );
    cgroups.push(id);
    client.set_outsourcing(true, &cgroups)?;
    Ok(())
}

/// Becomes a program that may have its sockets outsourced.
pub fn execute(command: &[OsString]) -> Result<()> {
    let [program, arguments @ ..] = command else {
        bail!("no program is given");
    };
    find_id(Path::new(ROOT))?;
    match fs::create_dir(EXEC) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(with_remedy(error))
                .with_context(|| format!("{EXEC} (a cgroup of version 2)"))
        }
        _ => {}
    }
    include_exec()?;
    let processes = Path::new(EXEC).join("cgroup.procs");
    let moved = fs::write(&processes, "0").map_err(with_remedy);
    moved.with_context(|| processes.display().to_string())?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| program.to_string_lossy().into_owned())
}
