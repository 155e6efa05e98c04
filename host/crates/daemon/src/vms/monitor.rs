// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitors of VMs, each with a thread of its own.
//!
//! QEMU may answer late or never: it is stopped, hangs, or waits for this very
//! daemon while it starts. The daemon's loop must not wait for it, so it sends jobs
//! and receives news. A thread looks once a second for a monitor that is not there.
//! Jobs are for a monitor that is there, and are forgotten with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Result};
use hallway_control::{Migration, Release};
use hallway_membership::{is_own, Uuid};
use hallway_qmp::{Error, MigrationState, Monitor};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{getsockopt, sockopt};

use super::bridge::Bridge;
use super::migrate;
use super::news::{Job, News, LET_GO, NEWS_MAX, PREFIX};

/// Time between two looks for a monitor that is not there.
const AGAIN: Duration = Duration::from_secs(1);
/// How long QEMU may take to greet.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long libvirt may take to find a domain: it is busy while others start.
const LIBVIRT_PATIENCE: Duration = Duration::from_secs(30);

/// What wakes the loop when there is news of any monitor.
pub struct Newsroom {
    event: Arc<EventFd>,
}

fn eventfd() -> Result<Arc<EventFd>> {
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    Ok(Arc::new(EventFd::from_flags(flags)?))
}

impl Newsroom {
    /// Makes one without news.
    pub fn new() -> Result<Self> {
        Ok(Self { event: eventfd()? })
    }

    /// To be called before news is taken: what comes after that rings again.
    pub fn hush(&self) {
        let _ = self.event.read();
    }
}

impl AsFd for Newsroom {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The loop's end of one monitor's thread, which lives as long as the daemon.
pub struct Handle {
    jobs: Sender<Job>,
    news: Receiver<News>,
    cancelled: Arc<AtomicBool>,
    event: Arc<EventFd>,
}

impl Handle {
    /// Starts looking after the monitor that `way` leads to.
    pub fn new(number: usize, way: Way, ports: Vec<String>, room: &Newsroom) -> Result<Self> {
        let (jobs, receiver) = std::sync::mpsc::channel();
        let (sender, news) = std::sync::mpsc::sync_channel(NEWS_MAX);
        let event = eventfd()?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let thread = Thread {
            way,
            ports,
            jobs: receiver,
            cancelled: cancelled.clone(),
            rung: event.clone(),
            news: sender,
            has_news: room.event.clone(),
        };
        std::thread::Builder::new()
            .name(format!("monitor{number}"))
            .spawn(move || thread.run())?;
        Ok(Self {
            jobs,
            news,
            cancelled,
            event,
        })
    }

    /// The other end of a monitor; a test takes the place of its thread.
    #[cfg(test)]
    pub fn played() -> (Self, Receiver<Job>) {
        let (jobs, receiver) = std::sync::mpsc::channel();
        let handle = Self {
            jobs,
            news: std::sync::mpsc::sync_channel(NEWS_MAX).1,
            cancelled: Arc::default(),
            event: eventfd().unwrap(),
        };
        (handle, receiver)
    }

    /// Takes the news that came, and no more than may wait: a hostile QEMU has more at
    /// any time.
    pub fn take_news(&self) -> impl Iterator<Item = News> + '_ {
        self.news.try_iter().take(NEWS_MAX)
    }

    /// Gives the thread a job.
    pub fn ask(&self, job: Job) {
        let _ = self.jobs.send(job);
        let _ = self.event.write(1);
    }

    /// Has the VM migrate; no migration may be going on.
    pub fn migrate(&self, uri: String) {
        self.cancelled.store(false, Ordering::Relaxed);
        self.ask(Job::Migrate(uri));
    }

    /// Has the migration end that was asked for.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Refuses a monitor in whose place another user can put one: its directory must
/// belong to root, to this user or to QEMU's, and be open to no other. In one that is open
/// and sticky another user may have taken the name first.
fn check_owner(path: &Path, monitor: &Monitor) -> Result<()> {
    let peer = getsockopt(monitor, sockopt::PeerCredentials)?.uid();
    let dir = path.parent().unwrap_or(Path::new("/"));
    let (socket, dir_meta) = (std::fs::metadata(path)?, std::fs::metadata(dir)?);
    let is_sticky = dir_meta.mode() & 0o1000 != 0;
    let is_closed = dir_meta.mode() & 0o022 == 0 || is_sticky && is_own(peer);
    let is_of_qemu = |uid| uid == peer || is_own(uid);
    if !is_closed || !is_of_qemu(dir_meta.uid()) || !is_of_qemu(socket.uid()) {
        bail!(
            "{}: other users may put a monitor of theirs there (owner {}, mode {:04o}, QEMU of \
             user {peer}): give the directory to QEMU's user, and chmod 0700 it",
            dir.display(),
            dir_meta.uid(),
            dir_meta.mode() & 0o7777
        );
    }
    Ok(())
}

/// The way to a monitor.
pub enum Way {
    /// The socket at this path.
    Socket(PathBuf),
    /// libvirt, for the domain with this UUID.
    Libvirt(Arc<Bridge>, Uuid),
}

impl Way {
    fn connect(&self) -> Result<Monitor> {
        match self {
            Self::Socket(path) => {
                let monitor = Monitor::connect(path, PATIENCE)?;
                check_owner(path, &monitor)?;
                Ok(monitor)
            }
            Self::Libvirt(bridge, uuid) => {
                Ok(Monitor::over(bridge.connect(*uuid)?, LIBVIRT_PATIENCE)?)
            }
        }
    }
}

struct Thread {
    way: Way,
    ports: Vec<String>,
    jobs: Receiver<Job>,
    cancelled: Arc<AtomicBool>,
    rung: Arc<EventFd>,
    news: SyncSender<News>,
    has_news: Arc<EventFd>,
}

impl Thread {
    fn send(&self, news: News) {
        let _ = self.news.send(news.printable());
        let _ = self.has_news.write(1);
    }

