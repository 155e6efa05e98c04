// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of a socket, in the head of the ring that the guest writes
//! (`abi/hallway/ring.h`). Any value is possible there.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{fence, Ordering};

use hallway_abi::ring as abi;

use crate::Receiver;

const OPTIONS: usize = offset_of!(abi::Ring, options);
const CHANGED: usize = OPTIONS + offset_of!(abi::Options, changed);
const ASKED: usize = OPTIONS + offset_of!(abi::Options, asked);
const ANSWERED: usize = OPTIONS + offset_of!(abi::Options, answered);
const INFO_SIZE: usize = OPTIONS + offset_of!(abi::Options, info_size);
const UNACKED: usize = OPTIONS + offset_of!(abi::Options, unacked);
const VALUE: usize = OPTIONS + offset_of!(abi::Options, value);
const INFO: usize = OPTIONS + offset_of!(abi::Options, info);

impl Receiver {
    /// Takes number and value of each option that has changed.
    pub fn take_options(&self) -> impl Iterator<Item = (usize, i32)> + '_ {
        let (memory, at) = (&self.ring.memory, self.ring.at);
        let changed = match memory.read_u64(at + CHANGED) {
            0 => 0,
            _ => memory.swap_u64(at + CHANGED, 0),
        };
        (0..abi::OPTIONS)
            .filter(move |number| changed >> number & 1 != 0)
            .map(move |number| {
                let value = memory.read_u32(at + VALUE + number * size_of::<i32>());
                (number, value as i32)
            })
    }

    /// The number of a question that is not answered.
    pub fn question(&self) -> Option<u32> {
        let asked = self.ring.memory.read_u32(self.ring.at + ASKED);
        (asked != self.answered).then_some(asked)
    }

    /// Answers it: bytes that are not acknowledged, and the kernel's `struct tcp_info`.
    /// Bytes of that for which there is no place are left out.
    pub fn answer(&mut self, question: u32, unacked: u32, info: &[u8]) {
        let info = &info[..info.len().min(abi::INFO_MAX)];
        let (memory, at) = (&self.ring.memory, self.ring.at);
        memory.write_bytes(at + INFO, info);
        memory.write_u32(at + INFO_SIZE, info.len() as u32);
        memory.write_u32(at + UNACKED, unacked);
        fence(Ordering::SeqCst);
        memory.write_u32(at + ANSWERED, question);
        self.answered = question;
    }
}
