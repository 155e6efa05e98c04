// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line. The example `manpage` makes a manual page of it.

use std::path::{Path, PathBuf};

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::Parser;
use hallway_membership::Geometry;
use tracing::Level;

use crate::regionspec::{RegionSpec, SLOTS};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Serves QEMU's ivshmem-doorbell devices and owns the memory regions that VMs
/// share.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "hallwayd",
    version,
    after_help = "Give each VM one doorbell device from the start:\n  \
        -uuid UUID\n  \
        -chardev socket,id=hd,path=/run/hallway/hallwayd.sock\n  \
        -device ivshmem-doorbell,chardev=hd,vectors=1,master=on\n\
        and once it has booted, by QEMU's monitor, its region:\n  \
        object_add memory-backend-file,id=mem0,share=on,size=256M,mem-path=/dev/shm/hallway/default\n  \
        device_add ivshmem-plain,id=ring0,memdev=mem0\n\n\
        SIGTERM and SIGINT end the daemon alone while VMs are connected: a small holder process \
        keeps their sockets, doorbells and memory go on working, and the next hallwayd with the \
        same --run-dir takes over. It does so after a crash, too. With no VM connected the holder \
        ends as well. hallwayd --stop ends both and removes regions and sockets; VMs still running \
        go on over plain TCP and must be restarted to be served again."
)]
pub struct Options {
    /// Directory for sockets, pid file and holder [default: that of --socket, else /run/hallway]
    #[arg(long, env = hallway_control::RUN_DIR_VARIABLE, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,

    /// Socket for QEMU [default: hallwayd.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Directory for the files of regions that people plug in; must be memory
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/hallway")]
    pub region_dir: PathBuf,

    /// Which VMs there are, which may talk to each other, and by which memory: hallwayd.toml(5)
    /// explains it. The files *.toml of a directory beside it, with .d in place of .toml, add to it
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,

    /// Check the configuration, and end
    #[arg(long, requires = "config", conflicts_with = "stop")]
    pub check_config: bool,

    /// A region that every VM may join, as a file that people plug in: its name, its size (a power
    /// of two), its number of members with the host [default without --config and --xen: default:256M]
    #[arg(long = "region", value_name = "NAME:SIZE[:SLOTS]")]
    pub regions: Vec<RegionSpec>,

    /// Serve the domains of Xen, in dom0, by xenstored's socket [without a value: /run/xenstored/socket]
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true,
          default_missing_value = hallway_xenstore::SOCKET)]
    pub xen: Option<PathBuf>,

    /// Let members of this group start QEMUs: they may use the socket, and the files of regions [default: this user alone]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub group: Option<String>,

    /// Let members of this group ask for the status, and for nothing else: hallway status, metrics, top
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub status_group: Option<String>,

    /// End the daemon of this run directory and its holder, and leave nothing behind
    #[arg(long)]
    pub stop: bool,

    /// Have the daemon of this run directory read its configuration again; an error if it refuses
    #[arg(long, conflicts_with_all = ["stop", "check_config"])]
    pub reload: bool,

    /// What to log
    #[arg(long, value_name = "LEVEL", default_value = "info",
          value_parser = PossibleValuesParser::new(LEVELS).try_map(|level| level.parse::<Level>()))]
    pub log_level: Level,

    /// Be the holder (started by the daemon itself)
    #[arg(long, hide = true)]
    pub holder: bool,
}

impl Options {
    /// Directory of sockets, pid file and holder.
    pub fn run_dir(&self) -> PathBuf {
        let beside = self.socket.as_deref().and_then(Path::parent);
        match (&self.run_dir, beside) {
            (Some(dir), _) => dir.clone(),
            (None, Some(dir)) if dir != Path::new("") => dir.into(),
            (None, Some(_)) => ".".into(),
            (None, None) => hallway_control::RUN_DIR.into(),
        }
    }

    /// The regions of the command line.
    pub fn regions(&self) -> Vec<RegionSpec> {
        if self.regions.is_empty() && self.config.is_none() && self.xen.is_none() {
            let geometry = Geometry::new(256 << 20, SLOTS);
            return vec![RegionSpec {
                name: "default".into(),
                geometry: geometry.expect("a power of two, with room for all"),
            }];
        }
        self.regions.clone()
    }

    /// Path of the socket to which QEMUs connect.
    pub fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| self.run_dir().join("hallwayd.sock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_directory_follows_the_socket() {
        let parse = |args: &[&str]| Options::parse_from([&["hallwayd"], args].concat());
        assert_eq!(
            parse(&["--socket", "/tmp/h/q.sock"]).run_dir(),
            Path::new("/tmp/h")
        );
        assert_eq!(
            parse(&["--run-dir", "/tmp/r"]).socket(),
            Path::new("/tmp/r/hallwayd.sock")
        );
    }
}
