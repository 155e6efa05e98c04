// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions that are served, and their members.

mod served;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use hallway_abi::tunnel::member_cid;
use hallway_control as control;
use hallway_membership::{
    check_memory, check_room, is_in_memory, printable, Geometry, Header, Region, Request, Uuid,
    HOST_SLOT,
};
use nix::fcntl::{fallocate, FallocateFlags};
use tracing::{info, warn};

pub use self::served::{Admission, Served};
use crate::access::Access;
use crate::config::Config;
use crate::keeper::{Holder, Kept, SavedRegion};
use crate::lines::Lines;
use crate::options::Options;
use crate::regionspec::RegionSpec;

/// Log lines a second about guests that join and leave.
const TURNOVER_LINES: usize = 32;

/// Every region.
pub struct Regions {
    served: Vec<Served>,
    /// No longer served. The memory of each is released once the holder has a state
    /// without the region.
    removed: Vec<Served>,
    /// Names of regions with memory that the holder does not keep yet.
    fresh: BTreeSet<String>,
    /// A region was made or removed.
    unsaved: bool,
    turnover: Lines,
}

impl Regions {
    /// Opens the regions that are asked for, and those that were served before.
    pub fn open(
        options: &Options,
        config: &Config,
        access: &Access,
        saved: Vec<SavedRegion>,
        kept: &mut Kept,
    ) -> Result<Self> {
        let mut regions = Self {
            served: Vec::new(),
            removed: Vec::new(),
            fresh: BTreeSet::new(),
            unsaved: true,
            turnover: Lines::new(TURNOVER_LINES),
        };
        let opened = regions.open_all(wanted(options, config, &saved)?, access, saved, kept);
        if opened.is_err() {
            let new = regions.iter().filter(|one| one.region.has_new_file());
            new.filter_map(|one| one.region.file())
                .for_each(Region::remove_file);
        }
        opened.map(|()| regions)
    }

    fn open_all(
        &mut self,
        all: Vec<Wanted>,
        access: &Access,
        mut saved: Vec<SavedRegion>,
        kept: &mut Kept,
    ) -> Result<()> {
        for wanted in all {
            let Wanted {
                name,
                file,
                geometry,
                admission,
                owners,
            } = wanted;
            let at = saved.iter().position(|saved| saved.name == name);
            let known = at.map(|at| saved.swap_remove(at).header);
            if let Some(known) = &known {
                let slots = known.members.len() as u32;
                check_same(&name, Geometry::new(known.size, slots)?, geometry)?;
            }
            let memory = kept.remove(&part_name(&name));
            let region = match &file {
                Some(file) => open_region(file, access, geometry, known)?,
                None => memory_region(&name, geometry, known, memory)
                    .with_context(|| format!("region {name}"))?,
            };
            info!(
                region = name,
                uuid = %region.header.uuid,
                file = file.as_deref().map(|file| tracing::field::display(file.display())),
                size = geometry.size(),
                slots = geometry.slots(),
                "serves"
            );
            self.take_in(Served::new(name, region, admission, owners));
        }
        Ok(())
    }

