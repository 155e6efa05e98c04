// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Client of the module's generic netlink family (`spec/netlink.yaml`).
//!
//! A [`Client`] finds the family by its name, and sends one command at a time.
//! `get` and `set` return one message; `members` and `connections` return one
//! message for each. Module and CLI may be of different releases: an attribute
//! that is unknown here is skipped, and a missing one has its type's default.

mod message;

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use hallway_abi::netlink as abi;
pub use hallway_abi::socket::CGROUPS_MAX;
use hallway_abi::tunnel::CID_HOST;
use hallway_abi::{counter, reason};
use hallway_membership::{Uuid, HOST_SLOT};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_generic::GenlMessage;
use netlink_sys::{protocols::NETLINK_GENERIC, Socket, SocketAddr};
use serde::Serialize;

use message::{Attribute, Attributes, Message};

/// The controller of generic netlink, which finds families; from linux/genetlink.h.
const CTRL_ID: u16 = 16;
const CTRL_VERSION: u8 = 1;
const CTRL_GET_FAMILY: u8 = 3;
const CTRL_FAMILY_ID: u16 = 1;
const CTRL_FAMILY_NAME: u16 = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no such family.
    #[error("module hallway is not loaded: run modprobe hallway")]
    NotLoaded,
    /// The caller lacks `CAP_NET_ADMIN`.
    #[error("not permitted: run as root")]
    NotPermitted,
    /// The kernel returned an error.
    #[error("module hallway refuses: {0}")]
    Refused(io::Error),
    /// A call on the socket failed.
    #[error("netlink: {0}")]
    Io(#[from] io::Error),
    /// The answer cannot be parsed.
    #[error("netlink: invalid answer ({0}): install one release of module and CLI")]
    Invalid(String),
}

type Result<T> = std::result::Result<T, Error>;

/// The module's switches and counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Version of the module.
    pub version: String,
    /// Whether connections are promoted.
    pub enabled: bool,
    /// Whether new sockets may be outsourced.
    pub outsourcing: bool,
    /// Ids of the cgroups that may have outsourced sockets; none: all.
    pub cgroups: Vec<u64>,
    /// The counters, in the module's order.
    pub counters: Vec<Counter>,
    /// Directions that this end sends, demoted since the module was loaded, by reason.
    pub demotions: Vec<OfReason>,
    /// Calls of connect() that were left to the native stack since there was an outsourcer.
    pub natives: Vec<OfReason>,
}

/// How much was counted for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OfReason {
    /// Number of the reason: `docs/reasons.md`. 0 of demotions: a larger ring replaced theirs.
    pub reason: u32,
    /// Name of the reason.
    pub reason_name: &'static str,
    /// Text of the reason.
    pub reason_text: &'static str,
    /// How many.
    pub count: u64,
}

/// A counter of the module: `docs/counters.md`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// Such as `tx_bytes_ring`.
    pub name: String,
    /// Its count since the module was loaded.
    pub value: u64,
}

impl Counter {
    /// What it counts; nothing if the module is newer.
    pub fn text(&self) -> Option<&'static str> {
        counter::find(&self.name)
    }
}

/// A member of a region, as the module sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Transport that reaches it.
    pub transport: String,
    /// Slot in its region.
    pub slot: u32,
    /// UUID of the VM.
    pub uuid: String,
    /// Host name.
    pub name: String,
    /// Generation; each join gives a new one.
    pub generation: u32,
    /// Whether it is this guest.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Whether it is the host's own slot.
    #[serde(rename = "host")]
    pub is_host: bool,
    /// Whether it is an outsourcer, which is no VM and has no tunnels.
    #[serde(rename = "outsourcer")]
    pub is_outsourcer: bool,
    /// Addresses that it publishes.
    pub addresses: Vec<IpAddr>,
    /// Its CID in `AF_VSOCK`.
    pub cid: u32,
    /// Tunnels with it now, those that are being closed too.
    pub tunnels: u32,
}

