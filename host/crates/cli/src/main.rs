// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway`: shows and switches Hallway, on the host and in a guest.

mod doctor;
mod guest;
mod host;
mod libvirt;
mod metrics;
mod migrate;
mod options;
mod outsource;
mod places;
mod qemu;
mod release;
mod table;
mod top;
mod vsock;
mod xen;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Result};
use clap::Parser;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use serde::Serialize;

use crate::options::{Command, Daemon, Options, Setting, Side};
use crate::xen::Domain;

/// Writes all of it at once: standard output alone would write each line.
fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(io::stdout().write_all(&text)?)
}

/// Where a command runs.
#[derive(Debug, Clone, Copy)]
enum Place {
    Host,
    Guest,
}

/// Finds where this is, unless the command line says so.
fn find_place(run_dir: &Path, Side { host, guest }: Side) -> Result<Place> {
    // A socket that we may not reach is there, too: the query shows why. A holder's hallwayd may
    // be away for a moment.
    let at_host = hallway_control::socket(run_dir)
        .try_exists()
        .unwrap_or(true)
        || hallway_control::has_holder(run_dir);
    if host || at_host && !guest {
        Ok(Place::Host)
    } else if guest || guest::is_loaded() {
        Ok(Place::Guest)
    } else if guest::is_guest() {
        bail!("{}", guest::not_loaded())
    } else {
        bail!(
            "neither hallwayd (no {}) nor module hallway is here: on a host start hallwayd, or \
             give its --run-dir; in a guest {}",
            hallway_control::socket(run_dir).display(),
            guest::NO_DEVICE
        )
    }
}

/// Where `hallway doctor` looks. A machine that shows neither side is a host if hallwayd is
/// installed, or if it is dom0 of Xen, and otherwise a VM that lacks both doorbell and module.
fn place_for_doctor(run_dir: &Path, side: Side) -> Place {
    let is_host = || places::has("hallwayd") || xen::domain() == Some(Domain::Dom0);
    match find_place(run_dir, side) {
        Ok(place) => place,
        Err(_) if !guest::is_guest() && is_host() => Place::Host,
        Err(_) => Place::Guest,
    }
}

fn run(options: Options) -> Result<()> {
    match options.command {
        Command::Status {
            json,
            side,
            daemon: Daemon { run_dir },
        } => match find_place(&run_dir, side)? {
            Place::Host => host::status(&run_dir, json),
            Place::Guest => guest::status(json),
        },
        Command::Top {
            once,
            interval,
            side,
            daemon: Daemon { run_dir },
        } => {
            let place = find_place(&run_dir, side)?;
            top::show(place, &run_dir, Duration::from_secs(interval), once)
        }
        Command::Migrate {
            vm,
            uri,
            daemon: Daemon { run_dir },
            reset_outsourced,
            ..
        } => match uri {
            Some(uri) => migrate::migrate(&run_dir, &vm, &uri, reset_outsourced),
            None => migrate::cancel(&run_dir, &vm),
        },
        Command::Release {
            vm,
            timeout,
            reset_outsourced,
            command,
            daemon: Daemon { run_dir },
        } => {
            release::release(&run_dir, &vm, timeout, reset_outsourced)?;
            release::run_or_say(&run_dir, &vm, &command)
        }
        Command::Resume {
            vm,
            daemon: Daemon { run_dir },
        } => release::resume(&run_dir, &vm),
        Command::Doctor {
            side,
            daemon: Daemon { run_dir },
        } => match place_for_doctor(&run_dir, side) {
            Place::Host => doctor::host(&run_dir),
            Place::Guest => doctor::guest(),
        },
        Command::Metrics {
            listen,
            side,
            daemon: Daemon { run_dir },
        } => {
            // hallwayd may start later: each query says whether it is there.
            let place = find_place(&run_dir, side).unwrap_or(Place::Host);
            match listen {
                Some(path) => metrics::listen(place, &run_dir, &path),
                None => metrics::print(place, &run_dir),
            }
        }
        Command::Cpus {
            json,
            daemon: Daemon { run_dir },
        } => host::cpus(&run_dir, json),
        Command::QemuArgs {
            name,
            machine,
            ports,
            daemon: Daemon { run_dir },
        } => qemu::print(&run_dir, &name, machine, ports),
        Command::Enable { words } => libvirt::hand_over("enable", &words),
        Command::Disable { words } => libvirt::hand_over("disable", &words),
        Command::Connections { json } => guest::connections(json),
        Command::Tunnels {
            setting: Some(setting),
            ..
        } => guest::switch_tunnels(setting == Setting::On),
        Command::Tunnels { json, .. } => guest::tunnels(json),
        Command::Cat { kind, to } => vsock::cat(kind, &to),
        Command::Listen { kind, port } => vsock::listen(kind, &port),
        Command::Perf(options) => vsock::perf(&options),
        Command::On => guest::switch(true),
        Command::Off => guest::switch(false),
        Command::Outsource { setting, cgroup } => {
            outsource::switch(setting == Setting::On, &cgroup)
        }
        Command::Exec { command } => outsource::execute(&command),
        Command::Counters { json } => guest::counters(json),
    }
}

/// Whether the reader of our output, such as head, has had enough. Without that a broken pipe
/// is another one, and an error.
fn is_output_closed(error: &anyhow::Error) -> bool {
    let is_broken = error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
    let output = io::stdout();
    let mut fds = [PollFd::new(output.as_fd(), PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    is_broken
        && poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0]
            .revents()
            .is_some_and(|events| events.intersects(closed))
}

fn main() -> ExitCode {
    hallway_control::drop_empty_variable();
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_output_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            hallway_log::print_error("hallway", &error);
            ExitCode::FAILURE
        }
    }
}
