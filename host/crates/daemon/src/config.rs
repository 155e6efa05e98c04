// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file: which VMs there are, which may talk to each other, by
//! which memory, and how much of it. `host/hallwayd.toml` explains it to people.
//!
//! Unknown keys are refused. Each error names its line, and what would be right
//! there.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use hallway_abi::region::{ENDPOINTS_MAX, PAGE_ENTRIES, TUNNEL_RANGES};
use hallway_abi::tunnel::{CID_FIRST, CID_GIVEN_FIRST, HOST_UUID};
use hallway_control::{is_vm_name, VM_NAMES};
use hallway_cpus::{Limits, Mechanism, Rules};
use hallway_host::Policy as TunnelPolicy;
use hallway_membership::{is_own, parse_size, Error, Geometry, Uuid};
use hallway_outsource::orders::{check_family, Policy};
use nix::unistd::{Gid, Group as UserGroup, Uid, User};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::options::Options;
use crate::regionspec::{check_name, RegionSpec, OUTSOURCED, PAIR, SLOTS, TUNNELED};
use crate::run::{check_dir, SOCKET_PATH_MAX};

/// Members of a pair's region: the host and two VMs.
const PAIR_SLOTS: u32 = 3;
const PAIR_SIZE: &str = "16M";
const PAIR_IDLE: u64 = 60;

/// What stands in place of a monitor's path that libvirt has.
pub const LIBVIRT: &str = "libvirt";

/// Members of the region of a VM and a helper: the host and these two.
const HELPER_SLOTS: u32 = 3;
const HELPER_MEMORY: &str = "64M";
const HELPER_USER: &str = "nobody";
const TUNNELS: u32 = 1024;
/// Bytes of `_4294967295`, which the path of a listener of the host ends with.
const PORT_SUFFIX: usize = 11;
/// Endpoints are for as many more that are being closed.
const SOCKETS_MAX: u32 = ENDPOINTS_MAX as u32 / 2;
const OUTSOURCED_SOCKETS: u32 = 1024;
const OUTSOURCED_LISTENERS: u32 = 32;
/// A higher rate is none.
const RATE_MAX: u32 = 1_000_000;
const SPIN_US_MAX: u32 = 1000;
/// Most CPUs that a VM may be given.
const CPUS_MAX: u32 = 256;
/// The longest time that the scheduler may wait for something.
const SECONDS_MAX: u32 = 86400;
/// Most entries of each list of a policy: it travels in one packet.
const POLICY_MAX: usize = 256;

/// The configuration, checked.
#[derive(Debug, Default, PartialEq)]
pub struct Config {
    /// Most bytes that all regions may have together.
    pub host_limit: Option<u64>,
    /// Most bytes that the regions of one VM may have together.
    pub vm_limit: Option<u64>,
    /// The groups of VMs that may talk to each other.
    pub groups: Vec<Group>,
    /// Every VM.
    pub vms: Vec<VmConfig>,
    /// How CPUs are given to VMs and taken back; nothing: as without a word about it.
    pub cpus: Option<Rules>,
}

/// VMs that may talk to each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name; a shared region has the same.
    pub name: String,
    /// The memory by which its VMs talk.
    pub isolation: Isolation,
    /// Ports that its VMs may reach of each other by tunnels, the first and the last of each
    /// range; nothing: any.
    pub tunnels: Option<Vec<(u32, u32)>>,
}

/// The memory by which the VMs of a group talk.
#[derive(Debug, PartialEq, Eq)]
pub enum Isolation {
    /// One region for all of them.
    Shared(Geometry),
    /// A region for each two of them, made at their first traffic.
    Pair {
        /// How each region is divided.
        geometry: Geometry,
        /// A region without a promoted connection for this long is withdrawn.
        idle: Duration,
    },
}

/// Where the monitor of a QEMU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At a socket that it has for `hallwayd` alone, with this path.
    Socket(PathBuf),
    /// At libvirt, which runs the VM.
    Libvirt,
}

impl Place {
    /// What the configuration says for it.
    pub fn word(&self) -> &Path {
        match self {
            Self::Socket(path) => path,
            Self::Libvirt => Path::new(LIBVIRT),
        }
    }
}

/// A VM of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its name for people.
    pub name: String,
    /// Its UUID, as its QEMU's `-uuid` says.
    pub uuid: Uuid,
    /// The monitor of its QEMU.
    pub monitor: Option<Place>,
    /// Ids of the root ports for its ring memory; empty: any that is free.
    pub ports: Vec<String>,
    /// Indexes of its groups.
    pub groups: Vec<usize>,
    /// The helper that executes sockets of the host for it, if one does.
    pub outsource: Option<Helper>,
    /// The helper that is the host's end of its tunnels, if there is one.
    pub tunnels: Option<Helper>,
    /// How many CPUs it may be given, if `hallwayd` says how many.
    pub cpus: Option<Limits>,
    /// Its CID in `AF_VSOCK`; nothing: that of its UUID.
    pub cid: Option<u32>,
}

/// What a helper is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It executes sockets of the host.
    Outsource,
    /// It is the host's end of tunnels.
    Tunnels,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outsource => "outsourcer",
            Self::Tunnels => "host end",
        })
    }
}

impl Role {
    const ALL: [Self; 2] = [Self::Outsource, Self::Tunnels];

    /// What the name of its region has before that of the VM.
    fn prefix(self) -> &'static str {
        match self {
            Self::Outsource => OUTSOURCED,
            Self::Tunnels => TUNNELED,
        }
    }
}

/// A helper of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HelperId {
    /// Number of its VM.
    pub vm: usize,
    /// What it is for.
    pub role: Role,
}

impl HelperId {
    /// A VM's outsourcer.
    pub fn outsourcer(vm: usize) -> Self {
        let role = Role::Outsource;
        Self { vm, role }
    }
}

/// A process of the host that shares a region with one VM.
#[derive(Debug, PartialEq, Eq)]
pub struct Helper {
    /// Path of the network namespace in which its sockets are; nothing: one of its own,
    /// which is empty.
    pub netns: Option<PathBuf>,
    /// User that the process runs as, where `hallwayd` is root.
    pub user: Uid,
    /// The main group of that user.
    pub group: Gid,
    /// How its region is divided.
    pub geometry: Geometry,
    /// What the guest may do.
    pub task: Task,
    /// Where it listens for programs of the host.
    pub listen: Option<Listen>,
}

/// What a guest may do by a helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Task {
    /// The policy of an outsourcer.
    Outsource(Policy),
    /// The policy of a host end.
    Tunnels(TunnelPolicy),
}

