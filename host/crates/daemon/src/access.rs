// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The groups whose members, besides this user, may do something: start QEMUs, or ask for
//! the status.
//!
//! The first group enters the directories that the daemon made, connects to QEMU's socket
//! and maps regions. The second one connects to the control socket, which is for this user
//! alone otherwise; `clients.rs` sees to it that it only asks. The holder's socket is for
//! this user alone.

use std::fs::{metadata, set_permissions, FileType, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use hallway_membership::is_own;
use nix::fcntl::OFlag;
use nix::unistd::{Gid, Group};
use tracing::warn;

const DIR: u32 = 0o710;
const FILE: u32 = 0o660;

/// A group that an option names, if any.
#[derive(Clone)]
pub struct Access(Option<Group>);

impl Access {
    /// Looks the group up. `remedy`: which one to name.
    pub fn new(name: Option<&str>, remedy: &str) -> Result<Self> {
        let Some(name) = name else {
            return Ok(Self(None));
        };
        let group = match name.parse() {
            Ok(number) => Group::from_gid(Gid::from_raw(number))?,
            Err(_) => Group::from_name(name)?,
        };
        if group.is_none() {
            bail!("there is no group {name}: {remedy}");
        }
        Ok(Self(group))
    }

    /// Lets the group into a directory that was just made.
    pub fn admit(&self, made: Option<&PathBuf>) -> Result<()> {
        made.map_or(Ok(()), |path| self.give(path, DIR, FileType::is_dir))
    }

    /// Lets all users through a directory that was just made, though not see what is there:
    /// this group is another one than the directory's.
    pub fn let_through(&self, path: &Path) -> Result<()> {
        if self.0.is_none() {
            return Ok(());
        }
        let mode = metadata(path)?.mode() & 0o777 | 0o001;
        set_permissions(path, Permissions::from_mode(mode))
            .with_context(|| path.display().to_string())
    }

    /// The group's number.
    pub fn gid(&self) -> Option<u32> {
        self.0.as_ref().map(|group| group.gid.as_raw())
    }

    /// Warns of a directory that the group cannot enter: it is another's to open. `remedy`
    /// lets it; `%` stands for the group.
    pub fn check(&self, path: &Path, remedy: &str) -> Result<()> {
        let Some(group) = &self.0 else {
            return Ok(());
        };
        let meta = metadata(path)?;
        let needed = if meta.gid() == group.gid.as_raw() {
            0o010
        } else {
            0o001
        };
        if meta.mode() & needed == 0 {
            warn!(
                "{}: group {} cannot enter it: {}",
                path.display(),
                group.name,
                remedy.replace('%', &group.name)
            );
        }
        Ok(())
    }

    /// Gives a socket to the group.
    pub fn share_socket(&self, path: &Path) -> Result<()> {
        self.give(path, FILE, FileType::is_socket)
    }

    /// Gives a region's file to the group.
    pub fn share_file(&self, path: &Path) -> Result<()> {
        self.give(path, FILE, FileType::is_file)
    }

    /// Gives what is at `path` to the group, if it is ours and of the right kind.
    /// Neither a link is followed, nor is the path resolved twice.
    fn give(&self, path: &Path, mode: u32, is_right: fn(&FileType) -> bool) -> Result<()> {
        let Some(group) = &self.0 else {
            return Ok(());
        };
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(flags.bits());
        let opened = options
            .open(path)
            .and_then(|file| Ok((file.metadata()?, file)));
        let (meta, file) = opened.with_context(|| path.display().to_string())?;
        if !is_right(&meta.file_type()) || !is_own(meta.uid()) {
            bail!(
                "{}: is not what this hallwayd made, and is not given to group {}: remove it, or \
                 give another directory",
                path.display(),
                group.name
            );
        }
        let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
        chown(&fd, None, Some(group.gid.as_raw()))
            .and_then(|()| set_permissions(&fd, Permissions::from_mode(mode)))
            .with_context(|| {
                format!(
                    "{}: cannot be given to group {}: run as root, or as a member of the group",
                    path.display(),
                    group.name
                )
            })
    }
}
