// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks that no other user can hold, and whose files can be trusted.
//!
//! A lock on a file is for all that can open the file, so each is on a file of its own,
//! for this user alone.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

/// Whether what a user has made can be trusted: root, or the user of this process.
pub fn is_own(uid: u32) -> bool {
    [0, nix::unistd::geteuid().as_raw()].contains(&uid)
}

/// Locks the file at `path`, which is made if need be. The inner error: the file, which
/// another process has locked.
pub fn lock_file(path: &Path) -> io::Result<Result<Flock<File>, File>> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(path)?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((file, Errno::EAGAIN)) => return Ok(Err(file)),
            Err((_, error)) => return Err(error.into()),
        };
        // The process that had the lock may have removed the file that we opened.
        let is_there = std::fs::metadata(path)
            .is_ok_and(|there| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
        if is_there {
            return Ok(Ok(lock));
        }
    }
}

/// Path of the lock of a region's file.
pub fn region_lock(region: &Path) -> PathBuf {
    let name = region.file_name().unwrap_or_default().to_string_lossy();
    region.with_file_name(format!(".{name}.lock"))
}

/// A lock. Its file goes with it.
pub struct FileLock {
    path: PathBuf,
    _lock: Flock<File>,
}

impl FileLock {
    /// Locks the file at `path`. Nothing: another process has the lock.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let locked = lock_file(path)?;
        let meta = locked.as_deref().unwrap_or_else(|file| file).metadata()?;
        if !is_own(meta.uid()) {
            return Err(io::Error::other("belongs to another user: remove it"));
        }
        Ok(locked.ok().map(|_lock| Self {
            path: path.into(),
            _lock,
        }))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
