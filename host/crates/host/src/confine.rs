// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that this program needs besides those of each one.

use anyhow::Result;
use hallway_endpoint::confine::{argument, own_descriptor, Rules, SeccompCmpOp, SeccompRule};

/// Unix sockets with connections alone.
fn sockets() -> Result<Vec<SeccompRule>> {
    let rule = |kind: libc::c_int| {
        Ok(SeccompRule::new(vec![
            argument(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?,
            argument(1, SeccompCmpOp::MaskedEq(0xf), kind as u64)?,
        ])?)
    };
    [libc::SOCK_STREAM, libc::SOCK_SEQPACKET]
        .map(rule)
        .into_iter()
        .collect()
}

/// Whether a socket takes descriptors, and how long messages may be.
fn options() -> Result<Vec<SeccompRule>> {
    let rule = |option: libc::c_int| {
        Ok(SeccompRule::new(vec![
            own_descriptor()?,
            argument(1, SeccompCmpOp::Eq, libc::SOL_SOCKET as u64)?,
            argument(2, SeccompCmpOp::Eq, option as u64)?,
        ])?)
    };
    [hallway_unix::SO_PASSRIGHTS, libc::SO_SNDBUF]
        .map(rule)
        .into_iter()
        .collect()
}

/// Gives up all others, for ever.
pub fn confine() -> Result<()> {
    let mut rules = Rules::new();
    rules.insert(libc::SYS_socket, sockets()?);
    rules.insert(libc::SYS_setsockopt, options()?);
    rules.insert(libc::SYS_ppoll, Vec::new());
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    hallway_endpoint::confine::confine(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{setsockopt, socketpair, sockopt, AddressFamily, SockFlag, SockType};

    /// On a thread of its own, which the filter goes with.
    #[test]
    fn what_it_does_not_need_is_refused() {
        let confined = || {
            let (other, left) = socketpair(
                AddressFamily::Unix,
                SockType::Stream,
                None,
                SockFlag::empty(),
            )
            .unwrap();
            drop(other);
            confine().unwrap();
            // SAFETY: the call takes numbers only.
            let socket = |family, kind| unsafe { libc::socket(family, kind, 0) };
            assert!(socket(libc::AF_UNIX, libc::SOCK_STREAM) >= 0);
            assert!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET) >= 0);
            let others = [
                (libc::AF_UNIX, libc::SOCK_DGRAM),
                (libc::AF_INET, libc::SOCK_STREAM),
                (libc::AF_VSOCK, libc::SOCK_STREAM),
                (libc::AF_NETLINK, libc::SOCK_RAW),
            ];
            assert!(crate::unix::is_closed(&left));
            assert_eq!(setsockopt(&left, sockopt::SndBuf, &4096), Ok(()));
            let mut refused: Vec<bool> = others
                .into_iter()
                .map(|(family, kind)| socket(family, kind) < 0)
                .collect();
            refused.push(std::fs::File::open("/etc/passwd").is_err());
            refused.push(setsockopt(&left, sockopt::RcvBuf, &4096).is_err());
            refused
        };
        let refused = std::thread::spawn(confined).join().unwrap();
        assert_eq!(refused, [true; 6]);
    }
}
