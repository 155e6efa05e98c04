// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sockets at which programs of the host reach a guest. They are made for each process,
//! which alone listens.

use std::fs::{set_permissions, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hallway_unix::{refuse_descriptors, remove_abandoned};
use nix::sys::socket::{
    bind, listen as start, socket, AddressFamily, Backlog, SockFlag, SockType, UnixAddr,
};
use nix::sys::stat::{umask, Mode};

use crate::config::Listen;
use crate::run::check_dir;

/// Where messages go, beside the socket for bytes.
pub const PACKETS: &str = ".packets";

/// Listens for bytes, and for messages. Nothing is asked for: nothing.
pub fn listen(at: Option<&Listen>) -> Result<Vec<OwnedFd>> {
    let Some(at) = at else {
        return Ok(Vec::new());
    };
    let dir = at.path.parent().unwrap_or(Path::new("/"));
    check_dir(dir, "socket of [vm.tunnels]", "pose as the VM", 0)?;
    let mut packets = at.path.clone().into_os_string();
    packets.push(PACKETS);
    let one = |path: PathBuf, kind| {
        open(&path, kind, at.group).with_context(|| path.display().to_string())
    };
    Ok(vec![
        one(at.path.clone(), SockType::Stream)?,
        one(packets.into(), SockType::SeqPacket)?,
    ])
}

/// Listens in place of the socket of a process that has ended. Members of the group may connect.
fn open(path: &Path, kind: SockType, group: Option<u32>) -> Result<OwnedFd> {
    remove_abandoned(path, kind)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, kind, flags, None)?;
    refuse_descriptors(&listener);
    let before = umask(Mode::from_bits_retain(0o177));
    let bound = bind(listener.as_raw_fd(), &UnixAddr::new(path)?);
    umask(before);
    bound?;
    if let Some(gid) = group {
        chown(path, None, group).with_context(|| {
            format!(
                "it cannot be given to the group of `access` (gid {gid}): have hallwayd be in it, by \
                 SupplementaryGroups= of its unit (outsource.conf has the line)"
            )
        })?;
        set_permissions(path, Permissions::from_mode(0o660))?;
    }
    start(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Takes a capability from this thread, by its number below 32.
    fn drop_capability(number: u32) {
        // The kernel's header (version 3, this thread), and two words of each of three sets.
        let mut header = [0x2008_0522_u32, 0];
        let mut sets = [[0_u32; 3]; 2];
        // SAFETY: both are as long as that version has them.
        unsafe {
            let (header, sets) = (header.as_mut_ptr(), sets.as_mut_ptr());
            assert_eq!(libc::syscall(libc::SYS_capget, header, sets), 0);
            (*sets)[0] &= !(1 << number);
            assert_eq!(libc::syscall(libc::SYS_capset, header, sets), 0);
        }
    }

    /// A directory for a socket, which is gone when the test ends.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, mode: u32) -> Self {
            let name = format!("hwl-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn listen(&self, group: Option<u32>) -> Result<Vec<OwnedFd>> {
            let path = self.0.join("vm.sock");
            listen(Some(&Listen { path, group }))
        }

        /// Mode and group of both sockets.
        fn access(&self) -> [(u32, u32); 2] {
            ["vm.sock", "vm.sock.packets"].map(|name| {
                let meta = std::fs::metadata(self.0.join(name)).unwrap();
                (meta.mode() & 0o7777, meta.gid())
            })
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_group_that_hallwayd_is_not_in_is_said_with_the_remedy() {
        const CHOWN: u32 = 0;
        const OTHER: u32 = 65533;
        let path = std::env::temp_dir().join(format!("hwd-{}-access", std::process::id()));
        let refused = || {
            drop_capability(CHOWN);
            open(&path, SockType::Stream, Some(OTHER)).unwrap_err()
        };
        // A thread of its own has its capabilities.
        let error = std::thread::scope(|scope| scope.spawn(refused).join().unwrap());
        assert!(
            format!("{error:#}").contains("SupplementaryGroups="),
            "{error:#}"
        );
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn members_of_the_group_access_may_connect() {
        let folder = Folder::new("group", 0o700);
        // Root may give a socket to any group, others to their own.
        let gid = match nix::unistd::geteuid().is_root() {
            true => 4242,
            false => nix::unistd::getgid().as_raw(),
        };
        let _sockets = folder.listen(Some(gid)).unwrap();
        assert_eq!(folder.access(), [(0o660, gid); 2]);
    }

    #[test]
    fn without_the_group_access_no_other_user_may_connect() {
        let folder = Folder::new("own", 0o700);
        let _sockets = folder.listen(None).unwrap();
        let modes = folder.access().map(|(mode, _)| mode);
        assert_eq!(modes, [0o600; 2]);
    }

    #[test]
    fn a_tunnels_socket_in_a_directory_of_others_is_refused() {
        for mode in [0o777, 0o770, 0o1777] {
            let folder = Folder::new("open", mode);
            let error = folder.listen(None).unwrap_err().to_string();
            assert!(error.contains("pose as the VM"), "{error}");
            assert!(!folder.0.join("vm.sock").exists());
        }
    }
}