impl Member {
    /// Whether tunnels may reach it, if it is another one: it is a VM, or the host end.
    pub fn is_vm(&self) -> bool {
        !self.is_host && !self.is_outsourcer
    }

    /// Whether it is the host's end of tunnels.
    pub fn is_host_end(&self) -> bool {
        self.cid == CID_HOST
    }
}

/// An attached connection, or an outsourced socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Address of this end.
    pub local: IpAddr,
    /// Port of this end.
    pub local_port: u16,
    /// Address of the other end.
    pub remote: IpAddr,
    /// Port of the other end.
    pub remote_port: u16,
    /// Inode number of the network namespace.
    pub netns: u32,
    /// State of TCP, such as `ESTABLISHED`; of a UDP socket that, or `UNCONNECTED`.
    pub state: &'static str,
    /// Name of the member at the other end.
    pub peer: String,
    /// Whether the host executes the socket. Its bytes are those of rings.
    pub outsourced: bool,
    /// Bytes sent.
    pub tx: Direction,
    /// Bytes received.
    pub rx: Direction,
    /// Number of the reason why it is not on a ring, or was demoted.
    pub reason: u32,
    /// Name of the reason.
    pub reason_name: &'static str,
    /// Text of the reason, in the module's words.
    pub reason_text: String,
}

/// One direction of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Direction {
    /// `tcp` or `ring`.
    pub via: &'static str,
    /// Number of the carrier: even TCP, odd ring.
    pub carrier: u32,
    /// Bytes carried by TCP.
    pub tcp_bytes: u64,
    /// Bytes carried by rings.
    pub ring_bytes: u64,
}

/// A netlink socket that is connected to the module's family.
pub struct Client {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Client {
    /// Finds the module.
    pub fn new() -> Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut client = Self {
            socket,
            family: CTRL_ID,
            sequence: 0,
        };
        let name = Attribute::text(CTRL_FAMILY_NAME, abi::GENL_NAME);
        let answer = client.one(CTRL_GET_FAMILY, CTRL_VERSION, vec![name]);
        let answer = answer.map_err(|error| match error {
            Error::Refused(error) if error.kind() == io::ErrorKind::NotFound => Error::NotLoaded,
            other => other,
        })?;
        client.family = answer
            .u16(CTRL_FAMILY_ID)
            .ok_or_else(|| Error::Invalid("a family without a number".into()))?;
        Ok(client)
    }

    /// Switch and counters.
    pub fn get(&mut self) -> Result<Module> {
        let answer = self.one(abi::CMD_GET, abi::GENL_VERSION, Vec::new())?;
        Ok(module(&answer))
    }

    /// Turns promotion on or off, which demotes what is promoted. Fails with EPERM unless
    /// the caller administrates.
    pub fn set_promotion(&mut self, on: bool) -> Result<()> {
        self.set(vec![Attribute::new(abi::A_ENABLED, vec![u8::from(on)])])
    }

    /// Turns outsourcing on for the new sockets of programs in these cgroups, by their ids,
    /// or of all; or off, which ends published listeners, too. Fails with EPERM unless the
    /// caller administrates, with ERANGE or EINVAL where there are more than
    /// [`CGROUPS_MAX`].
    pub fn set_outsourcing(&mut self, on: bool, cgroups: &[u64]) -> Result<()> {
        let ids = cgroups.iter().flat_map(|id| id.to_ne_bytes()).collect();
        self.set(vec![
            Attribute::new(abi::A_OUTSOURCING, vec![u8::from(on)]),
            Attribute::new(abi::A_CGROUPS, ids),
        ])
    }

    fn set(&mut self, attributes: Vec<Attribute>) -> Result<()> {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        self.exchange(abi::CMD_SET, abi::GENL_VERSION, flags, attributes)?;
        Ok(())
    }

    /// Members of every region.
    pub fn members(&mut self) -> Result<Vec<Member>> {
        Ok(self.dump(abi::CMD_MEMBERS)?.iter().map(member).collect())
    }

