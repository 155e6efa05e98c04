// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The private page, by which a guest and the daemon talk.
//!
//! The guest writes a request, then its serial, then rings. The daemon writes a
//! reply, then its serial, then rings back. There is one entry for each region
//! that the guest joins. Serials count up over the life of the page, across
//! reboots of the guest; the daemon keeps those that it has answered.

use std::mem::{offset_of, size_of};
use std::os::fd::AsFd;
use std::sync::atomic::{fence, Ordering};

use hallway_abi::region as abi;
use hallway_shm::Mapping;

use crate::text::{printable, Uuid};

/// A page, mapped by the daemon.
pub struct Page {
    mapping: Mapping,
}

/// A private copy of a guest's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Serial number of the request; 0: none.
    pub serial: u32,
    /// Major version of the guest's ABI.
    pub major: u16,
    /// Minor version of the guest's ABI.
    pub minor: u16,
    /// The command: one of `COMMAND_*`, or any other number.
    pub command: u32,
    /// UUID of the region that it is about.
    pub region: Uuid,
    /// UUID that the guest claims.
    pub vm: Uuid,
    /// Name of the guest; printable.
    pub name: String,
}

/// The daemon's reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Serial of the request; 0: none was answered yet.
    pub serial: u32,
    /// The status: one of `STATUS_*`.
    pub status: u32,
    /// The guest's slot in the region.
    pub slot: u32,
    /// The guest's generation in the region.
    pub generation: u32,
    /// The outsourcer's slot in the region; 0: there is none.
    pub outsourcer: u32,
    /// Ports of the guest that others may reach by tunnels, the first and the last of each
    /// range: as many ranges as there is room for. Nothing: any.
    pub tunnels: Option<Vec<(u32, u32)>>,
    /// CID of the UUID of the one other member that the region has; 0: it may have several.
    pub peer_cid: u32,
    /// How the region's key begins: a member can write the one in the region.
    pub region_key: [u8; 8],
    /// CID of the guest's VM; 0: that of its UUID.
    pub cid: u32,
    /// The peer id that rings each slot; 0: none.
    pub doorbells: [u16; abi::SLOTS_MAX],
}

impl Page {
    /// Maps a page.
    pub fn new(fd: impl AsFd) -> std::io::Result<Self> {
        Ok(Self {
            mapping: Mapping::new(fd, abi::PAGE_SIZE)?,
        })
    }

    /// Sets the page up; the magic comes last.
    pub fn format(&self) {
        self.mapping
            .write_u16(offset_of!(abi::Page, major), abi::MAJOR);
        self.mapping
            .write_u16(offset_of!(abi::Page, minor), abi::MINOR);
        self.mapping
            .write_u64(offset_of!(abi::Page, magic), abi::PAGE_MAGIC);
    }

    fn request(entry: usize) -> usize {
        assert!(entry < abi::PAGE_ENTRIES);
        offset_of!(abi::Page, entry)
            + entry * size_of::<abi::PageEntry>()
            + offset_of!(abi::PageEntry, request)
    }

    fn reply(entry: usize) -> usize {
        Self::request(entry) + offset_of!(abi::PageEntry, reply)
    }

    /// Reads the serial of the request in an entry; 0: none.
    pub fn serial(&self, entry: usize) -> u32 {
        self.mapping
            .read_u32(Self::request(entry) + offset_of!(abi::Request, serial))
    }

    /// Reads a request. Nothing: there is none, or the guest is writing the next one.
    pub fn read(&self, entry: usize) -> Option<Request> {
        let base = Self::request(entry);
        let at = |offset: usize| base + offset;
        let serial = self.serial(entry);
        let request = Request {
            serial,
            major: self.mapping.read_u16(at(offset_of!(abi::Request, major))),
            minor: self.mapping.read_u16(at(offset_of!(abi::Request, minor))),
            command: self.mapping.read_u32(at(offset_of!(abi::Request, command))),
            region: Uuid(
                self.mapping
                    .read_bytes(at(offset_of!(abi::Request, region))),
            ),
            vm: Uuid(self.mapping.read_bytes(at(offset_of!(abi::Request, vm)))),
            name: printable(
                &self
                    .mapping
                    .read_bytes::<{ abi::NAME_SIZE }>(at(offset_of!(abi::Request, name))),
            ),
        };
        fence(Ordering::Acquire);
        (serial != 0 && self.serial(entry) == serial).then_some(request)
    }

