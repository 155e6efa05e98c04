// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions of two VMs, made at their first traffic and withdrawn when idle.
//!
//! Such VMs share no memory by which they could learn of each other. So each
//! guest writes its addresses into its page, the daemon writes there those of
//! the guest's candidates (VMs with which it may have a region), and the guest
//! writes with which of them it has traffic. An address is only a hint here, too:
//! a guest that claims another's gets a region with a peer whose connections it
//! cannot name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_abi::region::PAGE_ENTRIES;
use hallway_membership::{Address, Geometry, CANDIDATES_MAX};
use tracing::{info, warn};

use crate::config::Config;
use crate::connections::{Connection, Connections};
use crate::regions::{Regions, Served};

/// Time between two tries to make what could not be made.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// A region without a promoted connection for this long makes room for another; at
/// once if its own idle time is less.
const UNUSED: Duration = Duration::from_secs(5);

/// How long the last try to make a region is kept in mind. While the pair has traffic, there is
/// another one before.
const FORGET: Duration = Duration::from_secs(60);
/// Pairs of one VM of which it is shown that their region could not be made.
const TROUBLES_MAX: usize = PAGE_ENTRIES;

/// Two VMs by their numbers in the configuration, the lower one first.
pub type Two = (usize, usize);

/// A region that is to be made.
pub struct Wanted {
    /// Its name.
    pub region: String,
    /// How it is divided.
    pub geometry: Geometry,
    idle: Duration,
}

/// Why a region cannot be made.
struct Shortage {
    /// The VM that may not have more; nothing: the host.
    of: Option<usize>,
    why: String,
}

struct Pair {
    region: String,
    idle: Duration,
    /// When a connection was last promoted, or wanted to be.
    used: Instant,
    withdrawn: bool,
}

impl Pair {
    fn new(region: String, idle: Duration) -> Self {
        Self {
            region,
            idle,
            used: Instant::now(),
            withdrawn: false,
        }
    }
}

/// Every pair of VMs that has a region.
#[derive(Default)]
pub struct Pairs {
    made: BTreeMap<Two, Pair>,
    /// Pairs without a region, as it could not be made.
    refused: BTreeMap<Two, Refused>,
}

/// The last try to make a region.
struct Refused {
    at: Instant,
    /// Nothing: another region is on its way out, which makes room.
    why: Option<String>,
}

impl Refused {
    fn now(why: Option<String>) -> Self {
        let at = Instant::now();
        Self { at, why }
    }
}

impl Pairs {
    /// Goes on with the pairs of a daemon before this one.
    pub fn recover(regions: &Regions, config: &Config) -> Self {
        let mut pairs = Self::default();
        for served in regions.iter() {
            let Some(two) = config.pair_named(&served.name) else {
                continue;
            };
            let allowed = config.pair_of(two.0, two.1);
            let idle = allowed.map_or(Duration::ZERO, |(_, idle)| idle);
            let mut pair = Pair::new(served.name.clone(), idle);
            // The configuration may no longer allow it, or have another VM of that name.
            pair.withdrawn = allowed.is_none() || served.owners != config.owners(&served.name);
            pairs.made.insert(two, pair);
        }
        pairs
    }

    /// Names of the regions that a VM should have.
    pub fn of(&self, number: usize) -> impl Iterator<Item = &str> {
        let own = self.all_of(number).filter(|pair| !pair.withdrawn);
        own.map(|pair| pair.region.as_str())
    }

    /// Whether a region is on its way out: a guest that joined it again and again would
    /// keep it.
    pub fn is_withdrawn(&self, region: &str) -> bool {
        let mut made = self.made.values();
        made.any(|pair| pair.withdrawn && pair.region == region)
    }

    fn all_of(&self, number: usize) -> impl Iterator<Item = &Pair> {
        let own = self.made.iter();
        let own = own.filter(move |((a, b), _)| [*a, *b].contains(&number));
        own.map(|(_, pair)| pair)
    }

