// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of the host that connect to the guest.

use std::os::fd::OwnedFd;

use hallway_endpoint::member::RING_STREAM;
use nix::errno::Errno;

use crate::guest::Guest;
use crate::pipe::{Pipe, Stage};
use crate::unix;

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
