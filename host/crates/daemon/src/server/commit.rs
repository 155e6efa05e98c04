// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carrying the private picture outward, in the one order that is safe: that of
//! the loop's documentation.

use std::collections::BTreeSet;

use anyhow::Result;
use tracing::error;

use super::Server;
use crate::keeper::{State, LISTENER};
use crate::pairs;
use crate::picture::Picture;

impl Server {
    /// Carries the private picture outward.
    pub(super) fn commit(&mut self) {
        let picture = &self.picture;
        if picture.connections.is_unsaved()
            || picture.regions.is_unsaved()
            || picture.vms.is_unsaved()
            || picture.cpus.is_unsaved()
            || self.keeper.is_behind()
        {
            self.save();
        }
        if let Some(effects) = self.picture.connections.greet(&self.poller) {
            self.picture.apply(effects);
            self.save();
        }
        let Picture {
            connections,
            config,
            regions,
            ..
        } = &mut self.picture;
        connections.write_peer_cids(|region, vm| regions.changed_peer_cid(config, region, vm));
        let changed = regions.publish();
        self.run_helpers();
        if self.picture.helpers.is_unsaved() {
            self.save();
        }
        let mut rings = self.write_candidates();
        let Picture {
            connections,
            config,
            cpus,
            regions,
            ..
        } = &mut self.picture;
        rings.extend(connections.write_replies(
            &changed,
            config,
            |region| regions.key(region),
            |region, vm| regions.given_cid(region, vm),
        ));
        rings.extend(connections.write_cpu_orders(|one| cpus.order(one.uuid, config)));
        self.picture.connections.ring(&rings);
        // No later daemon would have the base.
        if self.keeper.has_holder() && !self.keeper.is_behind() {
            self.picture.cpus.write_weights();
        }
        self.picture.plug_regions();
    }

    /// Gives the holder what it lacks: new descriptors, then the state. What the
    /// state no longer names goes after that.
    fn save(&mut self) {
        if !self.keeper.has_holder() {
            return;
        }
        if let Err(error) = self.try_save() {
            error!("cannot save the state: {error:#}");
        }
    }

    fn try_save(&mut self) -> Result<()> {
        let connections = &mut self.picture.connections;
        let mut state = State::new(self.keeper.socket.clone(), self.keeper.made.clone());
        state.regions = self.picture.regions.saved();
        state.connections = connections.saved();
        state.next_connection = connections.next();
        state.doorbells = connections.saved_doorbells();
        state.helpers = self.picture.helpers.saved(&self.picture.config);
        state.releases = self.picture.vms.releases();
        state.weights = self.picture.cpus.weights();
        let regions = &mut self.picture.regions;
        connections.keep(self.keeper.holder())?;
        regions.keep(self.keeper.holder())?;
        self.picture.helpers.keep(self.keeper.holder());
        self.keeper.save(&state)?;
        connections.on_saved(self.keeper.holder());
        regions.on_saved(self.keeper.holder());
        self.picture.helpers.on_saved();
        self.picture.vms.on_saved();
        self.picture.cpus.on_saved();
        Ok(())
    }

    /// Gives all to another holder, if one is to be started in place of one that ended.
    pub(super) fn replace_holder(&mut self) {
        if !self.keeper.lacks_holder() {
            return;
        }
        if let Err(error) = self.try_replace_holder() {
            error!("no holder: VMs would not survive this daemon's end: {error:#}");
        }
    }

    fn try_replace_holder(&mut self) -> Result<()> {
        self.keeper.replace_holder(&self.poller)?;
        let connections = &mut self.picture.connections;
        connections.keep_again();
        self.picture.regions.keep_again();
        self.picture.helpers.keep_again();
        let holder = self.keeper.holder();
        Ok(holder.put(LISTENER, connections.listener())?)
    }

    /// Starts helpers, and tells them of their guests.
    fn run_helpers(&mut self) {
        let holder = Some(self.keeper.holder()).filter(|_| self.keeper.has_holder());
        let picture = &mut self.picture;
        let effects = picture.helpers.run(
            &picture.config,
            &picture.connections,
            &picture.regions,
            holder,
            &self.poller,
        );
        picture.apply(effects);
    }

    /// Writes candidates into the pages where they have changed. Returns the
    /// connections of these.
    fn write_candidates(&mut self) -> BTreeSet<u64> {
        let picture = &mut self.picture;
        let mut written = BTreeSet::new();
        if !picture.connections.take_moved() {
            return written;
        }
        for number in picture.connections.numbers() {
            let connections = &mut picture.connections;
            let Some(one) = connections.get(number) else {
                continue;
            };
            let list = pairs::candidates(one, connections, &picture.config);
            if connections.write_candidates(number, &list) {
                written.insert(number);
            }
        }
        written
    }
}
