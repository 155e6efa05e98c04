// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process by its descriptor: by it the process can be killed by a later daemon, too,
//! however pids are used again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use tracing::warn;

use super::holder::Kept;

/// What the name of a helper's process at the holder begins with. Older daemons have that.
pub const HELPER: &str = "outsourcer.";
/// The option of Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// How long a process that is killed may take to end.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the descriptor of a child that nothing has waited for yet.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: it takes two numbers.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as RawFd) })
}

/// Whether the process that connected a socket has ended, though another one may have the
/// socket: its pid may be another process's then. Before Linux 6.5 nothing says so.
pub fn has_peer_ended(socket: BorrowedFd<'_>) -> bool {
    let (mut raw, mut size): (RawFd, _) = (-1, size_of::<RawFd>() as libc::socklen_t);
    let option = (libc::SOL_SOCKET, SO_PEERPIDFD);
    let at = (&raw mut raw).cast();
    // SAFETY: the kernel writes one int, to a valid place.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), option.0, option.1, at, &raw mut size) };
    match Errno::result(result) {
        Ok(_) => {
            // SAFETY: the kernel just made this descriptor for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(raw) };
            wait(pidfd.as_fd(), Duration::ZERO)
        }
        // Before Linux 6.16 one that is reaped has no descriptor.
        Err(errno) => matches!(errno, Errno::EINVAL | Errno::ESRCH),
    }
}

/// Kills a process. One that has ended already stays so.
pub fn kill(pidfd: BorrowedFd<'_>) {
    let (fd, no_info) = (pidfd.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: the descriptor is open, and nothing is read where the pointer is null.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, no_info, 0) };
}

/// Waits for the end of a process. False if it took longer than `limit`.
pub fn wait(pidfd: BorrowedFd<'_>, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::from(left.as_millis() as u16);
        let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
        match poll(&mut fds, left) {
            Ok(count) => return count > 0,
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// Kills the helpers that a daemon left with its holder.
pub fn kill_helpers(kept: &Kept) {
    let left = kept.iter().filter(|(name, _)| name.starts_with(HELPER));
    let left: Vec<_> = left.map(|(_, fd)| fd.as_fd()).collect();
    left.iter().for_each(|pidfd| kill(*pidfd));
    for pidfd in left {
        if !wait(pidfd, PATIENCE) {
            warn!("a helper of the daemon before does not end");
        }
    }
}