    /// Decides about a pair that has traffic. Its region, if one is to be made.
    pub fn want(&mut self, two: Two, regions: &Regions, config: &Config) -> Option<Wanted> {
        let (geometry, idle) = config.pair_of(two.0, two.1)?;
        if let Some(pair) = self.made.get_mut(&two) {
            // One that is being withdrawn is made again once it is gone.
            pair.used = Instant::now();
            return None;
        }
        let waits = |one: &Refused| one.at.elapsed() < TRY_AGAIN;
        if self.refused.get(&two).is_some_and(waits) {
            return None;
        }
        let region = config.pair_name(two.0, two.1);
        if regions.lingers(&region) {
            // Its file goes with the next commit.
            return None;
        }
        if let Some(shortage) = self.shortage(two, geometry.size(), regions, config) {
            let why = (!self.make_room(shortage.of)).then_some(shortage.why);
            if let Some(why) = &why {
                warn!(region, "cannot be made: {why}");
            }
            self.refused.insert(two, Refused::now(why));
            return None;
        }
        Some(Wanted {
            region,
            geometry,
            idle,
        })
    }

    /// Enters how making a region has ended.
    pub fn enter(&mut self, two: Two, wanted: Wanted, made: Result<()>) {
        match made {
            Ok(()) => {
                self.refused.remove(&two);
                self.made.insert(two, Pair::new(wanted.region, wanted.idle));
            }
            Err(error) => {
                warn!(region = wanted.region, "cannot be made: {error:#}");
                let why = Some(format!("{error:#}"));
                self.refused.insert(two, Refused::now(why));
            }
        }
    }

    /// The pairs of a VM that have traffic and no region, each with why it cannot be made.
    pub fn troubles(&self, number: usize) -> impl Iterator<Item = (Two, &str)> {
        let own = self.refused.iter();
        let own = own.filter(move |((a, b), _)| [*a, *b].contains(&number));
        let shown = own.filter_map(|(two, one)| Some((*two, one.why.as_deref()?)));
        shown.take(TROUBLES_MAX)
    }

    fn shortage(
        &self,
        two: Two,
        size: u64,
        regions: &Regions,
        config: &Config,
    ) -> Option<Shortage> {
        // Those of helpers have their room in any case.
        let others = |served: &&Served| config.helper_named(&served.name).is_none();
        let all = regions.iter().filter(others).map(Served::size);
        let sum = all.sum::<u64>() + config.helpers_size();
        let limit = config.host_limit;
        if limit.is_some_and(|limit| sum + size > limit) {
            let why = "the regions of this host would have more than limits.host allows";
            return Some(Shortage {
                of: None,
                why: why.into(),
            });
        }
        [two.0, two.1].into_iter().find_map(|number| {
            let why = self.shortage_of(number, size, regions, config)?;
            Some(Shortage {
                of: Some(number),
                why,
            })
        })
    }

    fn shortage_of(
        &self,
        number: usize,
        size: u64,
        regions: &Regions,
        config: &Config,
    ) -> Option<String> {
        let vm = &config.vms[number];
        let shared = config.shared_of(vm);
        let of_shared = shared.iter().map(|(_, geometry)| geometry.size());
        let of_pairs = self
            .all_of(number)
            .filter_map(|pair| regions.get(&pair.region));
        let sum = of_shared.sum::<u64>() + of_pairs.map(Served::size).sum::<u64>();
        let sum = sum + vm.helpers_size();
        if config.vm_limit.is_some_and(|limit| sum + size > limit) {
            let name = &vm.name;
            return Some(format!(
                "the regions of {name} would have more than limits.vm allows"
            ));
        }
        let count = shared.len() + self.all_of(number).count();
        let count = count + vm.count_helpers();
        (count >= PAGE_ENTRIES).then(|| {
            format!(
                "{} has {PAGE_ENTRIES} regions, which is all that a VM can join",
                vm.name
            )
        })
    }

