// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system calls that this program needs besides those of each one.

use anyhow::Result;
use hallway_endpoint::confine::{argument, own_descriptor, Rules, SeccompCmpOp, SeccompRule};

use crate::options;

/// System calls that are allowed with any arguments.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_listen,
];

/// TCP and UDP sockets alone.
fn sockets() -> Result<Vec<SeccompRule>> {
    let mut rules = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in [
            (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        ] {
            rules.push(SeccompRule::new(vec![
                argument(0, SeccompCmpOp::Eq, family as u64)?,
                argument(1, SeccompCmpOp::MaskedEq(0xf), kind as u64)?,
                argument(2, SeccompCmpOp::Eq, protocol as u64)?,
            ])?);
        }
    }
    Ok(rules)
}

/// Options of sockets that the program sets, besides those that the guest chooses.
const OPTIONS: &[(libc::c_int, libc::c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
];

fn options() -> Result<Vec<SeccompRule>> {
    let rule = |(level, option): &(libc::c_int, libc::c_int)| -> Result<SeccompRule> {
        Ok(SeccompRule::new(vec![
            argument(1, SeccompCmpOp::Eq, *level as u64)?,
            argument(2, SeccompCmpOp::Eq, *option as u64)?,
        ])?)
    };
    OPTIONS.iter().chain(&options::OPTIONS).map(rule).collect()
}

/// What a socket has not sent.
fn ioctls() -> Result<Vec<SeccompRule>> {
    let unsent = argument(1, SeccompCmpOp::Eq, libc::TIOCOUTQ)?;
    Ok(vec![SeccompRule::new(vec![unsent])?])
}

/// Gives up all others, for ever.
pub fn confine() -> Result<()> {
    let mut rules: Rules = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    for call in [libc::SYS_bind, libc::SYS_connect] {
        rules.insert(call, vec![SeccompRule::new(vec![own_descriptor()?])?]);
    }
    rules.insert(libc::SYS_socket, sockets()?);
    rules.insert(libc::SYS_setsockopt, options()?);
    rules.insert(libc::SYS_ioctl, ioctls()?);
    hallway_endpoint::confine::confine(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(result: i64) -> bool {
        result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }

    /// On a thread of its own, which the filter goes with.
    #[test]
    fn what_it_does_not_need_is_refused() {
        let confined = || {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            // Beyond the one of the orders.
            let place = nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(10);
            let fd = nix::fcntl::fcntl(&socket, place).unwrap();
            confine().unwrap();
            let one: libc::c_int = 1;
            let option = |level, name| {
                let value = (&raw const one).cast();
                // SAFETY: the value is an int, which lives until the call returns.
                i64::from(unsafe { libc::setsockopt(fd, level, name, value, 4) })
            };
            let mut refused = Vec::new();
            assert_eq!(option(libc::SOL_SOCKET, libc::SO_REUSEADDR), 0);
            refused.push(is_refused(option(libc::SOL_SOCKET, libc::SO_MARK)));
            refused.push(is_refused(option(libc::IPPROTO_TCP, libc::TCP_ULP)));
            // SAFETY: these calls take numbers, and an address that lives until they return.
            unsafe {
                assert!(libc::fcntl(fd, libc::F_GETFL) >= 0);
                refused.push(is_refused(libc::fcntl(fd, libc::F_SETOWN, 1).into()));
                let flags = libc::O_NONBLOCK;
                refused.push(is_refused(libc::fcntl(2, libc::F_SETFL, flags).into()));
                refused.push(is_refused(libc::shutdown(2, libc::SHUT_RDWR).into()));
                let nothing = std::mem::zeroed::<libc::msghdr>();
                refused.push(is_refused(libc::sendmsg(2, &raw const nothing, 0) as i64));
                let mut byte = 0_u8;
                refused.push(is_refused(libc::read(2, (&raw mut byte).cast(), 1) as i64));
                refused.push(is_refused(libc::syscall(libc::SYS_tgkill, 1, 1, 0)));
                assert_eq!(
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), 0),
                    0
                );
                let nowhere = std::mem::zeroed::<libc::sockaddr_in>();
                let (address, length) = ((&raw const nowhere).cast(), 16);
                for is_own in [false, true] {
                    let fd = if is_own { fd } else { libc::STDERR_FILENO };
                    let bound = libc::bind(fd, address, length);
                    assert_eq!(is_refused(bound.into()), !is_own);
                    let connected = libc::connect(fd, address, length);
                    assert_eq!(is_refused(connected.into()), !is_own);
                }
                let raw = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP);
                refused.push(is_refused(raw.into()));
                refused.push(is_refused(libc::syscall(libc::SYS_getppid)));
                for (protection, flags, is_allowed) in [
                    (libc::PROT_WRITE, libc::MAP_PRIVATE, true),
                    (libc::PROT_EXEC, libc::MAP_PRIVATE, false),
                    (libc::PROT_WRITE, libc::MAP_SHARED, false),
                    (
                        libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_GROWSDOWN,
                        false,
                    ),
                ] {
                    let flags = flags | libc::MAP_ANONYMOUS;
                    let at = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
                    let result = if at == libc::MAP_FAILED { -1 } else { 0 };
                    assert_eq!(is_refused(result), !is_allowed, "{protection} {flags:#x}");
                }
            }
            refused
        };
        let refused = std::thread::spawn(confined).join().unwrap();
        assert_eq!(refused, [true; 10]);
    }
}
