// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of the host that connect to the guest.

use std::os::fd::OwnedFd;

use hallway_endpoint::member::RING_STREAM;
use nix::errno::Errno;

use crate::guest::Guest;
use crate::pipe::{Pipe, Stage};
use crate::unix;

/// Beats, of which two are a second, until a program that has not said where to is hung up on.
const PATIENCE: u8 = 10;

/// The longest line by which one says where to: `CONNECT 4294967295\n`.
const LINE: usize = 19;

/// The first port of the host that a connection gets: lower ones are for those with a
/// privilege, in a guest.
pub const PORT_FIRST: u32 = 1024;

/// The guest's port in a line.
fn parse(line: &[u8]) -> Option<u32> {
    let digits = line.strip_prefix(b"CONNECT ")?.strip_suffix(b"\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads the line of a program that has connected. Later bytes stay. Nothing: the whole
/// line is not there yet.
fn read_line(socket: &OwnedFd, is_packets: bool) -> Result<Option<u32>, Errno> {
    let mut line = [0; LINE];
    let length = match unix::peek(socket, &mut line) {
        Ok(0) => return Err(Errno::EPIPE),
        Ok(length) => length,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let end = line[..length].iter().position(|byte| *byte == b'\n');
    let Some(end) = end else {
        return match length < LINE && !is_packets {
            true => Ok(None),
            false => Err(Errno::EBADMSG),
        };
    };
    let port = parse(&line[..=end]).ok_or(Errno::EBADMSG)?;
    unix::take(socket, &mut line[..=end])?;
    Ok(Some(port))
}

impl Guest<'_> {
    /// Takes up a program of the host that has connected.
    pub fn take_client(&mut self, socket: OwnedFd, is_packets: bool) {
        self.enter(Pipe::new(socket, is_packets, Stage::Greeting));
    }

    /// Reads where a program of the host wants to, and asks the guest.
    pub fn greet(&mut self, own: u32) {
        let Some(pipe) = self.table.get(own) else {
            return;
        };
        let Some(socket) = &pipe.socket else {
            return;
        };
        let result = read_line(socket, pipe.is_packets);
        let port = match result {
            Ok(None) => return,
            Ok(Some(port)) => port,
            Err(_) => {
                pipe.socket = None;
                return;
            }
        };
        if !self.call(own, port) {
            self.counts.refuse("memory".into(), "connection");
            if let Some(pipe) = self.table.get(own) {
                pipe.socket = None;
            }
        }
    }

    /// Hangs up on programs of the host that do not say where to.
    pub fn hang_up_late(&mut self) {
        let late = self.table.find_all(|pipe| {
            pipe.age = pipe.age.saturating_add(1);
            pipe.stage == Stage::Greeting && pipe.age > PATIENCE
        });
        for own in late {
            self.hang_up(own);
        }
    }

    fn hang_up(&mut self, own: u32) -> bool {
        self.counts.refuse("no CONNECT".into(), "connection");
        self.table.remove(own).is_some()
    }

    /// Has the program that has waited longest with saying where to give its place to another
    /// one. False: all have said it.
    pub fn make_place(&mut self) -> bool {
        let greeting = self.table.find_all(|pipe| pipe.stage == Stage::Greeting);
        let oldest = greeting.into_iter().min_by_key(|own| self.table.tag(*own));
        oldest.is_some_and(|own| self.hang_up(own))
    }

    /// Asks the guest for a connection. False: there is no memory.
    fn call(&mut self, own: u32, port: u32) -> bool {
        let Some((ring, handle)) = self.peer.make_ring(RING_STREAM, self.policy.sockets) else {
            return false;
        };
        let local = *self.next_port;
        // The last one is no port.
        *self.next_port = match local + 1 {
            u32::MAX => PORT_FIRST,
            next => next,
        };
        let Some(pipe) = self.table.get(own) else {
            return false;
        };
        pipe.port = local;
        pipe.stage = Stage::Calling;
        (pipe.to_guest, pipe.handle) = (Some(ring), handle);
        self.offer(own, port, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_a_port() {
        assert_eq!(parse(b"CONNECT 5000\n"), Some(5000));
        assert_eq!(parse(b"CONNECT 4294967295\n"), Some(u32::MAX));
        let longest = b"CONNECT 4294967295\n";
        assert_eq!(longest.len(), LINE);
        for bad in [
            "CONNECT 5000",
            "CONNECT \n",
            "CONNECT -1\n",
            "connect 1\n",
            "\n",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
