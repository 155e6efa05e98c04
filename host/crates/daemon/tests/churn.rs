// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hundred VMs that come and go at random, in two regions of which one has
//! fewer slots than there are VMs, while the daemon is killed now and then.
//! After each step the tables, the replies and the doorbells are compared with
//! what they have to be.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::*;
use hallway_abi::region as abi;
use hallway_membership::Uuid;
use hallway_shm::Mapping;

const VMS: u64 = 100;
const STEPS: u32 = 600;
/// Members that a region has room for, besides the host.
const ROOM: [usize; 2] = [63, 7];
const REGIONS: [&str; 2] = ["default:256M:64", "small:32M:8"];

/// Numbers by chance; the seed is printed by a test that fails.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % limit
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        (!all.is_empty()).then(|| &all[self.below(all.len() as u64) as usize])
    }
}

/// A region, as it has to be.
struct Expected {
    uuid: Uuid,
    memory: Mapping,
    /// Slot and generation of each VM that takes part, by its number.
    joined: BTreeMap<u64, (usize, u32)>,
    newest: u32,
    change: u32,
}

/// The VMs that run, and what is expected of them.
struct Fleet {
    daemon: Daemon,
    regions: Vec<Expected>,
    vms: BTreeMap<u64, Qemu>,
    uuids: Vec<Uuid>,
    chance: Chance,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let daemon = Daemon::serving(&REGIONS);
        let regions = daemon
            .status()
            .regions
            .iter()
            .map(|shown| {
                let memory = memory_of(shown.file.as_ref().unwrap(), shown.size);
                Expected {
                    uuid: shown.uuid.parse().unwrap(),
                    joined: BTreeMap::new(),
                    newest: member_generation(&memory, 0),
                    change: change(&memory),
                    memory,
                }
            })
            .collect();
        Self {
            daemon,
            regions,
            vms: BTreeMap::new(),
            uuids: (0..VMS).map(|_| Uuid::random().unwrap()).collect(),
            chance: Chance(seed),
        }
    }

    /// Every QEMU reads what it was sent.
    fn read(&mut self) {
        for vm in self.vms.values_mut() {
            assert!(vm.read(), "a living QEMU was dropped");
        }
    }

    fn boot(&mut self, number: u64) {
        let mut vm = Qemu::connect(&self.daemon);
        vm.uuid = self.uuids[number as usize];
        self.vms.insert(number, vm);
        until("the greeting", || {
            self.read();
            self.vms[&number].greeted()
        });
    }

    fn ask(&mut self, number: u64, region: usize, command: u32) {
        let uuid = self.regions[region].uuid;
        let vm = self.vms.get_mut(&number).unwrap();
        vm.ask(region, command, uuid, abi::MAJOR);
    }

    /// Waits for the answer to what a VM asked, and holds it against what is expected.
    fn answered(&mut self, number: u64, region: usize, command: u32) {
        until("an answer", || {
            self.read();
            self.vms[&number].answered(region)
        });
        let vm = &self.vms[&number];
        let (status, place) = (vm.status(region), vm.place(region));
        let expected = &mut self.regions[region];
        if command == abi::COMMAND_LEAVE {
            assert_eq!(status, abi::STATUS_OK);
            expected.joined.remove(&number);
        } else if expected.joined.len() == ROOM[region] && !expected.joined.contains_key(&number) {
            assert_eq!(status, abi::STATUS_FULL);
        } else {
            assert_eq!(status, abi::STATUS_OK);
            assert!(place.1 > expected.newest, "a generation was used twice");
            expected.newest = place.1;
            let before = expected.joined.insert(number, place);
            assert!(before.is_none_or(|(slot, _)| slot == place.0));
        }
    }

    fn join(&mut self, number: u64, region: usize) {
        self.ask(number, region, abi::COMMAND_JOIN);
        self.answered(number, region, abi::COMMAND_JOIN);
    }

    /// Its QEMU is gone, as if killed.
    fn die(&mut self, number: u64) {
        self.vms.remove(&number);
        for expected in &mut self.regions {
            expected.joined.remove(&number);
        }
    }

    /// The tables say what is expected, and `change` tells of it.
    fn check(&mut self, moved: [bool; 2]) {
        for (expected, moved) in self.regions.iter_mut().zip(moved) {
            let memory = &expected.memory;
            let mut wanted: Vec<_> = expected.joined.iter().collect();
            wanted.sort_by_key(|(_, place)| place.0);
            let wanted: Vec<_> = wanted
                .into_iter()
                .map(|(number, (slot, generation))| {
                    (*slot, *generation, self.uuids[*number as usize])
                })
                .collect();
            until("the table is as it has to be", || {
                self.vms.values_mut().all(Qemu::read) && present(memory) == wanted
            });
            assert!(!moved || change(memory) != expected.change);
            expected.change = change(memory);
        }
    }

    /// A member rings another one of its region: that one hears, and nobody else.
    fn ring_somebody(&mut self) {
        let region = self.chance.below(2) as usize;
        let joined: Vec<_> = self.regions[region].joined.clone().into_iter().collect();
        let (Some(from), Some(to)) = (self.chance.one_of(&joined), self.chance.one_of(&joined))
        else {
            return;
        };
        if from.0 == to.0 {
            return;
        }
        until("a doorbell id", || {
            self.read();
            self.vms[&from.0].doorbell_in(region, to.1 .0) != 0
        });
        let known = |fleet: &Self| fleet.daemon.status().connections.len();
        assert_eq!(known(self), self.vms.len());
        for vm in self.vms.values() {
            while vm.rung() {}
        }
        let vm = &self.vms[&from.0];
        vm.ring(vm.doorbell_in(region, to.1 .0));
        for (number, vm) in &self.vms {
            assert_eq!(
                vm.rung(),
                *number == to.0,
                "VM {number} of {:?}",
                (from, to)
            );
        }
    }

    fn step(&mut self) {
        let number = self.chance.below(VMS);
        let region = self.chance.below(2) as usize;
        let mut moved = [false; 2];
        let member = self.regions[region].joined.contains_key(&number);
        let room = self.regions[region].joined.len() < ROOM[region];
        match self.chance.below(20) {
            // It boots if it has to; then its guest joins, once more perhaps: a reboot.
            0..=11 => {
                if !self.vms.contains_key(&number) {
                    self.boot(number);
                }
                self.join(number, region);
                moved[region] = member || room;
            }
            12..=14 if member => {
                self.ask(number, region, abi::COMMAND_LEAVE);
                self.answered(number, region, abi::COMMAND_LEAVE);
                moved[region] = true;
            }
            15..=17 => self.die(number),
            // The daemon is killed; meanwhile one VM dies and another asks.
            18 => {
                self.daemon.kill();
                self.die(number);
                // A member's own slot is free for it, whichever others are gone.
                let members: Vec<_> = self.regions[region].joined.keys().copied().collect();
                let asks = self.chance.one_of(&members).copied();
                if let Some(asks) = asks {
                    self.ask(asks, region, abi::COMMAND_JOIN);
                }
                self.daemon.start();
                if let Some(asks) = asks {
                    self.answered(asks, region, abi::COMMAND_JOIN);
                }
            }
            // A rack loses its power.
            19 => {
                let all: Vec<_> = self.vms.keys().copied().collect();
                for number in all.iter().filter(|number| *number % 10 == 0) {
                    self.die(*number);
                }
            }
            _ => {}
        }
        self.check(moved);
        self.ring_somebody();
    }
}

