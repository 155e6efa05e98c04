// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages as bytes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Bytes of the longest body, as the protocol says.
const BODY_MAX: usize = 4096;
/// Bytes of a header.
const HEADER: usize = 16;
/// Time that the rest of a message has once its first byte is there.
const REST: Duration = Duration::from_secs(10);

/// Types of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Directory = 1,
    Read = 2,
    Watch = 4,
    Unwatch = 5,
    Write = 11,
    Remove = 13,
    SetPermissions = 14,
    Event = 15,
    Error = 16,
}

/// A message, either way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its type; xenstored may have others than `Kind`.
    pub kind: u32,
    /// The request's number, which its answer repeats.
    pub number: u32,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Message {
    /// Sends it, outside of any transaction.
    pub fn send(&self, stream: &mut UnixStream) -> Result<()> {
        if self.body.len() > BODY_MAX {
            return Err(Error::Protocol("a request that is too long"));
        }
        let length = self.body.len() as u32;
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        for word in [self.kind, self.number, 0, length] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.body);
        Ok(stream.write_all(&bytes)?)
    }

    /// Receives one; nothing if none begins before the deadline.
    pub fn receive(stream: &mut UnixStream, deadline: Option<Instant>) -> Result<Option<Self>> {
        let mut header = [0; HEADER];
        if !fill(stream, &mut header[..1], deadline)? {
            return Ok(None);
        }
        let rest = Some(Instant::now() + REST);
        let in_time = fill(stream, &mut header[1..], rest)?;
        let word = |n: usize| {
            let bytes = header[4 * n..4 * n + 4].try_into();
            u32::from_ne_bytes(bytes.expect("four bytes"))
        };
        let length = word(3) as usize;
        if length > BODY_MAX {
            return Err(Error::Protocol("a message that is too long"));
        }
        let mut body = vec![0; length];
        if !in_time || !fill(stream, &mut body, rest)? {
            return Err(Error::Protocol("a message without an end"));
        }
        Ok(Some(Self {
            kind: word(0),
            number: word(1),
            body,
        }))
    }

    /// The strings of its body.
    pub fn strings(&self) -> Vec<String> {
        strings(&self.body)
    }
}

/// Strings that each end with a zero.
pub(crate) fn strings(bytes: &[u8]) -> Vec<String> {
    let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
    if parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    let text = |part: &&[u8]| String::from_utf8_lossy(part).into_owned();
    parts.iter().map(text).collect()
}

/// Fills the buffer. False: the deadline came first.
fn fill(stream: &mut UnixStream, mut buffer: &mut [u8], deadline: Option<Instant>) -> Result<bool> {
    while !buffer.is_empty() {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
        stream.set_read_timeout(left)?;
        match stream.read(buffer) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(false),
                _ => return Err(error.into()),
            },
        }
    }
    Ok(true)
}
