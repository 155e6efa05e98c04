// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The holder: a process that does almost nothing, so that it does not die.
//!
//! QEMU connects once and never again, so its socket must outlive the daemon. The
//! holder keeps descriptors by name: sockets, pages, eventfds, the memory of regions,
//! and the daemon's state, which is a descriptor too (of a small anonymous
//! file). A daemon gives (`put`), takes back (`del`) and, when it starts, asks
//! for all there is (`list`). `quit` ends it.
//!
//! Messages are packets of a Unix socket: `put NAME` and `list`'s answers carry
//! one descriptor each; an empty packet ends the list. A packet once sent is
//! kept by the kernel, so nothing waits for the holder, and what a daemon sent
//! before it died still counts: the holder serves one daemon at a time, to its
//! last packet, before it looks at the next.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    accept4, bind, connect, getsockopt, listen, recvmsg, setsockopt, socket, sockopt,
    AddressFamily, Backlog, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
};
use nix::sys::time::TimeVal;

const NAME_MAX: usize = 200;
/// How long a holder may take for anything.
const PATIENCE: TimeVal = TimeVal::new(2, 0);
/// Time between two tries of the holder to accept a daemon.
const AGAIN: Duration = Duration::from_millis(100);

fn silent() -> anyhow::Error {
    anyhow!(
        "the holder (process hallwayd-holder) does not answer: if it is stopped, have it go on \
         with SIGCONT; else kill it, and restart the VMs"
    )
}

/// Descriptors by name.
pub type Kept = BTreeMap<String, OwnedFd>;

fn send(socket: BorrowedFd<'_>, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    hallway_unix::send(&socket, text.as_bytes(), fd.as_slice())?;
    Ok(())
}

/// Receives a packet. Nothing: the other end has closed the socket.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(String, Option<OwnedFd>)>> {
    let mut bytes = [0; NAME_MAX];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => break message,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut fd = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            for raw in fds {
                // SAFETY: the kernel just made this descriptor for us.
                fd = Some(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
    }
    let length = message.bytes;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((
        String::from_utf8_lossy(&bytes[..length]).into_owned(),
        fd,
    )))
}

/// Runs as the holder; the listening socket is standard input.
pub fn run() -> Result<()> {
    let listener = io::stdin();
    let mut kept = Kept::new();
    loop {
        let client = match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // SAFETY: accept4 just made this descriptor for us.
            Ok(raw) => unsafe { OwnedFd::from_raw_fd(raw) },
            Err(Errno::EINTR | Errno::ECONNABORTED) => continue,
            Err(Errno::ENOTSOCK) => bail!("--holder is for hallwayd itself"),
            // Whatever lacks, to end would be to lose all VMs.
            Err(_) => {
                std::thread::sleep(AGAIN);
                continue;
            }
        };
        let own = [0, nix::unistd::geteuid().as_raw()];
        let peer = getsockopt(&client, sockopt::PeerCredentials);
        if !peer.is_ok_and(|peer| own.contains(&peer.uid())) {
            continue;
        }
        while let Ok(Some((text, fd))) = receive(client.as_fd()) {
            match (text.split_once(' '), fd) {
                (Some(("put", name)), Some(fd)) => {
                    kept.insert(name.into(), fd);
                }
                (Some(("del", name)), None) => {
                    kept.remove(name);
                }
                (None, None) if text == "list" => {
                    for (name, fd) in &kept {
                        if send(client.as_fd(), name, Some(fd.as_fd())).is_err() {
                            break;
                        }
                    }
                    let _ = send(client.as_fd(), ".", None);
                }
                (None, None) if text == "quit" => {
                    // The client waits for the close of its socket, which is the last one.
                    drop(kept);
                    return Ok(());
                }
                _ => break,
            }
        }
    }
}

/// A daemon's connection to its holder.
pub struct Holder {
    socket: OwnedFd,
}

impl Holder {
    fn socket() -> Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC;
        Ok(socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            flags,
            None,
        )?)
    }

    /// Connects to the holder that listens at `path`, if there is one.
    pub fn find(path: &Path) -> Result<Option<Self>> {
        let socket = Self::socket()?;
        // A holder that hangs must not make its daemon hang. The first limit is for
        // connect(), too.
        setsockopt(&socket, sockopt::SendTimeout, &PATIENCE)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &PATIENCE)?;
        match connect(socket.as_raw_fd(), &UnixAddr::new(path)?) {
            Ok(()) => Ok(Some(Self { socket })),
            Err(Errno::EAGAIN) => Err(silent()),
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => Ok(None),
            Err(error) => Err(error).with_context(|| {
                format!(
                    "{}: cannot reach the holder (are you root?)",
                    path.display()
                )
            }),
        }
    }

    /// Starts a holder that listens at `path`.
    pub fn start(path: &Path) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = Self::socket()?;
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)
            .with_context(|| format!("{}: cannot make the holder's socket", path.display()))?;
        listen(&listener, Backlog::new(4)?)?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("hallwayd-holder")
            .arg("--holder")
            .current_dir("/")
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: between fork and exec only setsid and a signal mask are set,
        // both of which are async-signal-safe. In a session of its own, what
        // ends the daemon's terminal or process group does not end the holder.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                nix::sys::signal::SigSet::empty().thread_set_mask()?;
                Ok(())
            });
        }
        command.spawn().context("cannot start the holder process")?;
        match Self::find(path)? {
            Some(holder) => Ok(holder),
            None => bail!("{}: the holder died at once", path.display()),
        }
    }

    /// Asks for everything that the holder keeps.
    pub fn list(&self) -> Result<Kept> {
        send(self.socket.as_fd(), "list", None)?;
        let mut kept = Kept::new();
        loop {
            let packet = receive(self.socket.as_fd()).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => silent(),
                _ => error.into(),
            })?;
            match packet {
                Some((name, Some(fd))) => {
                    kept.insert(name, fd);
                }
                Some((_, None)) => return Ok(kept),
                None => bail!("the holder hung up"),
            }
        }
    }

    /// Has the holder keep a descriptor, in place of any of the same name.
    pub fn put(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        debug_assert!(name.len() + 4 <= NAME_MAX);
        send(self.socket.as_fd(), &format!("put {name}"), Some(fd))
    }

    /// Has the holder close a descriptor.
    pub fn del(&self, name: &str) -> io::Result<()> {
        send(self.socket.as_fd(), &format!("del {name}"), None)
    }

    /// Ends the holder, and waits for it to let go of everything.
    pub fn quit(self) {
        let _ = send(self.socket.as_fd(), "quit", None);
        let _ = receive(self.socket.as_fd());
    }
}

impl AsFd for Holder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
