// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A generic netlink message as a list of attributes.

use hallway_membership::printable;
use netlink_packet_core::{
    DecodeError, Emitable, Nla, NlasIterator, ParseableParametrized, NLA_TYPE_MASK,
};
use netlink_packet_generic::{GenlFamily, GenlHeader};

/// One attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    kind: u16,
    value: Vec<u8>,
}

impl Attribute {
    pub fn new(kind: u16, value: Vec<u8>) -> Self {
        Self { kind, value }
    }

    pub fn text(kind: u16, text: &str) -> Self {
        let mut value = text.as_bytes().to_vec();
        value.push(0);
        Self { kind, value }
    }
}

impl Nla for Attribute {
    fn value_len(&self) -> usize {
        self.value.len()
    }

    fn kind(&self) -> u16 {
        self.kind
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.value);
    }
}

/// A message of any family.
#[derive(Debug, Clone)]
pub struct Message {
    pub command: u8,
    pub version: u8,
    pub attributes: Vec<Attribute>,
}

impl GenlFamily for Message {
    fn family_name() -> &'static str {
        hallway_abi::netlink::GENL_NAME
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        self.version
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.iter().map(Emitable::buffer_len).sum()
    }

    fn emit(&self, buffer: &mut [u8]) {
        let mut at = 0;
        for attribute in &self.attributes {
            let end = at + attribute.buffer_len();
            attribute.emit(&mut buffer[at..end]);
            at = end;
        }
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let Attributes(attributes) = Attributes::parse(buffer)?;
        Ok(Self {
            command: header.cmd,
            version: header.version,
            attributes,
        })
    }
}

/// Attributes of a message, or of a nest.
#[derive(Debug)]
pub struct Attributes(pub Vec<Attribute>);

impl Attributes {
    pub fn parse(buffer: &[u8]) -> Result<Self, DecodeError> {
        NlasIterator::new(buffer)
            .map(|attribute| {
                let attribute = attribute?;
                Ok(Attribute {
                    kind: attribute.kind(),
                    value: attribute.value().to_vec(),
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn all(&self, kind: u16) -> impl Iterator<Item = &[u8]> {
        self.0
            .iter()
            .filter(move |attribute| attribute.kind & NLA_TYPE_MASK == kind)
            .map(|attribute| &attribute.value[..])
    }

    fn bytes<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        self.all(kind).next()?.try_into().ok()
    }

    pub fn has(&self, kind: u16) -> bool {
        self.all(kind).next().is_some()
    }

    pub fn u8(&self, kind: u16) -> Option<u8> {
        self.bytes(kind).map(u8::from_ne_bytes)
    }

    pub fn u16(&self, kind: u16) -> Option<u16> {
        self.bytes(kind).map(u16::from_ne_bytes)
    }

    pub fn u32(&self, kind: u16) -> Option<u32> {
        self.bytes(kind).map(u32::from_ne_bytes)
    }

    pub fn u64(&self, kind: u16) -> Option<u64> {
        self.bytes(kind).map(u64::from_ne_bytes)
    }

    /// The numbers in an attribute; none if it is not there.
    pub fn u64s(&self, kind: u16) -> Vec<u64> {
        let bytes = self.all(kind).next().unwrap_or_default();
        let numbers = bytes.chunks_exact(size_of::<u64>());
        numbers
            .filter_map(|number| number.try_into().ok().map(u64::from_ne_bytes))
            .collect()
    }

    /// Values of the attributes of this kind that have 16 bytes.
    pub fn bytes16(&self, kind: u16) -> impl Iterator<Item = [u8; 16]> + '_ {
        self.all(kind).filter_map(|value| value.try_into().ok())
    }

    /// A text without control characters: other guests choose names.
    pub fn text(&self, kind: u16) -> String {
        printable(self.all(kind).next().unwrap_or_default())
    }

    pub fn nests(&self, kind: u16) -> impl Iterator<Item = Attributes> + '_ {
        self.all(kind)
            .filter_map(|value| Attributes::parse(value).ok())
    }
}
