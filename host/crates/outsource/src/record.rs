// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records in rings of kind DATAGRAM (`abi/hallway/datagram.h`).

use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hallway_abi::datagram as abi;
use hallway_ring::Runs;

/// Bytes before the payload.
pub const HEAD: usize = size_of::<abi::Datagram>();

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Bytes of payload.
    pub length: usize,
    /// `DATAGRAM_*`.
    pub r#type: u16,
    /// The other end.
    pub address: SocketAddr,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0: the default.
    pub hops: u8,
    /// `IP_PMTUDISC_*`.
    pub discover: u8,
    /// Bytes of each datagram; 0: it is one.
    pub segment: u16,
    /// The error of a record of type ERROR.
    pub error: Error,
}

/// An error about a datagram, as in `struct sock_extended_err`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    /// The errno.
    pub errno: u32,
    /// `SO_EE_ORIGIN_*`.
    pub origin: u8,
    /// Type and code of the message of ICMP.
    pub icmp: (u8, u8),
    /// `ee_info`.
    pub info: u32,
    /// The machine that reports it.
    pub offender: IpAddr,
    /// TOS or traffic class, and TTL or hop limit, of the message of ICMP.
    pub packet: (u8, u8),
}

impl Default for Error {
    fn default() -> Self {
        Self {
            errno: 0,
            origin: 0,
            icmp: (0, 0),
            info: 0,
            offender: Ipv6Addr::UNSPECIFIED.into(),
            packet: (0, 0),
        }
    }
}

fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

impl Head {
    /// A record of this type about an address.
    pub fn new(r#type: u16, address: SocketAddr, length: usize) -> Self {
        Self {
            length,
            r#type,
            address,
            tos: 0,
            hops: 0,
            discover: 0,
            segment: 0,
            error: Error::default(),
        }
    }

    /// Bytes of the whole record.
    pub fn total(&self) -> usize {
        (HEAD + self.length).next_multiple_of(abi::DATAGRAM_ALIGN as usize)
    }

    fn read(raw: &[u8; HEAD]) -> Self {
        let byte = |at: usize| raw[at];
        let half = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| raw[at + n]));
        let address: [u8; 16] =
            std::array::from_fn(|n| raw[offset_of!(abi::Datagram, address) + n]);
        let ip = IpAddr::V6(Ipv6Addr::from(address)).to_canonical();
        Self {
            tos: byte(offset_of!(abi::Datagram, tos)),
            hops: byte(offset_of!(abi::Datagram, hops)),
            discover: byte(offset_of!(abi::Datagram, discover)),
            segment: half(offset_of!(abi::Datagram, segment)),
            ..Self::new(
                half(offset_of!(abi::Datagram, r#type)),
                SocketAddr::new(ip, half(offset_of!(abi::Datagram, port))),
                word(offset_of!(abi::Datagram, length)) as usize,
            )
        }
    }

    /// The head as it lies in a ring.
    pub fn write(&self) -> [u8; HEAD] {
        let mut raw = [0; HEAD];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        put(
            offset_of!(abi::Datagram, length),
            &(self.length as u32).to_le_bytes(),
        );
        put(
            offset_of!(abi::Datagram, r#type),
            &self.r#type.to_le_bytes(),
        );
        put(
            offset_of!(abi::Datagram, port),
            &self.address.port().to_le_bytes(),
        );
        put(
            offset_of!(abi::Datagram, address),
            &mapped(self.address.ip()),
        );
        put(offset_of!(abi::Datagram, tos), &[self.tos]);
        put(offset_of!(abi::Datagram, hops), &[self.hops]);
        put(
            offset_of!(abi::Datagram, segment),
            &self.segment.to_le_bytes(),
        );
        let error = &self.error;
        put(offset_of!(abi::Datagram, origin), &[error.origin]);
        put(offset_of!(abi::Datagram, icmp_type), &[error.icmp.0]);
        put(offset_of!(abi::Datagram, icmp_code), &[error.icmp.1]);
        put(offset_of!(abi::Datagram, error), &error.errno.to_le_bytes());
        put(offset_of!(abi::Datagram, info), &error.info.to_le_bytes());
        put(offset_of!(abi::Datagram, offender), &mapped(error.offender));
        raw
    }
}

/// What is in the ring is no record that a guest may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// Reads the head of the record with which the bytes of the guest's ring begin. All of the
/// record is there.
pub fn read(runs: &Runs) -> Result<Head, Corrupt> {
    // A record is published in one step.
    if runs.len() < HEAD {
        return Err(Corrupt);
    }
    let mut raw = [0; HEAD];
    runs.part(0, HEAD).read(&mut raw);
    let head = Head::read(&raw);
    let is_good = head.r#type == abi::DATAGRAM_DATA
        && head.length <= abi::DATAGRAM_MAX as usize
        && head.total() <= runs.len();
    is_good.then_some(head).ok_or(Corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in two runs, of which the first has `first`.
    fn split(bytes: &mut [u8], first: usize) -> Runs {
        let (one, two) = bytes.split_at_mut(first);
        Runs([(one.as_mut_ptr(), one.len()), (two.as_mut_ptr(), two.len())])
    }

    #[test]
    fn heads_are_written_and_read() {
        let address = "[fd00::1]:53".parse().unwrap();
        let head = Head {
            tos: 1,
            hops: 2,
            segment: 3,
            ..Head::new(abi::DATAGRAM_DATA, address, 5)
        };
        for first in 0..64 {
            let mut raw = head.write().to_vec();
            raw.resize(64, 0);
            assert_eq!(read(&split(&mut raw, first)), Ok(head));
        }
    }

    #[test]
    fn any_bytes_are_a_record_that_is_there_or_none() {
        let mut state = 0x1234_5678_9abc_def1_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut good = 0;
        for _ in 0..200_000 {
            let mut raw = vec![0; (next() % 300) as usize];
            raw.iter_mut().for_each(|byte| *byte = next() as u8);
            if raw.len() >= HEAD && next() % 8 != 0 {
                // Often near to what is possible.
                let length = match next() % 4 {
                    0 => next() as u32,
                    1 => u32::MAX - (next() % 70) as u32,
                    _ => (next() % 300) as u32,
                };
                raw[..4].copy_from_slice(&length.to_le_bytes());
                raw[4..6].copy_from_slice(&((next() % 4) as u16).to_le_bytes());
            }
            let length = raw.len();
            let first = next() as usize % (length + 1);
            let runs = split(&mut raw, first);
            if let Ok(head) = read(&runs) {
                assert!(head.total() <= length && head.length <= head.total() - HEAD);
                assert_eq!(head.r#type, abi::DATAGRAM_DATA);
                assert_eq!(runs.part(HEAD, head.length).len(), head.length);
                good += 1;
            }
        }
        assert!(good > 1000, "{good}");
    }
}