/// Where a helper listens for programs of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Path of the socket.
    pub path: PathBuf,
    /// Members of this group may connect, besides this user.
    pub group: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawFile {
    #[serde(default)]
    limits: RawLimits,
    cpus: Option<Spanned<RawRules>>,
    #[serde(default)]
    group: Vec<Spanned<RawGroup>>,
    #[serde(default)]
    vm: Vec<Spanned<RawVm>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawLimits {
    host: Option<Spanned<String>>,
    vm: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawIsolation {
    Shared,
    Pair,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawGroup {
    name: Spanned<String>,
    isolation: RawIsolation,
    size: Option<Spanned<String>>,
    slots: Option<Spanned<u32>>,
    idle: Option<Spanned<u64>>,
    tunnels: Option<Spanned<RawPorts>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected true, false, or a list of ports")]
enum RawPorts {
    All(bool),
    List(Vec<RawPort>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a port, or \"6000-6999\"")]
enum RawPort {
    One(u32),
    Range(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawVm {
    name: Spanned<String>,
    uuid: Spanned<String>,
    monitor: Option<Spanned<PathBuf>>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    groups: Vec<Spanned<String>>,
    outsource: Option<Spanned<RawOutsource>>,
    tunnels: Option<Spanned<RawTunnels>>,
    cpus: Option<Spanned<RawCpus>>,
    cid: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawMechanism {
    Park,
    Weight,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawCpus {
    mechanism: Option<RawMechanism>,
    min: Option<Spanned<u32>>,
    max: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawRules {
    busy: Option<Spanned<u32>>,
    idle: Option<Spanned<u32>>,
    contended: Option<Spanned<u32>>,
    grow: Option<Spanned<u32>>,
    shrink: Option<Spanned<u32>>,
    give_back: Option<Spanned<u32>>,
    pause: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawTunnels {
    socket: Spanned<PathBuf>,
    access: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    sockets: Option<Spanned<u32>>,
    memory: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawOutsource {
    netns: Option<Spanned<PathBuf>>,
    user: Option<Spanned<String>>,
    #[serde(default)]
    source: Vec<Spanned<String>>,
    #[serde(default)]
    connect: Vec<Spanned<String>>,
    #[serde(default)]
    publish: Vec<Spanned<String>>,
    sockets: Option<Spanned<u32>>,
    listeners: Option<Spanned<u32>>,
    rate: Option<Spanned<u32>>,
    burst: Option<Spanned<u32>>,
    arrival_rate: Option<Spanned<u32>>,
    arrival_burst: Option<Spanned<u32>>,
    spin_us: Option<Spanned<u32>>,
    memory: Option<Spanned<String>>,
}

/// What is wrong, and its byte offset in the file.
struct Fault {
    at: usize,
    what: String,
}

/// Makes a fault at the place of `part`.
fn fault<T>(part: &Spanned<T>, what: impl ToString) -> Fault {
    Fault {
        at: part.span().start,
        what: what.to_string(),
    }
}

impl Config {
    /// That of a command line, read now; an empty one without `--config`.
    pub fn of(options: &Options) -> Result<Self> {
        let Some(path) = &options.config else {
            return Ok(Self::default());
        };
        let config = Self::load(path)?;
        check_together(&config, &options.regions)?;
        if options.xen.is_some() {
            config.check_for_xen()?;
        }
        Ok(config)
    }

    /// Reads and checks the file, and after it those of the directory beside it: of
    /// `hallwayd.toml` each `hallwayd.d/*.toml`, in the order of their names.
    pub fn load(path: &Path) -> Result<Self> {
        let mut config = Self::default();
        config.read(path)?;
        for part in parts(path)? {
            config.read(&part)?;
        }
        Ok(config)
    }

    /// Refuses what is not enforced for domains of Xen.
    fn check_for_xen(&self) -> Result<()> {
        if let Some(group) = self.groups.iter().find(|group| group.tunnels.is_some()) {
            bail!(
                "group {}: domains of Xen know of no `tunnels` that they may reach: take it out, or \
                 have --xen serve without this group",
                group.name
            );
        }
        if let Some(vm) = self.vms.iter().find(|vm| vm.cid.is_some()) {
            bail!(
                "VM {}: a domain of Xen has the CID of its UUID: take `cid` out",
                vm.name
            );
        }
        Ok(())
    }

    /// Adds what a file says.
    fn read(&mut self, path: &Path) -> Result<()> {
        let meta = std::fs::metadata(path);
        if let Some(meta) = meta.ok().filter(|meta| meta.is_file()) {
            if !is_own(meta.uid()) || meta.mode() & 0o002 != 0 {
                bail!(
                    "{}: other users may change it (owner {}, mode {:04o}): chown it to root, and \
                     chmod 0644 it",
                    path.display(),
                    meta.uid(),
                    meta.mode() & 0o7777
                );
            }
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{}: cannot be read", path.display()))?;
        self.add(&text).map_err(|fault| {
            let line = 1 + text.as_bytes()[..fault.at.min(text.len())]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
            anyhow::anyhow!("{}:{line}: {}", path.display(), fault.what)
        })
    }

    fn add(&mut self, text: &str) -> Result<(), Fault> {
        let raw: RawFile = toml::from_str(text).map_err(|error| Fault {
            at: error.span().map_or(0, |span| span.start),
            what: plain(error.message()),
        })?;
        for (raw, own) in [
            (&raw.limits.host, &mut self.host_limit),
            (&raw.limits.vm, &mut self.vm_limit),
        ] {
            let Some(given) = raw else {
                continue;
            };
            if own.is_some() {
                return Err(fault(given, "another file has this limit already"));
            }
            *own = limit(given)?;
        }
        if let (Some(host), Some(vm)) = (self.host_limit, self.vm_limit) {
            let given = raw.limits.vm.as_ref().or(raw.limits.host.as_ref());
            if let Some(raw) = given.filter(|_| vm > host) {
                return Err(fault(raw, "limits.vm is more than limits.host"));
            }
        }
        if let Some(given) = &raw.cpus {
            if self.cpus.is_some() {
                return Err(fault(given, "another file has [cpus] already"));
            }
            self.cpus = Some(rules(given.get_ref())?);
        }
        let before = self.groups.len();
        for group in &raw.group {
            let group = self.group(group)?;
            self.groups.push(group);
        }
        for vm in &raw.vm {
            let vm = self.vm(vm)?;
            self.vms.push(vm);
        }
        for number in 0..self.groups.len() {
            // A group of a file before may have got another VM.
            let own = number.checked_sub(before).map(|own| &raw.group[own]);
            let at = own.map_or(0, |group| group.span().start);
            self.fits(number).map_err(|what| Fault { at, what })?;
        }
        // The limit may be this file's, and VMs those of files before.
        if let Some(given) = &raw.limits.vm {
            for vm in &self.vms {
                self.check_size(vm).map_err(|what| fault(given, what))?;
            }
        }
        Ok(())
    }

    fn group(&self, whole: &Spanned<RawGroup>) -> Result<Group, Fault> {
        let raw = whole.get_ref();
        let name = raw.name.get_ref();
        check_name(name).map_err(|what| fault(&raw.name, what))?;
        if name.starts_with(PAIR) {
            let what = format!("names with {PAIR} are for the regions of pairs: choose another");
            return Err(fault(&raw.name, what));
        }
        for role in Role::ALL {
            let prefix = role.prefix();
            if name.starts_with(prefix) {
                let what =
                    format!("names with {prefix} are for the regions of {role}s: choose another");
                return Err(fault(&raw.name, what));
            }
        }
        if self.groups.iter().any(|group| group.name == *name) {
            return Err(fault(&raw.name, format!("there are two groups {name}")));
        }
        let isolation = match raw.isolation {
            RawIsolation::Shared => {
                if let Some(idle) = &raw.idle {
                    let what = "idle is for isolation = \"pair\": a shared region stays";
                    return Err(fault(idle, what));
                }
                let slots = raw.slots.as_ref().map_or(SLOTS, |slots| *slots.get_ref());
                Isolation::Shared(geometry(whole, slots)?)
            }
            RawIsolation::Pair => {
                if let Some(slots) = &raw.slots {
                    let what = "slots is for isolation = \"shared\": a pair's region has three";
                    return Err(fault(slots, what));
                }
                let idle = raw.idle.as_ref().map_or(PAIR_IDLE, |idle| *idle.get_ref());
                if let Some(zero) = raw.idle.as_ref().filter(|_| idle == 0) {
                    return Err(fault(zero, "idle is a number of seconds, 1 or more"));
                }
                Isolation::Pair {
                    geometry: geometry(whole, PAIR_SLOTS)?,
                    idle: Duration::from_secs(idle),
                }
            }
        };
        Ok(Group {
            name: name.clone(),
            isolation,
            tunnels: raw.tunnels.as_ref().map_or(Ok(None), group_ports)?,
        })
    }

    fn vm(&self, whole: &Spanned<RawVm>) -> Result<VmConfig, Fault> {
        let raw = whole.get_ref();
        let vm = VmConfig {
            name: self.vm_name(&raw.name)?,
            uuid: self.vm_uuid(&raw.uuid)?,
            monitor: self.vm_monitor(raw.monitor.as_ref())?,
            ports: raw.ports.clone(),
            groups: self.vm_groups(raw)?,
            outsource: vm_outsource(raw)?,
            tunnels: vm_tunnels(raw, &self.vms)?,
            cpus: vm_cpus(raw)?,
            cid: self.vm_cid(raw.cid.as_ref())?,
        };
        self.check_pairs(&vm).map_err(|what| fault(whole, what))?;
        let (name, regions) = (&vm.name, self.shared_of(&vm));
        if regions.len() > PAGE_ENTRIES {
            let what = format!("{name} is in more than {PAGE_ENTRIES} groups that share a region");
            return Err(fault(whole, what));
        }
        if regions.len() + vm.count_helpers() > PAGE_ENTRIES {
            let what = format!(
                "{name} is in {} groups that share a region, and a VM can join {PAGE_ENTRIES}: \
                 there is no room for that of [vm.outsource] or [vm.tunnels]",
                regions.len()
            );
            return Err(fault(whole, what));
        }
        self.check_size(&vm).map_err(|what| fault(whole, what))?;
        let shared: u64 = self.regions().iter().map(|one| one.geometry.size()).sum();
        let sum = shared + self.helpers_size() + vm.helpers_size();
        if vm.count_helpers() > 0 && self.host_limit.is_some_and(|limit| sum > limit) {
            let what = format!(
                "with [vm.outsource] and [vm.tunnels] of {name} the regions have {sum} bytes, more than \
                 limits.host allows"
            );
            return Err(fault(whole, what));
        }
        Ok(vm)
    }

    /// Refuses a VM if its regions together are larger than `limits.vm`.
    fn check_size(&self, vm: &VmConfig) -> Result<(), String> {
        let regions = self.shared_of(vm);
        let sum: u64 = regions.iter().map(|(_, geometry)| geometry.size()).sum();
        let sum = sum + vm.helpers_size();
        if self.vm_limit.is_some_and(|limit| sum > limit) {
            let name = &vm.name;
            return Err(format!(
                "the regions of {name} have {sum} bytes together, more than limits.vm allows"
            ));
        }
        Ok(())
    }

    /// Refuses a VM that is in two groups of pairs with another, if those differ.
    fn check_pairs(&self, vm: &VmConfig) -> Result<(), String> {
        let is_pair = |at: &&usize| matches!(self.groups[**at].isolation, Isolation::Pair { .. });
        for other in &self.vms {
            let common = vm.groups.iter().filter(|at| other.groups.contains(at));
            let common: Vec<&Group> = common.filter(is_pair).map(|at| &self.groups[*at]).collect();
            let differs = |pair: &[&Group]| {
                pair[0].isolation != pair[1].isolation || pair[0].tunnels != pair[1].tunnels
            };
            if let Some(pair) = common.windows(2).find(|pair| differs(pair)) {
                return Err(format!(
                    "{} and {} are both in {} and {}, whose regions differ: keep them in one",
                    other.name, vm.name, pair[0].name, pair[1].name
                ));
            }
        }
        Ok(())
    }

    fn vm_name(&self, raw: &Spanned<String>) -> Result<String, Fault> {
        let name = raw.get_ref();
        if !is_vm_name(name) {
            let what = format!("{name:?} is no name for a VM: {VM_NAMES}");
            return Err(fault(raw, what));
        }
        if self.vms.iter().any(|other| other.name == *name) {
            return Err(fault(raw, format!("there are two VMs {name}")));
        }
        Ok(name.clone())
    }

    fn vm_uuid(&self, raw: &Spanned<String>) -> Result<Uuid, Fault> {
        let uuid: Uuid = raw.get_ref().parse().map_err(|w: String| fault(raw, w))?;
        if uuid.is_nil() {
            let what = "give the VM a UUID of its own (uuidgen), here and as QEMU's -uuid";
            return Err(fault(raw, what));
        }
        if let Some(other) = self.vms.iter().find(|other| other.uuid == uuid) {
            return Err(fault(raw, format!("{} has this UUID already", other.name)));
        }
        Ok(uuid)
    }

    fn vm_cid(&self, raw: Option<&Spanned<u32>>) -> Result<Option<u32>, Fault> {
        let Some(raw) = raw else {
            return Ok(None);
        };
        let cid = *raw.get_ref();
        if !(CID_GIVEN_FIRST..CID_FIRST).contains(&cid) {
            let last = CID_FIRST - 1;
            let what = format!("a VM's CID is from {CID_GIVEN_FIRST} to {last}");
            return Err(fault(raw, what));
        }
        if let Some(other) = self.vms.iter().find(|other| other.cid == Some(cid)) {
            return Err(fault(raw, format!("{} has this CID already", other.name)));
        }
        Ok(Some(cid))
    }

    fn vm_monitor(&self, raw: Option<&Spanned<PathBuf>>) -> Result<Option<Place>, Fault> {
        let Some(raw) = raw else {
            return Ok(None);
        };
        let path = raw.get_ref();
        if path == Path::new(LIBVIRT) {
            return Ok(Some(Place::Libvirt));
        }
        if !path.is_absolute() {
            let what = format!("{path:?}: give the whole path, from /, or \"{LIBVIRT}\"");
            return Err(fault(raw, what));
        }
        let bytes = path.as_os_str().as_bytes();
        if bytes.contains(&0) || bytes.len() > SOCKET_PATH_MAX {
            let what = format!(
                "{path:?} cannot be the path of a socket: that has at most {SOCKET_PATH_MAX} \
                 bytes, and none of them is 0"
            );
            return Err(fault(raw, what));
        }
        let place = Some(Place::Socket(path.clone()));
        let other = self.vms.iter().find(|vm| vm.monitor == place);
        if let Some(other) = other {
            let what = format!("{} has this monitor already", other.name);
            return Err(fault(raw, what));
        }
        Ok(place)
    }

    /// Indexes of a VM's groups.
    fn vm_groups(&self, raw: &RawVm) -> Result<Vec<usize>, Fault> {
        let mut groups = Vec::new();
        for wanted in &raw.groups {
            let mut all = self.groups.iter();
            let Some(at) = all.position(|group| group.name == *wanted.get_ref()) else {
                let known: Vec<&str> = self.groups.iter().map(|g| g.name.as_str()).collect();
                let what = match known[..] {
                    [] => "there is no [[group]] at all".into(),
                    _ => format!("no group has this name: there is {}", known.join(", ")),
                };
                return Err(fault(wanted, what));
            };
            if groups.contains(&at) {
                return Err(fault(wanted, "the VM is in this group already"));
            }
            if let (Isolation::Pair { .. }, None) = (&self.groups[at].isolation, &raw.monitor) {
                let what = "a VM of a group with isolation = \"pair\" needs a monitor, by which \
                            its regions are plugged in";
                return Err(fault(wanted, what));
            }
            groups.push(at);
        }
        Ok(groups)
    }

    /// Checks that a group's region has slots for its VMs, and is within the limits.
    fn fits(&self, number: usize) -> Result<(), String> {
        let group = &self.groups[number];
        let (Isolation::Shared(geometry) | Isolation::Pair { geometry, .. }) = &group.isolation;
        for (limit, name) in [(self.host_limit, "host"), (self.vm_limit, "vm")] {
            if limit.is_some_and(|limit| geometry.size() > limit) {
                return Err(format!(
                    "a region of {} is larger than limits.{name} allows",
                    group.name
                ));
            }
        }
        let Isolation::Shared(_) = group.isolation else {
            return Ok(());
        };
        let members = self
            .vms
            .iter()
            .filter(|vm| vm.groups.contains(&number))
            .count();
        if members >= geometry.slots() as usize {
            return Err(format!(
                "{} VMs are in group {}, whose region has {} slots, one of them the host's: \
                 give it more slots",
                members,
                group.name,
                geometry.slots()
            ));
        }
        let before = self.groups[..=number].iter().filter_map(Group::shared);
        let sum: u64 = before.map(|geometry| geometry.size()).sum();
        let sum = sum + self.helpers_size();
        if self.host_limit.is_some_and(|limit| sum > limit) {
            return Err(format!(
                "with group {} the regions have {sum} bytes, more than limits.host allows",
                group.name
            ));
        }
        Ok(())
    }

    /// The regions of the groups that share one.
    pub fn regions(&self) -> Vec<RegionSpec> {
        let shared = |group: &Group| {
            Some(RegionSpec {
                name: group.name.clone(),
                geometry: group.shared()?,
            })
        };
        self.groups.iter().filter_map(shared).collect()
    }

    /// Whether people plug the region of a group into one of its VMs: that has no monitor.
    pub fn is_by_hand(&self, name: &str) -> bool {
        let group = self.groups.iter().position(|group| group.name == name);
        let mut vms = self.vms.iter().filter(|vm| vm.monitor.is_none());
        group.is_some_and(|group| vms.any(|vm| vm.groups.contains(&group)))
    }

    /// Whether some region is a file: one of the command line, or one that is plugged in by hand.
    pub fn has_files(&self, options: &Options) -> bool {
        let mut regions = self.regions().into_iter();
        !options.regions().is_empty() || regions.any(|spec| self.is_by_hand(&spec.name))
    }

    /// Names and geometries of the regions that a VM shares with its groups.
    pub fn shared_of(&self, vm: &VmConfig) -> Vec<(&str, Geometry)> {
        let groups = vm.groups.iter().map(|at| &self.groups[*at]);
        groups
            .filter_map(|group| Some((group.name.as_str(), group.shared()?)))
            .collect()
    }

    /// Whether any group may lead to regions of two VMs.
    pub fn has_pairs(&self) -> bool {
        self.groups.iter().any(|group| group.shared().is_none())
    }

    /// Number of the VM with this UUID.
    pub fn vm_of(&self, uuid: Uuid) -> Option<usize> {
        self.vms.iter().position(|vm| vm.uuid == uuid)
    }

    /// The CID of a VM, if it has another one than that of its UUID.
    pub fn given_cid(&self, uuid: Uuid) -> Option<u32> {
        self.vms[self.vm_of(uuid)?].cid
    }

    /// Geometry and idle time of the region that two VMs may have for themselves.
    /// Nothing for a VM and itself, or where the two share a region anyway.
    pub fn pair_of(&self, a: usize, b: usize) -> Option<(Geometry, Duration)> {
        let (first, second) = (&self.vms[a], &self.vms[b]);
        let shared = self.shared_of(second);
        if a == b || self.shared_of(first).iter().any(|one| shared.contains(one)) {
            return None;
        }
        let mut common = first.groups.iter().filter(|at| second.groups.contains(at));
        common.find_map(|at| match self.groups[*at].isolation {
            Isolation::Pair { geometry, idle } => Some((geometry, idle)),
            Isolation::Shared(_) => None,
        })
    }

    /// Ports that members of a region may reach of each other by tunnels; nothing: any.
    pub fn tunnel_ports(&self, region: &str) -> Option<Vec<(u32, u32)>> {
        let by_name = self.groups.iter().find(|group| group.name == region);
        let group = by_name.or_else(|| {
            let (a, b) = self.pair_named(region)?;
            let mut common = self.vms[a].groups.iter();
            let is_pair = |at: &&usize| {
                self.groups[**at].shared().is_none() && self.vms[b].groups.contains(at)
            };
            common.find(is_pair).map(|at| &self.groups[*at])
        });
        group?.tunnels.clone()
    }

    /// The one other member that a region has for a VM. Nothing: it has several, or an
    /// outsourcer, or is none of this configuration.
    pub fn only_peer(&self, region: &str, vm: Uuid) -> Option<Uuid> {
        if let Some(its) = self.helper_named(region) {
            return (its.role == Role::Tunnels).then_some(Uuid(HOST_UUID));
        }
        let (a, b) = self.pair_named(region)?;
        let two = [self.vms[a].uuid, self.vms[b].uuid];
        let own = two.iter().position(|uuid| *uuid == vm)?;
        Some(two[1 - own])
    }

    /// Name of the region of two VMs.
    pub fn pair_name(&self, a: usize, b: usize) -> String {
        let mut names = [&self.vms[a].name, &self.vms[b].name];
        names.sort();
        format!("{PAIR}{}.{}", names[0], names[1])
    }

    /// The two VMs of the region of that name.
    pub fn pair_named(&self, name: &str) -> Option<(usize, usize)> {
        let (first, second) = name.strip_prefix(PAIR)?.split_once('.')?;
        let number = |name| self.vms.iter().position(|vm| vm.name == name);
        let (a, b) = (number(first)?, number(second)?);
        Some((a.min(b), a.max(b)))
    }

    /// The VMs for which the region of that name is made, if it is that of a pair or of a
    /// helper.
    pub fn owners(&self, region: &str) -> Vec<Uuid> {
        let pair = self.pair_named(region).map(|(a, b)| vec![a, b]);
        let helper = || self.helper_named(region).map(|id| vec![id.vm]);
        let numbers = pair.or_else(helper).unwrap_or_default();
        let mut owners: Vec<Uuid> = numbers.iter().map(|at| self.vms[*at].uuid).collect();
        owners.sort();
        owners
    }

    /// Bytes of the regions that all VMs and their helpers have.
    pub fn helpers_size(&self) -> u64 {
        self.vms.iter().map(VmConfig::helpers_size).sum()
    }

    /// Whether any VM has a helper.
    pub fn has_helpers(&self) -> bool {
        self.vms.iter().any(|vm| vm.count_helpers() > 0)
    }

    /// Every helper.
    pub fn helper_ids(&self) -> impl Iterator<Item = HelperId> + '_ {
        let of = |vm| Role::ALL.map(|role| HelperId { vm, role });
        let all = (0..self.vms.len()).flat_map(of);
        all.filter(|id| self.helper(*id).is_some())
    }

    /// A helper, if the VM has such a one.
    pub fn helper(&self, id: HelperId) -> Option<&Helper> {
        let vm = self.vms.get(id.vm)?;
        match id.role {
            Role::Outsource => vm.outsource.as_ref(),
            Role::Tunnels => vm.tunnels.as_ref(),
        }
    }

    /// Name of the region of a VM and a helper.
    pub fn helper_region(&self, id: HelperId) -> String {
        format!("{}{}", id.role.prefix(), self.vms[id.vm].name)
    }

    /// The helper with the region of that name. The VM may not have it any more.
    pub fn helper_named(&self, name: &str) -> Option<HelperId> {
        Role::ALL.into_iter().find_map(|role| {
            let vm = name.strip_prefix(role.prefix())?;
            let vm = self.vms.iter().position(|one| one.name == vm)?;
            Some(HelperId { vm, role })
        })
    }

    /// Whether a VM is in a group that shares this region, or in the pair that has it, or
    /// is the VM of the helper that has it.
    pub fn admits(&self, region: &str, uuid: Uuid) -> bool {
        let vm = self.vm_of(uuid);
        if region.starts_with(PAIR) {
            let pair = self.pair_named(region);
            return pair.is_some_and(|(a, b)| vm == Some(a) || vm == Some(b));
        }
        if let Some(its) = self.helper_named(region) {
            return vm == Some(its.vm) && self.helper(its).is_some();
        }
        match self.groups.iter().position(|group| group.name == region) {
            Some(at) => vm.is_some_and(|vm| self.vms[vm].groups.contains(&at)),
            None => false,
        }
    }
}

impl VmConfig {
    fn helpers(&self) -> impl Iterator<Item = &Helper> {
        self.outsource.iter().chain(&self.tunnels)
    }

    /// Number of its helpers.
    pub fn count_helpers(&self) -> usize {
        self.helpers().count()
    }

    /// Bytes of the regions that it and its helpers have.
    pub fn helpers_size(&self) -> u64 {
        self.helpers().map(|helper| helper.geometry.size()).sum()
    }
}

impl Group {
    fn shared(&self) -> Option<Geometry> {
        match self.isolation {
            Isolation::Shared(geometry) => Some(geometry),
            Isolation::Pair { .. } => None,
        }
    }
}

/// Reads `tunnels` of a group.
fn group_ports(raw: &Spanned<RawPorts>) -> Result<Option<Vec<(u32, u32)>>, Fault> {
    let list = match raw.get_ref() {
        RawPorts::All(true) => return Ok(None),
        RawPorts::All(false) => return Ok(Some(Vec::new())),
        RawPorts::List(list) => list,
    };
    if list.len() > TUNNEL_RANGES {
        let what = format!("a group has at most {TUNNEL_RANGES} ports or ranges of them");
        return Err(fault(raw, what));
    }
    let one = |port: &RawPort| match port {
        RawPort::One(port) => Ok((*port, *port)),
        RawPort::Range(text) => {
            let ends = text.split_once('-').unwrap_or((text, text));
            match (ends.0.parse(), ends.1.parse()) {
                (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
                _ => Err(fault(
                    raw,
                    format!("{text:?}: write 5000, or \"6000-6999\""),
                )),
            }
        }
    };
    list.iter().map(one).collect::<Result<_, _>>().map(Some)
}

/// Reads `[vm.outsource]`.
fn vm_outsource(vm: &RawVm) -> Result<Option<Helper>, Fault> {
    let Some(whole) = &vm.outsource else {
        return Ok(None);
    };
    if vm.monitor.is_none() {
        let what = "a VM with [vm.outsource] needs a monitor, by which its region is plugged in";
        return Err(fault(whole, what));
    }
    let raw = whole.get_ref();
    let netns = raw.netns.as_ref().map(|netns| {
        let path = netns.get_ref();
        if path.is_absolute() {
            return Ok(path.clone());
        }
        let what = format!("{path:?}: give the whole path, such as /run/netns/dmz");
        Err(fault(netns, what))
    });
    let user = helper_user(raw.user.as_ref(), whole.span().start)?;
    let limit = |rate: &Option<Spanned<u32>>, burst: &Option<Spanned<u32>>, goes| {
        let rate = number(rate, 0, RATE_MAX)?;
        match burst.as_ref().filter(|_| rate == 0) {
            Some(burst) => Err(fault(burst, goes)),
            None => Ok((rate, number(burst, rate, RATE_MAX)?)),
        }
    };
    let (rate, burst) = limit(&raw.rate, &raw.burst, "burst goes with rate")?;
    let (arrival_rate, arrival_burst) = limit(
        &raw.arrival_rate,
        &raw.arrival_burst,
        "arrival-burst goes with arrival-rate",
    )?;
    Ok(Some(Helper {
        netns: netns.transpose()?,
        user: user.uid,
        group: user.gid,
        geometry: helper_geometry(raw.memory.as_ref(), whole.span().start)?,
        listen: None,
        task: Task::Outsource(Policy {
            source: list(&raw.source, |text| {
                let address = text
                    .parse()
                    .map_err(|_| format!("{text:?} is no address: write 10.0.0.5 or fd00::5"))?;
                check_family(address).map_err(|why| format!("{text:?}: {why}"))
            })?,
            connect: list(&raw.connect, |text| {
                text.parse()
                    .map_err(|why| format!("{why}: write 10.0.0.0/8:443, udp/::/0, or !10.0.0.1"))
            })?,
            publish: list(&raw.publish, |text| {
                text.parse().map_err(|why| {
                    format!("{why}: write tcp/8080, udp/53, or tcp/80=10.0.0.5:8080")
                })
            })?,
            is_draining: false,
            sockets: number(&raw.sockets, OUTSOURCED_SOCKETS, SOCKETS_MAX)?,
            listeners: number(&raw.listeners, OUTSOURCED_LISTENERS, SOCKETS_MAX)?,
            rate,
            burst,
            arrival_rate,
            arrival_burst,
            spin_us: number(&raw.spin_us, 0, SPIN_US_MAX)?,
        }),
    }))
}

/// Whether one socket is the other one, or one of those beside that: PATH.packets is for
/// messages, and a guest reaches the listeners PATH_PORT.
fn clash(one: &Path, other: &Path) -> bool {
    let is_beside = |path: &Path, first: &Path| {
        let rest = path.as_os_str().as_bytes();
        let rest = rest.strip_prefix(first.as_os_str().as_bytes());
        let is_number = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
        rest.is_some_and(|rest| {
            rest == b".packets" || rest.strip_prefix(b"_").is_some_and(is_number)
        })
    };
    one == other || is_beside(one, other) || is_beside(other, one)
}

/// Reads `[vm.tunnels]`. No VM `before` has the same socket, nor one beside it.
fn vm_tunnels(vm: &RawVm, before: &[VmConfig]) -> Result<Option<Helper>, Fault> {
    let Some(whole) = &vm.tunnels else {
        return Ok(None);
    };
    if vm.monitor.is_none() {
        let what = "a VM with [vm.tunnels] needs a monitor, by which its region is plugged in";
        return Err(fault(whole, what));
    }
    let raw = whole.get_ref();
    let path = raw.socket.get_ref();
    if !path.is_absolute() {
        let what = format!("{path:?}: give the whole path, from /");
        return Err(fault(&raw.socket, what));
    }
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) || bytes.len() + PORT_SUFFIX > SOCKET_PATH_MAX {
        let what = format!(
            "{path:?} with _PORT after it cannot be the path of a socket: that has at most \
             {SOCKET_PATH_MAX} bytes, and none of them is 0"
        );
        return Err(fault(&raw.socket, what));
    }
    let has_it = |vm: &&VmConfig| {
        let listen = vm.tunnels.as_ref().and_then(|one| one.listen.as_ref());
        listen.is_some_and(|listen| clash(&listen.path, path))
    };
    if let Some(other) = before.iter().find(has_it) {
        let what = format!(
            "{} has this socket already, or one that is this with .packets or _PORT after it, or \
             the other way round: give each VM another name",
            other.name
        );
        return Err(fault(&raw.socket, what));
    }
    let group = raw.access.as_ref().map(access_group).transpose()?;
    let user = helper_user(raw.user.as_ref(), whole.span().start)?;
    Ok(Some(Helper {
        netns: None,
        user: user.uid,
        group: user.gid,
        geometry: helper_geometry(raw.memory.as_ref(), whole.span().start)?,
        task: Task::Tunnels(TunnelPolicy {
            socket: path.clone(),
            sockets: number(&raw.sockets, TUNNELS, SOCKETS_MAX)?,
        }),
        listen: Some(Listen {
            path: path.clone(),
            group,
        }),
    }))
}

/// Reads `[vm.cpus]`.
fn vm_cpus(vm: &RawVm) -> Result<Option<Limits>, Fault> {
    let Some(whole) = &vm.cpus else {
        return Ok(None);
    };
    if vm.monitor.is_none() {
        let what = "a VM with [vm.cpus] needs a monitor, which shows how busy its CPUs are";
        return Err(fault(whole, what));
    }
    let raw = whole.get_ref();
    let min = number(&raw.min, 1, CPUS_MAX)?;
    let max = *raw.max.get_ref();
    if max <= min || max > CPUS_MAX {
        let what = format!("max is more than min, which is {min}, and at most {CPUS_MAX}");
        return Err(fault(&raw.max, what));
    }
    let mechanism = match raw.mechanism {
        None | Some(RawMechanism::Park) => Mechanism::Park,
        Some(RawMechanism::Weight) => Mechanism::Weight,
    };
    Ok(Some(Limits {
        mechanism,
        min,
        max,
    }))
}

/// Reads `[cpus]`.
fn rules(raw: &RawRules) -> Result<Rules, Fault> {
    let without = Rules::default();
    let percent = |raw: &Option<Spanned<u32>>, without, most: u32| match raw {
        None => Ok(without),
        Some(raw) if *raw.get_ref() <= most => Ok(f64::from(*raw.get_ref()) / 100.0),
        Some(raw) => Err(fault(raw, format!("give a percentage from 0 to {most}"))),
    };
    let seconds = |raw: &Option<Spanned<u32>>, without: Duration| {
        let seconds = number(raw, without.as_secs() as u32, SECONDS_MAX)?;
        Ok(Duration::from_secs(seconds.into()))
    };
    Ok(Rules {
        busy: percent(&raw.busy, without.busy, 100)?,
        idle: percent(&raw.idle, without.idle, 100 * CPUS_MAX)?,
        contended: percent(&raw.contended, without.contended, 100)?,
        grow: seconds(&raw.grow, without.grow)?,
        shrink: seconds(&raw.shrink, without.shrink)?,
        give_back: seconds(&raw.give_back, without.give_back)?,
        pause: seconds(&raw.pause, without.pause)?,
    })
}

/// The group that may connect.
fn access_group(raw: &Spanned<String>) -> Result<u32, Fault> {
    let name = raw.get_ref();
    match UserGroup::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(fault(raw, format!("there is no group {name}"))),
        Err(error) => Err(fault(
            raw,
            format!("group {name} cannot be looked up: {error}"),
        )),
    }
}

/// A number from 1 to `most`.
fn number(raw: &Option<Spanned<u32>>, without: u32, most: u32) -> Result<u32, Fault> {
    match raw {
        None => Ok(without),
        Some(raw) if (1..=most).contains(raw.get_ref()) => Ok(*raw.get_ref()),
        Some(raw) => Err(fault(raw, format!("give a number from 1 to {most}"))),
    }
}

/// Reads a list of a policy.
fn list<T>(
    raw: &[Spanned<String>],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    if let Some(more) = raw.get(POLICY_MAX) {
        return Err(fault(
            more,
            format!("a list has at most {POLICY_MAX} entries"),
        ));
    }
    let one = |raw: &Spanned<String>| parse(raw.get_ref()).map_err(|what| fault(raw, what));
    raw.iter().map(one).collect()
}

/// The user that a helper runs as. `whole`: the place of its table.
fn helper_user(raw: Option<&Spanned<String>>, whole: usize) -> Result<User, Fault> {
    let name = raw.map_or(HELPER_USER, |raw| raw.get_ref());
    let at = raw.map_or(whole, |raw| raw.span().start);
    let fault = |what: String| Fault { at, what };
    match User::from_name(name) {
        Ok(Some(user)) if user.uid.is_root() => Err(fault(format!(
            "user {name} is root, which a process that serves a guest must not be: name another"
        ))),
        Ok(Some(user)) => Ok(user),
        Ok(None) => Err(fault(format!(
            "there is no user {name}: make it (useradd --system {name}), or name another"
        ))),
        Err(error) => Err(fault(format!("user {name} cannot be looked up: {error}"))),
    }
}

/// Geometry of the region of a VM and a helper. `whole`: the place of its table.
fn helper_geometry(raw: Option<&Spanned<String>>, whole: usize) -> Result<Geometry, Fault> {
    let at = raw.map_or(whole, |raw| raw.span().start);
    let fault = |what: String| Fault { at, what };
    let size = parse_size(raw.map_or(HELPER_MEMORY, |raw| raw.get_ref())).map_err(fault)?;
    Geometry::new(size, HELPER_SLOTS).map_err(|error| fault(error.to_string()))
}

/// The files beside a configuration file that add to it.
fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    let dir = path.with_extension("d");
    if !dir.is_dir() || dir == path {
        return Ok(Vec::new());
    }
    check_dir(&dir, "--config", "change the configuration", 0)?;
    let mut parts = Vec::new();
    for entry in dir.read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

fn limit(raw: &Spanned<String>) -> Result<Option<u64>, Fault> {
    match parse_size(raw.get_ref()) {
        Ok(0) => Err(fault(raw, "a limit of 0 allows no region: leave it out")),
        Ok(limit) => Ok(Some(limit)),
        Err(what) => Err(fault(raw, what)),
    }
}

/// Puts a message of the parser into words about configuration files.
fn plain(message: &str) -> String {
    let words = [
        (
            "invalid type: map, expected a sequence",
            "write [[group]] and [[vm]], with two pairs of brackets",
        ),
        (
            "invalid type: map, expected a string",
            "write [limits], with one pair of brackets",
        ),
        ("expected u32", "expected a whole number, such as 3"),
        ("expected u64", "expected a whole number, such as 3"),
        (
            "expected a string",
            "expected a text in quotes, such as \"4G\"",
        ),
        ("expected a sequence", "expected a list, such as [\"web\"]"),
    ];
    let found = words.iter().find(|(word, _)| message.ends_with(word));
    found.map_or(message.into(), |(word, plain)| message.replace(word, plain))
}

/// Geometry of a group's region, or of each of its pairs' regions.
fn geometry(whole: &Spanned<RawGroup>, slots: u32) -> Result<Geometry, Fault> {
    let raw = whole.get_ref();
    let place = raw.size.as_ref().map_or(whole.span(), Spanned::span).start;
    let fault = |what: String| Fault { at: place, what };
    let size = match (&raw.size, raw.isolation) {
        (Some(size), _) => size.get_ref(),
        (None, RawIsolation::Pair) => PAIR_SIZE,
        (None, RawIsolation::Shared) => {
            let name = raw.name.get_ref();
            let what = format!("group {name} needs a size, such as size = \"256M\"");
            return Err(fault(what));
        }
    };
    let size = parse_size(size).map_err(fault)?;
    Geometry::new(size, slots).map_err(|error| match (&error, &raw.slots) {
        (Error::Slots { .. }, Some(slots)) => self::fault(slots, error),
        _ => fault(error.to_string()),
    })
}

/// Refuses a name that the command line gives to a region, too, and more memory
/// than `limits.host` allows.
fn check_together(config: &Config, regions: &[RegionSpec]) -> Result<()> {
    let is_group = |name: &str| config.groups.iter().any(|group| group.name == name);
    if let Some(spec) = regions.iter().find(|spec| is_group(&spec.name)) {
        bail!(
            "--region {0} and the configuration's group {0} are two things: rename one",
            spec.name
        );
    }
    let all = config.regions().into_iter().chain(regions.iter().cloned());
    let sum: u64 = all.map(|spec| spec.geometry.size()).sum();
    let sum = sum + config.helpers_size();
    if config.host_limit.is_some_and(|limit| sum > limit) {
        bail!(
            "with --region the regions have {sum} bytes, more than the configuration's \
             limits.host allows: make one smaller, or the limit larger"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../../../hallwayd.toml");

    fn parse(text: &str) -> Config {
        let mut config = Config::default();
        config.add(text).map_err(|fault| fault.what).unwrap();
        config
    }

    fn error(text: &str) -> String {
        let path = std::env::temp_dir().join(format!("hwc-{:?}", std::thread::current().id()));
        std::fs::write(&path, text).unwrap();
        let error = Config::load(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let said = format!("{error:#}");
        said.trim_start_matches(&*path.to_string_lossy()).into()
    }

    #[test]
    fn no_vms_socket_is_one_beside_that_of_another() {
        let vm = |name: &str, number: u32, socket: &str| {
            format!(
                "[[vm]]\nname = \"{name}\"\nuuid = \"8d5c6c5e-0000-4000-8000-00000000000{number}\"\n\
                 monitor = \"/{name}\"\n[vm.tunnels]\nsocket = \"{socket}\"\n"
            )
        };
        let load = |one: &str, other: &str| {
            let text = vm("a", 1, one) + &vm("b", 2, other);
            Config::default().add(&text).map_err(|fault| fault.what)
        };
        for (one, other) in [
            ("/x", "/x"),
            ("/x", "/x_1"),
            ("/x_4294967295", "/x"),
            ("/x", "/x.packets"),
        ] {
            let what = load(one, other).unwrap_err();
            assert!(what.contains("a has this socket"), "{one} {other}: {what}");
        }
        for other in ["/x_", "/x_a", "/x_1a", "/y_1", "/x1", "/x/1"] {
            load("/x", other).unwrap();
        }
    }

    #[test]
    fn the_example_is_good_and_says_what_it_means() {
        let config = parse(GOOD);
        assert_eq!(config.host_limit, Some(4 << 30));
        let names: Vec<&str> = config.groups.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["web", "tenants"]);
        let regions = config.regions();
        assert_eq!(regions.len(), 1);
        assert_eq!(
            (regions[0].geometry.size(), regions[0].geometry.slots()),
            (256 << 20, 8)
        );
        let vm = &config.vms[0];
        assert_eq!(config.shared_of(vm).len(), 1);
        assert!(config.admits("web", vm.uuid) && !config.admits("other", vm.uuid));
        assert!(!config.admits("web", config.vms[2].uuid));
        assert!(!config.admits("web", Uuid([9; 16])));
        let pair = config.pair_name(2, 0);
        assert_eq!(pair, "pair.shop.web1");
        assert_eq!(config.pair_named(&pair), Some((0, 2)));
        assert!(config.pair_of(0, 2).is_some() && config.pair_of(0, 1).is_none());
        assert!(config.pair_of(0, 0).is_none());
        let both = GOOD.replace("groups = [\"tenants\"]", "groups = [\"web\", \"tenants\"]");
        let both = parse(&both);
        assert!(both.pair_of(0, 2).is_none(), "they share a region anyway");
        assert!(config.admits(&pair, config.vms[2].uuid));
        assert!(!config.admits(&pair, config.vms[1].uuid));
        assert!(!config.admits("pair.x.y", config.vms[2].uuid));

        let shop = &config.vms[2];
        let outsource = shop.outsource.as_ref().unwrap();
        assert_eq!(outsource.geometry, Geometry::new(64 << 20, 3).unwrap());
        let Task::Outsource(policy) = &outsource.task else {
            panic!("{outsource:?}");
        };
        assert_eq!(policy.connect.len(), 3);
        assert_eq!((policy.sockets, policy.listeners), (1024, 32));
        let region = config.helper_region(HelperId::outsourcer(2));
        let id = config.helper_named(&region).unwrap();
        assert_eq!((id.vm, id.role), (2, Role::Outsource));
        assert!(config.admits(&region, shop.uuid));
        assert!(!config.admits(&region, vm.uuid) && !config.admits("out.web1", vm.uuid));
        let ports = Some(vec![(22, 22), (5000, 5999)]);
        assert_eq!(config.tunnel_ports("web"), ports);
        assert_eq!(config.tunnel_ports(&pair), None);
        assert_eq!(config.only_peer(&pair, vm.uuid), Some(shop.uuid));
        assert_eq!(config.only_peer(&pair, shop.uuid), Some(vm.uuid));
        assert_eq!(config.only_peer(&pair, config.vms[1].uuid), None);
        assert_eq!(
            config.only_peer("tun.shop", shop.uuid),
            Some(Uuid(HOST_UUID))
        );
        assert_eq!(config.only_peer("out.shop", shop.uuid), None);
        assert_eq!(config.only_peer("web", vm.uuid), None);
        let tunnels = shop.tunnels.as_ref().unwrap();
        let listen = tunnels.listen.as_ref().unwrap();
        assert_eq!(
            tunnels.task,
            Task::Tunnels(TunnelPolicy {
                socket: listen.path.clone(),
                sockets: 1024,
            })
        );
        let none = GOOD.replace("idle = 60", "tunnels = false\nidle = 60");
        let none = parse(&none);
        assert_eq!(none.tunnel_ports(&pair), Some(Vec::new()));
        assert_eq!(none.tunnel_ports("tun.shop"), None);
        let refused = none.check_for_xen().unwrap_err().to_string();
        assert!(refused.contains("know of no `tunnels`"), "{refused}");
        let any = GOOD.replace("\ntunnels = ", "\n# ");
        let given = parse(&any);
        assert_eq!((given.vms[0].cid, given.vms[1].cid), (Some(42), None));
        let refused = given.check_for_xen().unwrap_err().to_string();
        assert!(refused.contains("take `cid` out"), "{refused}");
        parse(&any.replace("\ncid = ", "\n# "))
            .check_for_xen()
            .unwrap();
    }

    #[test]
    fn the_directory_beside_the_file_adds_to_it() {
        let path = std::env::temp_dir().join(format!("hwp-{}.toml", std::process::id()));
        let dir = path.with_extension("d");
        let _ = std::fs::remove_dir_all(&dir);
        let group = "[[group]]\nname = \"g\"\nisolation = \"shared\"\nsize = \"8M\"\nslots = 2\n";
        let vm = |name: &str, end: u8| {
            format!(
                "[[vm]]\nname = \"{name}\"\ngroups = [\"g\"]\n\
                 uuid = \"8d5c6c5e-0000-4000-8000-00000000000{end}\"\n"
            )
        };
        std::fs::write(&path, group).unwrap();
        assert_eq!(Config::load(&path).unwrap().vms.len(), 0);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("a.toml"), vm("a", 1)).unwrap();
        std::fs::write(dir.join("a.toml.old"), "no").unwrap();
        assert_eq!(Config::load(&path).unwrap().vms.len(), 1);
        let error = |name: &str, text: String| {
            std::fs::write(dir.join(name), text).unwrap();
            let said = format!("{:#}", Config::load(&path).unwrap_err());
            std::fs::remove_file(dir.join(name)).unwrap();
            assert!(said.contains(&format!("/{name}:")), "{said}");
            said
        };
        assert!(error("b.toml", vm("a", 2)).contains("b.toml:2: there are two VMs a"));
        assert!(error("b.toml", vm("b", 2)).contains("give it more slots"));
        let limits = "[limits]\nhost = \"1G\"\n";
        std::fs::write(&path, format!("{limits}{group}")).unwrap();
        let said = error("b.toml", limits.into());
        assert!(
            said.contains("b.toml:2: another file has this limit"),
            "{said}"
        );
        let limits = "[limits]\nvm = \"8M\"\n";
        let other = group.replace("\"g\"", "\"h\"");
        let both = vm("c", 3).replace("[\"g\"]", "[\"g\", \"h\"]");
        std::fs::remove_file(dir.join("a.toml")).unwrap();
        std::fs::write(&path, format!("{group}{other}{both}")).unwrap();
        assert_eq!(Config::load(&path).unwrap().vms.len(), 1);
        let said = error("b.toml", limits.into());
        assert!(
            said.contains("b.toml:2: the regions of c have 16777216 bytes together"),
            "{said}"
        );
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_error_names_its_line_and_what_would_be_right() {
        let vm = |more: &str| {
            format!(
                "[[group]]\nname = \"g\"\nisolation = \"shared\"\nsize = \"8M\"\nslots = 2\n\
                 [[vm]]\nname = \"a\"\nuuid = \"8d5c6c5e-0000-4000-8000-000000000001\"\n{more}\n"
            )
        };
        let out = |more: &str| vm(&format!("monitor = \"/m\"\n[vm.outsource]\n{more}"));
        let cpus = |more: &str| vm(&format!("monitor = \"/m\"\n[vm.cpus]\n{more}"));
        let tun = |more: &str| vm(&format!("monitor = \"/m\"\n[vm.tunnels]\n{more}"));
        let ports = |ports: &str| {
            format!(
                "[[group]]\nname = \"g\"\nisolation = \"shared\"\nsize = \"64M\"\ntunnels = {ports}\n"
            )
        };
        let second = "[[vm]]\nname = \"b\"\nuuid = \"8d5c6c5e-0000-4000-8000-000000000002\"\n";
        for (text, line, part) in [
            (
                "[limits]\nhots = \"1G\"".into(),
                2,
                "expected `host` or `vm`",
            ),
            ("[limits]\nhost = \"1 apple\"".into(), 2, "with K, M or G"),
            (
                "[[group]]\nname = \"g\"\nisolation = \"none\"".into(),
                3,
                "`shared` or `pair`",
            ),
            (
                "[[group]]\nname = \"g\"\nisolation = \"shared\"".into(),
                1,
                "needs a size",
            ),
            (
                "[[group]]\nname = \"../g\"\nisolation = \"pair\"".into(),
                2,
                "no name for a region",
            ),
            (
                "[[group]]\nname = \"pair.a.b\"\nisolation = \"pair\"".into(),
                2,
                "names with pair. are for the regions of pairs",
            ),
            (
                "\n[[group]]\nname = \"g\"\nisolation = \"pair\"\nsize = \"3M\"".into(),
                5,
                "power of two",
            ),
            (
                "[[group]]\nname = \"g\"\nisolation = \"pair\"\nslots = 4".into(),
                4,
                "has three",
            ),
            (
                "[[group]]\nname = \"g\"\nisolation = \"pair\"\nidle = 0".into(),
                4,
                "1 or more",
            ),
            ("[limits]\nhost = \"0\"".into(), 2, "leave it out"),
            (
                "[limits]\nhost = \"1G\"\nvm = \"2G\"".into(),
                3,
                "more than limits.host",
            ),
            ("[limits]\nhost = 4".into(), 2, "in quotes, such as \"4G\""),
            ("[[limits]]\nhost = \"4G\"".into(), 1, "write [limits]"),
            ("[group]\nname = \"g\"".into(), 1, "write [[group]]"),
            (
                "[[group]]\nname = \"g\"\nisolation = \"pair\"\nidle = 1.5".into(),
                4,
                "a whole number",
            ),
            (
                "[[group]]\nname = \"g\"\nisolation = \"shared\"\nsize = \"8M\"\nslots = 65".into(),
                5,
                "2 to 64 slots",
            ),
            (
                "[[group]]\nname = \"\"\nisolation = \"pair\"".into(),
                2,
                "region or a group",
            ),
            (vm("groups = \"g\""), 9, "a list, such as"),
            (vm("monitor = \"/a\\u0000b\""), 9, "path of a socket"),
            (
                vm(&format!("monitor = \"/{}\"", "m".repeat(108))),
                9,
                "at most 107",
            ),
            (
                "[[vm]]\nname = \"a\"\nuuid = \"0-1010101010101010101010101010101\"".into(),
                3,
                "no UUID",
            ),
            (vm("groups = [\"h\"]"), 9, "there is g"),
            (vm("monitor = \"vm.qmp\""), 9, "whole path"),
            (vm("qmp = \"/vm.qmp\""), 9, "expected one of"),
            (
                vm(&format!("groups = [\"g\"]\n{second}groups = [\"g\"]")),
                1,
                "more slots",
            ),
            (
                vm("[[vm]]\nname = \"a\"\nuuid = \"8d5c6c5e-0000-4000-8000-000000000002\""),
                10,
                "two VMs a",
            ),
            (
                vm("[[vm]]\nname = \"b\"\nuuid = \"8d5c6c5e-0000-4000-8000-000000000001\""),
                11,
                "a has this UUID",
            ),
            (vm("[[vm]]\nname = \"b\"\nuuid = \"x\""), 11, "no UUID"),
            (vm("cid = 2"), 9, "from 3 to 1073741823"),
            (vm("cid = 0x40000000"), 9, "from 3 to 1073741823"),
            (vm("cid = -1"), 9, "whole number"),
            (
                vm(&format!("cid = 3\n{second}cid = 3")),
                13,
                "a has this CID already",
            ),
            ("[[vm]]\nname = \"b\"".into(), 1, "missing field `uuid`"),
            ("[[vm]\n".into(), 1, "expected"),
            (
                "[[group]]\nname = \"out.a\"\nisolation = \"pair\"".into(),
                2,
                "names with out. are for the regions of outsourcers",
            ),
            (
                "[[group]]\nname = \"tun.x\"\nisolation = \"pair\"".into(),
                2,
                "names with tun. are for the regions of host ends",
            ),
            (ports("\"all\""), 5, "true, false, or a list of ports"),
            (ports("[\"9-1\"]"), 5, "write 5000, or"),
            (ports("[1, 2, 3, 4, 5]"), 5, "at most 4"),
            (vm("[vm.tunnels]\nsocket = \"/s\""), 9, "needs a monitor"),
            (tun("socket = \"s\""), 11, "whole path"),
            (
                tun(&format!("socket = \"/{}\"", "s".repeat(97))),
                11,
                "with _PORT after it",
            ),
            (
                tun("socket = \"/s\"\naccess = \"no-such-one\""),
                12,
                "no group no-such-one",
            ),
            (tun("socket = \"/s\"\nuser = \"root\""), 12, "name another"),
            (tun("socket = \"/s\"\nsockets = 0"), 12, "from 1 to 2048"),
            (vm("[vm.outsource]"), 9, "needs a monitor"),
            (out("netns = \"dmz\""), 11, "such as /run/netns/dmz"),
            (out("user = \"root\""), 11, "name another"),
            (out("user = \"no-such-one\""), 11, "useradd"),
            (out("source = [\"10.0.0\"]"), 11, "no address"),
            (
                out("connect = [\"::/0\",\n\"10.0.0.0/33\"]"),
                12,
                "or !10.0.0.1",
            ),
            (out("publish = [\"8080\"]"), 11, "write tcp/8080"),
            (out("sockets = 0"), 11, "from 1 to 2048"),
            (out("listeners = 3000"), 11, "from 1 to 2048"),
            (out("rate = 0"), 11, "from 1 to 1000000"),
            (out("burst = 5"), 11, "goes with rate"),
            (out("arrival-burst = 5"), 11, "goes with arrival-rate"),
            (out("spin-us = 2000"), 11, "from 1 to 1000"),
            (out("memory = \"5M\""), 11, "power of two"),
            (out("memory = \"2M\""), 11, "less than 2 MiB"),
            (out("net = \"x\""), 11, "expected one of"),
            (cpus(""), 10, "missing field `max`"),
            (cpus("max = 1"), 11, "more than min, which is 1"),
            (cpus("min = 3\nmax = 3"), 12, "more than min, which is 3"),
            (cpus("min = 0\nmax = 2"), 11, "from 1 to 256"),
            (cpus("max = 300"), 11, "at most 256"),
            (cpus("max = \"2\""), 11, "a whole number"),
            (cpus("cpus = 2"), 11, "expected one of `mechanism`"),
            (
                cpus("mechanism = \"plug\"\nmax = 2"),
                11,
                "`park` or `weight`",
            ),
            (vm("[vm.cpus]\nmax = 2"), 9, "needs a monitor"),
            ("[cpus]\nbusy = 101\n".into(), 2, "from 0 to 100"),
            ("[cpus]\nshrink = 0\n".into(), 2, "from 1 to 86400"),
            ("[cpus]\nweight = 1\n".into(), 2, "expected one of"),
        ] {
            let said = error(&text);
            assert!(
                said.starts_with(&format!(":{line}: ")) && said.contains(part),
                "{text}\nsaid {said}, not line {line}: {part}"
            );
        }
    }

    #[test]
    fn cpus_have_limits_and_rules() {
        let config = parse(
            "[cpus]\nbusy = 50\nidle = 0\ngive-back = 7\n[[vm]]\nname = \"v\"\n\
             uuid = \"8d5c6c5e-0000-4000-8000-000000000001\"\nmonitor = \"/m\"\n\
             [vm.cpus]\nmax = 3\n[[vm]]\nname = \"w\"\n\
             uuid = \"8d5c6c5e-0000-4000-8000-000000000002\"\nmonitor = \"/n\"\n\
             [vm.cpus]\nmechanism = \"weight\"\nmin = 2\nmax = 4\n",
        );
        let limits = |mechanism, min, max| {
            Some(Limits {
                mechanism,
                min,
                max,
            })
        };
        assert_eq!(config.vms[0].cpus, limits(Mechanism::Park, 1, 3));
        assert_eq!(config.vms[1].cpus, limits(Mechanism::Weight, 2, 4));
        let rules = Rules {
            busy: 0.5,
            idle: 0.0,
            give_back: Duration::from_secs(7),
            ..Rules::default()
        };
        assert_eq!(config.cpus, Some(rules));
    }

    #[test]
    fn memory_stays_within_its_limits() {
        let group = |name: &str, size: &str| {
            format!("[[group]]\nname = \"{name}\"\nisolation = \"shared\"\nsize = \"{size}\"\n")
        };
        let both = group("a", "16M") + &group("b", "16M");
        let said = error(&format!("[limits]\nhost = \"16M\"\n{both}"));
        assert!(
            said.starts_with(":7: ") && said.contains("limits.host"),
            "{said}"
        );
        let vm = "[[vm]]\nname = \"v\"\nuuid = \"8d5c6c5e-0000-4000-8000-000000000001\"\n\
                  groups = [\"a\", \"b\"]\n";
        let said = error(&format!("[limits]\nvm = \"16M\"\n{both}{vm}"));
        assert!(
            said.starts_with(":11: ") && said.contains("limits.vm"),
            "{said}"
        );
        let outsourced = "[[vm]]\nname = \"v\"\nuuid = \"8d5c6c5e-0000-4000-8000-000000000001\"\n\
                          monitor = \"/m\"\ngroups = [\"a\"]\n[vm.outsource]\nmemory = \"16M\"\n";
        for limit in ["host", "vm"] {
            let said = error(&format!(
                "[limits]\n{limit} = \"16M\"\n{}{outsourced}",
                group("a", "16M")
            ));
            let part = format!("limits.{limit}");
            assert!(said.starts_with(":7: ") && said.contains(&part), "{said}");
        }
        // The helper is in a file before that of the group.
        let helper = outsourced.replace("groups = [\"a\"]\n", "");
        let mut config = parse(&format!("[limits]\nhost = \"16M\"\n{helper}"));
        let fault = config.add(&group("b", "16M")).unwrap_err();
        assert!(fault.what.starts_with("with group b"), "{}", fault.what);
        let config = parse("[limits]\nhost = \"16M\"\n");
        let region = |text: &str| [text.parse().unwrap()];
        assert!(check_together(&config, &region("c:16M")).is_ok());
        let said = check_together(&config, &region("c:32M")).unwrap_err();
        assert!(said.to_string().contains("limits.host"), "{said}");
    }
}
