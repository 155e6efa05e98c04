// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The run directory, and the lock by which one daemon alone has it.

use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use hallway_control as control;
use hallway_membership::{is_own, lock_file, Region};
use nix::fcntl::Flock;

/// Bytes of the longest path of a Unix socket.
pub const SOCKET_PATH_MAX: usize = 107;

/// Refuses a path at which no socket can be.
pub fn check_socket_path(path: &Path, option: &str) -> Result<()> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_MAX {
        bail!(
            "{}: has {bytes} bytes, and the path of a socket at most {SOCKET_PATH_MAX}: give a \
             shorter {option}",
            path.display()
        );
    }
    Ok(())
}

/// A run directory whose lock is held: there is no other daemon.
pub struct RunDir {
    path: PathBuf,
    _lock: Flock<File>,
}

impl RunDir {
    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the holder's socket.
    pub fn holder(&self) -> PathBuf {
        control::holder(&self.path)
    }

    fn pid_file(path: &Path) -> PathBuf {
        path.join("hallwayd.pid")
    }

    /// Becomes the one daemon of a run directory.
    pub fn take(path: &Path) -> Result<Self> {
        match Self::try_take(path)? {
            Ok(run) => Ok(run),
            Err(pid) => bail!(
                "hallwayd runs already for {} (pid {pid}): use it, end it with hallwayd --stop \
                 --run-dir {0}, or give another --run-dir and --region-dir",
                path.display()
            ),
        }
    }

    /// Becomes it, too; the inner error is the pid of the daemon that has it.
    pub fn try_take(path: &Path) -> Result<Result<Self, String>> {
        check_dir(path, "--run-dir", "pose as hallwayd", 0)?;
        let pid_file = Self::pid_file(path);
        let locked = lock_file(&pid_file).with_context(|| {
            format!(
                "{}: cannot be opened: run as root, or give a --run-dir of your own",
                pid_file.display()
            )
        })?;
        match locked {
            Ok(mut lock) => {
                lock.set_len(0)?;
                lock.seek(SeekFrom::Start(0))?;
                writeln!(lock, "{}", std::process::id())?;
                Ok(Ok(Self {
                    path: path.into(),
                    _lock: lock,
                }))
            }
            Err(mut file) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid)?;
                Ok(Err(pid.trim().into()))
            }
        }
    }
}

/// Makes a directory for this user alone, unless it is there. Returns what was made.
pub fn make_dir(path: &Path, option: &str) -> Result<Option<PathBuf>> {
    if path.is_dir() {
        return Ok(None);
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| {
            let root = nix::unistd::geteuid().is_root();
            let remedy = if root { "" } else { "run as root, or " };
            format!(
                "{}: cannot be made: {remedy}give another {option}",
                path.display()
            )
        })?;
    Ok(Some(path.into()))
}

/// Refuses a directory in which others may replace files and so do `harm`. One of
/// the permissions in `enough`, such as the sticky bit, prevents that.
pub fn check_dir(path: &Path, option: &str, harm: &str, enough: u32) -> Result<()> {
    let meta = std::fs::metadata(path)?;
    if !is_own(meta.uid()) || (meta.mode() & 0o022 != 0 && meta.mode() & enough == 0) {
        bail!(
            "{}: others may write there (owner {}, mode {:04o}), and so {harm}: chown and chmod \
             0700 it, or give another {option}",
            path.display(),
            meta.uid(),
            meta.mode() & 0o7777
        );
    }
    Ok(())
}

/// The same of the directory for files of regions. In a sticky one no other user replaces a
/// file of ours.
pub fn check_region_dir(path: &Path) -> Result<()> {
    check_dir(path, "--region-dir", "have the VMs' memory", 0o1000)
}

/// Removes what a daemon and its holder leave behind. `socket` is the one for QEMUs, if
/// it is theirs.
pub fn clean(run: &RunDir, socket: Option<&Path>, files: &[PathBuf], made: &[PathBuf]) {
    let own = [
        control::socket(run.path()),
        run.holder(),
        RunDir::pid_file(run.path()),
    ];
    files.iter().for_each(|file| Region::remove_file(file));
    for path in own.iter().map(PathBuf::as_path).chain(socket) {
        let _ = std::fs::remove_file(path);
    }
    for path in made {
        // Stays if others put something there.
        let _ = std::fs::remove_dir(path);
    }
}
