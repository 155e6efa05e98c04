// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway release` and `hallway resume`: have hallwayd take a VM's ring memory out, and
//! put it in again.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use hallway_control::{ask, Answer, Query, Release};
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};

use crate::host::refuse;
use crate::migrate::{drain, follow};

/// Has a VM release its ring memory, and returns once all of it is out. The guest has
/// `timeout` seconds for each region. `reset_outsourced`: outsourced connections that have not
/// ended after that time are reset.
pub fn release(
    run_dir: &Path,
    vm: &str,
    timeout: u64,
    reset_outsourced: Option<u64>,
) -> Result<()> {
    if let Some(seconds) = reset_outsourced {
        drain(run_dir, vm, Duration::from_secs(seconds))?;
    }
    let begin = Query::Release {
        vm: vm.into(),
        timeout,
        reset_outsourced: reset_outsourced.is_some(),
    };
    let mut now = answer(run_dir, begin)?;
    loop {
        match now {
            Release::Unplugging => {}
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
    // A signal from the terminal is for the command, which has the default again.
    let action = SigAction::new(
        SigHandler::Handler(ignore),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGINT, &action) }?;
    let ended = Command::new(program).args(words).status();
    // A VM that has gone gets nothing, and is no failure.
    let resumed = ask(run_dir, Query::Resume { vm: vm.into() });
    resumed.with_context(|| format!("{vm} lacks its ring memory: hallway resume {vm}"))?;
    let program = program.to_string_lossy();
    let ended = ended.with_context(|| program.to_string())?;
    match ended.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => bail!("{program}: {ended}"),
    }
}

extern "C" fn ignore(_signal: std::ffi::c_int) {}

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
