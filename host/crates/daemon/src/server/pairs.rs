// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of two VMs, made at their first traffic and withdrawn when idle.
//!
//! Such VMs share no memory by which they could learn of each other. So each
//! guest tells the daemon in its page where it is, the daemon tells it where
//! those are with whom it may have a region, and the guest says with which of
//! them it has traffic. An address is only a hint here, too: who claims another's
//! gets a region with a peer whose connections it cannot name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_abi::region::{NEIGHBOURS_MAX, PAGE_ENTRIES};
use hallway_membership::{slice, Address, Geometry, HOST_SLOT};
use tracing::{info, warn};

use super::regions::open_region;
use super::served::Served;
use super::Server;

/// Between two tries to make what could not be made.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Without a promoted connection for so long a region makes room for another, at once
/// if its own time without one is less.
const UNUSED: Duration = Duration::from_secs(5);

/// Two VMs of the configuration, the lower number first.
type Two = (usize, usize);

/// Why a region can't be made.
struct Short {
    /// The VM that may not have more, or all of them.
    of: Option<usize>,
    why: String,
}

/// All regions of pairs.
pub(super) struct Pairs {
    made: BTreeMap<Two, Pair>,
    /// When it could not be made, and why.
    refused: BTreeMap<Two, Instant>,
}

struct Pair {
    region: String,
    idle: Duration,
    /// When a connection was last promoted, or wanted to be.
    used: Instant,
    withdrawn: bool,
}

