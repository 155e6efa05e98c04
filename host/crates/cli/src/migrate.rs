// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway migrate`: has hallwayd migrate a VM, and shows how it goes.

use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use hallway_control::{ask, Answer, Migration, Query};

use crate::host::refuse;

/// Time between two looks at its stage.
const LOOK: Duration = Duration::from_millis(200);
/// How long an outsourcer may take to say how many connections there are.
const REPORT: Duration = Duration::from_secs(3);
/// How long a hallwayd that ended may take until the next one runs and has found
/// its VMs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows progress. An error is ignored: the migration goes on, even if nothing reads this.
fn say(vm: &str, line: &str) {
    let _ = writeln!(io::stderr(), "hallway: {vm}: {line}");
}

/// Waits until a VM has no outsourced connections, but not longer than the seconds of
/// `reset_outsourced`. Meanwhile it gets no others. Without that: until its outsourcer has
/// said how many it has, which hallwayd refuses to reset.
pub fn drain(run_dir: &Path, vm: &str, reset_outsourced: Option<u64>) -> Result<()> {
    let deadline = Instant::now() + reset_outsourced.map_or(REPORT, Duration::from_secs);
    let mut said = None;
    while Instant::now() < deadline {
        let left = match ask(run_dir, Query::Drain { vm: vm.into() })? {
            Answer::Draining { connections } => connections,
            other => return refuse(other),
        };
        if left == 0 {
            break;
        }
        if reset_outsourced.is_some() && said.replace(left) != Some(left) {
            say(vm, &format!("{left} outsourced connections have not ended"));
        }
        sleep(LOOK);
    }
    Ok(())
}

/// Migrates a VM, and returns when that is over. `reset_outsourced`: outsourced connections
/// that have not ended after that time are reset.
pub fn migrate(run_dir: &Path, vm: &str, uri: &str, reset_outsourced: Option<u64>) -> Result<()> {
    drain(run_dir, vm, reset_outsourced)?;
    let begin = Query::Migrate {
        vm: vm.into(),
        uri: uri.into(),
        reset_outsourced: reset_outsourced.is_some(),
    };
    let mut said = String::new();
    let mut now = answer(run_dir, begin)?;
    loop {
        let line = match &now {
            Migration::Unplugging => "its ring memory is taken out".into(),
            Migration::Moving { status } => format!("QEMU migrates it ({status})"),
            Migration::Done {
                downtime_ms,
                total_ms,
            } => {
                writeln!(
                    io::stdout(),
                    "{vm} runs at {uri} now: it took {total_ms} ms, for {downtime_ms} ms of which \
                     it stood still. The QEMU here is done: end it."
                )?;
                return Ok(());
            }
            Migration::Stayed { why } => bail!("{vm} stays here: {why}"),
            Migration::Unknown { why } => bail!(
                "its QEMU here is lost ({why}), and did not say how it ended: look whether {vm} \
                 runs at {uri}"
            ),
        };
        if line != said {
            say(vm, &line);
            said = line;
        }
        // Where hallwayd ended, QEMU goes on migrating, and the next hallwayd follows it.
        let stage = || answer(run_dir, Query::Migration { vm: vm.into() });
        now = follow(stage).context("hallwayd was lost on the way")?;
    }
}

/// Asks hallwayd in a moment, and again while it does not answer: another one may be starting.
pub fn follow<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        sleep(LOOK);
        match ask() {
            Err(_) if Instant::now() < deadline => {}
            stage => return stage,
        }
    }
}

/// Ends a migration: the VM stays.
pub fn cancel(run_dir: &Path, vm: &str) -> Result<()> {
    answer(run_dir, Query::CancelMigration { vm: vm.into() }).map(drop)
}

fn answer(run_dir: &Path, query: Query) -> Result<Migration> {
    match ask(run_dir, query)? {
        Answer::Migration(migration) => Ok(migration),
        other => refuse(other),
    }
}
