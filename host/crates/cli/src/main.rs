// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway`: shows and switches Hallway, on the host and in a guest.

mod guest;
mod host;
mod migrate;
mod outsource;
mod table;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, Result};
use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

/// Shows and switches Hallway, on the host and in a guest.
#[derive(Debug, Parser)]
#[command(name = "hallway", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the daemon's regions and VMs on the host, or the module in a guest
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// This is the host: ask hallwayd
        #[arg(long, conflicts_with = "guest")]
        host: bool,
        /// This is a guest: ask the module
        #[arg(long)]
        guest: bool,
        /// Directory of hallwayd's sockets
        #[arg(long, env = hallway_control::RUN_DIR_VARIABLE, value_name = "DIR",
              default_value = hallway_control::RUN_DIR)]
        run_dir: PathBuf,
    },
    #[command(
        override_usage = "hallway migrate <VM> <URI> [--reset-outsourced[=SECONDS]]\n       hallway migrate <VM> --cancel"
    )]
    /// Migrate a VM to another host, with its ring memory out of the way; see docs/migration.md
    Migrate {
        /// Its name in hallwayd's configuration, or its UUID
        vm: String,
        /// URI at which the destination's QEMU waits for it, such as tcp:host2:4444
        #[arg(required_unless_present = "cancel", conflicts_with = "cancel")]
        uri: Option<String>,
        /// Go on where that resets connections of outsourced sockets; they have that long to
        /// end (default: 10), and there are no new ones meanwhile
        #[arg(long, conflicts_with = "cancel", value_name = "SECONDS", num_args = 0..=1,
              require_equals = true, default_missing_value = "10",
              value_parser = clap::value_parser!(u64).range(0..=3600))]
        reset_outsourced: Option<u64>,
        /// End the migration that is going on: the VM stays here
        #[arg(long)]
        cancel: bool,
        /// Directory of hallwayd's sockets
        #[arg(long, env = hallway_control::RUN_DIR_VARIABLE, value_name = "DIR",
              default_value = hallway_control::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// List the guest's connections to members and outsourced sockets, what carries them, and why
    Connections {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the VMs that the guest reaches by AF_VSOCK, with their CIDs; see docs/tunnels.md
    Tunnels {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Promote the guest's connections from now on
    On,
    /// Take all the guest's connections back to plain TCP
    Off,
    /// Turn outsourcing on or off for the guest's new sockets and listeners; see docs/outsourcing.md
    Outsource {
        /// What to turn it
        setting: Setting,
        /// Only for programs in this cgroup or below it, such as /sys/fs/cgroup/system.slice;
        /// may be given more than once
        #[arg(long, value_name = "DIR")]
        cgroup: Vec<PathBuf>,
    },
    /// Run a program in the cgroup hallway.exec, and outsource its sockets
    Exec {
        /// The program, and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Show the module's counters
    Counters {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Setting {
    On,
    Off,
}

fn print_json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

fn run(options: Options) -> Result<()> {
    match options.command {
        Command::Status {
            json,
            host,
            guest,
            run_dir,
        } => {
            // A socket that we may not reach is there, too: the query shows why.
            let at_host = hallway_control::socket(&run_dir)
                .try_exists()
                .unwrap_or(true);
            if host || at_host && !guest {
                host::status(&run_dir, json)
            } else if guest || guest::is_loaded() {
                guest::status(json)
            } else if guest::is_guest() {
                bail!("{}", guest::not_loaded())
            } else {
                bail!(
                    "neither hallwayd (no {}) nor module hallway is here: on a host start \
                     hallwayd, or give its --run-dir; in a guest run modprobe hallway",
                    hallway_control::socket(&run_dir).display()
                )
            }
        }
        Command::Migrate {
            vm,
            uri,
            run_dir,
            reset_outsourced,
            ..
        } => match uri {
            Some(uri) => migrate::migrate(&run_dir, &vm, &uri, reset_outsourced),
            None => migrate::cancel(&run_dir, &vm),
        },
        Command::Connections { json } => guest::connections(json),
        Command::Tunnels { json } => guest::tunnels(json),
        Command::On => guest::switch(true),
        Command::Off => guest::switch(false),
        Command::Outsource { setting, cgroup } => {
            outsource::switch(setting == Setting::On, &cgroup)
        }
        Command::Exec { command } => outsource::execute(&command),
        Command::Counters { json } => guest::counters(json),
    }
}

fn main() -> ExitCode {
    hallway_control::drop_empty_variable();
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output, such as head, has had enough.
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hallway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
