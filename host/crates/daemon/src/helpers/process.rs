// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process of one helper: how it is started and ended, and how orders reach it.
//!
//! It has a network namespace that the operator chose, or an empty one, a user that is
//! not root, a cgroup of its own where there is one, and no way to get more.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use hallway_abi::region::ENDPOINTS_MAX;
use hallway_control::DRAIN_LEASE;
use hallway_endpoint::orders::{Order, Report, CONTROL_FD, PACKET_MAX};
use nix::fcntl::{fcntl, FcntlArg};
use nix::sched::{setns, unshare, CloneFlags};
use nix::sys::epoll::EpollFlags;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::SigSet;
use nix::sys::socket::{socketpair, AddressFamily, SockFlag, SockType};
use nix::sys::wait::{waitid, Id, WaitPidFlag, WaitStatus};
use nix::unistd::{geteuid, setgid, setgroups, setuid};

use crate::config::{Helper, Task};
use crate::keeper::{pidfd, Holder, Kept};
use crate::poller::{Poller, Source};

/// A report that is older says nothing of now.
const FRESH: Duration = Duration::from_secs(5);

/// Reports taken in at a time at most. There is one for each that was asked for, unless the
/// process is hostile.
const REPORTS: usize = 16;

/// Descriptors that a process may have. Its policy may become another while it runs: so
/// it is enough for as many sockets as there are endpoints, some of them being closed.
const DESCRIPTORS: u64 = 4 * ENDPOINTS_MAX as u64 + 64;

/// Bytes of its own memory that a process may have, besides the region. An allocation beyond
/// them ends this process alone.
const DATA: u64 = 256 << 20;

/// The process of one helper.
pub struct Process {
    /// Its number; this daemon uses none twice.
    pub number: u64,
    /// Its pid.
    pub pid: u32,
    /// When it was started.
    pub started: Instant,
    /// Whether the holder keeps it.
    pub kept: bool,
    /// What it last said of itself.
    pub report: Report,
    /// When that was; nothing before the first time.
    heard: Option<Instant>,
    /// When it was asked for the report that has not come.
    asked: Option<Instant>,
    /// Number of the last report that it was asked for. Earlier ones do not count.
    number_asked: u64,
    /// Until then it has a policy that allows no more connections.
    drains: Option<Instant>,
    control: OwnedFd,
    pidfd: OwnedFd,
}

