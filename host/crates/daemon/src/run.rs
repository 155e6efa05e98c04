// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The run directory: who may be the daemon, and what is left when it ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use hallway_control::{self as control, Answer, Query};
use hallway_membership::{is_own, Region};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::config::Config;
use crate::holder::Holder;
use crate::options::Options;
use crate::state::State;

/// A run directory whose lock is held: there is no other daemon.
pub struct RunDir {
    path: PathBuf,
    _lock: Flock<File>,
}

impl RunDir {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The holder's socket.
    pub fn holder(&self) -> PathBuf {
        self.path.join("holder.sock")
    }

    fn pid_file(path: &Path) -> PathBuf {
        path.join("hallwayd.pid")
    }

    /// Becomes the one daemon of a run directory.
    pub fn take(path: &Path) -> Result<Self> {
        match Self::try_take(path)? {
            Ok(run) => Ok(run),
            Err(pid) => bail!(
                "hallwayd runs already for {} (pid {pid}): use it, end it with hallwayd --stop \
                 --run-dir {0}, or give another --run-dir and --region-dir",
                path.display()
            ),
        }
    }

    /// Likewise; the inner error names the daemon that is.
    fn try_take(path: &Path) -> Result<Result<Self, String>> {
        check_dir(path, "--run-dir", "pose as hallwayd", 0)?;
        let pid_file = Self::pid_file(path);
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&pid_file)
                .with_context(|| {
                    format!(
                        "{}: cannot be opened: run as root, or give a --run-dir of your own",
                        pid_file.display()
                    )
                })?;
            let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((mut file, Errno::EAGAIN)) => {
                    let mut pid = String::new();
                    file.read_to_string(&mut pid)?;
                    return Ok(Err(pid.trim().into()));
                }
                Err((_, error)) => return Err(error.into()),
            };
            // Who held it before may have removed it meanwhile.
            let same = std::fs::metadata(&pid_file)
                .is_ok_and(|there| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
            if same {
                lock.set_len(0)?;
                lock.seek(SeekFrom::Start(0))?;
                writeln!(lock, "{}", std::process::id())?;
                return Ok(Ok(Self {
                    path: path.into(),
                    _lock: lock,
                }));
            }
        }
    }
}

/// Makes a directory for root alone, unless it is there. Returns what was made.
pub fn make_dir(path: &Path, option: &str) -> Result<Option<PathBuf>> {
    if path.is_dir() {
        return Ok(None);
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| {
            format!(
                "{}: cannot be made: run as root, or give another {option}",
                path.display()
            )
        })?;
    Ok(Some(path.into()))
}

/// Refuses a directory in which others may replace files. Of its permissions, one
/// of `enough` is said to prevent that.
pub fn check_dir(path: &Path, option: &str, harm: &str, enough: u32) -> Result<()> {
    let meta = std::fs::metadata(path)?;
    if !is_own(meta.uid()) || (meta.mode() & 0o022 != 0 && meta.mode() & enough == 0) {
        bail!(
            "{}: others may write there (owner {}, mode {:04o}), and so {harm}: chown and chmod \
             0700 it, or give another {option}",
            path.display(),
            meta.uid(),
            meta.mode() & 0o7777
        );
    }
    Ok(())
}

/// Removes what a daemon and its holder leave behind.
pub fn clean(run: &RunDir, socket: &Path, files: &[PathBuf], made: &[PathBuf]) {
    let own = [
        control::socket(run.path()),
        run.holder(),
        RunDir::pid_file(run.path()),
    ];
    for path in files.iter().map(PathBuf::as_path).chain([socket]) {
        let _ = std::fs::remove_file(path);
    }
    for path in own {
        let _ = std::fs::remove_file(path);
    }
    for path in made {
        // Stays if others put something there.
        let _ = std::fs::remove_dir(path);
    }
}

/// The files of regions that a daemon with these options may have left.
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

/// `hallwayd --stop`.
pub fn stop(options: &Options, config: &Config) -> Result<()> {
    let path = options.run_dir();
    if !path.is_dir() {
        println!("nothing runs for {}", path.display());
        return Ok(());
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut asked = false;
    let run = loop {
        let taken = RunDir::try_take(&path);
        // Having ended cleanly it may have taken its directory along.
        if asked && !path.is_dir() {
            println!("stopped");
            return Ok(());
        }
        match taken? {
            Ok(run) => break run,
            Err(pid) if Instant::now() > deadline => bail!(
                "hallwayd (pid {pid}) does not end: kill it with SIGKILL, then say hallwayd \
                 --stop once more"
            ),
            Err(_) if asked => std::thread::sleep(Duration::from_millis(10)),
            // It may still be starting, or be gone by now: look again.
            Err(_) => match control::ask(&path, Query::Stop) {
                Ok(Answer::Stopping) => asked = true,
                Ok(other) => bail!("hallwayd answers {other:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            },
        }
    };
    // No daemon, or none any more: what is left is for us to remove.
    let Some(holder) = Holder::find(&run.holder())? else {
        clean(
            &run,
            &options.socket(),
            &left(options, config),
            &[options.region_dir.clone(), path.clone()],
        );
        println!(
            "{}",
            if asked {
                "stopped"
            } else {
                "nothing ran; removed what was left"
            }
        );
        return Ok(());
    };
    let mut kept = holder.list()?;
    let state = kept.remove("state").map(State::load).transpose();
    holder.quit();
    match state {
        Ok(Some(state)) => {
            let files: Vec<PathBuf> = state.regions.into_iter().map(|r| r.file).collect();
            clean(&run, &state.socket, &files, &state.made);
        }
        // What was not kept is looked for.
        Ok(None) | Err(_) => clean(&run, &options.socket(), &left(options, config), &[]),
    }
    println!("stopped");
    Ok(())
}