    /// A guest that looks while they change finds no port allowed; one that reads a rule looks
    /// again whether it is still the same.
    fn write_tunnels(&self, entry: usize, tunnels: Option<&[(u32, u32)]>) {
        let base = Self::reply(entry);
        let count = base + offset_of!(abi::Reply, tunnel_ranges);
        let all = tunnels.map_or(0, |ranges| 1 + ranges.len() as u32);
        let at = |number: usize| {
            let range = offset_of!(abi::Reply, tunnel_ports) + number * size_of::<abi::Ports>();
            let (first, last) = (offset_of!(abi::Ports, first), offset_of!(abi::Ports, last));
            (base + range + first, base + range + last)
        };
        let ranges = || tunnels.unwrap_or_default().iter().enumerate();
        let is_there = |(number, &(first, last)): (usize, &(u32, u32))| {
            let (at_first, at_last) = at(number);
            (
                self.mapping.read_u32(at_first),
                self.mapping.read_u32(at_last),
            ) == (first, last)
        };
        // A request that meets a change is refused, and other fields change often.
        if self.mapping.read_u32(count) == all && ranges().all(is_there) {
            return;
        }
        self.mapping.write_u32(count, 1);
        for (number, &(first, last)) in ranges() {
            let (at_first, at_last) = at(number);
            self.mapping.write_u32(at_first, first);
            self.mapping.write_u32(at_last, last);
        }
        self.mapping.write_u32(count, all);
    }

    /// Writes the CID of the one other member of an entry's region; 0: it may have several.
    /// The region's table must not have that member before.
    pub fn write_peer_cid(&self, entry: usize, cid: u32) {
        let peers = offset_of!(abi::Page, peer_cid);
        self.mapping
            .write_u32(peers + entry * size_of::<u32>(), cid);
    }

    /// Writes a reply; its serial comes last.
    pub fn write(&self, entry: usize, reply: &Reply) {
        let base = Self::reply(entry);
        let at = |offset: usize| base + offset;
        self.mapping
            .write_u32(at(offset_of!(abi::Reply, status)), reply.status);
        self.mapping
            .write_u32(at(offset_of!(abi::Reply, slot)), reply.slot);
        self.mapping
            .write_u32(at(offset_of!(abi::Reply, generation)), reply.generation);
        self.mapping
            .write_u16(at(offset_of!(abi::Reply, major)), abi::MAJOR);
        self.mapping
            .write_u16(at(offset_of!(abi::Reply, minor)), abi::MINOR);
        let outsourcer = at(offset_of!(abi::Reply, outsourcer));
        self.mapping.write_u32(outsourcer, reply.outsourcer);
        self.write_tunnels(entry, reply.tunnels.as_deref());
        let peer = at(offset_of!(abi::Reply, peer_cid));
        self.mapping.write_u32(peer, reply.peer_cid);
        let key = offset_of!(abi::Page, region_key) + entry * size_of_val(&reply.region_key);
        self.mapping
            .write_u64(key, u64::from_le_bytes(reply.region_key));
        let own = offset_of!(abi::Page, cid);
        self.mapping.write_u32(own, reply.cid);
        for (slot, id) in reply.doorbells.iter().enumerate() {
            self.mapping
                .write_u16(at(offset_of!(abi::Reply, doorbell)) + slot * 2, *id);
        }
        self.mapping
            .write_u32(at(offset_of!(abi::Reply, serial)), reply.serial);
    }
}

/// What a guest says of its order about CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuReport {
    /// The order.
    pub order: u32,
    /// What came of it: one of `CPUS_*`, or any other number.
    pub status: u32,
    /// CPUs that are online.
    pub online: u32,
    /// CPUs that there are.
    pub present: u32,
}

impl Page {
    const CPU_ORDER: usize = offset_of!(abi::Page, cpu_order) + offset_of!(abi::CpuOrder, online);

    /// How many CPUs the guest is to have online, as the page says; 0: all.
    pub fn cpu_order(&self) -> u32 {
        self.mapping.read_u32(Self::CPU_ORDER)
    }

    /// Writes how many CPUs the guest is to have online; 0: all.
    pub fn write_cpu_order(&self, online: u32) {
        self.mapping.write_u32(Self::CPU_ORDER, online);
    }

    /// Reads what the guest says of its order. Nothing: it has said nothing, or is just
    /// writing it.
    pub fn cpu_report(&self) -> Option<CpuReport> {
        let word = |offset: usize| {
            let base = offset_of!(abi::Page, cpu_report);
            self.mapping.read_u32(base + offset)
        };
        let seq = word(offset_of!(abi::CpuReport, seq));
        let report = CpuReport {
            order: word(offset_of!(abi::CpuReport, order)),
            status: word(offset_of!(abi::CpuReport, status)),
            online: word(offset_of!(abi::CpuReport, online)),
            present: word(offset_of!(abi::CpuReport, present)),
        };
        fence(Ordering::Acquire);
        let is_whole = seq != 0 && seq % 2 == 0 && word(offset_of!(abi::CpuReport, seq)) == seq;
        is_whole.then_some(report)
    }
}

