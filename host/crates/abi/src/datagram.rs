// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records in rings of kind DATAGRAM (`abi/hallway/datagram.h`).

use std::mem::{offset_of, size_of};

pub use crate::constants::datagram::*;

/// The head of a record; the payload follows.
#[repr(C)]
pub struct Datagram {
    /// Bytes of payload.
    pub length: u32,
    /// `DATAGRAM_*`.
    pub r#type: u16,
    /// Port of the other end.
    pub port: u16,
    /// Address of the other end: IPv6, or IPv4 mapped.
    pub address: [u8; 16],
    /// Type of service, or traffic class.
    pub tos: u8,
    /// TTL or hop limit; 0: the host's default.
    pub hops: u8,
    /// The guest's `IP_PMTUDISC_*` of Linux.
    pub discover: u8,
    /// Origin of an error, as in `struct sock_extended_err` of Linux.
    pub origin: u8,
    /// Type of an error of ICMP, as there.
    pub icmp_type: u8,
    /// Code of an error of ICMP, as there.
    pub icmp_code: u8,
    /// Size of the guest's datagrams in the payload, of which the last may be shorter;
    /// 0: one.
    pub segment: u16,
    /// The errno of an error.
    pub error: u32,
    /// The `ee_info` of an error.
    pub info: u32,
    /// The machine that reports an error; 0: none.
    pub offender: [u8; 16],
}

const _: () = {
    assert!(size_of::<Datagram>() == 56);
    assert!(offset_of!(Datagram, address) == 8);
    assert!(offset_of!(Datagram, segment) == 30);
    assert!(offset_of!(Datagram, offender) == 40);
};
