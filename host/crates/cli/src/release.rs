// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway release` and `hallway resume`: have hallwayd take a VM's ring memory out, and
//! put it in again.

use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use hallway_control::{ask, Answer, Query, Release};

use crate::host::refuse;
use crate::migrate::{drain, LOOK, PATIENCE};

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
            Release::Out => {
                writeln!(
                    io::stdout(),
                    "{vm}: its ring memory is out, until hallway resume {vm}, or until another \
                     QEMU runs it"
                )?;
                return Ok(());
            }
            Release::Failed { why } => bail!("{vm} keeps its ring memory: {why}"),
        }
        sleep(LOOK);
        now = progress(run_dir, vm)?;
    }
}

/// Asks for the stage. Where hallwayd ended, the next one knows of a release that is over,
/// and of no other.
fn progress(run_dir: &Path, vm: &str) -> Result<Release> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match answer(run_dir, Query::ReleaseStage { vm: vm.into() }) {
            Err(_) if Instant::now() < deadline => sleep(LOOK),
            answer => return answer.context("hallwayd was lost on the way"),
        }
    }
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
