// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unix sockets with peers that are not trusted.
//!
//! A peer may send descriptors along with its bytes. What is received without a place for
//! them is closed by the kernel, in the thread that receives; what is unread at the end, in
//! the thread that closes. The last close of a TCP socket with SO_LINGER waits as long as
//! its owner likes. So nothing here takes a descriptor, nor closes one:
//!
//! - Since Linux 6.16 a socket can refuse them ([`refuse_descriptors`]).
//! - Before that, [`receive`] looks before it takes, and a [`Stream`] or [`hang_up`] has what
//!   is unread closed by a thread of its own.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::signal::{
    sigaction, SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal,
};
use nix::sys::socket::{
    bind, connect as reach, getsockopt, listen as start, recv, recvmsg, sendmsg, shutdown, socket,
    sockopt, AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType,
    UnixAddr,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;

/// The option of Linux 6.16.
pub const SO_PASSRIGHTS: libc::c_int = 83;
/// Sockets that are not closed yet.
static WAITING: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
/// Empty packets that a socket may have at most: each takes 768 bytes of what is allowed to
/// its sender (net.core.wmem_max).
const EMPTY_MAX: usize = 4096;
/// How long the close of one descriptor may wait. A signal ends it.
const LINGER: Duration = Duration::from_millis(10);
/// How long [`wait_for_closes`] waits.
const CLOSES: Duration = Duration::from_secs(2);

/// Has a socket, and those that it accepts, refuse descriptors where the kernel can.
pub fn refuse_descriptors(socket: &impl AsFd) {
    let no: libc::c_int = 0;
    // SAFETY: the kernel reads one int, which is there. Where it has no such option, the
    // call fails, and changes nothing.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of_val(&no) as libc::socklen_t,
        )
    };
}

/// A socket that refuses descriptors before any peer can send one.
fn open() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    refuse_descriptors(&socket);
    Ok(socket)
}

/// Removes a socket at which no program listens any more, for another one in its place.
pub fn remove_abandoned(path: &Path, kind: SockType) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {}
        Ok(_) => {
            let why = "is there and is no socket: give another path";
            return Err(io::Error::new(ErrorKind::AlreadyExists, why));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    // A program that listens and accepts nothing makes a connect() wait that may.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, kind, flags, None)?;
    match reach(socket.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => std::fs::remove_file(path),
        // It has just gone.
        Err(Errno::ENOENT) => Ok(()),
        // EPROTOTYPE: a program has a socket of another kind there.
        Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => {
            let why = "another program listens there: end it, or give another path";
            Err(io::Error::new(ErrorKind::AddrInUse, why))
        }
        Err(error) => Err(error.into()),
    }
}

/// Listens at a path, in place of a socket at which no program listens any more.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    remove_abandoned(path, SockType::Stream)?;
    let socket = open()?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    start(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

/// Connects to a path.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = open()?;
    let address = UnixAddr::new(path)?;
    loop {
        match reach(socket.as_raw_fd(), &address) {
            Err(Errno::EINTR) => {}
            other => return other.map(|()| socket.into()).map_err(Into::into),
        }
    }
}

