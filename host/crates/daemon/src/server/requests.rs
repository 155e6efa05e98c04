// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in the VMs' pages: who may join which region, and who leaves.

use std::time::{Duration, Instant};

use hallway_abi::region as abi;
use hallway_membership::{Request, Uuid};
use tracing::{error, info, warn};

use super::Server;
use crate::state::Entry;

/// How long a join waits for QEMUs that do not read.
const JOIN_WAIT: Duration = Duration::from_millis(200);

impl Server {
    pub(super) fn answer_requests(&mut self, only_waiting: bool) {
        let numbers: Vec<u64> = self.vms.keys().copied().collect();
        for number in numbers {
            self.answer_vm(number, only_waiting);
        }
    }

    /// Looks through a VM's page.
    pub(super) fn answer_vm(&mut self, number: u64, only_waiting: bool) {
        for index in 0..abi::PAGE_ENTRIES {
            let Some(vm) = self.vms.get_mut(&number) else {
                return;
            };
            let waits = vm.waiting[index].is_some();
            if only_waiting && !waits {
                continue;
            }
            let serial = vm.page.serial(index);
            if serial == 0 || serial == vm.saved.entries[index].serial {
                vm.waiting[index] = None;
                continue;
            }
            // A join that waits has been paid for.
            if !waits && !vm.spend() {
                return;
            }
            let Some(request) = vm.page.read(index) else {
                continue;
            };
            let Some((status, slot)) = self.judge(number, index, &request) else {
                continue;
            };
            self.apply(number, index, &request, status, slot);
        }
    }