/// An address in the ABI's form: IPv6, or IPv4-mapped.
pub type Address = [u8; 16];

/// Most candidates that a page can list.
pub const CANDIDATES_MAX: usize = abi::CANDIDATES_MAX;

impl Page {
    /// Reads the addresses that the guest says it has. Nothing: it is writing them, or
    /// what it wrote is not valid.
    pub fn home(&self) -> Option<Vec<Address>> {
        let base = offset_of!(abi::Page, home);
        let word = |offset: usize| self.mapping.read_u32(base + offset);
        let seq = word(offset_of!(abi::Home, seq));
        let count = word(offset_of!(abi::Home, count)) as usize;
        if seq % 2 == 1 || count > abi::HOME_MAX {
            return None;
        }
        let first = base + offset_of!(abi::Home, address);
        let addresses = (0..count)
            .map(|n| self.mapping.read_bytes(first + n * 16))
            .collect();
        fence(Ordering::Acquire);
        (word(offset_of!(abi::Home, seq)) == seq).then_some(addresses)
    }

    /// Writes the addresses of the guest's candidates, at most [`CANDIDATES_MAX`].
    /// Returns the number of this list.
    pub fn write_candidates(&self, addresses: &[Address]) -> u32 {
        let base = offset_of!(abi::Page, candidates);
        let seq = base + offset_of!(abi::Candidates, seq);
        let odd = self.mapping.read_u32(seq) | 1;
        self.mapping.write_u32(seq, odd);
        fence(Ordering::Release);
        let count = addresses.len().min(abi::CANDIDATES_MAX);
        self.mapping
            .write_u32(base + offset_of!(abi::Candidates, count), count as u32);
        for (n, address) in addresses[..count].iter().enumerate() {
            let at = base + offset_of!(abi::Candidates, address) + n * 16;
            self.mapping.write_bytes(at, address);
        }
        let even = odd.wrapping_add(1);
        self.mapping.write_u32(seq, even);
        even
    }

    /// Whether the page holds a list of candidates that is not empty.
    pub fn has_candidates(&self) -> bool {
        let count = offset_of!(abi::Page, candidates) + offset_of!(abi::Candidates, count);
        self.mapping.read_u32(count) != 0
    }

