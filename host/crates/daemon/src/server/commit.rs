// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carrying the private picture outward, in the one order that is safe.

use std::os::fd::AsFd;

use hallway_abi::region as abi;
use hallway_membership::{Reply, HOST_SLOT};
use tracing::{debug, error};

use super::Server;
use crate::state::Entry;
use crate::vm::Vm;

impl Server {
    /// Carries the private picture outward (see the head of this file).
    pub(super) fn commit(&mut self) {
        if self.dirty || self.regions.iter().any(|served| served.changed) {
            self.save();
        }
        if self.greet() {
            self.save();
        }
        if !self.dirty {
            for served in self.removed.drain(..) {
                // Who may still map it, maps what nobody else ever will.
                let _ = std::fs::remove_file(&served.region.path);
            }
        }
        let mut changed = Vec::new();
        for served in &mut self.regions {
            if std::mem::take(&mut served.changed) {
                served.region.publish();
                changed.push(served.name.clone());
            }
        }
        let mut rings = Vec::new();
        for (number, vm) in &self.vms {
            let mut ring = changed.iter().any(|name| vm.entry(name).is_some());
            let mut replies = Vec::new();
            for (index, entry) in vm.saved.entries.iter().enumerate() {
                let reply = self.reply(vm, entry);
                if entry.serial != 0 && vm.written[index].as_ref() != Some(&reply) {
                    replies.push((index, reply));
                    ring = true;
                }
            }
            rings.push((*number, replies, ring));
        }
        let moved = std::mem::take(&mut self.moved);
        for (number, replies, ring) in &mut rings {
            let neighbours = moved.then(|| self.neighbours_of(*number));
            let Some(vm) = self.vms.get_mut(number) else {
                continue;
            };
            *ring |= neighbours.is_some_and(|neighbours| vm.tell(&neighbours));
            for (index, reply) in std::mem::take(replies) {
                vm.page.write(index, &reply);
                vm.written[index] = Some(reply);
            }
        }
        for (number, _, ring) in rings {
            if let Some(vm) = self.vms.get(&number).filter(|_| ring) {
                vm.ring();
            }
        }
    }

    /// Gives the holder the private picture.
    fn save(&mut self) {
        self.dirty = false;
        let saved = self
            .state()
            .save()
            .and_then(|fd| Ok(self.holder.put("state", fd.as_fd())?));
        if let Err(error) = saved {
            error!("cannot save the state: {error:#}");
            // The holder is gone, and its replacement gets all.
            self.dirty = true;
        }
    }

    /// Greets the QEMUs that wait for it. True if there were any.
    fn greet(&mut self) -> bool {
        let mut greeted = false;
        let mut lost = Vec::new();
        for (number, vm) in self.vms.iter_mut().filter(|(_, vm)| !vm.saved.greeted) {
            greeted = true;
            if let Err(error) = vm.greet() {
                debug!(vm = %vm.label(), "cannot be greeted: {error:#}");
                lost.push(*number);
            }
        }
        for number in lost {
            self.drop_vm(number, "its QEMU is gone");
        }
        greeted
    }

    /// The reply that follows from the private picture.
    fn reply(&self, vm: &Vm, entry: &Entry) -> Reply {
        let mut doorbells = [0; abi::SLOTS_MAX];
        if let Some(name) = entry.region.as_deref() {
            doorbells[HOST_SLOT] = abi::DAEMON_ID;
            for (other, peer) in vm.saved.peers.iter().filter(|(_, peer)| peer.known) {
                if let Some(entry) = self.vms.get(other).and_then(|vm| vm.entry(name)) {
                    doorbells[entry.slot as usize] = peer.id;
                }
            }
        }
        Reply {
            serial: entry.serial,
            status: entry.status,
            slot: entry.slot,
            generation: entry.generation,
            doorbells,
        }
    }
}
