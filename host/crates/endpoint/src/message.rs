// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages about sockets, as they lie in a mailbox.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hallway_abi::message as abi;

/// Number of the only carrier that a socket has.
pub const CARRIER: u32 = 1;

const SIZE: usize = 128;

/// A message as it is in shared memory.
pub type Raw = [u8; SIZE];

/// Where a ring lies in its owner's slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handle {
    /// Position in the slice.
    pub offset: u64,
    /// Size, with the header.
    pub size: u64,
}

/// What an OFFER of kind TUNNEL says of its sockets of AF_VSOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// `tunnel::TUNNEL_STREAM` and others.
    pub r#type: u32,
    /// Port of the writer.
    pub local_port: u32,
    /// Port of the reader.
    pub remote_port: u32,
}

/// An OFFER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Endpoint of the writer.
    pub from: u32,
    /// Endpoint of the reader; must be 0.
    pub to: u32,
    /// Must be [`CARRIER`] where there is a ring.
    pub carrier: u32,
    /// `KIND_*`.
    pub kind: u16,
    /// `FEATURE_*`.
    pub features: u16,
    /// This answers the OFFER of that endpoint, or 0.
    pub answers: u32,
    /// The guest's LISTENER at which a connection arrived, or 0.
    pub listener: u32,
    /// `SOCKET_*`.
    pub flags: u32,
    /// The sockets; of kind TUNNEL alone.
    pub tunnel: Option<Tunnel>,
    /// Address of the socket, on the host.
    pub local: SocketAddr,
    /// Address of the other end.
    pub remote: SocketAddr,
    /// Bytes of data; of a LISTENER the backlog.
    pub ring_size: u32,
    /// The ring.
    pub handle: Handle,
}

/// An OFFER of nothing, without addresses.
impl Default for Offer {
    fn default() -> Self {
        let unspecified = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        Self {
            from: 0,
            to: 0,
            carrier: CARRIER,
            kind: 0,
            features: 0,
            answers: 0,
            listener: 0,
            flags: 0,
            tunnel: None,
            local: unspecified,
            remote: unspecified,
            ring_size: 0,
            handle: Handle::default(),
        }
    }
}

/// A message that is no OFFER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Other {
    /// `ACCEPT`, `DECLINE`, `DONE`; another one means nothing here.
    pub r#type: u16,
    /// Endpoint of the writer; 0 of a DECLINE of an end that has none.
    pub from: u32,
    /// Endpoint of the reader.
    pub to: u32,
    /// Carrier of the OFFER that this is about.
    pub carrier: u32,
    /// The first byte not read, in DONE; the errno, in DECLINE.
    pub position: u64,
    /// The errno, or 0, in DONE.
    pub reason: u32,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// An OFFER.
    Offer(Offer),
    /// A message of another type.
    Other(Other),
}

fn u16_at(raw: &Raw, at: usize) -> u16 {
    u16::from_le_bytes([raw[at], raw[at + 1]])
}

fn u32_at(raw: &Raw, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|n| raw[at + n]))
}

fn u64_at(raw: &Raw, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|n| raw[at + n]))
}

fn address_at(raw: &Raw, address: usize, port: usize) -> SocketAddr {
    let bytes: [u8; 16] = std::array::from_fn(|n| raw[address + n]);
    let ip = IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical();
    SocketAddr::new(ip, u16_at(raw, port))
}

