// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mailboxes: messages and pending bits between two members.
//!
//! The peer is hostile. Its indexes count only with both generations, and only where
//! they are possible; the own position is private, so no message is handled twice.

use std::collections::VecDeque;
use std::mem::{offset_of, size_of};
use std::rc::Rc;

use hallway_abi::region as abi;
use hallway_shm::Mapping;

use crate::message::{Message, Raw};

/// Messages that wait for space at most. The peer has as many endpoints, and is owed a
/// few messages about each.
const WAITING_MAX: usize = 4 * abi::ENDPOINTS_MAX;

const MESSAGES: u32 = abi::MAILBOX_MESSAGES as u32;

/// Bytes at the start of a slice that are no ring memory.
pub fn slice_overhead(slots: u32) -> u64 {
    (size_of::<abi::Slice>() + slots as usize * size_of::<abi::Mailbox>()) as u64
}

/// Offset in its owner's slice of the mailbox to `slot`.
pub fn mailbox_at(slot: u32) -> usize {
    size_of::<abi::Slice>() + slot as usize * size_of::<abi::Mailbox>()
}

/// The two generations that an index states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    sender: u32,
    receiver: u32,
}

const HEAD: usize = offset_of!(abi::Mailbox, head);
const TAIL: usize = offset_of!(abi::Mailbox, tail);
const PENDING: usize = offset_of!(abi::Mailbox, pending);
const INDEX: usize = offset_of!(abi::MailboxIndex, index);
const SENDER: usize = offset_of!(abi::MailboxIndex, sender_generation);
const RECEIVER: usize = offset_of!(abi::MailboxIndex, receiver_generation);

fn read_index(memory: &Mapping, at: usize, pair: Pair) -> Option<u32> {
    let is_of_pair = memory.read_u32(at + SENDER) == pair.sender
        && memory.read_u32(at + RECEIVER) == pair.receiver;
    is_of_pair.then(|| memory.read_u32(at + INDEX))
}

/// Writes the generations, too: they may have been overwritten.
fn write_index(memory: &Mapping, at: usize, pair: Pair, index: u32) {
    memory.write_u32(at + SENDER, pair.sender);
    memory.write_u32(at + RECEIVER, pair.receiver);
    memory.write_u32(at + INDEX, index);
}

/// Has an index of another pair count as none until all of it is written.
fn reset_index(memory: &Mapping, at: usize, pair: Pair) {
    memory.write_u32(at + SENDER, 0);
    memory.write_u32(at + INDEX, 0);
    memory.write_u32(at + RECEIVER, pair.receiver);
    memory.write_u32(at + SENDER, pair.sender);
}

fn message_at(mailbox: usize, index: u32) -> usize {
    let number = (index % MESSAGES) as usize;
    mailbox + offset_of!(abi::Mailbox, message) + number * abi::MESSAGE_SIZE
}

/// The mailbox to a peer.
pub struct Outbox {
    memory: Rc<Mapping>,
    at: usize,
    pair: Pair,
    head: u32,
    waiting: VecDeque<Raw>,
    /// How often the peer wrote an impossible index.
    pub corrupt: u64,
    /// Messages that found no place to wait.
    pub lost: u64,
}

impl Outbox {
    /// The mailbox at `at`, an offset in the region; the generations are the own one
    /// and the peer's.
    pub fn open(memory: Rc<Mapping>, at: usize, own: u32, peer: u32) -> Self {
        let pair = Pair {
            sender: own,
            receiver: peer,
        };
        reset_index(&memory, at + HEAD, pair);
        Self {
            memory,
            at,
            pair,
            head: 0,
            waiting: VecDeque::new(),
            corrupt: 0,
            lost: 0,
        }
    }

    /// Sends a message, or has it wait for space. Messages stay in order.
    pub fn send(&mut self, message: &Message) {
        let raw = message.write();
        if self.waiting.is_empty() && self.put(&raw) {
            return;
        }
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(raw);
        } else {
            self.lost += 1;
        }
    }

    /// Whether messages wait for space.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends waiting messages that there is space for now. True: there were some.
    pub fn send_waiting(&mut self) -> bool {
        let mut any = false;
        while let Some(raw) = self.waiting.front().copied() {
            if !self.put(&raw) {
                break;
            }
            self.waiting.pop_front();
            any = true;
        }
        any
    }

    fn put(&mut self, raw: &Raw) -> bool {
        // Indexes of before the peer's arrival: it has taken none.
        let tail = read_index(&self.memory, self.at + TAIL, self.pair).unwrap_or(0);
        if self.head.wrapping_sub(tail) > MESSAGES {
            // Overwritten. The peer takes no message twice: it never goes back.
            self.corrupt += 1;
            self.head = tail;
        }
        if self.head.wrapping_sub(tail) == MESSAGES {
            return false;
        }
        self.memory.write_bytes(message_at(self.at, self.head), raw);
        self.head = self.head.wrapping_add(1);
        write_index(&self.memory, self.at + HEAD, self.pair, self.head);
        self.set_pending(0);
        true
    }

    /// Sets a pending bit: the peer's endpoint, or 0 for messages. The caller writes
    /// the doorbell then.
    pub fn set_pending(&self, endpoint: u32) {
        let endpoint = endpoint as usize;
        if endpoint < abi::ENDPOINTS_MAX {
            let word = self.at + PENDING + endpoint / 64 * 8;
            self.memory.set_bits_u64(word, 1 << (endpoint % 64));
        }
    }
}

