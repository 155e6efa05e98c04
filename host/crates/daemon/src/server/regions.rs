// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of the command line and the configuration, and those served before.

use std::path::{Path, PathBuf};

use anyhow::{bail, Result};
use hallway_membership::{printable, Geometry, Header, Region, Uuid, HOST_SLOT};
use tracing::{info, warn};

use super::served::Served;
use crate::config::Config;
use crate::options::Options;
use crate::state::SavedRegion;

/// Opens the regions that are asked for, and those that were served before.
pub(super) fn open_regions(
    options: &Options,
    config: &Config,
    mut saved_regions: Vec<SavedRegion>,
) -> Result<Vec<Served>> {
    let mut wanted: Vec<(String, PathBuf, Geometry)> = options
        .regions()
        .into_iter()
        .chain(config.regions())
        .map(|spec| {
            (
                spec.name.clone(),
                options.region_dir.join(&spec.name),
                spec.geometry,
            )
        })
        .collect();
    for saved in &saved_regions {
        if !wanted.iter().any(|(name, ..)| *name == saved.name) {
            if config.pair_named(&saved.name).is_none() {
                warn!(
                    region = saved.name,
                    "was not asked for again, and goes on being served"
                );
            }
            let slots = saved.header.members.len() as u32;
            let geometry = Geometry::new(saved.header.size, slots)?;
            wanted.push((saved.name.clone(), saved.file.clone(), geometry));
        }
    }
    let mut regions: Vec<Served> = Vec::new();
    for (name, file, geometry) in wanted {
        if regions.iter().any(|served| served.name == name) {
            bail!("region {name} was asked for twice: give each --region another name");
        }
        let at = saved_regions
            .iter()
            .position(|s| s.name == name && s.file == file);
        let known = at.map(|at| saved_regions.swap_remove(at).header);
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
        regions.push(Served::new(name, region));
    }
    Ok(regions)
}

/// Opens a region that no daemon before this one served, or served before.
pub(super) fn open_region(
    file: &Path,
    geometry: Geometry,
    known: Option<Header>,
) -> Result<Region> {
    let fresh = known.is_none();
    let mut region = Region::open(file, geometry, known)?;
    if fresh || !region.header.members[HOST_SLOT].present {
        let old = region.header.members[HOST_SLOT].uuid;
        let host = if old.is_nil() { Uuid::random()? } else { old };
        region.enter_host(host, &hostname());
    }
    Ok(region)
}

fn hostname() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    printable(name.as_encoded_bytes())
}
