// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a process's cgroup is, in each hierarchy that there may be.

use std::fs;
use std::path::{Path, PathBuf};

/// The hierarchy of version 2, among the controllers by which those of version 1 are named.
pub const UNIFIED: &str = "";

/// The name of a process's cgroup, without the first slash, in the hierarchy of a controller.
/// `process` is what has it in `proc`: a process, or a thread of one.
pub fn find_name(proc: &Path, process: &str, controller: &str) -> Option<String> {
    let all = fs::read_to_string(proc.join(process).join("cgroup")).ok()?;
    // 4:cpu,cpuacct:/machine.slice
    all.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let is_it = has_word(parts.next()?, controller);
        parts
            .next()?
            .strip_prefix('/')
            .filter(|_| is_it)
            .map(Into::into)
    })
}

/// The folder of the cgroup with this name.
pub fn find_path(proc: &Path, name: &str, controller: &str) -> Option<PathBuf> {
    // Outside of the daemon's namespace of cgroups.
    if name.split('/').any(|part| part == "..") {
        return None;
    }
    // Other mounts may have any bytes in their names.
    let mounts = fs::read(proc.join("self/mounts")).ok()?;
    String::from_utf8_lossy(&mounts).lines().find_map(|line| {
        // cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0
        let [_, place, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let is_it = match controller {
            UNIFIED => kind == "cgroup2",
            controller => kind == "cgroup" && has_word(options, controller),
        };
        let path = Path::new(place).join(name);
        // Another mount may hide it.
        (is_it && path.join("cgroup.procs").exists()).then_some(path)
    })
}

fn has_word(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one == word)
}
