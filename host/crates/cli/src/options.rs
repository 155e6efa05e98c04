// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line, of which manual pages and completions are made, too.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Shows and switches Hallway, on the host and in a guest.
#[derive(Debug, Parser)]
#[command(name = "hallway", version)]
pub struct Options {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the daemon's regions and VMs on the host, or the module in a guest
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Which of both this is
        #[command(flatten)]
        side: Side,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Show what goes through rings now, and why the rest does not, again and again
    Top {
        /// Show it once; so does an output that is no terminal
        #[arg(long)]
        once: bool,
        /// Time between two looks
        #[arg(long, value_name = "SECONDS", default_value_t = 2,
              value_parser = clap::value_parser!(u64).range(1..=60))]
        interval: u64,
        /// Which of both this is
        #[command(flatten)]
        side: Side,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Say why nothing goes through rings, on the host or in a guest, and what to do
    Doctor {
        /// Which of both this is
        #[command(flatten)]
        side: Side,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Print hallwayd's metrics as OpenMetrics, or in a guest the module's
    Metrics {
        /// Serve them by HTTP at this Unix socket, until a signal ends it
        #[arg(long, value_name = "PATH")]
        listen: Option<PathBuf>,
        /// On which side
        #[command(flatten)]
        side: Side,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// List the CPUs that VMs were given, and why; see docs/cpus.md
    Cpus {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Print what a QEMU without libvirt needs: words, and comments about the rest
    QemuArgs {
        /// Name of the VM
        name: String,
        /// Its machine
        #[arg(long, value_enum, default_value = "q35")]
        machine: Machine,
        /// Root ports for ring memory: one for each region that it is in at once
        #[arg(long, value_name = "NUMBER", default_value_t = 4,
              value_parser = clap::value_parser!(u32).range(1..=16))]
        ports: u32,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Give VMs of libvirt what Hallway needs, and put them in a group (--help: how)
    #[command(disable_help_flag = true)]
    Enable {
        /// Names of the domains, and options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "VM")]
        words: Vec<OsString>,
    },
    /// Take back what enable did
    #[command(disable_help_flag = true)]
    Disable {
        /// Names of the domains, and options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "VM")]
        words: Vec<OsString>,
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
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    #[command(
        override_usage = "hallway release <VM> [OPTIONS]\n       hallway release <VM> [OPTIONS] -- <COMMAND>..."
    )]
    /// Take a VM's ring memory out, so that it can be migrated, saved or snapshotted; see
    /// docs/migration.md
    Release {
        /// Its name in hallwayd's configuration, or its UUID
        vm: String,
        /// How long its guest may take to let each region go
        #[arg(long, value_name = "SECONDS", default_value_t = 30,
              value_parser = clap::value_parser!(u64).range(1..=3600))]
        timeout: u64,
        /// Go on where that resets connections of outsourced sockets; they have that long to
        /// end (default: 10), and there are no new ones meanwhile
        #[arg(long, value_name = "SECONDS", num_args = 0..=1,
              require_equals = true, default_missing_value = "10",
              value_parser = clap::value_parser!(u64).range(0..=3600))]
        reset_outsourced: Option<u64>,
        /// What to run while the memory is out, such as virsh migrate. Then it comes back, if
        /// the VM is still here; the exit status is the command's
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Give a VM the ring memory again that was released
    Resume {
        /// Its name in hallwayd's configuration, or its UUID
        vm: String,
        /// Where hallwayd is
        #[command(flatten)]
        daemon: Daemon,
    },
    /// List the guest's connections to members and outsourced sockets, what carries them, and why
    Connections {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the VMs that the guest reaches by AF_VSOCK, with their CIDs; or switch tunnels on or
    /// off, which resets those that are open; see docs/tunnels.md
    Tunnels {
        /// What to switch them
        #[arg(conflicts_with = "json")]
        setting: Option<Setting>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Connect to a program of a VM by AF_VSOCK, or of the host; copy input and output
    ///
    /// With --datagrams, each read of the input is a datagram: a line of a terminal, at most 65536
    /// bytes of a file. The command ends half a second after its input.
    Cat {
        /// What for
        #[command(flatten)]
        kind: Kind,
        /// Where to: vm2:5000, host:5000, vm2:echo with a name of /etc/hallway.services, CID:5000
        to: String,
    },
    /// Listen for one connection by AF_VSOCK; copy input and output
    ///
    /// With --datagrams, all that is sent to the port is copied to the output. The input goes to
    /// the first sender. The command ends when it is killed.
    Listen {
        /// What for
        #[command(flatten)]
        kind: Kind,
        /// The port, or its name in /etc/hallway.services
        port: String,
    },
    /// Measure messages by AF_VSOCK
    Perf(Perf),
    /// Promote the guest's connections from now on
    On,
    /// Demote all the guest's connections to plain TCP
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

/// Which side of Hallway this is; without one it is found out.
#[derive(Debug, Clone, Copy, Args)]
pub struct Side {
    /// This is the host: ask hallwayd
    #[arg(long, conflicts_with = "guest")]
    pub host: bool,
    /// This is a guest: ask the module
    #[arg(long)]
    pub guest: bool,
}

/// Where hallwayd is.
#[derive(Debug, Args)]
pub struct Daemon {
    /// Directory of hallwayd's sockets
    #[arg(long, env = hallway_control::RUN_DIR_VARIABLE, value_name = "DIR",
          default_value = hallway_control::RUN_DIR)]
    pub run_dir: PathBuf,
}

/// The type of socket.
#[derive(Debug, Clone, Copy, Args)]
pub struct Kind {
    /// Messages (SOCK_SEQPACKET), not bytes (SOCK_STREAM)
    #[arg(long)]
    pub packets: bool,
    /// Datagrams (SOCK_DGRAM), each of which arrives whole or is lost; see docs/tunnels.md
    #[arg(long, conflicts_with = "packets")]
    pub datagrams: bool,
}

/// What `hallway perf` measures.
#[derive(Debug, Args)]
pub struct Perf {
    /// Where `hallway perf --serve PORT` runs, such as vm2:5001
    #[arg(required_unless_present = "serve", conflicts_with = "serve")]
    pub to: Option<String>,
    /// Be the other end, until killed
    #[arg(long, value_name = "PORT")]
    pub serve: Option<String>,
    /// Of which type
    #[command(flatten)]
    pub kind: Kind,
    /// Bytes of a message
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub size: u32,
    /// Seconds to measure for
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// One message at a time there and back, not as many as go
    #[arg(long)]
    pub round_trip: bool,
}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Setting {
    /// On
    On,
    /// Off
    Off,
}

/// Machines of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// i440FX: QEMU's default
    Pc,
    /// With PCI Express, as libvirt and cloud images have it
    Q35,
    /// Without firmware; it needs pcie=on
    Microvm,
}
