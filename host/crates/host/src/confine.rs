// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that this program needs besides those of each one.

use anyhow::Result;
use hallway_endpoint::confine::{argument, Rules, SeccompCmpOp, SeccompRule};

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

/// Whether a socket takes descriptors.
fn options() -> Result<Vec<SeccompRule>> {
    let option = hallway_unix::SO_PASSRIGHTS as u64;
    Ok(vec![SeccompRule::new(vec![
        argument(1, SeccompCmpOp::Eq, libc::SOL_SOCKET as u64)?,
        argument(2, SeccompCmpOp::Eq, option)?,
    ])?])
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
    use nix::sys::socket::{socketpair, AddressFamily, SockFlag, SockType};

    /// On a thread of its own, which the filter goes with.
    #[test]
    fn what_it_does_not_need_is_refused() {
        let confined = || {
            let (left, other) = socketpair(
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
            let mut refused: Vec<bool> = others
                .into_iter()
                .map(|(family, kind)| socket(family, kind) < 0)
                .collect();
            refused.push(std::fs::File::open("/etc/passwd").is_err());
            refused
        };
        let refused = std::thread::spawn(confined).join().unwrap();
        assert_eq!(refused, [true; 5]);
    }
}