    /// Attached connections.
    pub fn connections(&mut self) -> Result<Vec<Connection>> {
        Ok(self
            .dump(abi::CMD_CONNECTIONS)?
            .iter()
            .map(connection)
            .collect())
    }

    fn dump(&mut self, command: u8) -> Result<Vec<Attributes>> {
        self.exchange(
            command,
            abi::GENL_VERSION,
            NLM_F_REQUEST | NLM_F_DUMP,
            Vec::new(),
        )
    }

    fn one(&mut self, command: u8, version: u8, attributes: Vec<Attribute>) -> Result<Attributes> {
        // The acknowledgement marks the end of the answer.
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let answers = self.exchange(command, version, flags, attributes)?;
        answers
            .into_iter()
            .next()
            .ok_or_else(|| Error::Invalid("no answer".into()))
    }

    fn exchange(
        &mut self,
        command: u8,
        version: u8,
        flags: u16,
        attributes: Vec<Attribute>,
    ) -> Result<Vec<Attributes>> {
        self.sequence += 1;
        let payload = Message {
            command,
            version,
            attributes,
        };
        let mut request = GenlMessage::from_payload(payload);
        request.set_resolved_family_id(self.family);
        let mut request = NetlinkMessage::from(request);
        request.header.flags = flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let invalid = |error: &dyn std::fmt::Display| Error::Invalid(error.to_string());
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<GenlMessage<Message>>::deserialize(rest)
                    .map_err(|error| invalid(&error))?;
                let length = (answer.header.length as usize)
                    .next_multiple_of(4)
                    .min(rest.len());
                if length == 0 {
                    return Err(invalid(&"an empty message"));
                }
                rest = &rest[length..];
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => {
                        answers.push(Attributes(message.payload.attributes));
                    }
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                    NetlinkPayload::Error(error) => {
                        let error = error.to_io();
                        return Err(match error.kind() {
                            io::ErrorKind::PermissionDenied => Error::NotPermitted,
                            _ => Error::Refused(error),
                        });
                    }
                    _ => {}
                }
            }
        }
    }
}

fn module(answer: &Attributes) -> Module {
    Module {
        version: answer.text(abi::A_VERSION),
        enabled: answer.u8(abi::A_ENABLED).unwrap_or_default() != 0,
        outsourcing: answer.u8(abi::A_OUTSOURCING).unwrap_or_default() != 0,
        cgroups: answer.u64s(abi::A_CGROUPS),
        counters: answer
            .nests(abi::A_COUNTER)
            .map(|nest| Counter {
                name: nest.text(abi::A_NAME),
                value: nest.u64(abi::A_VALUE).unwrap_or_default(),
            })
            .collect(),
        demotions: answer
            .nests(abi::A_DEMOTIONS)
            .map(|nest| of_reason(&nest))
            .collect(),
        natives: answer
            .nests(abi::A_NATIVES)
            .map(|nest| of_reason(&nest))
            .collect(),
    }
}

fn of_reason(nest: &Attributes) -> OfReason {
    let reason = nest.u32(abi::A_REASON).unwrap_or_default();
    let (reason_name, reason_text) = reason_words(reason);
    OfReason {
        reason,
        reason_name,
        reason_text,
        count: nest.u64(abi::A_VALUE).unwrap_or_default(),
    }
}

/// Name and text of a reason, which may be one of a newer module.
fn reason_words(number: u32) -> (&'static str, &'static str) {
    reason::find(number).unwrap_or(("UNKNOWN", "unknown reason"))
}