impl Process {
    /// Starts one, in a cgroup by its `cgroup.procs`, or in that of the daemon.
    pub fn start(
        number: u64,
        program: &Path,
        helper: &Helper,
        cgroup: Option<File>,
    ) -> Result<Self> {
        let kind = SockType::SeqPacket;
        let (control, theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
        // Away from the place that it is to have in the process.
        let theirs = fcntl(&theirs, FcntlArg::F_DUPFD_CLOEXEC(CONTROL_FD + 1))?;
        // SAFETY: the kernel just made this descriptor for us.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        let mut command = command(program, helper, cgroup, theirs.as_raw_fd())?;
        let mut child = command
            .spawn()
            .with_context(|| program.display().to_string())?;
        let pid = child.id();
        let opened = pidfd::open(pid);
        if opened.is_err() {
            // Nothing could end it later.
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(Self::new(
            number,
            pid,
            control,
            opened.context("pidfd_open")?,
        ))
    }

    /// Goes on with a process of the daemon before. Nothing: it has ended, or the holder
    /// does not have all of it.
    pub fn recover(number: u64, pid: u32, kept: &Kept) -> Option<Self> {
        let copy = |name| kept.get(&name)?.try_clone().ok();
        let (pidfd, control) = (copy(process_name(pid))?, copy(control_name(pid))?);
        if pidfd::wait(pidfd.as_fd(), Duration::ZERO) {
            return None;
        }
        let mut process = Self::new(number, pid, control, pidfd);
        // Until it is found to fit: dropping it must not end it.
        process.kept = true;
        Some(process)
    }

    fn new(number: u64, pid: u32, control: OwnedFd, pidfd: OwnedFd) -> Self {
        // A helper that its guest took over could send its sockets. A daemon of before may
        // have made this one without.
        hallway_unix::refuse_descriptors(&control);
        Self {
            number,
            pid,
            started: Instant::now(),
            kept: false,
            report: Report::default(),
            heard: None,
            asked: None,
            number_asked: first_number(),
            drains: None,
            control,
            pidfd,
        }
    }

    /// Takes it out of what is left of the daemon before.
    pub fn claim(&self, kept: &mut Kept) {
        kept.remove(&process_name(self.pid));
        kept.remove(&control_name(self.pid));
    }

    /// Whether it is in the network namespace that has this name now.
    pub fn is_in(&self, netns: &Path) -> bool {
        let number = |path: &Path| std::fs::metadata(path).map(|one| (one.dev(), one.ino()));
        let own = number(Path::new(&format!("/proc/{}/ns/net", self.pid)));
        matches!((own, number(netns)), (Ok(own), Ok(named)) if own == named)
    }

    /// Gives it another policy.
    pub fn change_policy(&self, policy: &Task) -> Result<()> {
        let policy = policy.clone();
        self.send(&Order::Policy { policy }, &[])
    }

    /// Gives it a policy for the next [`DRAIN_LEASE`].
    pub fn drain(&mut self, policy: &Task) -> Result<()> {
        if self.drains.is_none() {
            self.change_policy(policy)?;
            // Connections that began since the last report are not in it.
            self.outdate_reports();
        }
        self.drains = Some(Instant::now() + DRAIN_LEASE);
        self.ask_report()
    }

    /// Gives it its own policy back, if that time is over.
    pub fn end_drain(&mut self, policy: &Task) -> Result<()> {
        if self.drains.is_some_and(|end| Instant::now() >= end) {
            self.drains = None;
            self.change_policy(policy)?;
        }
        Ok(())
    }

    /// Watches for its end.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        let source = Source::Helper(self.number);
        poller.watch(&self.pidfd, source, EpollFlags::EPOLLIN)
    }

    /// Has the holder keep it.
    pub fn keep(&self, holder: &Holder) -> io::Result<()> {
        holder.put(&control_name(self.pid), self.control.as_fd())?;
        holder.put(&process_name(self.pid), self.pidfd.as_fd())
    }

    /// Sends an order. A process that does not read them makes no daemon wait.
    pub fn send(&self, order: &Order<Task>, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let text = serde_json::to_vec(order)?;
        hallway_unix::send_now(&self.control, &text, fds)?;
        Ok(())
    }

    /// Takes in its reports that have come, a few at most, and asks for the next one.
    pub fn ask_report(&mut self) -> Result<()> {
        let mut text = vec![0; PACKET_MAX];
        for _ in 0..REPORTS {
            match hallway_unix::receive_now(&self.control, &mut text) {
                // It has ended: the pidfd shows that too.
                Ok(0) => return Ok(()),
                Ok(length) => self.take_report(&text[..length])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.asked.is_none_or(|at| at.elapsed() >= FRESH) {
            self.number_asked += 1;
            let number = self.number_asked;
            self.send(&Order::Report { number }, &[])?;
            self.asked = Some(Instant::now());
        }
        Ok(())
    }

    fn take_report(&mut self, text: &[u8]) -> Result<()> {
        self.report = serde_json::from_slice(text).context("its report")?;
        if self.report.number == self.number_asked {
            self.heard = Some(Instant::now());
            self.asked = None;
        }
        Ok(())
    }

    /// No report that it was asked for till now says what is.
    fn outdate_reports(&mut self) {
        self.number_asked += 1;
        self.heard = None;
        self.asked = None;
    }

    /// Connections that it has; nothing if it has not said so lately.
    pub fn sockets(&self) -> Option<u32> {
        let is_fresh = self.heard.is_some_and(|at| at.elapsed() < FRESH);
        is_fresh.then_some(self.report.sockets)
    }

    /// Its guest has departed, and all that it had.
    pub fn forget_guest(&mut self) {
        self.report.sockets = 0;
        self.report.listeners = 0;
        self.outdate_reports();
    }

    /// Has it end.
    pub fn kill(&self) {
        pidfd::kill(self.pidfd.as_fd());
    }

    /// Waits for the end of one that was killed. False if it took too long.
    pub fn wait(&self) -> bool {
        let ended = pidfd::wait(self.pidfd.as_fd(), pidfd::PATIENCE);
        self.reap();
        ended
    }

    /// Takes in how it ended.
    fn reap(&self) -> Option<WaitStatus> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        // A wait for any child may have been first.
        waitid(Id::PIDFd(self.pidfd.as_fd()), flags).ok()
    }

    /// It has ended: nothing keeps it any more. Returns how it ended, in words.
    pub fn bury(&self, holder: Option<&Holder>, poller: &Poller) -> String {
        poller.unwatch(self.pidfd.as_fd());
        if let Some(holder) = holder.filter(|_| self.kept) {
            // Where it fails, the holder has ended, and has closed it.
            let _ = holder.del(&process_name(self.pid));
            let _ = holder.del(&control_name(self.pid));
        }
        match self.reap() {
            Some(WaitStatus::Exited(_, code)) => format!("exit status {code}"),
            Some(WaitStatus::Signaled(_, signal, _)) => format!("{signal}"),
            _ => "for an unknown reason".into(),
        }
    }
}

impl Drop for Process {
    /// One that the holder does not keep would be lost: it is ended. The others go on,
    /// however the daemon ends.
    fn drop(&mut self) {
        if !pidfd::wait(self.pidfd.as_fd(), Duration::ZERO) {
            if self.kept {
                return;
            }
            self.kill();
            self.wait();
        }
        // What it sent last may be a descriptor.
        if let Ok(control) = self.control.try_clone() {
            hallway_unix::hang_up(control);
        }
    }
}

/// A number that no daemon before asked for.
fn first_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros() as u64)
}

/// Name of a process at the holder.
fn process_name(pid: u32) -> String {
    format!("{}{pid}", pidfd::HELPER)
}

/// Name of its control socket there.
fn control_name(pid: u32) -> String {
    format!("orders.{pid}")
}

