// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. The manual pages and completions of `hallway` are made of it, too, by
//! `hallway`'s own example `manual`, which is not linked with libvirt's library.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Does by libvirt what hallway and hallwayd ask for.
#[derive(Debug, Parser)]
#[command(name = "hallway-libvirt", bin_name = "hallway", version)]
pub struct Options {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Where the configuration files of groups are, unless a command names another directory.
pub const CONFIG_DIR: &str = "/etc/hallway/hallwayd.d";

/// What `enable` and `disable` have in common.
#[derive(Debug, Args)]
pub struct Common {
    /// Names of the domains
    #[arg(required = true, value_name = "VM")]
    pub vms: Vec<String>,
    /// The group of these VMs
    #[arg(long, default_value = "default")]
    pub group: String,
    /// Directory of the configuration files of groups
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIR)]
    pub config_dir: PathBuf,
    /// Directory of hallwayd's sockets
    #[arg(long, env = hallway_control::RUN_DIR_VARIABLE, value_name = "DIR",
          default_value = hallway_control::RUN_DIR)]
    pub run_dir: PathBuf,
    /// How long each step with libvirt may take, and another enable or disable that is at work
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

impl Common {
    /// `timeout`, as a duration.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Give VMs of libvirt what Hallway needs, and put them in a group
    Enable {
        #[command(flatten)]
        common: Common,
        /// One region of this size for the whole group, not one for each two VMs
        #[arg(long, value_name = "SIZE")]
        shared: Option<String>,
        /// Members of that region, the host included [default: 8, or as many as it has]
        #[arg(long, value_name = "NUMBER", requires = "shared")]
        slots: Option<u32>,
        /// Root ports for ring memory, on machines that have such [default: 8, or as many as a
        /// VM has]
        #[arg(long, value_name = "NUMBER",
              value_parser = clap::value_parser!(u32).range(1..=16))]
        ports: Option<u32>,
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
