// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UUIDs, and text from guests.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A UUID in RFC 4122 order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Uuid(pub [u8; 16]);

/// Makes `N` bytes that cannot be guessed.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Uuid {
    /// Makes a random UUID (version 4).
    pub fn random() -> io::Result<Self> {
        let mut bytes = random_bytes::<16>()?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }

    /// Whether all of it is zero, as where QEMU has no `-uuid`.
    pub fn is_nil(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            if matches!(n, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || format!("{text:?} is no UUID");
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        let dashes = text.match_indices('-').map(|(at, _)| at);
        let is_canonical = dashes.eq([8, 13, 18, 23]) || text.len() == 32;
        if !is_canonical || digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.to_string()
    }
}

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Makes a NUL-terminated text of a guest fit for terminal and log: letters and
/// digits of any script and printable ASCII stay, all else becomes `?`.
pub fn printable(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .map(|c| match c {
            ' '..='~' => c,
            _ if c.is_alphanumeric() => c,
            _ => '?',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_text_round_trip() {
        let uuid = Uuid::random().unwrap();
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert!("not-a-uuid".parse::<Uuid>().is_err());
        for odd in [
            "0-0112233445566778899aabbccddeeff",
            "00112233-4455-6677-8899aabbccddeeff",
        ] {
            assert!(odd.parse::<Uuid>().is_err(), "{odd}");
        }
        assert!("00112233445566778899aabbccddeeff".parse::<Uuid>().is_ok());
        assert_eq!(
            "00112233-4455-6677-8899-aabbccddeeff"
                .parse::<Uuid>()
                .unwrap()
                .0[..4],
            [0x00, 0x11, 0x22, 0x33]
        );
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable(b"web-1\0junk"), "web-1");
        assert_eq!(printable(b"\x1b[2J\nvm"), "?[2J?vm");
        assert_eq!(printable("r\u{202e}fed".as_bytes()), "r?fed");
        assert_eq!(printable("müller".as_bytes()), "müller");
        assert_eq!(printable(&[0xff, b'a']), "?a");
    }
}