fn put(raw: &mut Raw, at: usize, bytes: &[u8]) {
    raw[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_address(raw: &mut Raw, address: usize, port: usize, from: SocketAddr) {
    let ip = match from.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    put(raw, address, &ip.octets());
    put(raw, port, &from.port().to_le_bytes());
}

fn put_head(raw: &mut Raw, r#type: u16, from: u32, to: u32, carrier: u32) {
    put(raw, offset_of!(abi::Head, r#type), &r#type.to_le_bytes());
    put(raw, offset_of!(abi::Head, from), &from.to_le_bytes());
    put(raw, offset_of!(abi::Head, to), &to.to_le_bytes());
    put(raw, offset_of!(abi::Head, carrier), &carrier.to_le_bytes());
}

const CALL: usize = offset_of!(abi::Offer, token);
const HANDLE: usize = offset_of!(abi::Offer, handle);

impl Message {
    /// DONE of an end of a channel: nothing from `position` on is read; errno, or 0.
    pub fn done(from: u32, to: u32, carrier: u32, position: u64, errno: i32) -> Self {
        Self::Other(Other {
            r#type: abi::DONE,
            from,
            to,
            carrier,
            position,
            reason: errno as u32,
        })
    }

    /// Reads a private copy of a message. Any bytes give one.
    pub fn read(raw: &Raw) -> Self {
        let r#type = u16_at(raw, offset_of!(abi::Head, r#type));
        let from = u32_at(raw, offset_of!(abi::Head, from));
        let to = u32_at(raw, offset_of!(abi::Head, to));
        let carrier = u32_at(raw, offset_of!(abi::Head, carrier));
        if r#type != abi::OFFER {
            return Self::Other(Other {
                r#type,
                from,
                to,
                carrier,
                position: u64_at(raw, offset_of!(abi::Other, position)),
                reason: u32_at(raw, offset_of!(abi::Other, reason)),
            });
        }
        let kind = u16_at(raw, offset_of!(abi::Offer, kind));
        let is_tunnel = kind == abi::KIND_TUNNEL;
        let call = |at| match is_tunnel {
            true => 0,
            false => u32_at(raw, CALL + at),
        };
        Self::Offer(Offer {
            from,
            to,
            carrier,
            kind,
            features: u16_at(raw, offset_of!(abi::Offer, features)),
            // In the same place of both.
            answers: u32_at(raw, CALL + offset_of!(abi::Call, answers)),
            listener: call(offset_of!(abi::Call, listener)),
            flags: call(offset_of!(abi::Call, flags)),
            tunnel: is_tunnel.then(|| Tunnel {
                r#type: u32_at(raw, CALL + offset_of!(abi::Tunnel, r#type)),
                local_port: u32_at(raw, CALL + offset_of!(abi::Tunnel, local_port)),
                remote_port: u32_at(raw, CALL + offset_of!(abi::Tunnel, remote_port)),
            }),
            local: address_at(
                raw,
                offset_of!(abi::Offer, local),
                offset_of!(abi::Offer, local_port),
            ),
            remote: address_at(
                raw,
                offset_of!(abi::Offer, remote),
                offset_of!(abi::Offer, remote_port),
            ),
            ring_size: u32_at(raw, offset_of!(abi::Offer, ring_size)),
            handle: Handle {
                offset: u64_at(raw, HANDLE),
                size: u64_at(raw, HANDLE + 8),
            },
        })
    }

    /// Writes a message as it is in shared memory.
    pub fn write(&self) -> Raw {
        let mut raw = [0; SIZE];
        match self {
            Self::Other(other) => {
                put_head(&mut raw, other.r#type, other.from, other.to, other.carrier);
                let position = other.position.to_le_bytes();
                put(&mut raw, offset_of!(abi::Other, position), &position);
                let reason = other.reason.to_le_bytes();
                put(&mut raw, offset_of!(abi::Other, reason), &reason);
            }
            Self::Offer(offer) => offer.write(&mut raw),
        }
        raw
    }
}

impl Offer {
    fn write(&self, raw: &mut Raw) {
        put_head(raw, abi::OFFER, self.from, self.to, self.carrier);
        let mut call = |at, word: u32| put(raw, CALL + at, &word.to_le_bytes());
        call(offset_of!(abi::Call, answers), self.answers);
        call(offset_of!(abi::Call, listener), self.listener);
        call(offset_of!(abi::Call, flags), self.flags);
        if let Some(tunnel) = &self.tunnel {
            call(offset_of!(abi::Tunnel, r#type), tunnel.r#type);
            call(offset_of!(abi::Tunnel, local_port), tunnel.local_port);
            call(offset_of!(abi::Tunnel, remote_port), tunnel.remote_port);
        }
        let (local, remote) = (
            offset_of!(abi::Offer, local),
            offset_of!(abi::Offer, remote),
        );
        put_address(raw, local, offset_of!(abi::Offer, local_port), self.local);
        put_address(
            raw,
            remote,
            offset_of!(abi::Offer, remote_port),
            self.remote,
        );
        let kind = self.kind.to_le_bytes();
        put(raw, offset_of!(abi::Offer, kind), &kind);
        let features = self.features.to_le_bytes();
        put(raw, offset_of!(abi::Offer, features), &features);
        let size = self.ring_size.to_le_bytes();
        put(raw, offset_of!(abi::Offer, ring_size), &size);
        put(raw, HANDLE, &self.handle.offset.to_le_bytes());
        put(raw, HANDLE + 8, &self.handle.size.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_written_and_read() {
        let mut offer = Offer {
            from: 1,
            to: 0,
            carrier: 1,
            kind: abi::KIND_SOCKET,
            features: abi::FEATURE_GROWTH,
            answers: 2,
            listener: 3,
            flags: 4,
            tunnel: None,
            local: "10.0.0.1:80".parse().unwrap(),
            remote: "[fd00::1]:81".parse().unwrap(),
            ring_size: 4096,
            handle: Handle {
                offset: 1 << 40,
                size: 8192,
            },
        };
        let is_kept =
            |offer| Message::read(&Message::Offer(offer).write()) == Message::Offer(offer);
        assert!(is_kept(offer));
        offer.kind = abi::KIND_TUNNEL;
        (offer.listener, offer.flags) = (0, 0);
        offer.tunnel = Some(Tunnel {
            r#type: 1,
            local_port: u32::MAX,
            remote_port: 5000,
        });
        assert!(is_kept(offer));
        let done = Message::Other(Other {
            r#type: abi::DONE,
            from: 1,
            to: 2,
            carrier: 1,
            position: 1 << 40,
            reason: 104,
        });
        assert_eq!(Message::read(&done.write()), done);
        Message::read(&[0xff; 128]);
    }
}