/// The mailbox from a peer.
pub struct Inbox {
    memory: Rc<Mapping>,
    at: usize,
    pair: Pair,
    tail: u32,
    /// How often the peer wrote an impossible index.
    pub corrupt: u64,
}

impl Inbox {
    /// The mailbox at `at`, an offset in the region; the generations are the own one
    /// and the peer's.
    pub fn open(memory: Rc<Mapping>, at: usize, own: u32, peer: u32) -> Self {
        let pair = Pair {
            sender: peer,
            receiver: own,
        };
        reset_index(&memory, at + TAIL, pair);
        Self {
            memory,
            at,
            pair,
            tail: 0,
            corrupt: 0,
        }
    }

    /// Copies the messages that are there: as many as a mailbox holds, at most.
    pub fn receive(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let Some(mut head) = read_index(&self.memory, self.at + HEAD, self.pair) else {
            return messages;
        };
        if head.wrapping_sub(self.tail) > MESSAGES {
            self.corrupt += 1;
            head = self.tail;
        }
        while self.tail != head {
            let raw = self.memory.read_bytes(message_at(self.at, self.tail));
            messages.push(Message::read(&raw));
            self.tail = self.tail.wrapping_add(1);
        }
        // Also if there was none: the sender goes on from there.
        write_index(&self.memory, self.at + TAIL, self.pair, self.tail);
        messages
    }

    /// Takes the pending bits of the endpoints below `end`. `rung` gets each endpoint;
    /// 0 stands for messages.
    pub fn take_pending(&self, end: u32, mut rung: impl FnMut(u32)) {
        for word in 0..end.min(abi::ENDPOINTS_MAX as u32).div_ceil(64) {
            let at = self.at + PENDING + word as usize * 8;
            if self.memory.read_u64(at) == 0 {
                continue;
            }
            let mut bits = self.memory.swap_u64(at, 0);
            while bits != 0 {
                rung(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Other;
    use hallway_shm::sealed_memory;

    fn mailboxes() -> (Outbox, Inbox, Rc<Mapping>) {
        let fd = sealed_memory("mailbox", 16384).unwrap();
        let memory = Rc::new(Mapping::new(fd, 16384).unwrap());
        let outbox = Outbox::open(memory.clone(), 0, 7, 9);
        let inbox = Inbox::open(memory.clone(), 0, 9, 7);
        (outbox, inbox, memory)
    }

    fn message(position: u64) -> Message {
        Message::Other(Other {
            r#type: 5,
            position,
            ..Other::default()
        })
    }

    #[test]
    fn messages_wait_and_stay_in_order() {
        let (mut outbox, mut inbox, _) = mailboxes();
        for n in 0..200 {
            outbox.send(&message(n));
        }
        let mut next = 0;
        loop {
            let messages = inbox.receive();
            if messages.is_empty() {
                break;
            }
            for found in messages {
                assert_eq!(found, message(next));
                next += 1;
            }
            outbox.send_waiting();
        }
        assert!(next == 200 && !outbox.is_waiting());
    }

    #[test]
    fn pending_bits_are_taken_once() {
        let (outbox, inbox, _) = mailboxes();
        for endpoint in [0, 5, 64, 4095, 4096] {
            outbox.set_pending(endpoint);
        }
        let mut rung = Vec::new();
        inbox.take_pending(4096, |endpoint| rung.push(endpoint));
        assert_eq!(rung, [0, 5, 64, 4095]);
        inbox.take_pending(4096, |_| panic!("taken already"));
    }

    #[test]
    fn impossible_indexes_take_nothing_and_the_mailbox_works_again() {
        let (mut outbox, mut inbox, memory) = mailboxes();
        outbox.send(&message(1));
        assert_eq!(inbox.receive().len(), 1);
        memory.write_u32(HEAD + INDEX, 1000);
        assert!(inbox.receive().is_empty());
        assert_eq!(inbox.corrupt, 1);
        memory.write_u32(TAIL + INDEX, 5000);
        outbox.send(&message(2));
        assert_eq!(outbox.corrupt, 1);
        inbox.receive();
        outbox.send(&message(3));
        assert_eq!(inbox.receive(), [message(3)]);
        memory.write_u32(HEAD + SENDER, 8);
        assert!(inbox.receive().is_empty());
    }
}
