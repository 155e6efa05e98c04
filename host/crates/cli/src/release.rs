// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway release` and `hallway resume`: have hallwayd take a VM's ring memory out, and
//! put it in again.
//!
//! A signal ends neither half way: what was taken out is put in again.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{bail, Context, Result};
use hallway_control::{ask, Answer, Query, Release};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use nix::sys::wait::{waitid, Id, WaitPidFlag};
use nix::unistd::Pid;

use crate::host::refuse;
use crate::migrate::{drain, follow};

/// The signal that came last; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// The command that runs; 0: none.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// The terminal sends these to the command, too; others may be for this process alone.
const OF_TERMINAL: [libc::c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::SeqCst);
    pass_on();
}

fn pass_on() {
    let (signal, child) = (SIGNAL.load(Ordering::SeqCst), CHILD.load(Ordering::SeqCst));
    if child != 0 && signal != 0 && !OF_TERMINAL.contains(&signal) {
        // SAFETY: the call takes numbers only, and may be made by a handler.
        unsafe { libc::kill(child, signal) };
    }
}

/// Has signals that end a program be noted, but for those that are ignored already (`nohup`). The
/// command has the default again.
fn note_signals() -> Result<()> {
    let action = SigAction::new(
        SigHandler::Handler(note),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGHUP,
    ] {
        // SAFETY: the handler stores a number, and makes one system call.
        let before = unsafe { sigaction(signal, &action) }?;
        if before.handler() == SigHandler::SigIgn {
            // SAFETY: it is as it was.
            unsafe { sigaction(signal, &before) }?;
        }
    }
    Ok(())
}

/// Has a VM release its ring memory, and returns once all of it is out. The guest has
/// `timeout` seconds for each region. `reset_outsourced`: outsourced connections that have not
/// ended after that time are reset.
pub fn release(
    run_dir: &Path,
    vm: &str,
    timeout: u64,
    reset_outsourced: Option<u64>,
) -> Result<()> {
    drain(run_dir, vm, reset_outsourced)?;
    let begin = Query::Release {
        vm: vm.into(),
        timeout,
        reset_outsourced: reset_outsourced.is_some(),
    };
    note_signals()?;
    let mut now = answer(run_dir, begin)?;
    loop {
        match now {
            Release::Unplugging => {}
            Release::Out if SIGNAL.load(Ordering::SeqCst) != 0 => {
                resume(run_dir, vm).with_context(|| lacks(vm))?;
                bail!("{vm}: a signal ended the release");
            }
            Release::Out => return Ok(()),
            Release::Failed { why } => bail!("{vm} keeps its ring memory: {why}"),
        }
        // Where hallwayd ended, the next one knows of a release that is over, and of no other.
        let stage = || answer(run_dir, Query::ReleaseStage { vm: vm.into() });
        now = follow(stage).context(
            "hallwayd was restarted on the way: have it release again, or hallway resume",
        )?;
    }
}

/// Runs a command while a VM's ring memory is out, resumes it, and ends with the command's
/// status. Without a command: says that it is out.
pub fn run_or_say(run_dir: &Path, vm: &str, command: &[OsString]) -> Result<()> {
    let Some((program, words)) = command.split_first() else {
        writeln!(
            io::stdout(),
            "{vm}: its ring memory is out, until hallway resume {vm}, or until another QEMU runs \
             it"
        )?;
        return Ok(());
    };
    let ended = Command::new(program).args(words).spawn();
    let ended = ended.and_then(|mut child| {
        CHILD.store(child.id() as i32, Ordering::SeqCst);
        // One that came before there was a child.
        pass_on();
        // Until it is reaped, no other process has its number.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        let pid = Pid::from_raw(child.id() as i32);
        while waitid(Id::Pid(pid), flags) == Err(Errno::EINTR) {}
        CHILD.store(0, Ordering::SeqCst);
        child.wait()
    });
    // A VM that has gone gets nothing, and is no failure. hallwayd may be restarted just now.
    let resume = || ask(run_dir, Query::Resume { vm: vm.into() });
    let resumed = resume().or_else(|_| follow(resume));
    let resumed = resumed.and_then(|answer| match answer {
        Answer::Resuming | Answer::Away { .. } => Ok(()),
        other => refuse(other),
    });
    let resumed = resumed.with_context(|| lacks(vm));
    if ended.as_ref().is_ok_and(ExitStatus::success) {
        return resumed;
    }
    if let Err(error) = resumed {
        hallway_log::print_error("hallway", &error);
    }
    let program = program.to_string_lossy();
    let ended = ended.with_context(|| program.to_string())?;
    match ended.code() {
        Some(code) => std::process::exit(code),
        None => bail!("{program}: {ended}"),
    }
}

fn lacks(vm: &str) -> String {
    format!("{vm} lacks its ring memory: hallway resume {vm}")
}

/// Has a VM get the ring memory again that it released.
pub fn resume(run_dir: &Path, vm: &str) -> Result<()> {
    match ask(run_dir, Query::Resume { vm: vm.into() })? {
        Answer::Resuming => {
            writeln!(
                io::stdout(),
                "{vm}: hallwayd plugs its ring memory in again"
            )?;
            Ok(())
        }
        other => refuse(other),
    }
}

fn answer(run_dir: &Path, query: Query) -> Result<Release> {
    match ask(run_dir, query)? {
        Answer::Release(release) => Ok(release),
        other => refuse(other),
    }
}