    /// Reads with which candidates the guest has traffic: a bit for each place in the
    /// list. 0 if the guest has another list in mind.
    pub fn wanted(&self, list: u32) -> u64 {
        let base = offset_of!(abi::Page, wanted);
        let seq = |mapping: &Mapping| mapping.read_u32(base + offset_of!(abi::Wanted, seq));
        if seq(&self.mapping) != list {
            return 0;
        }
        let set = self.mapping.read_u64(base + offset_of!(abi::Wanted, set));
        if seq(&self.mapping) == list {
            set
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_written_and_wanted() {
        let fd = hallway_shm::sealed_memory("page", abi::PAGE_SIZE).unwrap();
        let (page, guest) = (Page::new(&fd).unwrap(), Mapping::new(&fd, 4096).unwrap());
        assert_eq!(page.home(), Some(vec![]));
        guest.write_u32(2624, 1);
        assert_eq!(page.home(), None);
        guest.write_u32(2628, 2);
        guest.write_bytes(2640 + 16, &[7; 16]);
        guest.write_u32(2624, 2);
        assert_eq!(page.home(), Some(vec![[0; 16], [7; 16]]));
        guest.write_u32(2628, 17);
        assert_eq!(page.home(), None);

        let list = page.write_candidates(&[[1; 16]; 65]);
        assert_eq!((guest.read_u32(2896), guest.read_u32(2900)), (list, 64));
        assert_eq!(guest.read_bytes::<16>(2912 + 63 * 16), [1; 16]);
        guest.write_u64(3936, 5);
        assert_eq!(page.wanted(list), 0);
        guest.write_u32(3944, list);
        assert_eq!(page.wanted(list), 5);
        let next = page.write_candidates(&[]);
        assert_eq!(page.wanted(next), 0);
    }

    #[test]
    fn cpus_are_ordered_and_reported() {
        let fd = hallway_shm::sealed_memory("page", abi::PAGE_SIZE).unwrap();
        let (page, guest) = (Page::new(&fd).unwrap(), Mapping::new(&fd, 4096).unwrap());
        page.write_cpu_order(2);
        assert_eq!((guest.read_u32(3952), page.cpu_order()), (2, 2));
        assert_eq!(page.cpu_report(), None);
        guest.write_u32(3960, 1);
        for (place, word) in [2, abi::CPUS_FAILED, 3, 4].into_iter().enumerate() {
            guest.write_u32(3964 + 4 * place, word);
        }
        assert_eq!(page.cpu_report(), None);
        guest.write_u32(3960, 2);
        let report = CpuReport {
            order: 2,
            status: abi::CPUS_FAILED,
            online: 3,
            present: 4,
        };
        assert_eq!(page.cpu_report(), Some(report));
    }

    #[test]
    fn requests_are_copied_and_replies_laid_out() {
        let fd = hallway_shm::sealed_memory("page", abi::PAGE_SIZE).unwrap();
        let (page, guest) = (Page::new(&fd).unwrap(), Mapping::new(&fd, 4096).unwrap());
        page.format();
        assert_eq!(guest.read_u64(0), abi::PAGE_MAGIC);
        assert_eq!(page.read(7), None);

        let base = 64 + 7 * 320;
        guest.write_bytes(base + 4, &[1, 0, 0, 0, 1, 0, 0, 0]);
        guest.write_bytes(base + 48, b"vm\x07\0");
        guest.write_u32(base, 3);
        let request = page.read(7).unwrap();
        assert_eq!(
            (request.serial, request.major, request.command),
            (3, 1, abi::COMMAND_JOIN)
        );
        assert_eq!(request.name, "vm?");

        let mut doorbells = [0; abi::SLOTS_MAX];
        doorbells[63] = 0x1234;
        page.write(
            7,
            &Reply {
                serial: 3,
                status: 2,
                slot: 5,
                generation: 9,
                outsourcer: 6,
                tunnels: Some(vec![(5000, 5000), (6000, 6999)]),
                peer_cid: 0x4000_0007,
                region_key: *b"12345678",
                cid: 42,
                doorbells,
            },
        );
        page.write_peer_cid(7, 43);
        assert_eq!(guest.read_u32(base + 128), 3);
        assert_eq!(guest.read_u32(base + 132), 2);
        assert_eq!(guest.read_u32(base + 148), 6);
        assert_eq!(guest.read_u16(base + 128 + 64 + 126), 0x1234);
        assert_eq!(guest.read_u32(base + 128 + 60), 0x4000_0007);
        assert_eq!(guest.read_u64(3984 + 56).to_le_bytes(), *b"12345678");
        assert_eq!((guest.read_u32(4048), guest.read_u32(4052 + 28)), (42, 43));
    }

    /// As doorbells change with each VM that comes, a guest would refuse requests now and then.
    #[test]
    fn rules_that_stay_are_not_written_again() {
        let fd = hallway_shm::sealed_memory("page", abi::PAGE_SIZE).unwrap();
        let (page, guest) = (Page::new(&fd).unwrap(), Mapping::new(&fd, 4096).unwrap());
        page.format();
        let reply = |tunnels: &[(u32, u32)], doorbell| Reply {
            serial: 3,
            status: 2,
            slot: 5,
            generation: 9,
            outsourcer: 6,
            tunnels: Some(tunnels.to_vec()),
            peer_cid: 0,
            region_key: [0; 8],
            cid: 0,
            doorbells: [doorbell; abi::SLOTS_MAX],
        };
        let ranges = Page::reply(0) + offset_of!(abi::Reply, tunnel_ranges);
        let rules = [(5000, 5000), (6000, 6999)];
        page.write(0, &reply(&rules, 1));
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let begins = std::sync::Barrier::new(2);
        let seen = std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let guest = Mapping::new(&fd, 4096).unwrap();
                let mut seen = std::collections::BTreeSet::from([guest.read_u32(ranges)]);
                begins.wait();
                while !is_done.load(Ordering::Relaxed) {
                    seen.insert(guest.read_u32(ranges));
                }
                seen
            });
            begins.wait();
            (0..200_000).for_each(|number| page.write(0, &reply(&rules, number as u16)));
            is_done.store(true, Ordering::Relaxed);
            looks.join().unwrap()
        });
        assert_eq!(seen, [3].into());
        page.write(0, &reply(&rules[..1], 1));
        assert_eq!(guest.read_u32(ranges), 2);
        page.write(0, &reply(&[(5000, 5001)], 1));
        assert_eq!(
            guest.read_u32(Page::reply(0) + offset_of!(abi::Reply, tunnel_ports) + 4),
            5001
        );
    }
}
