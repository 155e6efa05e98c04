// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives up all system calls that the program does not need.
//!
//! What the guest writes is checked. This is for the case that a check is wrong: the
//! program can then open no file, start no program, and make no other kind of socket.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use anyhow::{ensure, Context, Result};
use seccompiler::{
    apply_filter, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use crate::options;

/// System calls that are allowed with any arguments.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_listen,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

fn argument(index: u8, operation: SeccompCmpOp, value: u64) -> Result<SeccompCondition> {
    let length = SeccompCmpArgLen::Dword;
    Ok(SeccompCondition::new(index, length, operation, value)?)
}

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

/// Uses of `fcntl`. Others have the kernel send signals to other processes.
const FCNTLS: &[libc::c_int] = &[
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
];

/// Not of the standard descriptors: hallwayd has the same standard error, which must not
/// become non-blocking.
fn fcntls() -> Result<Vec<SeccompRule>> {
    let standard = libc::STDERR_FILENO as u64;
    let rule = |command: &libc::c_int| -> Result<SeccompRule> {
        let is_other = argument(0, SeccompCmpOp::Gt, standard)?;
        let is_it = argument(1, SeccompCmpOp::Eq, *command as u64)?;
        Ok(SeccompRule::new(vec![is_other, is_it])?)
    };
    FCNTLS.iter().map(rule).collect()
}

/// What a socket has not sent.
fn ioctls() -> Result<Vec<SeccompRule>> {
    let unsent = argument(1, SeccompCmpOp::Eq, libc::TIOCOUTQ)?;
    Ok(vec![SeccompRule::new(vec![unsent])?])
}

/// Signals to the program itself alone: others may have the same user.
fn signals() -> Result<Vec<SeccompRule>> {
    let own = argument(0, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    Ok(vec![SeccompRule::new(vec![own])?])
}

/// No memory that can be executed.
fn memory() -> Result<Vec<SeccompRule>> {
    let exec = libc::PROT_EXEC as u64;
    let plain = argument(2, SeccompCmpOp::MaskedEq(exec), 0)?;
    Ok(vec![SeccompRule::new(vec![plain])?])
}

fn program() -> Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, sockets()?);
    rules.insert(libc::SYS_setsockopt, options()?);
    rules.insert(libc::SYS_fcntl, fcntls()?);
    rules.insert(libc::SYS_ioctl, ioctls()?);
    rules.insert(libc::SYS_tgkill, signals()?);
    rules.insert(libc::SYS_mmap, memory()?);
    rules.insert(libc::SYS_mprotect, memory()?);
    let arch = std::env::consts::ARCH;
    let filter = SeccompFilter::new(
        rules,
        // An error is enough: the call is not made. The program lives on, and so do
        // the guest's other connections.
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        arch.try_into().context("the processor")?,
    )?;
    Ok(filter.try_into()?)
}

/// Has other processes of the same user reach neither memory nor descriptors by /proc or
/// `ptrace`: with the default user these are many. Where hallwayd has that user too,
/// nothing is gained.
pub fn hide() -> Result<()> {
    let parent = format!("/proc/{}", nix::unistd::getppid());
    let theirs = std::fs::metadata(parent).map(|parent| parent.uid());
    if theirs.is_ok_and(|user| user == nix::unistd::geteuid().as_raw()) {
        return Ok(());
    }
    nix::sys::prctl::set_dumpable(false).context("PR_SET_DUMPABLE")
}

/// Gives them up, for ever.
pub fn confine() -> Result<()> {
    let program = program()?;
    // SAFETY: the call takes numbers only.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    ensure!(result == 0, "PR_SET_NO_NEW_PRIVS");
    apply_filter(&program)?;
    Ok(())
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
            let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
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
            // SAFETY: these calls take numbers only.
            unsafe {
                assert!(libc::fcntl(fd, libc::F_GETFL) >= 0);
                refused.push(is_refused(libc::fcntl(fd, libc::F_SETOWN, 1).into()));
                let flags = libc::O_NONBLOCK;
                refused.push(is_refused(libc::fcntl(2, libc::F_SETFL, flags).into()));
                refused.push(is_refused(libc::syscall(libc::SYS_tgkill, 1, 1, 0)));
                assert_eq!(
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), 0),
                    0
                );
                let raw = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP);
                refused.push(is_refused(raw.into()));
                refused.push(is_refused(libc::syscall(libc::SYS_getppid)));
            }
            refused
        };
        let refused = std::thread::spawn(confined).join().unwrap();
        assert_eq!(refused, [true; 7]);
    }
}