fn member(answer: &Attributes) -> Member {
    let (slot, is_self) = (answer.u32(abi::A_SLOT), answer.has(abi::A_SELF));
    let uuid = Uuid(answer.bytes16(abi::A_UUID).next().unwrap_or_default());
    Member {
        transport: answer.text(abi::A_TRANSPORT),
        slot: slot.unwrap_or_default(),
        uuid: uuid.to_string(),
        name: answer.text(abi::A_NAME),
        generation: answer.u32(abi::A_GENERATION).unwrap_or_default(),
        is_self,
        is_host: slot == Some(HOST_SLOT as u32) && !is_self,
        is_outsourcer: answer.has(abi::A_OUTSOURCER),
        addresses: answer.bytes16(abi::A_ADDRESS).map(address).collect(),
        cid: answer.u32(abi::A_CID).unwrap_or_default(),
        tunnels: answer.u32(abi::A_TUNNELS).unwrap_or_default(),
    }
}

fn connection(answer: &Attributes) -> Connection {
    let end = |kind| address(answer.bytes16(kind).next().unwrap_or_default());
    let u64 = |kind| answer.u64(kind).unwrap_or_default();
    let direction = |carrier, tcp, ring| {
        let carrier = answer.u32(carrier).unwrap_or_default();
        let via = if carrier % 2 == 0 { "tcp" } else { "ring" };
        Direction {
            via,
            carrier,
            tcp_bytes: u64(tcp),
            ring_bytes: u64(ring),
        }
    };
    let number = answer.u32(abi::A_REASON).unwrap_or_default();
    let (reason_name, words) = reason_words(number);
    let text = answer.text(abi::A_REASON_TEXT);
    let is_datagram = answer.has(abi::A_DATAGRAM);
    let state = match tcp_state(answer.u8(abi::A_STATE).unwrap_or_default()) {
        "CLOSE" if is_datagram => "UNCONNECTED",
        state => state,
    };
    Connection {
        protocol: if is_datagram { "udp" } else { "tcp" },
        local: end(abi::A_LOCAL),
        local_port: answer.u16(abi::A_LOCAL_PORT).unwrap_or_default(),
        remote: end(abi::A_REMOTE),
        remote_port: answer.u16(abi::A_REMOTE_PORT).unwrap_or_default(),
        netns: answer.u32(abi::A_NETNS).unwrap_or_default(),
        state,
        peer: answer.text(abi::A_NAME),
        outsourced: answer.has(abi::A_OUTSOURCED),
        tx: direction(abi::A_TX_CARRIER, abi::A_TX_TCP, abi::A_TX_RING),
        rx: direction(abi::A_RX_CARRIER, abi::A_RX_TCP, abi::A_RX_RING),
        reason: number,
        reason_name,
        reason_text: if text.is_empty() { words.into() } else { text },
    }
}