    /// Refuses a configuration with which a daemon could not open these regions again. `dir`:
    /// where those have files that are plugged in by hand.
    pub fn check(&self, config: &Config, dir: &Path) -> Result<()> {
        let (mut memory, mut files) = (0u64, 0u64);
        for spec in config.regions() {
            let name = &spec.name;
            if let Some(served) = self.get(name) {
                check_same(name, served.region.geometry(), spec.geometry)?;
                continue;
            }
            let mut lacks = spec.geometry.size();
            let with_others = || format!("region {name}, with new ones before it");
            let has_file = config.is_by_hand(name);
            if has_file {
                let file = std::fs::metadata(dir.join(name));
                lacks = lacks.saturating_sub(file.map_or(0, |file| file.blocks() * 512));
                files = files.saturating_add(lacks);
                check_room(dir, files).with_context(with_others)?;
            }
            // The directory may be on a disk.
            if !has_file || is_in_memory(dir) {
                memory = memory.saturating_add(lacks);
                check_memory(memory).with_context(with_others)?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, served: Served) {
        self.fresh.insert(served.name.clone());
        self.served.push(served);
        self.unsaved = true;
    }

    /// The region of that name.
    pub fn get(&self, name: &str) -> Option<&Served> {
        self.served.iter().find(|served| served.name == name)
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Served> {
        self.served.iter_mut().find(|served| served.name == name)
    }

    /// How a region's key begins, whatever members have written over it; zeros: there is none.
    pub fn key(&self, name: &str) -> [u8; 8] {
        let key = self.get(name).map(|served| served.region.header.key);
        key.and_then(|key| key.first_chunk().copied())
            .unwrap_or_default()
    }

    /// The region with that UUID.
    pub fn of_uuid(&self, uuid: Uuid) -> Option<&Served> {
        self.iter().find(|served| served.region.header.uuid == uuid)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Served> {
        self.served.iter()
    }

    /// Whether a region of that name was removed, and its memory is still there.
    pub fn lingers(&self, name: &str) -> bool {
        self.removed.iter().any(|served| served.name == name)
    }

    /// Makes a region for these VMs.
    pub fn make(&mut self, name: &str, geometry: Geometry, owners: Vec<Uuid>) -> Result<()> {
        let region = memory_region(name, geometry, None, None)?;
        info!(region = name, size = geometry.size(), "made");
        let admission = Admission::Configured;
        self.take_in(Served::new(name.into(), region, admission, owners));
        Ok(())
    }

    /// The regions without a file that the configuration no longer asks for, and that have no
    /// member.
    pub fn orphans(&self) -> impl Iterator<Item = &Served> {
        self.iter().filter(|served| {
            let is_own = served.region.file().is_none();
            served.admission == Admission::None && is_own && !served.has_members()
        })
    }

    /// Removes a region, of which no VM has anything.
    pub fn remove(&mut self, name: &str) {
        if let Some(at) = self.served.iter().position(|served| served.name == name) {
            self.fresh.remove(name);
            self.removed.push(self.served.remove(at));
            info!(region = name, "is no more");
        }
        self.unsaved = true;
    }

    /// Enters the guest of a request into a slot of a region. Returns its generation.
    pub fn enter(
        &mut self,
        label: &str,
        name: &str,
        slot: usize,
        request: &Request,
        cid: Option<u32>,
    ) -> u32 {
        let Some(served) = self.get_mut(name) else {
            return 0;
        };
        let generation = served.enter(slot, request.vm, &request.name, cid);
        if self.turnover.may() {
            info!(
                vm = label, name = request.name, uuid = %request.vm, region = name, slot,
                generation, cid, "joined"
            );
        }
        generation
    }

    /// The CID that the configuration gave a VM as it joined a region. Nothing: none, or it is no
    /// member.
    pub fn given_cid(&self, name: &str, vm: Uuid) -> Option<u32> {
        let members = self.get(name).map(|served| &served.region.header.members);
        let mut members = members.into_iter().flatten();
        members.find(|one| one.present && one.uuid == vm)?.cid
    }

    /// The CID of the one other member that a region has for a VM, if the region's header has
    /// changed; 0: it may have several, or is being withdrawn, as the configuration has other
    /// VMs by these names.
    pub fn changed_peer_cid(&self, config: &Config, name: &str, vm: Uuid) -> Option<u32> {
        let served = self.get(name).filter(|served| served.changed)?;
        let peer = config.only_peer(name, vm);
        let peer = peer.filter(|_| served.owners == config.owners(name));
        Some(peer.map_or(0, |peer| {
            member_cid(self.given_cid(name, peer).unwrap_or(0), &peer.0)
        }))
    }

    /// Enters a member of the host's own into a slot of a region. Returns its generation.
    pub fn enter_own(&mut self, name: &str, slot: usize, uuid: Uuid, member: &str) -> u32 {
        let served = self.get_mut(name);
        served.map_or(0, |served| served.enter(slot, uuid, member, None))
    }

    /// Takes a member out of its region.
    pub fn leave(&mut self, label: &str, name: &str, slot: usize) {
        if let Some(served) = self.get_mut(name) {
            served.leave(slot);
            if self.turnover.may() {
                info!(vm = label, region = name, slot, "left");
            }
        }
    }

    /// Takes out the guests that no connection holds any more.
    pub fn retain_members(&mut self, is_held: impl Fn(&str, usize) -> bool) {
        for served in &mut self.served {
            for slot in HOST_SLOT + 1..served.region.header.members.len() {
                if served.region.header.members[slot].present && !is_held(&served.name, slot) {
                    served.leave(slot);
                }
            }
        }
    }

    /// Puts back what members wrote on the headers.
    pub fn guard(&mut self) {
        self.served.iter_mut().for_each(Served::guard);
    }

    /// Publishes the host's heartbeat, and looks at those of the members.
    pub fn every_second(&mut self, heartbeat: u32) {
        if let more @ 1.. = self.turnover.every_second() {
            warn!(
                more,
                "guests joined or left within a second, too many to log each"
            );
        }
        let now = Instant::now();
        for served in &mut self.served {
            served.region.beat(heartbeat);
            served.listen(now);
        }
    }

    // -- Outward, in the order of the loop's commit -------------------------------

    /// Whether what a later daemon must know has changed.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved || self.iter().any(|served| served.changed)
    }

    /// What a later daemon must know of them.
    pub fn saved(&self) -> Vec<SavedRegion> {
        let saved = |served: &Served| SavedRegion {
            name: served.name.clone(),
            file: served.region.file().map(Path::to_path_buf),
            header: served.region.header.clone(),
            configured: matches!(served.admission, Admission::Configured | Admission::None),
            owners: served.owners.clone(),
        };
        self.iter().map(saved).collect()
    }

    /// Has the holder keep the memory that is in no file.
    pub fn keep(&mut self, holder: &Holder) -> io::Result<()> {
        while let Some(name) = self.fresh.first().cloned() {
            let memory = self.get(&name).and_then(|one| one.region.descriptor());
            if let Some(memory) = memory {
                holder.put(&part_name(&name), memory)?;
            }
            self.fresh.remove(&name);
        }
        Ok(())
    }

    /// Has the holder keep nothing yet: it is another one.
    pub fn keep_again(&mut self) {
        self.fresh = self.served.iter().map(|one| one.name.clone()).collect();
    }

    /// The holder has the state: removed regions lose their memory.
    pub fn on_saved(&mut self, holder: &Holder) {
        self.unsaved = false;
        for served in self.removed.drain(..) {
            match served.region.file() {
                // Nothing else will map what may still be mapped of it.
                Some(file) => Region::remove_file(file),
                // Where it fails, the holder has ended, and has closed it.
                None => {
                    drop(holder.del(&part_name(&served.name)));
                    free(&served.region);
                }
            }
        }
    }

    /// Copies the headers that have changed into their regions, and returns the
    /// names of these.
    pub fn publish(&mut self) -> Vec<String> {
        let mut published = Vec::new();
        for served in &mut self.served {
            if std::mem::take(&mut served.changed) {
                served.region.publish();
                published.push(served.name.clone());
            }
        }
        published
    }

    /// What `hallway status` shows of them.
    pub fn status(&self) -> Vec<control::Region> {
        self.iter().map(Served::status).collect()
    }
}

/// A region that is to be opened.
struct Wanted {
    name: String,
    /// Its file, if people plug it in.
    file: Option<PathBuf>,
    geometry: Geometry,
    admission: Admission,
    owners: Vec<Uuid>,
}

fn check_same(name: &str, known: Geometry, wanted: Geometry) -> Result<()> {
    if known != wanted {
        bail!(
            "region {name} is in use with other dimensions: ask for the same as before, or end it \
             with hallwayd --stop first"
        );
    }
    Ok(())
}

/// The regions that are asked for, and those that were served before.
fn wanted(options: &Options, config: &Config, saved: &[SavedRegion]) -> Result<Vec<Wanted>> {
    let with = |specs: Vec<RegionSpec>, admission| {
        specs.into_iter().map(move |spec| Wanted {
            file: (admission == Admission::All || config.is_by_hand(&spec.name))
                .then(|| options.region_dir.join(&spec.name)),
            name: spec.name,
            geometry: spec.geometry,
            admission,
            owners: Vec::new(),
        })
    };
    let asked = with(options.regions(), Admission::All);
    let asked = asked.chain(with(config.regions(), Admission::Configured));
    let mut wanted: Vec<Wanted> = Vec::new();
    for one in asked {
        if wanted.iter().any(|other| other.name == one.name) {
            bail!(
                "region {} was asked for twice: give each --region another name",
                one.name
            );
        }
        wanted.push(one);
    }
    for saved in saved {
        if let Some(wanted) = wanted.iter_mut().find(|one| one.name == saved.name) {
            // VMs may have it.
            if wanted.file != saved.file {
                warn!(
                    region = saved.name,
                    "stays {} until hallwayd --stop, for VMs that have it",
                    at(saved.file.as_deref())
                );
                wanted.file.clone_from(&saved.file);
            }
            continue;
        }
        let is_configured =
            config.pair_named(&saved.name).is_some() || config.helper_named(&saved.name).is_some();
        let admission = if is_configured {
            Admission::Configured
        } else {
            warn!(
                region = saved.name,
                "was not asked for again, and goes on being served; no other VM may join it"
            );
            if saved.configured {
                Admission::None
            } else {
                Admission::Members
            }
        };
        wanted.push(Wanted {
            name: saved.name.clone(),
            file: saved.file.clone(),
            geometry: Geometry::new(saved.header.size, saved.header.members.len() as u32)?,
            admission,
            owners: find_owners(saved, config),
        });
    }
    Ok(wanted)
}

/// The VMs that a region of a daemon before this one was made for. Where that did not say,
/// they are those of the configuration, unless another was ever a member.
fn find_owners(saved: &SavedRegion, config: &Config) -> Vec<Uuid> {
    if !saved.owners.is_empty() {
        return saved.owners.clone();
    }
    let owners = config.owners(&saved.name);
    let is_pair = config.pair_named(&saved.name).is_some();
    let guests = if is_pair { usize::MAX } else { 1 };
    let members = saved.header.members.iter().skip(HOST_SLOT + 1).take(guests);
    let mut members = members.filter(|member| member.generation != 0);
    match members.find(|member| !owners.contains(&member.uuid)) {
        Some(other) => vec![other.uuid],
        None => owners,
    }
}

/// Frees the memory of a region that is no more: a QEMU that was handed it may keep it open.
fn free(region: &Region) {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let size = region.geometry().size() as libc::off_t;
    let freed = region
        .descriptor()
        .map(|memory| fallocate(memory, flags, 0, size));
    if let Some(Err(error)) = freed {
        warn!("the memory of a region that is no more stays until its QEMUs end: {error}");
    }
}

/// Where a region is, in words.
fn at(file: Option<&Path>) -> String {
    file.map_or("in memory alone".into(), |file| {
        format!("in {}", file.display())
    })
}

/// Name of a region's memory at the holder.
fn part_name(region: &str) -> String {
    format!("region.{region}")
}

/// Opens or makes the file of a region. `known` is its header, if a daemon before
/// this one served it until now.
fn open_region(
    file: &Path,
    access: &Access,
    geometry: Geometry,
    known: Option<Header>,
) -> Result<Region> {
    let fresh = known.is_none();
    let mut region = Region::open(file, geometry, known)?;
    if !region.is_in_memory() {
        warn!(
            "{}: is on a disk, to which all that VMs send would be written: give a --region-dir \
             in memory, such as /dev/shm/hallway",
            file.display()
        );
    }
    access.share_file(file)?;
    set_up_host(&mut region, fresh)?;
    Ok(region)
}

/// Makes the memory of a region, or takes it up as a daemon before this one left it.
fn memory_region(
    name: &str,
    geometry: Geometry,
    known: Option<Header>,
    kept: Option<OwnedFd>,
) -> Result<Region> {
    let fresh = known.is_none();
    let mut region = match (known, kept) {
        (Some(header), Some(memory)) => Region::take_up(memory, geometry, header)?,
        (Some(_), None) => return Err(hallway_membership::Error::Lost.into()),
        (None, _) => Region::make(name, geometry)?,
    };
    set_up_host(&mut region, fresh)?;
    Ok(region)
}

fn set_up_host(region: &mut Region, fresh: bool) -> Result<()> {
    if fresh || !region.header.members[HOST_SLOT].present {
        let old = region.header.members[HOST_SLOT].uuid;
        let host = if old.is_nil() { Uuid::random()? } else { old };
        let name = nix::unistd::gethostname().unwrap_or_default();
        region.enter_host(host, &printable(name.as_encoded_bytes()));
    }
    Ok(())
}
