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
    /// Or traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0: the default.
    pub hops: u8,
    /// `IP_PMTUDISC_*`.
    pub discover: u8,
    /// Bytes of each datagram; 0: it is one.
    pub segment: u16,
    /// Of a record of type ERROR.
    pub error: Error,
}

/// An error about a datagram, as in `struct sock_extended_err`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    /// The errno.
    pub errno: u32,
    /// `SO_EE_ORIGIN_*`.
    pub origin: u8,
    /// Of the message of ICMP.
    pub icmp: (u8, u8),
    /// `ee_info`.
    pub info: u32,
    /// The machine that reports it.
    pub offender: IpAddr,
}

impl Default for Error {
    fn default() -> Self {
        Self {
            errno: 0,
            origin: 0,
            icmp: (0, 0),
            info: 0,
            offender: Ipv6Addr::UNSPECIFIED.into(),
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