/// Puts together how it is started.
fn command(
    program: &Path,
    helper: &Helper,
    cgroup: Option<File>,
    control: RawFd,
) -> Result<Command> {
    let netns = helper.netns.as_ref();
    // A path that has become a pipe must not make the daemon wait.
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let open = |path| {
        options
            .open(path)
            .with_context(|| format!("netns {}", Path::display(path)))
    };
    let netns = netns.map(|path| open(path)).transpose()?;
    let (user, group) = (helper.user, helper.group);
    let bound = |resource, most: u64| -> Result<_> {
        let (_, hard) = getrlimit(resource)?;
        Ok((resource, most.min(hard)))
    };
    let limits = [
        bound(Resource::RLIMIT_NOFILE, DESCRIPTORS)?,
        bound(Resource::RLIMIT_DATA, DATA)?,
    ];
    // The user may not reach the folder in which the program is: it is opened before.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(program)
        .with_context(|| program.display().to_string())?;
    let mut command = Command::new(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    command
        .arg0(program)
        .env_clear()
        // It writes to the same log.
        .envs(std::env::vars_os().filter(|(name, _)| name == hallway_log::STREAM_VARIABLE))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // SAFETY: between fork and exec there are only system calls, which are
    // async-signal-safe. Descriptor 3 is not the one by which the child reports that exec
    // failed: the daemon has the lock of its run directory, which came first.
    unsafe {
        command.pre_exec(move || {
            let _ = &opened;
            SigSet::empty().thread_set_mask()?;
            nix::unistd::setsid()?;
            if let Some(cgroup) = &cgroup {
                nix::unistd::write(cgroup, b"0")?;
            }
            enter_netns(netns.as_ref())?;
            take_control(control)?;
            for (resource, most) in limits {
                setrlimit(resource, most, most)?;
            }
            if geteuid().is_root() {
                setgroups(&[])?;
                setgid(group)?;
                setuid(user)?;
            }
            drop_ambient()?;
            nix::sys::prctl::set_no_new_privs()?;
            Ok(())
        });
    }
    Ok(command)
}

/// Enters a network namespace, or makes an empty one. Only root may do so without a user
/// namespace of its own.
fn enter_netns(netns: Option<&File>) -> nix::Result<()> {
    let net = CloneFlags::CLONE_NEWNET;
    match netns {
        Some(netns) => setns(netns, net),
        None if geteuid().is_root() => unshare(net),
        None => unshare(net | CloneFlags::CLONE_NEWUSER),
    }
}

/// Gives up the capabilities that would stay without root: a `hallwayd` that is not root
/// may have such ones from systemd.
fn drop_ambient() -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    let result = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the control socket at its place, and no other descriptor but the standard ones.
fn take_control(control: RawFd) -> io::Result<()> {
    // SAFETY: the place is no descriptor of the child's that anything uses.
    if unsafe { libc::dup2(control, CONTROL_FD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // The daemon's own have the flag; those that it was started with may not.
    let (first, flags) = (CONTROL_FD + 1, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: it closes nothing before exec. A kernel without it (before 5.11) refuses.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_that_a_helper_sends_stay_where_they_are() {
        let kind = SockType::SeqPacket;
        let flags = SockFlag::SOCK_CLOEXEC;
        let (control, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let pidfd = pidfd::open(child.id()).unwrap();
        let mut process = Process::new(1, child.id(), control, pidfd);
        child.wait().unwrap();
        // As before Linux 6.16, which refuses none.
        let yes: libc::c_int = 1;
        // SAFETY: the kernel reads one int, which is there.
        unsafe {
            libc::setsockopt(
                process.control.as_raw_fd(),
                libc::SOL_SOCKET,
                hallway_unix::SO_PASSRIGHTS,
                (&raw const yes).cast(),
                size_of_val(&yes) as libc::socklen_t,
            )
        };
        let (mut ours, sent) = UnixStream::pair().unwrap();
        hallway_unix::send(&theirs, b"{}", &[sent.as_fd()]).unwrap();
        drop(sent);
        assert!(process.ask_report().is_err());
        ours.set_nonblocking(true).unwrap();
        let open = ours.read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), ErrorKind::WouldBlock);
        // At the end another thread closes it.
        drop(process);
        ours.set_nonblocking(false).unwrap();
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn reports_without_end_are_taken_a_few_at_a_time() {
        let kind = SockType::SeqPacket;
        let flags = SockFlag::SOCK_CLOEXEC;
        let (control, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
        let pid = std::process::id();
        let mut process = Process::new(1, pid, control, pidfd::open(pid).unwrap());
        // It is not ours to end.
        process.kept = true;
        for sockets in 1..=20 {
            let report = Report {
                sockets,
                ..Report::default()
            };
            let text = serde_json::to_vec(&report).unwrap();
            nix::unistd::write(&theirs, &text).unwrap();
        }
        process.ask_report().unwrap();
        assert_eq!(process.report.sockets, REPORTS as u32);
        process.ask_report().unwrap();
        assert_eq!(process.report.sockets, 20);
    }
}
