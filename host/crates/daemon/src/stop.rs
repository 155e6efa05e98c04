// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallwayd --stop`: ends daemon and holder, and removes what they leave behind.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use hallway_control::{self as control, Answer, Query};
use hallway_membership::Region;

use crate::config::Config;
use crate::cpus::restore_saved;
use crate::keeper::{pidfd, Holder, State, STATE};
use crate::options::Options;
use crate::run::{check_socket_path, clean, RunDir};

/// Files of the regions that a daemon with these options may have left.
fn left(options: &Options, config: &Config) -> Vec<PathBuf> {
    let asked = [options.regions(), config.regions()].concat();
    let ours = |name: &str| {
        asked.iter().any(|spec| spec.name == name) || config.pair_named(name).is_some()
    };
    let files = options.region_dir.read_dir().into_iter().flatten();
    files
        .flatten()
        .filter(|file| file.file_name().to_str().is_some_and(ours))
        .map(|file| file.path())
        .filter(|file| Region::is_abandoned(file))
        .collect()
}

/// Ends the daemon of a run directory and its holder.
pub fn stop(options: &Options, config: &Config) -> Result<()> {
    let path = options.run_dir();
    if !path.is_dir() {
        writeln!(io::stdout(), "nothing runs for {}", path.display())?;
        return Ok(());
    }
    check_socket_path(&control::socket(&path), "--run-dir")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut asked = false;
    let run = loop {
        let taken = RunDir::try_take(&path);
        // A clean end may remove the directory, too.
        if asked && !path.is_dir() {
            writeln!(io::stdout(), "stopped")?;
            return Ok(());
        }
        match taken? {
            Ok(run) => break run,
            Err(pid) if Instant::now() > deadline => bail!(
                "hallwayd (pid {pid}) does not end: kill it with SIGKILL, then say hallwayd \
                 --stop once more"
            ),
            Err(_) if asked => std::thread::sleep(Duration::from_millis(10)),
            // It may be starting, or have ended: look again.
            Err(_) => match control::ask(&path, Query::Stop) {
                Ok(Answer::Stopping) => asked = true,
                Ok(other) => bail!("hallwayd answers {other:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            },
        }
    };
    // There is no daemon: what is left is for us to remove.
    let Some(holder) = Holder::find(&run.holder())? else {
        // Another daemon, with a run directory of its own, may listen there.
        let socket = options.socket();
        let is_left = UnixStream::connect(&socket).is_err();
        clean(
            &run,
            is_left.then_some(socket.as_path()),
            &left(options, config),
            &[options.region_dir.clone(), path.clone()],
        );
        writeln!(
            io::stdout(),
            "{}",
            if asked {
                "stopped"
            } else {
                "nothing ran; removed what was left"
            }
        )?;
        return Ok(());
    };
    let mut kept = holder.list()?;
    pidfd::kill_helpers(&kept);
    let state = kept.remove(STATE).map(State::load).transpose();
    holder.quit();
    let mut by_hand = Vec::new();
    match state {
        Ok(Some(state)) => {
            by_hand = restore_saved(state.weights);
            let files: Vec<PathBuf> = state.regions.into_iter().filter_map(|r| r.file).collect();
            clean(&run, Some(&state.socket), &files, &state.made);
        }
        // There is no list of files: look for them.
        Ok(None) | Err(_) => clean(&run, Some(&options.socket()), &left(options, config), &[]),
    }
    if !by_hand.is_empty() {
        bail!(
            "stopped, but weights of cgroups are left: {}",
            by_hand.join("; ")
        );
    }
    writeln!(io::stdout(), "stopped")?;
    Ok(())
}
