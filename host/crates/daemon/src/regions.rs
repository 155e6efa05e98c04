// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions that are served, and their members.

mod served;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{bail, Result};
use hallway_control as control;
use hallway_membership::{printable, Geometry, Header, Region, Request, Uuid, HOST_SLOT};
use tracing::{info, warn};

pub use self::served::{Admission, Served};
use crate::access::Access;
use crate::config::Config;
use crate::keeper::SavedRegion;
use crate::options::Options;
use crate::regionspec::RegionSpec;

/// Every region.
pub struct Regions {
    served: Vec<Served>,
    /// Not served any more; each loses its file once the holder has a state
    /// without it.
    removed: Vec<Served>,
    dir: PathBuf,
    access: Access,
    /// A region was made or removed.
    unsaved: bool,
}

impl Regions {
    /// Opens the regions that are asked for, and those that were served before.
    pub fn open(
        options: &Options,
        config: &Config,
        access: &Access,
        mut saved: Vec<SavedRegion>,
    ) -> Result<Self> {
        let mut served: Vec<Served> = Vec::new();
        for wanted in wanted(options, config, &saved)? {
            let Wanted {
                name,
                file,
                geometry,
                admission,
            } = wanted;
            let at = saved
                .iter()
                .position(|saved| saved.name == name && saved.file == file);
            let known = at.map(|at| saved.swap_remove(at).header);
            if known.as_ref().is_some_and(|known| {
                known.size != geometry.size() || known.members.len() as u32 != geometry.slots()
            }) {
                bail!(
                    "region {name} is in use with other dimensions: ask for the same as before, \
                     or end it with hallwayd --stop first"
                );
            }
            let region = open_region(&file, geometry, known)?;
            info!(
                region = name,
                uuid = %region.header.uuid,
                file = %file.display(),
                size = geometry.size(),
                slots = geometry.slots(),
                "serves"
            );
            access.share_file(&file)?;
            served.push(Served::new(name, region, admission));
        }
        Ok(Self {
            served,
            removed: Vec::new(),
            dir: options.region_dir.clone(),
            access: access.clone(),
            unsaved: true,
        })
    }

    /// The region of that name.
    pub fn get(&self, name: &str) -> Option<&Served> {
        self.served.iter().find(|served| served.name == name)
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Served> {
        self.served.iter_mut().find(|served| served.name == name)
    }

    /// The region with that UUID.
    pub fn of_uuid(&self, uuid: Uuid) -> Option<&Served> {
        self.iter().find(|served| served.region.header.uuid == uuid)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Served> {
        self.served.iter()
    }

    /// Whether a region of that name was removed, and its file is still there.
    pub fn lingers(&self, name: &str) -> bool {
        self.removed.iter().any(|served| served.name == name)
    }

    /// Makes a region.
    pub fn make(&mut self, name: &str, geometry: Geometry) -> Result<()> {
        let file = self.dir.join(name);
        let region = open_region(&file, geometry, None)?;
        self.access.share_file(&file)?;
        info!(region = name, file = %file.display(), size = geometry.size(), "made");
        let served = Served::new(name.into(), region, Admission::Configured);
        self.served.push(served);
        self.unsaved = true;
        Ok(())
    }

    /// Removes a region, of which no VM has anything.
    pub fn remove(&mut self, name: &str) {
        if let Some(at) = self.served.iter().position(|served| served.name == name) {
            self.removed.push(self.served.remove(at));
            info!(region = name, "is no more");
        }
        self.unsaved = true;
    }

    /// Enters the guest of a request into a slot of a region. Returns its generation.
    pub fn enter(&mut self, label: &str, name: &str, slot: usize, request: &Request) -> u32 {
        let Some(served) = self.get_mut(name) else {
            return 0;
        };
        let generation = served.enter(slot, request.vm, &request.name);
        info!(
            vm = label, name = request.name, uuid = %request.vm, region = name, slot, generation,
            "joined"
        );
        generation
    }

    /// Takes a member out of its region.
    pub fn leave(&mut self, label: &str, name: &str, slot: usize) {
        if let Some(served) = self.get_mut(name) {
            served.leave(slot);
            info!(vm = label, region = name, slot, "left");
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
            file: served.region.path.clone(),
            header: served.region.header.clone(),
            configured: matches!(served.admission, Admission::Configured | Admission::None),
        };
        self.iter().map(saved).collect()
    }

    /// The holder has the state: removed regions lose their files.
    pub fn on_saved(&mut self) {
        self.unsaved = false;
        for served in self.removed.drain(..) {
            // Nothing else will map what may still be mapped of it.
            let _ = std::fs::remove_file(&served.region.path);
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
    file: PathBuf,
    geometry: Geometry,
    admission: Admission,
}

/// The regions that are asked for, and those that were served before.
fn wanted(options: &Options, config: &Config, saved: &[SavedRegion]) -> Result<Vec<Wanted>> {
    let with = |specs: Vec<RegionSpec>, admission| {
        specs.into_iter().map(move |spec| Wanted {
            file: options.region_dir.join(&spec.name),
            name: spec.name,
            geometry: spec.geometry,
            admission,
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
        if wanted.iter().any(|wanted| wanted.name == saved.name) {
            continue;
        }
        let admission = if config.pair_named(&saved.name).is_some() {
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
        });
    }
    Ok(wanted)
}

/// Opens or makes the file of a region. `known` is its header, if a daemon before
/// this one served it until now.
fn open_region(file: &Path, geometry: Geometry, known: Option<Header>) -> Result<Region> {
    let fresh = known.is_none();
    let mut region = Region::open(file, geometry, known)?;
    if fresh || !region.header.members[HOST_SLOT].present {
        let old = region.header.members[HOST_SLOT].uuid;
        let host = if old.is_nil() { Uuid::random()? } else { old };
        let name = nix::unistd::gethostname().unwrap_or_default();
        region.enter_host(host, &printable(name.as_encoded_bytes()));
    }
    Ok(region)
}