/// Slot, generation and VM of the guests that a table shows as present.
fn present(memory: &Mapping) -> Vec<(usize, u32, Uuid)> {
    (1..abi::SLOTS_MAX)
        .filter(|slot| member_state(memory, *slot) == abi::MEMBER_PRESENT)
        .map(|slot| {
            (
                slot,
                member_generation(memory, slot),
                member_uuid(memory, slot),
            )
        })
        .collect()
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

fn held(daemon: &Daemon) -> (usize, usize) {
    let own = daemon.child.id() as i32;
    (descriptors(own), descriptors(daemon.holder_pid()))
}

#[test]
fn a_hundred_vms_come_and_go() {
    let seed = std::env::var("HALLWAY_SEED").map_or_else(
        |_| u64::from(std::process::id()),
        |seed| seed.parse().unwrap(),
    );
    println!("HALLWAY_SEED={seed}");
    let mut fleet = Fleet::new(seed);
    let before = held(&fleet.daemon);
    for number in 0..VMS {
        fleet.boot(number);
        fleet.join(number, 0);
    }
    assert_eq!(fleet.regions[0].joined.len(), ROOM[0]);
    for _ in 0..STEPS {
        fleet.step();
    }
    for number in 0..VMS {
        fleet.die(number);
    }
    fleet.check([false; 2]);
    // A client of the control socket may be there or not; hundreds of VMs were.
    until("all descriptors are closed", || {
        let now = held(&fleet.daemon);
        now.0 < before.0 + 4 && now.1 < before.1 + 4
    });
}
