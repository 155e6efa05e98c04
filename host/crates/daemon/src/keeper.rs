// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What outlives the daemon: the run directory, and what the holder keeps.

mod holder;
pub mod pidfd;
mod state;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use nix::sys::epoll::EpollFlags;
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use tracing::warn;

pub use self::holder::{run as run_holder, Holder, Kept};
pub use self::state::{
    Entry, Given, Peer, SavedConnection, SavedDoorbell, SavedHelper, SavedRegion, SavedRelease,
    SavedWeight, State,
};
use crate::poller::{Poller, Source};
use crate::run::{clean, RunDir};

/// Name of the state among what the holder keeps.
pub const STATE: &str = "state";
/// Name of QEMU's socket among what the holder keeps.
pub const LISTENER: &str = "listener";

/// Time between two tries to start a holder.
const RETRY: Duration = Duration::from_secs(1);

/// What a daemon before this one left with its holder.
pub struct Inherited {
    holder: Option<Holder>,
    /// Descriptors by name, without the state.
    pub kept: Kept,
    /// The state.
    pub state: Option<State>,
}

impl Inherited {
    /// Finds what there is; a state that serves another `socket` is refused.
    pub fn find(run: &RunDir, socket: &Path) -> Result<Self> {
        let holder = Holder::find(&run.holder())?;
        let listed = holder.as_ref().map(Holder::list).transpose()?;
        let mut kept = listed.unwrap_or_default();
        let state = kept.remove(STATE).map(State::load).transpose()?;
        if let Some(state) = state.as_ref().filter(|state| state.socket != socket) {
            bail!(
                "VMs of this run directory are served at {}: give that as --socket, or end it \
                 with hallwayd --stop --run-dir {} first",
                state.socket.display(),
                run.path().display()
            );
        }
        Ok(Self {
            holder,
            kept,
            state,
        })
    }

    /// The holder, without the descriptors of which nothing came; a new one if
    /// there is none.
    pub fn into_holder(self, run: &RunDir) -> Result<Holder> {
        let Some(holder) = self.holder else {
            return Holder::start(&run.holder());
        };
        for (name, fd) in self.kept {
            holder.del(&name)?;
            // It may be the socket of a peer that has sent descriptors.
            hallway_unix::hang_up(fd);
        }
        Ok(holder)
    }
}

/// The run directory, the holder, and whether that has the newest state.
pub struct Keeper {
    run: Rc<RunDir>,
    holder: Holder,
    /// Path of the socket to which QEMUs connect.
    pub socket: PathBuf,
    /// Directories that this daemon or one before it made.
    pub made: Vec<PathBuf>,
    /// Whether the holder lacks what it was last to keep.
    unsaved: bool,
    /// Whether the holder has ended, and there is no other yet.
    lost: bool,
    /// When a holder was last to be started.
    tried: Option<Instant>,
}

impl Keeper {
    /// Takes over directory and holder.
    pub fn new(run: Rc<RunDir>, holder: Holder, socket: PathBuf, mut made: Vec<PathBuf>) -> Self {
        made.sort();
        made.dedup();
        Self {
            run,
            holder,
            socket,
            made,
            unsaved: true,
            lost: false,
            tried: None,
        }
    }

    /// The run directory.
    pub fn dir(&self) -> &Path {
        self.run.path()
    }

    /// The holder.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Whether there is a holder.
    pub fn has_holder(&self) -> bool {
        !self.lost
    }

    /// Whether the holder lacks what it was last to keep.
    pub fn is_behind(&self) -> bool {
        self.unsaved
    }

    /// Watches for the end of the holder.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        poller.watch(&self.holder, Source::Holder, EpollFlags::EPOLLIN)
    }

    /// Has the holder keep a state. After an error it is behind: it has ended, and
    /// the one that replaces it gets all.
    pub fn save(&mut self, state: &State) -> Result<()> {
        self.unsaved = true;
        self.holder.put(STATE, state.save()?.as_fd())?;
        self.unsaved = false;
        Ok(())
    }

    /// The holder has ended, or has hung up as it cannot keep what it was given.
    pub fn lose_holder(&mut self, poller: &Poller) {
        warn!("the holder process ended or hung up: starting another");
        poller.unwatch(self.holder.as_fd());
        self.lost = true;
    }

    /// Whether to start another holder: none in the second after the last try.
    pub fn lacks_holder(&self) -> bool {
        self.lost && self.tried.is_none_or(|at| at.elapsed() >= RETRY)
    }

    /// Starts another holder in place of the one that was lost. It has nothing yet.
    pub fn replace_holder(&mut self, poller: &Poller) -> Result<()> {
        self.tried = Some(Instant::now());
        // One that hung up would keep all that it has for ever.
        if let Ok(Some(before)) = Holder::find(&self.run.holder()) {
            before.quit();
        }
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
        self.holder = Holder::start(&self.run.holder())?;
        self.lost = false;
        self.unsaved = true;
        self.watch(poller)
    }

    /// Ends the holder, and removes what daemon and holder leave behind, and the
    /// regions' `files`.
    pub fn clean(self, files: &[PathBuf]) {
        self.holder.quit();
        clean(&self.run, Some(&self.socket), files, &self.made);
    }
}
