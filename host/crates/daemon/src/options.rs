// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Parser;
use hallway_membership::Geometry;

use crate::config::PAIR;

/// Serves QEMU's ivshmem-doorbell devices and owns the memory regions that VMs
/// share.
#[derive(Debug, Parser)]
#[command(
    name = "hallwayd",
    version,
    after_help = "Give each VM one doorbell device from the start:\n  \
        -uuid UUID\n  \
        -chardev socket,id=hd,path=/run/hallway/hallwayd.sock\n  \
        -device ivshmem-doorbell,chardev=hd,vectors=1,master=on\n\
        and once it has booted, by QEMU's monitor, its region:\n  \
        object_add memory-backend-file,id=ring0,share=on,size=256M,mem-path=/dev/shm/hallway/default\n  \
        device_add ivshmem-plain,memdev=ring0\n\n\
        SIGTERM and SIGINT end the daemon alone while VMs are connected: a small holder process \
        keeps their sockets, doorbells and memory go on working, and the next hallwayd with the \
        same --run-dir takes over. So it does after a crash. With no VM connected the holder \
        goes too. hallwayd --stop ends both and removes regions and sockets; VMs still running \
        go back to plain TCP and must be restarted to be served again."
)]
pub struct Options {
    /// Directory for sockets, pid file and holder [default: that of --socket, else /run/hallway]
    #[arg(long, env = "HALLWAY_RUN_DIR", value_name = "DIR")]
    pub run_dir: Option<PathBuf>,

    /// Socket for QEMU [default: hallwayd.sock in the run directory]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Directory for the regions' files; must be memory
    #[arg(long, value_name = "DIR", default_value = "/dev/shm/hallway")]
    pub region_dir: PathBuf,

    /// Which VMs there are, who may talk to whom, and by which memory: host/hallwayd.toml explains it
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,

    /// Look whether the configuration is good, and end
    #[arg(long, requires = "config")]
    pub check_config: bool,

    /// A region that every VM may join: its name, its size (a power of two), its number of members
    /// with the host [default without --config: default:256M]
    #[arg(long = "region", value_name = "NAME:SIZE[:SLOTS]")]
    pub regions: Vec<RegionSpec>,

    /// Let members of this group start QEMUs: socket and regions are theirs too [default: this user alone]
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,

    /// End the daemon of this run directory and its holder, and leave nothing behind
    #[arg(long)]
    pub stop: bool,

    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: tracing::Level,

    /// Be the holder (started by the daemon itself)
    #[arg(long, hide = true)]
    pub holder: bool,
}

impl Options {
    /// Where sockets, pid file and holder are.
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
        if self.regions.is_empty() && self.config.is_none() {
            let geometry = Geometry::new(256 << 20, SLOTS);
            return vec![RegionSpec {
                name: "default".into(),
                geometry: geometry.expect("a power of two, with room for all"),
            }];
        }
        self.regions.clone()
    }

    /// Where QEMU connects.
    pub fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| self.run_dir().join("hallwayd.sock"))
    }
}

/// Members of a region that does not say how many, the host among them.
pub const SLOTS: u32 = 4;

/// A region that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionSpec {
    /// Also that of its file.
    pub name: String,
    /// How it is cut up.
    pub geometry: Geometry,
}

impl FromStr for RegionSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        check_name(name)?;
        if name.starts_with(PAIR) {
            return Err(format!(
                "{name:?} would be the region of two VMs of a configuration: another name"
            ));
        }
        let size = size(
            parts
                .next()
                .ok_or("a region needs a size: NAME:SIZE, such as web:256M")?,
        )?;
        let slots = match parts.next() {
            None => SLOTS,
            Some(slots) => slots
                .parse()
                .map_err(|_| format!("{slots:?} is no number of slots"))?,
        };
        if parts.next().is_some() {
            return Err("a region is NAME:SIZE or NAME:SIZE:SLOTS".into());
        }
        let geometry = Geometry::new(size, slots).map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.into(),
            geometry,
        })
    }
}

/// Whether a region may be called so: its file is, too.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!(
            "{name:?} is no name for a region: up to 64 letters, digits, - _ ."
        ));
    }
    Ok(())
}

/// Reads a number of bytes such as `256M`.
pub fn size(text: &str) -> Result<u64, String> {
    let shift = match text.chars().last() {
        Some('K' | 'k') => 10,
        Some('M' | 'm') => 20,
        Some('G' | 'g') => 30,
        _ => 0,
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("{text:?} is no size: a number, with K, M or G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions() {
        let spec: RegionSpec = "web:64M:8".parse().unwrap();
        assert_eq!(
            (spec.name.as_str(), spec.geometry.size()),
            ("web", 64 << 20)
        );
        assert_eq!(spec.geometry.slots(), 8);
        for bad in [
            "",
            "web",
            "web:3M",
            "../x:64M",
            "web:64M:1",
            "web:64M:2:3",
            ".w:64M",
            "w:M",
        ] {
            assert!(bad.parse::<RegionSpec>().is_err(), "{bad}");
        }
        let said = "pair.a.b:64M".parse::<RegionSpec>().unwrap_err();
        assert!(said.contains("the region of two VMs"), "{said}");
    }

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