    fn run(self) {
        loop {
            let news = match self.connect() {
                Ok(mut monitor) => News::Down(self.serve(&mut monitor).to_string()),
                Err(error) if self.is_off(&error) => News::Off(format!("{error:#}")),
                Err(error) => News::Down(format!("{error:#}")),
            };
            self.send(news);
            std::thread::sleep(AGAIN);
            // They were for the QEMU before; the loop asks again once one answers.
            while self.jobs.try_recv().is_ok() {}
        }
    }

    /// Whether libvirt says that the VM is shut off. The word of a QEMU is none.
    fn is_off(&self, error: &anyhow::Error) -> bool {
        let is_off = matches!(error.downcast_ref(), Some(Error::NotRunning(_)));
        is_off && matches!(self.way, Way::Libvirt(..))
    }

    fn connect(&self) -> Result<Monitor> {
        let mut monitor = self.way.connect()?;
        let identity = monitor.identity()?;
        let status = monitor.status()?.status;
        let status = status.as_str();
        let elsewhere = ["inmigrate", "postmigrate"].contains(&status);
        let found = monitor.devices(migrate::MEMORY)?;
        self.send(News::Up(identity, elsewhere, found));
        // A daemon before this one may have begun a migration, and not seen its end.
        let follows = match monitor.migration()?.state() {
            MigrationState::Active => !elsewhere,
            MigrationState::Completed => ["finish-migrate", "postmigrate"].contains(&status),
            _ => false,
        };
        if follows {
            let end = migrate::follow(&mut monitor, &self.cancelled, &|news| self.send(news));
            self.migrated(end)?;
        }
        Ok(monitor)
    }

    /// Does jobs until the connection ends; returns why it did.
    fn serve(&self, monitor: &mut Monitor) -> Error {
        loop {
            while let Ok(job) = self.jobs.try_recv() {
                if let Err(error) = self.work(monitor, job) {
                    return error;
                }
            }
            match self.hear(monitor) {
                Err(error) => return error,
                // More has come: jobs take turns with that.
                Ok(true) => continue,
                Ok(false) => {}
            }
            let mut fds = [
                PollFd::new(monitor.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.rung.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut fds, PollTimeout::NONE);
            let _ = self.rung.read();
        }
    }

    fn work(&self, monitor: &mut Monitor, job: Job) -> hallway_qmp::Result<()> {
        let news = match job {
            Job::Plug(memory) => match monitor.plug(&memory, &self.ports) {
                Ok(_) => News::Plugged(memory.id),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => News::Failed(memory.id, error.to_string()),
            },
            Job::Unplug(id) => match monitor.unplug(&id, LET_GO) {
                Ok(()) => News::Gone(id, true),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => migrate::not_unplugged(monitor, id, error.to_string())?,
            },
            Job::Vcpus => match monitor.vcpus() {
                Ok(threads) => News::Vcpus(threads),
                Err(error) if error.is_final() => return Err(error),
                Err(_) => News::Vcpus(Vec::new()),
            },
            Job::Release(limit) => {
                let send = |news| self.send(news);
                let end = migrate::release(monitor, limit, &send);
                // A migration that failed before then is not one that this release is for.
                self.hear(monitor)?;
                match end {
                    Ok(end) => News::Released(end),
                    Err(error) if error.is_final() => return Err(error),
                    Err(error) => News::Released(Release::Failed {
                        why: error.to_string(),
                    }),
                }
            }
            Job::HangUp(why) => return Err(Error::Absent(why)),
            Job::Migrate(uri) => {
                let send = |news| self.send(news);
                return self.migrated(migrate::run(monitor, &uri, &self.cancelled, &send));
            }
        };
        self.send(news);
        Ok(())
    }

    /// Sends news of how a migration ended. The end of the connection is an error,
    /// of which `run` sends news.
    fn migrated(&self, end: hallway_qmp::Result<Migration>) -> hallway_qmp::Result<()> {
        let stage = match end {
            Ok(stage) => stage,
            Err(error) if error.is_final() => return Err(error),
            Err(error) => Migration::Stayed {
                why: error.to_string(),
            },
        };
        self.send(News::Migrates(stage));
        Ok(())
    }

    /// Sends news of what happened unasked: another client took a device out, reset
    /// the guest or let it run; or the guest let a device go late. True: more may have come.
    /// One call takes a limited number of events, for a QEMU may send them without end.
    fn hear(&self, monitor: &mut Monitor) -> hallway_qmp::Result<bool> {
        let (events, has_more) = monitor.take_events()?;
        let is_more_likely = has_more || !events.is_empty();
        for event in events {
            // The event may be an old one. More may come before the answer.
            if event.name == "RESUME" && monitor.status()?.running {
                self.send(News::Runs);
            }
            if event.name == "RESET" {
                self.send(News::Reset);
            }
            if event.stays {
                self.send(News::Stays);
            }
            let gone = event.device.filter(|id| id.starts_with(PREFIX));
            if let ("DEVICE_DELETED", Some(id)) = (event.name, gone) {
                // It may be of a device that had this id before.
                if !monitor.has_device(&id)? {
                    self.send(News::Gone(id, false));
                }
            }
        }
        Ok(is_more_likely)
    }
}
