// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway migrate`: has hallwayd migrate a VM, and tells how it goes.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, Result};
use hallway_control::{ask, Answer, Migration, Query};

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(200);

/// Migrates, and returns when it is over.
pub fn migrate(run_dir: &Path, vm: &str, uri: &str) -> Result<()> {
    let begin = Query::Migrate {
        vm: vm.into(),
        uri: uri.into(),
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
                println!(
                    "{vm} runs at {uri} now: it took {total_ms} ms, for {downtime_ms} ms of which \
                     it stood still. The QEMU here is done: end it."
                );
                return Ok(());
            }
            Migration::Stayed { why } => bail!("{vm} stays here: {why}"),
        };
        if line != said {
            eprintln!("hallway: {vm}: {line}");
            said = line;
        }
        sleep(LOOK);
        now = answer(run_dir, Query::Migration { vm: vm.into() })?;
    }
}

/// Has a migration end, and the VM stay.
pub fn cancel(run_dir: &Path, vm: &str) -> Result<()> {
    answer(run_dir, Query::CancelMigration { vm: vm.into() }).map(drop)
}

fn answer(run_dir: &Path, query: Query) -> Result<Migration> {
    match ask(run_dir, query)? {
        Answer::Migration(migration) => Ok(migration),
        Answer::Error { message } => bail!("hallwayd: {message}"),
        Answer::Status(_) | Answer::Stopping => bail!("hallwayd answers something else"),
    }
}
