// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The group whose members, besides this user, may start QEMUs.
//!
//! They enter the directories that the daemon made, connect to QEMU's socket
//! and map regions. The control socket and the holder's are for this user alone.

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

/// The group that `--group` names, if any.
#[derive(Clone)]
pub struct Access(Option<Group>);

impl Access {
    /// Looks the group up.
    pub fn new(name: Option<&str>) -> Result<Self> {
        let Some(name) = name else {
            return Ok(Self(None));
        };
        let group = match name.parse() {
            Ok(number) => Group::from_gid(Gid::from_raw(number))?,
            Err(_) => Group::from_name(name)?,
        };
        if group.is_none() {
            bail!("there is no group {name}: give --group one that QEMU runs with (libvirt: kvm)");
        }
        Ok(Self(group))
    }

    /// Lets the group into a directory that was just made.
    pub fn admit(&self, made: Option<&PathBuf>) -> Result<()> {
        made.map_or(Ok(()), |path| self.give(path, DIR, FileType::is_dir))
    }

    /// Warns of a directory that the group cannot enter: it is another's to open.
    pub fn check(&self, path: &Path) -> Result<()> {
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
                "{}: group {1} cannot enter it, so its QEMUs will fail: chgrp {1} and chmod g+x it",
                path.display(),
                group.name
            );
        }
        Ok(())
    }

    /// Gives QEMU's socket to the group.
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