impl Pairs {
    /// None yet.
    pub fn new() -> Self {
        Self {
            made: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Names of the regions that a VM should have.
    pub fn of(&self, number: usize) -> Vec<String> {
        let all = self.made.iter();
        all.filter(|((a, b), pair)| !pair.withdrawn && [*a, *b].contains(&number))
            .map(|(_, pair)| pair.region.clone())
            .collect()
    }
}

impl Server {
    /// Goes on with the pairs of a daemon before this one.
    pub(super) fn recover_pairs(&mut self) {
        for served in &self.regions {
            let Some((a, b)) = self.config.pair_named(&served.name) else {
                continue;
            };
            let allowed = self.config.pair_of(a, b);
            let pair = Pair {
                region: served.name.clone(),
                idle: allowed.map_or(Duration::ZERO, |(_, idle)| idle),
                used: Instant::now(),
                // Who may no longer talk shall not.
                withdrawn: allowed.is_none(),
            };
            self.pairs.made.insert((a, b), pair);
        }
    }

    /// Where the VMs are with whom this one may have a region of its own.
    pub(super) fn neighbours_of(&self, number: u64) -> Vec<Address> {
        let uuid = self.vms.get(&number).and_then(|vm| vm.saved.uuid);
        let Some(own) = uuid.and_then(|uuid| self.config.vm_of(uuid)) else {
            return Vec::new();
        };
        let mut addresses = BTreeSet::new();
        for vm in self.vms.values() {
            let other = vm.saved.uuid.and_then(|uuid| self.config.vm_of(uuid));
            if other.is_some_and(|other| self.config.pair_of(own, other).is_some()) {
                addresses.extend(&vm.home);
            }
        }
        // The list's numbers are all that a guest can answer by.
        addresses.into_iter().take(NEIGHBOURS_MAX).collect()
    }

    /// Makes the regions that VMs ask for.
    pub(super) fn meet_wants(&mut self) {
        let mut wanted = BTreeSet::new();
        for vm in self.vms.values() {
            let addresses = vm.wanted();
            let own = vm.saved.uuid.and_then(|uuid| self.config.vm_of(uuid));
            let Some(own) = own.filter(|_| !addresses.is_empty()) else {
                continue;
            };
            for other in self.vms.values() {
                let number = other.saved.uuid.and_then(|uuid| self.config.vm_of(uuid));
                let Some(number) =
                    number.filter(|_| other.home.iter().any(|home| addresses.contains(home)))
                else {
                    continue;
                };
                wanted.insert((own.min(number), own.max(number)));
            }
        }
        for two in wanted {
            self.want(two);
        }
    }

    fn want(&mut self, two: Two) {
        let Some((geometry, idle)) = self.config.pair_of(two.0, two.1) else {
            return;
        };
        if let Some(pair) = self.pairs.made.get_mut(&two) {
            // One that is being withdrawn is made anew once it is gone.
            pair.used = Instant::now();
            return;
        }
        let waits = |at: &Instant| at.elapsed() < TRY_AGAIN;
        if self.pairs.refused.get(&two).is_some_and(waits) {
            return;
        }
        let region = self.config.pair_name(two.0, two.1);
        if self.removed.iter().any(|old| old.name == region) {
            // Its file goes with the next commit.
            return;
        }
        if let Some(short) = self.shortage(two, geometry.size()) {
            if !self.make_room(short.of) {
                warn!(region, "cannot be made: {}", short.why);
            }
            self.pairs.refused.insert(two, Instant::now());
            return;
        }
        match self.make_pair(&region, geometry) {
            Ok(()) => {
                self.pairs.refused.remove(&two);
                let pair = Pair {
                    region,
                    idle,
                    used: Instant::now(),
                    withdrawn: false,
                };
                self.pairs.made.insert(two, pair);
            }
            Err(error) => {
                warn!(region, "cannot be made: {error:#}");
                self.pairs.refused.insert(two, Instant::now());
            }
        }
    }

    fn shortage(&self, two: Two, size: u64) -> Option<Short> {
        let all = self.regions.iter().map(|s| s.region.geometry().size());
        let limit = self.config.host_limit;
        if limit.is_some_and(|limit| all.sum::<u64>() + size > limit) {
            let why = "the regions of this host would have more than limits.host allows";
            return Some(Short {
                of: None,
                why: why.into(),
            });
        }
        [two.0, two.1].into_iter().find_map(|number| {
            let vm = &self.config.vms[number];
            let shared = self.config.shared_of(vm);
            let pairs = self.pairs.made.iter();
            let own: Vec<_> = pairs
                .filter(|((a, b), _)| [*a, *b].contains(&number))
                .collect();
            let held = |(_, pair): &(_, &Pair)| {
                let served = self.regions.iter().find(|s| s.name == pair.region);
                served.map_or(0, |served| served.region.geometry().size())
            };
            let sum = shared
                .iter()
                .map(|(_, geometry)| geometry.size())
                .sum::<u64>()
                + own.iter().map(held).sum::<u64>();
            let why = if self.config.vm_limit.is_some_and(|limit| sum + size > limit) {
                format!(
                    "the regions of {} would have more than limits.vm allows",
                    vm.name
                )
            } else if shared.len() + own.len() >= PAGE_ENTRIES {
                format!(
                    "{} has {PAGE_ENTRIES} regions, which is all that a VM can join",
                    vm.name
                )
            } else {
                return None;
            };
            Some(Short {
                of: Some(number),
                why,
            })
        })
    }

    /// Withdraws what a VM, or any, has used least lately. False if all is in use.
    fn make_room(&mut self, of: Option<usize>) -> bool {
        let idle = self.pairs.made.iter_mut().filter(|((a, b), pair)| {
            of.is_none_or(|number| [*a, *b].contains(&number))
                && !pair.withdrawn
                && pair.used.elapsed() >= pair.idle.min(UNUSED)
        });
        let Some((_, pair)) = idle.min_by_key(|(_, pair)| pair.used) else {
            return false;
        };
        info!(
            region = pair.region,
            "is idle, and another is wanted: withdrawn"
        );
        pair.withdrawn = true;
        true
    }

    fn make_pair(&mut self, name: &str, geometry: Geometry) -> Result<()> {
        let size = geometry.size();
        let file = self.region_dir.join(name);
        let region = open_region(&file, geometry, None)?;
        self.access.share(&file)?;
        info!(region = name, file = %file.display(), size, "made");
        self.regions.push(Served::new(name.into(), region));
        self.dirty = true;
        Ok(())
    }

    /// Withdraws the regions that nobody uses any more; once a second.
    pub(super) fn withdraw_idle(&mut self) {
        let mut withdrawn = Vec::new();
        for (two, pair) in &mut self.pairs.made {
            let served = self
                .regions
                .iter()
                .find(|served| served.name == pair.region);
            if served.is_some_and(is_used) {
                pair.used = Instant::now();
            }
            if !pair.withdrawn && pair.used.elapsed() >= pair.idle {
                info!(region = pair.region, "is idle: withdrawn");
                pair.withdrawn = true;
            }
            if pair.withdrawn {
                withdrawn.push((*two, pair.region.clone()));
            }
        }
        for (two, region) in withdrawn {
            let out = [two.0, two.1].map(|number| self.is_out(number, &region));
            if out == [true, true] {
                self.remove_pair(two, &region);
            }
        }
    }

    /// Gets a region out of a VM. True once it is, or the VM is gone.
    fn is_out(&mut self, number: usize, region: &str) -> bool {
        let uuid = self.config.vms[number].uuid;
        let guest = self.vms.values().find(|vm| vm.saved.uuid == Some(uuid));
        match guest.map(|vm| vm.entry(region).is_some()) {
            None => true,
            Some(joined) => self.plug_out(number, region, joined),
        }
    }

    fn remove_pair(&mut self, two: Two, region: &str) {
        self.pairs.made.remove(&two);
        // There is room for one that could not be made.
        self.pairs.refused.clear();
        self.forget_plugs(region);
        if let Some(at) = self.regions.iter().position(|served| served.name == region) {
            let served = self.regions.remove(at);
            self.removed.push(served);
            info!(region, "is no more");
        }
        self.dirty = true;
    }
}

/// Whether a member of a region says that it has promoted connections.
fn is_used(served: &Served) -> bool {
    let members = served.region.header.members.iter().enumerate();
    members.skip(HOST_SLOT + 1).any(|(slot, member)| {
        let base = served.region.geometry().slice_offset(slot) as usize;
        let seen = slice::read(served.region.memory(), base);
        member.present
            && seen.is_some_and(|seen| seen.generation == member.generation && seen.channels > 0)
    })
}