fn address(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

fn tcp_state(number: u8) -> &'static str {
    const NAMES: [&str; 13] = [
        "UNKNOWN",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    NAMES.get(usize::from(number)).unwrap_or(&NAMES[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::Emitable;

    /// Writes and parses a message, as it would pass the kernel.
    fn parsed(attributes: Vec<Attribute>) -> Attributes {
        let message = Message {
            command: 1,
            version: 1,
            attributes,
        };
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        Attributes::parse(&bytes).unwrap()
    }

    #[test]
    fn counters() {
        let name = Attribute::text(abi::A_NAME, "promoted");
        let value = Attribute::new(abi::A_VALUE, 7u64.to_ne_bytes().to_vec());
        let mut nest = vec![0; name.buffer_len() + value.buffer_len()];
        name.emit(&mut nest);
        value.emit(&mut nest[name.buffer_len()..]);
        let answer = parsed(vec![
            Attribute::text(abi::A_VERSION, "0.1\u{1b}"),
            Attribute::new(abi::A_ENABLED, vec![1]),
            Attribute::new(abi::A_OUTSOURCING, vec![0]),
            Attribute::new(abi::A_COUNTER | 0x8000, nest.clone()),
            Attribute::new(999, vec![1, 2, 3]),
            Attribute::new(abi::A_COUNTER, nest),
        ]);
        let module = module(&answer);
        assert!(module.enabled && !module.outsourcing);
        assert_eq!(module.version, "0.1?");
        let counter = Counter {
            name: "promoted".into(),
            value: 7,
        };
        assert_eq!(module.counters, [counter.clone(), counter]);
        assert_eq!((module.demotions, module.natives), (vec![], vec![]));
    }

    #[test]
    fn counts_of_reasons() {
        let nest = |of: u16, reason: u32, count: u64| {
            let reason = Attribute::new(abi::A_REASON, reason.to_ne_bytes().to_vec());
            let count = Attribute::new(abi::A_VALUE, count.to_ne_bytes().to_vec());
            let mut nest = vec![0; reason.buffer_len() + count.buffer_len()];
            reason.emit(&mut nest);
            count.emit(&mut nest[reason.buffer_len()..]);
            Attribute::new(of, nest)
        };
        let found = module(&parsed(vec![
            nest(abi::A_DEMOTIONS, 29, 3),
            nest(abi::A_NATIVES, 37, 7),
            nest(abi::A_DEMOTIONS, 4711, 5),
        ]));
        let pick = |all: Vec<OfReason>| -> Vec<_> {
            let words = |one: OfReason| (one.reason, one.reason_name, one.count);
            all.into_iter().map(words).collect()
        };
        let demotions = pick(found.demotions);
        assert_eq!(demotions, [(29, "SMALL", 3), (4711, "UNKNOWN", 5)]);
        assert_eq!(pick(found.natives), [(37, "REFUSED", 7)]);
    }

    #[test]
    fn connections() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];
        let answer = parsed(vec![
            Attribute::new(abi::A_LOCAL, mapped.to_vec()),
            Attribute::new(abi::A_LOCAL_PORT, 80u16.to_ne_bytes().to_vec()),
            Attribute::new(abi::A_TX_CARRIER, 3u32.to_ne_bytes().to_vec()),
            Attribute::new(abi::A_TX_RING, 99u64.to_ne_bytes().to_vec()),
            Attribute::new(abi::A_REASON, 10u32.to_ne_bytes().to_vec()),
            Attribute::new(abi::A_STATE, vec![1]),
        ]);
        let connection = connection(&answer);
        assert_eq!(connection.local, "10.0.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(connection.local_port, 80);
        assert_eq!((connection.tx.via, connection.tx.ring_bytes), ("ring", 99));
        assert_eq!(connection.rx.via, "tcp");
        assert_eq!(connection.reason_name, "OFF");
        assert_eq!(connection.reason_text, "switched off by the operator");
        assert_eq!(connection.state, "ESTABLISHED");
    }

    #[test]
    fn members() {
        let answer = parsed(vec![
            Attribute::new(abi::A_UUID, (0..16).collect()),
            Attribute::new(abi::A_SELF, Vec::new()),
            Attribute::new(abi::A_ADDRESS, vec![0; 16]),
            Attribute::new(abi::A_ADDRESS, vec![0xfd; 16]),
            Attribute::new(abi::A_ADDRESS, vec![1; 3]),
            Attribute::new(abi::A_CID, 0x4000_0001_u32.to_ne_bytes().into()),
        ]);
        let member = member(&answer);
        assert_eq!(member.uuid, "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert!(member.is_self && !member.is_host);
        assert_eq!(member.addresses.len(), 2);
        assert_eq!(member.cid, 0x4000_0001);
        assert!(member.is_vm());
    }

    #[test]
    fn an_outsourcer_is_no_vm() {
        let slot = |slot: u32| Attribute::new(abi::A_SLOT, slot.to_ne_bytes().into());
        let flag = || Attribute::new(abi::A_OUTSOURCER, Vec::new());
        assert!(member(&parsed(vec![slot(2)])).is_vm());
        assert!(!member(&parsed(vec![slot(0)])).is_vm());
        let outsourcer = member(&parsed(vec![slot(2), flag()]));
        assert!(outsourcer.is_outsourcer && !outsourcer.is_vm());
    }

    #[test]
    fn broken_attributes_are_refused() {
        assert!(Attributes::parse(&[200, 0, 1, 0, 1]).is_err());
        assert!(Attributes::parse(&[1]).is_err());
    }
}
