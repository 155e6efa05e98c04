// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway-libvirt`: what Hallway does by libvirt, for `hallway` and for `hallwayd`.
//!
//! It is a program of its own since hosts without libvirt, and guests, lack its library.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`domain`] | what a domain's XML needs, put in and taken out |
//! | [`enable`] | `hallway enable` and `hallway disable` |
//! | [`group`] | the configuration files that these write |
//! | [`step`] | time limits |
//! | [`serve`] | the monitors of domains, for `hallwayd` |
//! | [`monitor`] | a domain's monitor, by libvirt |

mod domain;
mod enable;
mod group;
mod monitor;
mod serve;
mod step;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Does by libvirt what hallway and hallwayd ask for.
#[derive(Debug, Parser)]
#[command(name = "hallway-libvirt", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

/// What `enable` and `disable` have in common.
#[derive(Debug, Args)]
pub struct Common {
    /// Names of the domains
    #[arg(required = true)]
    vms: Vec<String>,
    /// The group of these VMs
    #[arg(long, default_value = "default")]
    group: String,
    /// Directory of the configuration files of groups
    #[arg(long, value_name = "DIR", default_value = "/etc/hallway/hallwayd.d")]
    config_dir: PathBuf,
    /// Directory of hallwayd's sockets
    #[arg(long, env = hallway_control::RUN_DIR_VARIABLE, value_name = "DIR",
          default_value = hallway_control::RUN_DIR)]
    run_dir: PathBuf,
    /// How long each step with libvirt may take, and another enable or disable that is at work
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl Common {
    fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Give domains what Hallway needs
    Enable {
        #[command(flatten)]
        common: Common,
        /// One region of this size for the whole group, not one for each two VMs
        #[arg(long, value_name = "SIZE")]
        shared: Option<String>,
        /// Members of that region, the host included
        #[arg(long, value_name = "NUMBER", requires = "shared", default_value_t = 8)]
        slots: u32,
        /// Root ports for ring memory, on machines that have such
        #[arg(long, value_name = "NUMBER", default_value_t = 4,
              value_parser = clap::value_parser!(u32).range(1..=16))]
        ports: u32,
    },
    /// Take back what enable did
    Disable {
        #[command(flatten)]
        common: Common,
    },
    /// Serve hallwayd, which starts this
    #[command(hide = true)]
    Serve,
}

fn main() -> ExitCode {
    hallway_control::drop_empty_variable();
    let (name, result) = match Options::parse().command {
        Command::Enable {
            common,
            shared,
            slots,
            ports,
        } => {
            let region = shared.map(|size| (size, slots));
            ("hallway", enable::enable(&common, region, ports))
        }
        Command::Disable { common } => ("hallway", enable::disable(&common)),
        Command::Serve => ("hallway-libvirt", serve::serve()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
