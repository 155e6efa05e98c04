// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway-outsource`: executes sockets of the host for one VM.
//!
//! hallwayd starts it, and gives it all that it has by the control socket.

use std::io::IsTerminal;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use hallway_outsource::confine;
use hallway_outsource::orders::CONTROL_FD;
use hallway_outsource::server::Server;
use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::socket::{getsockopt, sockopt, SockType};

fn take_control() -> Result<OwnedFd> {
    // SAFETY: nothing closes the descriptor while it is borrowed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(CONTROL_FD) };
    let kind = getsockopt(&borrowed, sockopt::SockType)
        .context("descriptor 3 is no socket: only hallwayd starts this program")?;
    ensure!(
        kind == SockType::SeqPacket,
        "descriptor 3 is a socket of another type"
    );
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, hallwayd gave it to this program, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) })
}

fn serve() -> Result<()> {
    confine::hide()?;
    let control = take_control()?;
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    Server::new(control, true)?.run()
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // The reader of the log may have ended: that must not end this program.
        .log_internal_errors(false)
        .init();
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hallway-outsource: {error:#}");
            ExitCode::FAILURE
        }
    }
}
