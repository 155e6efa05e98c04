// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a member publishes about itself in its slice.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr};

use hallway_abi::region as abi;
use hallway_shm::Shared;

/// How often a torn read of the addresses is tried again.
const ATTEMPTS: usize = 8;

/// A private copy of a slice's head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Generation of the member that set the slice up.
    pub generation: u32,
    /// The heartbeat, which counts up each second at least.
    pub heartbeat: u32,
    /// The addresses; none if they could not be read in one piece.
    pub addresses: Vec<IpAddr>,
    /// Bytes sent through rings.
    pub tx_bytes: u64,
    /// Bytes received through rings.
    pub rx_bytes: u64,
    /// Number of promoted connections.
    pub channels: u32,
    /// The region's change up to which it is drained of departed members.
    pub drained: u32,
    /// Number of connections and tunnels through which it sent just now.
    pub senders: u32,
}

/// Reads the slice at `base`. Nothing: its member has not set it up.
pub fn read(memory: &Shared, base: usize) -> Option<Snapshot> {
    if memory.read_u64(base + offset_of!(abi::Slice, magic)) != abi::SLICE_MAGIC {
        return None;
    }
    Some(Snapshot {
        generation: memory.read_u32(base + offset_of!(abi::Slice, generation)),
        heartbeat: memory.read_u32(base + offset_of!(abi::Slice, heartbeat)),
        addresses: addresses(memory, base).unwrap_or_default(),
        tx_bytes: memory.read_u64(base + offset_of!(abi::Slice, tx_bytes)),
        rx_bytes: memory.read_u64(base + offset_of!(abi::Slice, rx_bytes)),
        channels: memory.read_u32(base + offset_of!(abi::Slice, channels)),
        drained: memory.read_u32(base + offset_of!(abi::Slice, settled)),
        senders: memory.read_u32(base + offset_of!(abi::Slice, senders)),
    })
}

fn addresses(memory: &Shared, base: usize) -> Option<Vec<IpAddr>> {
    let sequence = base + offset_of!(abi::Slice, address_seq);
    for _ in 0..ATTEMPTS {
        let before = memory.read_u32(sequence);
        let count = memory.read_u32(base + offset_of!(abi::Slice, address_count)) as usize;
        if before % 2 != 0 || count > abi::ADDRESSES_MAX {
            continue;
        }
        let list = (0..count)
            .map(|n| {
                let bytes: [u8; 16] =
                    memory.read_bytes(base + offset_of!(abi::Slice, address) + n * 16);
                Ipv6Addr::from(bytes).to_canonical()
            })
            .collect();
        // Orders the volatile reads above before the check below.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        if memory.read_u32(sequence) == before {
            return Some(list);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use hallway_shm::Mapping;

    #[test]
    fn reads_what_is_whole() {
        let fd = hallway_shm::sealed_memory("slice", 8192).unwrap();
        let memory = Mapping::new(&fd, 8192).unwrap();
        let shared = Shared::Mapped(Mapping::new(&fd, 8192).unwrap());
        assert_eq!(read(&shared, 4096), None);
        memory.write_u64(4096, abi::SLICE_MAGIC);
        memory.write_u32(4096 + 20, 2);
        memory.write_bytes(
            4096 + 64,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        );
        memory.write_bytes(
            4096 + 80,
            &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        );
        let slice = read(&shared, 4096).unwrap();
        assert_eq!(
            slice.addresses,
            ["10.0.0.1", "fd00::1"].map(|a| a.parse::<IpAddr>().unwrap())
        );
        memory.write_u32(4096 + 16, 7);
        assert!(read(&shared, 4096).unwrap().addresses.is_empty());
        memory.write_u32(4096 + 16, 8);
        memory.write_u32(4096 + 20, 65);
        assert!(read(&shared, 4096).unwrap().addresses.is_empty());
    }
}