/// Sends bytes, or a packet, with descriptors, and waits for room. Returns how many bytes the
/// socket has taken.
pub fn send(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> nix::Result<usize> {
    send_with(socket, bytes, fds, MsgFlags::empty())
}

/// The same without a wait.
pub fn send_now(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> nix::Result<usize> {
    send_with(socket, bytes, fds, MsgFlags::MSG_DONTWAIT)
}

fn send_with(
    socket: &impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: MsgFlags,
) -> nix::Result<usize> {
    let (fd, parts) = (socket.as_fd().as_raw_fd(), [IoSlice::new(bytes)]);
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights };
    loop {
        match sendmsg::<UnixAddr>(fd, &parts, rights, MsgFlags::MSG_NOSIGNAL | wait, None) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Receives bytes, or a packet, and waits for it; an error if descriptors come along, which
/// stay where they are.
pub fn receive(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    receive_with(socket, bytes, MsgFlags::empty())
}

/// The same without a wait.
pub fn receive_now(socket: &impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    receive_with(socket, bytes, MsgFlags::MSG_DONTWAIT)
}

fn receive_with(socket: &impl AsFd, bytes: &mut [u8], wait: MsgFlags) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let mut parts = [IoSliceMut::new(bytes)];
    let seen = recvmsg::<UnixAddr>(fd, &mut parts, None, MsgFlags::MSG_PEEK | wait)?;
    if seen.flags.contains(MsgFlags::MSG_CTRUNC) {
        let why = "the peer sends descriptors";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    match seen.bytes {
        0 => Ok(0),
        count => Ok(recv(fd, &mut bytes[..count], MsgFlags::MSG_DONTWAIT)?),
    }
}

/// Ends a connection, whatever its peer has sent. No copy of the socket can receive more.
pub fn hang_up(socket: OwnedFd) {
    let fd = socket.as_raw_fd();
    // What is unread stays readable; no more can come.
    let _ = shutdown(fd, Shutdown::Both);
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let seen = recv(fd, &mut [0], flags);
    // An empty packet looks as the end does.
    let has_packets = getsockopt(&socket, sockopt::SockType) == Ok(SockType::SeqPacket);
    if seen.is_ok_and(|count| count > 0 || has_packets) {
        close_elsewhere(socket);
    }
}

/// Waits until all that was hung up is closed: what a program has open as it executes
/// another one is closed in the thread that does. A peer may have sent more than can be closed
/// in a moment: the rest stays open in that program. Returns the number of these sockets.
pub fn wait_for_closes() -> usize {
    let deadline = Instant::now() + CLOSES;
    loop {
        let waiting = waiting();
        if waiting.is_empty() || Instant::now() >= deadline {
            for fd in &*waiting {
                // SAFETY: what is in the set is open: it is taken out before it is closed.
                let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
                let _ = fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()));
            }
            return waiting.len();
        }
        drop(waiting);
        std::thread::sleep(LINGER);
    }
}

fn waiting() -> MutexGuard<'static, BTreeSet<RawFd>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a thread close a socket.
fn close_elsewhere(socket: OwnedFd) {
    static THREAD: OnceLock<Option<Sender<OwnedFd>>> = OnceLock::new();
    let start = || {
        // Without a limit, so that no caller waits: descriptors limit its length.
        let (sender, sockets) = channel();
        let thread = std::thread::Builder::new().name("closes".into());
        thread.spawn(move || close_all(&sockets)).ok()?;
        Some(sender)
    };
    waiting().insert(socket.as_raw_fd());
    match THREAD.get_or_init(start) {
        // The thread lives as long as this end of its queue.
        Some(sender) => drop(sender.send(socket)),
        None => {
            waiting().remove(&socket.as_raw_fd());
            // There is no thread: a lost descriptor is better than a wait for the peer.
            std::mem::forget(socket);
        }
    }
}

extern "C" fn do_nothing(_: libc::c_int) {}

/// Receives what each socket has, so that no other copy of it has anything to close.
fn close_all(sockets: &Receiver<OwnedFd>) {
    // Without the timer a close may wait, which is why this is a thread of its own.
    let _timer = interrupt_thread();
    for socket in sockets {
        let (mut bytes, mut empty) = ([0; 4096], 0);
        while empty < EMPTY_MAX {
            match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                // The end, or an empty packet.
                Ok(0) => empty += 1,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        // Before the close: after it another socket may get the number.
        waiting().remove(&socket.as_raw_fd());
        drop(socket);
    }
}

/// Sends this thread a signal each [`LINGER`].
fn interrupt_thread() -> nix::Result<Timer> {
    let handler = SigHandler::Handler(do_nothing);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, and nothing else here uses this signal.
    unsafe { sigaction(Signal::SIGALRM, &action)? };
    let mut alarm = SigSet::empty();
    alarm.add(Signal::SIGALRM);
    alarm.thread_unblock()?;
    let notify = SigevNotify::SigevThreadId {
        signal: Signal::SIGALRM,
        thread_id: gettid().as_raw(),
        si_value: 0,
    };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify))?;
    let each = Expiration::Interval(LINGER.into());
    timer.set(each, TimerSetTimeFlags::empty())?;
    Ok(timer)
}

/// A connection that is hung up in the end, whatever its peer has sent.
#[derive(Debug)]
pub struct Stream(Option<UnixStream>);

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self(Some(stream))
    }
}

/// Takes the socket out: it is the new owner's to hang up.
impl From<Stream> for OwnedFd {
    fn from(mut stream: Stream) -> Self {
        // It is there until it is dropped.
        stream.0.take().expect("a stream").into()
    }
}

impl Deref for Stream {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        // It is there until it is dropped.
        self.0.as_ref().expect("a stream")
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            hang_up(stream.into());
        }
    }
}