    /// Withdraws the region of a VM, or of any, that was unused for longest. False
    /// if all are in use.
    fn make_room(&mut self, of: Option<usize>) -> bool {
        let idle = self.made.iter_mut().filter(|((a, b), pair)| {
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

    /// Withdraws the regions that are idle. Returns all that are withdrawn and not
    /// yet removed.
    pub fn withdraw_idle(&mut self, regions: &Regions) -> Vec<(Two, String)> {
        self.refused.retain(|_, one| one.at.elapsed() < FORGET);
        for pair in self.made.values_mut() {
            if regions.get(&pair.region).is_some_and(Served::is_used) {
                pair.used = Instant::now();
            }
            if !pair.withdrawn && pair.used.elapsed() >= pair.idle {
                info!(region = pair.region, "is idle: withdrawn");
                pair.withdrawn = true;
            }
        }
        let withdrawn = self.made.iter().filter(|(_, pair)| pair.withdrawn);
        withdrawn
            .map(|(two, pair)| (*two, pair.region.clone()))
            .collect()
    }

    /// Forgets a pair whose region is removed. There is room for one that could not
    /// be made.
    pub fn remove(&mut self, two: Two) {
        self.made.remove(&two);
        self.refused.clear();
    }
}

/// Number of the VM that the guest of a connection is.
fn vm_of(one: &Connection, config: &Config) -> Option<usize> {
    one.uuid.and_then(|uuid| config.vm_of(uuid))
}

/// Addresses of the candidates of a connection's guest.
pub fn candidates(one: &Connection, connections: &Connections, config: &Config) -> Vec<Address> {
    let Some(own) = vm_of(one, config) else {
        return Vec::new();
    };
    let others = connections.iter().filter(|other| {
        let number = vm_of(other, config);
        number.is_some_and(|number| config.pair_of(own, number).is_some())
    });
    let homes: Vec<&[Address]> = others.map(|other| &other.home[..]).collect();
    // By turns: a VM with many addresses does not displace those of others.
    let turns = homes.iter().map(|home| home.len()).max().unwrap_or(0);
    let by_turns = (0..turns).flat_map(|turn| homes.iter().filter_map(move |home| home.get(turn)));
    let mut addresses = BTreeSet::new();
    for address in by_turns {
        if addresses.len() < CANDIDATES_MAX {
            addresses.insert(*address);
        }
    }
    // A guest answers by places in this list, and can name no others.
    addresses.into_iter().collect()
}

/// The pairs of VMs that have traffic.
pub fn with_traffic(connections: &Connections, config: &Config) -> BTreeSet<Two> {
    let mut pairs = BTreeSet::new();
    for one in connections.iter() {
        let addresses = one.wanted();
        let Some(own) = vm_of(one, config).filter(|_| !addresses.is_empty()) else {
            continue;
        };
        let is_wanted = |other: &&Connection| {
            let mut home = other.home.iter();
            home.any(|address| addresses.contains(address))
        };
        for other in connections.iter().filter(is_wanted) {
            if let Some(number) = vm_of(other, config) {
                pairs.insert((own.min(number), own.max(number)));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            region: "pair.a.b".into(),
            geometry: Geometry::new(16 << 20, 3).unwrap(),
            idle: Duration::ZERO,
        }
    }

    #[test]
    fn a_region_that_cannot_be_made_says_why_until_it_is() {
        let mut pairs = Pairs::default();
        let refuse = || Err(anyhow::anyhow!("no memory"));
        pairs.enter((0, 1), wanted(), refuse());
        for (number, expected) in [(0, vec!["no memory"]), (1, vec!["no memory"]), (2, vec![])] {
            let said: Vec<&str> = pairs.troubles(number).map(|(_, why)| why).collect();
            assert_eq!(said, expected, "{number}");
        }
        pairs.enter((0, 1), wanted(), Ok(()));
        assert_eq!(pairs.troubles(0).count(), 0);
        for other in 1..50 {
            pairs.enter((0, other), wanted(), refuse());
        }
        assert_eq!(pairs.troubles(0).count(), TROUBLES_MAX);
    }
}
