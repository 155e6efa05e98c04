// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives up all system calls that a program does not need.
//!
//! What the guest writes is checked. This is for the case that a check is wrong: the
//! program can then open no file, start no program, and make no other kind of socket.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use anyhow::{ensure, Context, Result};
use seccompiler::{apply_filter, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompFilter};
pub use seccompiler::{SeccompCmpOp, SeccompCondition, SeccompRule};

use crate::orders::CONTROL_FD;

/// System calls that each program has, with any arguments.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_accept4,
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
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// What a program has besides: system calls, and with which arguments. None: any.
pub type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A condition about an argument of 32 bits.
pub fn argument(index: u8, operation: SeccompCmpOp, value: u64) -> Result<SeccompCondition> {
    let length = SeccompCmpArgLen::Dword;
    Ok(SeccompCondition::new(index, length, operation, value)?)
}

/// Uses of `fcntl`. Others have the kernel send signals to other processes.
const FCNTLS: &[libc::c_int] = &[
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
];

/// A call about a descriptor that the program made itself or was sent: not the standard ones, nor
/// that of its orders. These may be Unix sockets, to which bind() and connect() give paths, and
/// hallwayd has the same standard error: it must not become non-blocking, nor be shut down, and
/// the journal behind it must get no descriptors. On a terminal nothing is to be read.
pub fn own_descriptor() -> Result<SeccompCondition> {
    argument(0, SeccompCmpOp::Gt, CONTROL_FD as u64)
}

fn fcntls() -> Result<Vec<SeccompRule>> {
    let rule = |command: &libc::c_int| -> Result<SeccompRule> {
        let is_other = own_descriptor()?;
        let is_it = argument(1, SeccompCmpOp::Eq, *command as u64)?;
        Ok(SeccompRule::new(vec![is_other, is_it])?)
    };
    FCNTLS.iter().map(rule).collect()
}

/// Calls about sockets, and their descriptors. The report goes by the descriptor of the orders.
fn transfers() -> Result<Rules> {
    let mut rules = Rules::new();
    for call in [libc::SYS_read, libc::SYS_sendmsg, libc::SYS_shutdown] {
        rules.insert(call, vec![SeccompRule::new(vec![own_descriptor()?])?]);
    }
    let from_orders_on = argument(0, SeccompCmpOp::Ge, CONTROL_FD as u64)?;
    rules.insert(
        libc::SYS_sendto,
        vec![SeccompRule::new(vec![from_orders_on])?],
    );
    Ok(rules)
}

/// Signals to the program itself alone: others may have the same user.
fn signals() -> Result<Vec<SeccompRule>> {
    let own = argument(0, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    Ok(vec![SeccompRule::new(vec![own])?])
}

fn lacks(index: u8, bits: libc::c_int) -> Result<SeccompCondition> {
    argument(index, SeccompCmpOp::MaskedEq(bits as u64), 0)
}

/// No memory that can be executed.
fn protections() -> Result<Vec<SeccompRule>> {
    Ok(vec![SeccompRule::new(vec![lacks(2, libc::PROT_EXEC)?])?])
}

/// No memory that can be executed, and none that RLIMIT_DATA does not count: a stack, or memory
/// that is shared and in no file.
fn mappings() -> Result<Vec<SeccompRule>> {
    [libc::MAP_ANONYMOUS, libc::MAP_SHARED]
        .map(|kind| {
            Ok(SeccompRule::new(vec![
                lacks(2, libc::PROT_EXEC)?,
                lacks(3, libc::MAP_GROWSDOWN | kind)?,
            ])?)
        })
        .into_iter()
        .collect()
}

fn program(own: Rules) -> Result<BpfProgram> {
    let mut rules: Rules = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    rules.extend(transfers()?);
    rules.insert(libc::SYS_fcntl, fcntls()?);
    rules.insert(libc::SYS_tgkill, signals()?);
    rules.insert(libc::SYS_mmap, mappings()?);
    rules.insert(libc::SYS_mprotect, protections()?);
    rules.extend(own);
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

/// Gives up, for ever, what neither each program nor this one needs.
pub fn confine(own: Rules) -> Result<()> {
    let program = program(own)?;
    // SAFETY: the call takes numbers only.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    ensure!(result == 0, "PR_SET_NO_NEW_PRIVS");
    apply_filter(&program)?;
    Ok(())
}