    /// Decides about a request: its status, and the region and slot if it is a
    /// join that may be. Nothing: not yet.
    fn judge(
        &mut self,
        number: u64,
        index: usize,
        request: &Request,
    ) -> Option<(u32, Option<(usize, usize)>)> {
        let vm = self.vms.get_mut(&number)?;
        if request.major != abi::MAJOR {
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    "refused: guest {:?} speaks ABI version {}.{}, this hallwayd {}.{}: install \
                     the same release of Hallway on both",
                    request.name, request.major, request.minor, abi::MAJOR, abi::MINOR
                );
            }
            return Some((abi::STATUS_VERSION, None));
        }
        let at = match request.command {
            abi::COMMAND_HELLO => return Some((self.judge_vm(number, request)?, None)),
            abi::COMMAND_JOIN | abi::COMMAND_LEAVE => self
                .regions
                .iter()
                .position(|s| s.region.header.uuid == request.region),
            other => {
                if vm.may_warn() {
                    warn!(vm = %vm.label(), "refused: unknown command {other}");
                }
                return Some((abi::STATUS_INVALID, None));
            }
        };
        // Where it migrated here, it left a region of the host before.
        if request.command == abi::COMMAND_LEAVE {
            return Some((abi::STATUS_OK, None));
        }
        let Some(at) = at else {
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    "refused: asks for region {}, which is not served here: give the VM the file \
                     of a region that hallway status shows",
                    request.region
                );
            }
            return Some((abi::STATUS_UNKNOWN, None));
        };
        let status = self.judge_vm(number, request)?;
        if status != abi::STATUS_OK {
            return Some((status, None));
        }
        let served = &self.regions[at];
        if !self.config.admits(&served.name, request.vm) {
            let vm = self.vms.get_mut(&number)?;
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    region = served.name,
                    "refused: VM {} is not in this group: put it there in the configuration, or \
                     plug the region out",
                    request.vm
                );
            }
            return Some((abi::STATUS_DENIED, None));
        }
        let Some(slot) = served.region.slot_for(request.vm) else {
            let vm = self.vms.get_mut(&number)?;
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    region = served.name,
                    "refused: all {} slots are taken: make the region with more",
                    served.region.geometry().slots()
                );
            }
            return Some((abi::STATUS_FULL, None));
        };
        if self.introduce_all(number, at) {
            return Some((abi::STATUS_OK, Some((at, slot))));
        }
        let vm = self.vms.get_mut(&number)?;
        let since = *vm.waiting[index].get_or_insert_with(Instant::now);
        (since.elapsed() >= JOIN_WAIT).then_some((abi::STATUS_OK, Some((at, slot))))
    }

    /// Decides whether a VM may be who it says.
    fn judge_vm(&mut self, number: u64, request: &Request) -> Option<u32> {
        let (status, why) = if request.vm.is_nil() {
            let why = "the VM has no UUID: start its QEMU with -uuid".into();
            (abi::STATUS_INVALID, why)
        } else if self.is_taken(number, request.vm) {
            let why = format!(
                "another running VM has UUID {} too: start each QEMU with a -uuid of its own",
                request.vm
            );
            (abi::STATUS_DENIED, why)
        } else if !self.is_genuine(number, request.vm) {
            let why = format!(
                "it says that it is {}, but by the monitors its QEMU is not that VM's",
                request.vm
            );
            (abi::STATUS_DENIED, why)
        } else {
            return Some(abi::STATUS_OK);
        };
        let vm = self.vms.get_mut(&number)?;
        if vm.may_warn() {
            warn!(vm = %vm.label(), "refused: {why}");
        }
        Some(status)
    }

    /// Whether another living VM goes by this UUID.
    fn is_taken(&mut self, number: u64, uuid: Uuid) -> bool {
        let other = self.vms.values().find(|vm| {
            vm.saved.number != number
                && vm.saved.uuid == Some(uuid)
                && vm.saved.entries.iter().any(|entry| entry.region.is_some())
        });
        match other {
            None => false,
            // Its end may wait in this very round of events.
            Some(vm) if vm.connection.closed() => {
                let other = vm.saved.number;
                self.drop_vm(other, "its QEMU is gone");
                false
            }
            Some(_) => true,
        }
    }

    /// Makes a VM and the members of a region known to each other's QEMUs. True
    /// once all of them have read it.
    fn introduce_all(&mut self, number: u64, at: usize) -> bool {
        let name = &self.regions[at].name;
        let others: Vec<u64> = self
            .vms
            .values()
            .filter(|vm| vm.saved.number != number && vm.entry(name).is_some())
            .map(|vm| vm.saved.number)
            .collect();
        let mut known = true;
        for other in others {
            for (to, about) in [(number, other), (other, number)] {
                let Some(bell) = self.vms.get(&about).map(|vm| vm.bell().try_clone()) else {
                    continue;
                };
                let Some(vm) = self.vms.get_mut(&to) else {
                    continue;
                };
                if vm.knows(about) {
                    continue;
                }
                // Others need not wait for one that does not read.
                known &= vm.lags(JOIN_WAIT);
                self.dirty = true;
                match bell
                    .map_err(Into::into)
                    .and_then(|bell| vm.introduce(about, &bell))
                {
                    Ok(true) => {}
                    Ok(false) => {
                        if vm.may_warn() {
                            warn!(
                                vm = %vm.label(),
                                "has seen {} VMs come and go, and can be told of no more: restart \
                                 it",
                                ivshmem_server::ID_MAX
                            );
                        }
                    }
                    Err(error) => error!(vm = %vm.label(), "cannot introduce a VM: {error:#}"),
                }
            }
        }
        known
    }

    /// Enters a decision into the private picture.
    fn apply(
        &mut self,
        number: u64,
        index: usize,
        request: &Request,
        status: u32,
        join: Option<(usize, usize)>,
    ) {
        let region = self
            .regions
            .iter()
            .find(|served| served.region.header.uuid == request.region)
            .map(|served| served.name.clone());
        let Some(vm) = self.vms.get_mut(&number) else {
            return;
        };
        let label = vm.label();
        let joins = request.command == abi::COMMAND_JOIN;
        let mut left = Vec::new();
        for (n, entry) in vm.saved.entries.iter_mut().enumerate() {
            // Only a join says anything of other entries: a leave may be an old one.
            if entry.region.is_some() && (n == index || joins && entry.region == region) {
                left.push(entry.clone());
                entry.region = None;
            }
        }
        for entry in left {
            self.leave_region(&label, &entry);
        }
        let mut entry = Entry {
            serial: request.serial,
            status,
            ..Entry::default()
        };
        if let Some((at, slot)) = join {
            let served = &mut self.regions[at];
            entry.generation = served.region.enter(slot, request.vm, &request.name);
            entry.slot = slot as u32;
            entry.region = Some(served.name.clone());
            served.changed = true;
            served.beats[slot] = None;
            info!(
                vm = label, name = request.name, uuid = %request.vm, region = served.name, slot,
                generation = entry.generation, "joined"
            );
        }
        let Some(vm) = self.vms.get_mut(&number) else {
            return;
        };
        let hello = request.command == abi::COMMAND_HELLO && status == abi::STATUS_OK;
        if hello || join.is_some() {
            vm.saved.uuid = Some(request.vm);
            vm.saved.name = Some(request.name.clone());
            self.moved = true;
        }
        vm.saved.entries[index] = entry;
        vm.waiting[index] = None;
        vm.requests += 1;
        self.dirty = true;
        if hello {
            self.machine_starts(request.vm);
        }
    }
}
