// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of both ends, and of an end with a peer that cheats.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use hallway_shm::{sealed_memory, Mapping};

use super::*;

const LENGTH: usize = 64 << 10;
const AT: usize = 4096;
const RING: u32 = 4096;

fn memory() -> OwnedFd {
    sealed_memory("ring", LENGTH).unwrap()
}

fn map(fd: &OwnedFd) -> Rc<Mapping> {
    Rc::new(Mapping::new(fd, LENGTH).unwrap())
}

fn ends() -> (Sender, Receiver, Rc<Mapping>) {
    let fd = memory();
    let memory = map(&fd);
    let sender = Sender::create(memory.clone(), AT, RING, 1);
    let receiver = Receiver::take_up(map(&fd), AT, RING, 1).unwrap();
    (sender, receiver, memory)
}

fn write(sender: &mut Sender, bytes: &[u8]) -> (usize, bool) {
    let runs = sender.free_runs(bytes.len() as u32);
    let mut from = bytes.iter();
    for (to, length) in runs.0 {
        for (n, byte) in from.by_ref().take(length).enumerate() {
            // SAFETY: the run has as many bytes, in a mapping that lives.
            unsafe { to.add(n).write_volatile(*byte) };
        }
    }
    (runs.len(), sender.publish(runs.len() as u32))
}

fn read(receiver: &mut Receiver, max: u32) -> (Vec<u8>, bool) {
    let runs = receiver.used_runs(max);
    let mut bytes = Vec::new();
    for (from, length) in runs.0 {
        for n in 0..length {
            // SAFETY: the run has as many bytes, in a mapping that lives.
            bytes.push(unsafe { from.add(n).read_volatile() });
        }
    }
    (bytes, receiver.consume(runs.len() as u32))
}

#[test]
fn bytes_pass_and_wrap() {
    let (mut sender, mut receiver, _) = ends();
    for round in 0..50_u32 {
        let bytes: Vec<u8> = (0..1500).map(|n| (n * 7 + round) as u8).collect();
        assert_eq!(write(&mut sender, &bytes).0, 1500);
        assert_eq!(read(&mut receiver, 5000).0, bytes);
    }
    assert_eq!(receiver.position(), 75_000);
}

#[test]
fn a_full_ring_takes_nothing_and_an_empty_one_gives_nothing() {
    let (mut sender, mut receiver, _) = ends();
    assert!(read(&mut receiver, 10).0.is_empty());
    assert_eq!(write(&mut sender, &[1; 5000]).0, 4096);
    assert_eq!(sender.count_space(), 0);
    assert_eq!(write(&mut sender, &[1; 10]).0, 0);
    assert_eq!(receiver.count_used(), 4096);
    assert_eq!(read(&mut receiver, 1).0.len(), 1);
    assert_eq!(write(&mut sender, &[1; 10]).0, 1);
}

#[test]
fn doorbells_ring_at_the_position_that_was_asked_for() {
    let (mut sender, mut receiver, _) = ends();
    assert!(write(&mut sender, b"a").1, "the first byte rings");
    assert!(!write(&mut sender, b"b").1, "no doorbell was asked for");
    read(&mut receiver, 10);
    assert!(!receiver.arm());
    assert!(write(&mut sender, b"c").1);
    assert!(receiver.arm(), "a byte is there");
    write(&mut sender, &[0; 4096]);
    assert!(!sender.arm(1, 100));
    assert!(!read(&mut receiver, 99).1);
    assert!(sender.arm(1, 1), "99 bytes are free");
    assert!(read(&mut receiver, 1).1);
    write(&mut sender, &[0; 4096]);
    assert!(!sender.arm(1, 4096));
    assert!(!read(&mut receiver, 4095).1);
    assert!(read(&mut receiver, 1).1);
}

#[test]
fn events_are_compared_modulo_two_to_the_64() {
    assert!(passes(0, 1, 0));
    assert!(!passes(1, 1, 0));
    assert!(passes(u64::MAX, 0, u64::MAX));
    assert!(!passes(5, 5, 5));
    assert!(!passes(4, 8, 5));
}

#[test]
fn the_end_mark_follows_the_bytes() {
    let (mut sender, mut receiver, _) = ends();
    write(&mut sender, b"last");
    assert!(sender.end());
    assert!(!sender.end() && sender.is_ended());
    assert_eq!(receiver.count_used(), 4);
    assert!(!receiver.is_finished());
    assert_eq!(read(&mut receiver, 10).0, b"last");
    assert!(receiver.is_finished() && receiver.arm());
    assert_eq!(sender.finish(4), Some(0));
}

#[test]
fn a_position_that_is_impossible_is_refused() {
    let (mut sender, ..) = ends();
    write(&mut sender, b"four");
    assert_eq!(sender.finish(3), Some(1));
    assert_eq!(sender.finish(2), None);
    assert!(sender.is_broken());
    let (mut sender, ..) = ends();
    assert_eq!(sender.finish(1), None);
}

#[test]
fn a_reset_follows_the_bytes() {
    let (mut sender, mut receiver, memory) = ends();
    write(&mut sender, b"last");
    assert!(sender.reset() && !sender.end());
    assert_eq!(receiver.count_used(), 4);
    assert!(receiver.is_reset() && !receiver.is_finished());
    read(&mut receiver, 4);
    assert!(receiver.is_finished() && !receiver.is_broken());
    assert_eq!(memory.read_u64(AT + END), abi::MARK_SET | abi::MARK_RESET);
    let (mut sender, mut receiver, _) = ends();
    assert!(sender.end() && !sender.reset());
    assert!(receiver.is_ended() && !receiver.is_reset());
}

#[test]
fn an_impossible_tail_breaks_the_sender_for_ever() {
    for tail in [5, u64::MAX, 1 << 63] {
        let (mut sender, _, memory) = ends();
        write(&mut sender, b"four");
        memory.write_u64(AT + TAIL, tail);
        assert_eq!(sender.count_space(), 0);
        memory.write_u64(AT + TAIL, 4);
        assert!(sender.is_broken() && sender.arm(1, 1) && !sender.end());
        assert!(sender.free_runs(10).is_empty() && !sender.publish(0));
    }
    let (mut sender, mut receiver, memory) = ends();
    write(&mut sender, b"four");
    read(&mut receiver, 4);
    assert_eq!(sender.count_space(), 4096);
    memory.write_u64(AT + TAIL, 3);
    assert_eq!(sender.count_space(), 0);
}

#[test]
fn an_impossible_head_or_mark_breaks_the_receiver_for_ever() {
    for head in [4097, u64::MAX] {
        let (_, mut receiver, memory) = ends();
        memory.write_u64(AT + HEAD, head);
        assert_eq!(receiver.count_used(), 0);
        memory.write_u64(AT + HEAD, 1);
        assert!(receiver.is_broken() && receiver.used_runs(9).is_empty());
        assert!(!receiver.consume(0) && !receiver.is_finished());
    }
    let (_, mut receiver, memory) = ends();
    memory.write_u64(AT + END, abi::MARK_TRUNCATED);
    assert_eq!(receiver.count_used(), 0);
    assert!(receiver.is_broken());
    let (mut sender, _, memory) = ends();
    memory.write_u64(AT + END, 1);
    assert!(!sender.end() && sender.is_broken());
}

#[test]
fn a_receiver_that_reads_no_more_says_where() {
    let (mut sender, mut receiver, memory) = ends();
    write(&mut sender, b"read, and not");
    read(&mut receiver, 4);
    receiver.truncate();
    assert_eq!(memory.read_u64(AT + END), abi::MARK_TRUNCATED | 4);
    assert!(receiver.is_finished() && !receiver.is_broken());
    assert!(receiver.used_runs(9).is_empty());
    let (mut sender, mut receiver, memory) = ends();
    write(&mut sender, b"all");
    sender.end();
    receiver.truncate();
    assert_eq!(memory.read_u64(AT + END), abi::MARK_SET);
    assert_eq!(read(&mut receiver, 9).0, b"all");
}

#[test]
fn only_a_ring_with_a_start_mark_is_taken_up() {
    for (word, value) in [(MAGIC, 1), (SIZE, 8192), (CARRIER, 3), (START, 1)] {
        let (_, _, memory) = ends();
        memory.write_u32(AT + word, value);
        assert!(Receiver::take_up(memory, AT, RING, 1).is_none());
    }
}

const AREA_AT: usize = 16384;

/// Ends of a ring of which the last half of the memory may be an area.
fn growing_ends() -> (Sender, Receiver, Rc<Mapping>) {
    let (sender, mut receiver, memory) = ends();
    receiver.allow_growth(4096, 8192..LENGTH as u64 - 4096);
    (sender, receiver, memory)
}

/// What the peer finds it by: it counts from its slice.
const AREA_HANDLE: (u64, u64) = (AREA_AT as u64 - 4096, 16384);

#[test]
fn a_ring_grows_in_the_midst_of_its_bytes() {
    for (before, taken) in [(0, 0), (100, 0), (3000, 1234), (4096, 0), (4096, 4096)] {
        let (mut sender, mut receiver, _) = growing_ends();
        let bytes: Vec<u8> = (0..70_000).map(|n| (n % 251) as u8).collect();
        let mut sent = write(&mut sender, &bytes[..before]).0;
        let mut back = read(&mut receiver, taken).0;
        sender.grow(AREA_AT, 16384, AREA_HANDLE);
        assert_eq!((sender.size(), sender.count_space()), (16384, 16384));
        while back.len() < bytes.len() {
            sent += write(&mut sender, &bytes[sent..(sent + 9001).min(bytes.len())]).0;
            assert_eq!(receiver.count_used() as usize, sent - back.len());
            back.extend(read(&mut receiver, 7777).0);
            assert!(!sender.is_broken() && !receiver.is_broken());
        }
        assert!(back == bytes);
        assert_eq!(receiver.position(), 70_000);
        assert_eq!(sender.finish(70_000), Some(0));
    }
}

#[test]
fn a_writer_in_an_area_is_woken_by_its_space() {
    let (mut sender, mut receiver, _) = growing_ends();
    write(&mut sender, &[1; 4096]);
    sender.grow(AREA_AT, 16384, AREA_HANDLE);
    assert_eq!(write(&mut sender, &[2; 16384]).0, 16384);
    assert!(!sender.arm(1, 8192));
    // What was in the ring before frees nothing there.
    assert!(!read(&mut receiver, 4096).1);
    assert_eq!(sender.count_space(), 0);
    assert!(!read(&mut receiver, 8191).1);
    assert!(read(&mut receiver, 1).1);
    assert_eq!(sender.count_space(), 8192);
}

#[test]
fn an_impossible_area_breaks_the_ring() {
    let good = abi::MARK_SET | 3000;
    for (mark, size, offset, length) in [
        (good | abi::MARK_TRUNCATED, 16384, 12288, 16384),
        (good & !abi::MARK_SET, 16384, 12288, 16384),
        // Before what is read, and further than there is space.
        (abi::MARK_SET | 2999, 16384, 12288, 16384),
        (abi::MARK_SET | 4097, 16384, 12288, 16384),
        (good, 4096, 12288, 4096),
        (good, 12288, 12288, 12288),
        (good, 1 << 31, 12288, 1 << 31),
        (good, 16384, 12288, 8192),
        (good, 16384, 4096, 16384),
        (good, 16384, 12289, 16384),
        (good, 16384, LENGTH as u64 - 16384, 16384),
        (good, 16384, u64::MAX - 4095, 16384),
    ] {
        let (mut sender, mut receiver, memory) = growing_ends();
        write(&mut sender, &[7; 3000]);
        assert_eq!(receiver.count_used(), 3000);
        memory.write_u64(AT + AREA, offset);
        memory.write_u64(AT + AREA + 8, length);
        memory.write_u32(AT + AREA_SIZE, size);
        memory.write_u64(AT + GROWN, mark);
        assert_eq!(
            receiver.count_used(),
            0,
            "{mark:x} {size} {offset} {length}"
        );
        assert!(receiver.is_broken());
    }
}

#[test]
fn what_an_area_can_not_hold_breaks_the_ring() {
    let (mut sender, mut receiver, memory) = growing_ends();
    write(&mut sender, &[7; 3000]);
    sender.grow(AREA_AT, 16384, AREA_HANDLE);
    memory.write_u64(AT + HEAD, 3000 + 16384);
    assert_eq!(receiver.count_used(), 3000 + 16384);
    memory.write_u64(AT + HEAD, 3000 + 16385);
    assert!(receiver.count_used() == 0 && receiver.is_broken());
}

#[test]
fn a_ring_that_may_not_grow_has_no_area() {
    let (mut sender, mut receiver, memory) = ends();
    memory.write_u64(AT + GROWN, u64::MAX);
    write(&mut sender, b"bytes");
    assert_eq!(read(&mut receiver, 9).0, b"bytes");
    // Without memory it says so once, and may grow later.
    let (mut sender, mut receiver, memory) = growing_ends();
    assert!(sender.set_short() && !sender.set_short());
    assert_eq!(memory.read_u64(AT + GROWN), abi::MARK_SHORT);
    write(&mut sender, b"bytes");
    assert_eq!(read(&mut receiver, 9).0, b"bytes");
    sender.grow(AREA_AT, 16384, AREA_HANDLE);
    write(&mut sender, &[1; 9000]);
    assert_eq!(read(&mut receiver, 10_000).0, [1; 9000]);
}

#[test]
fn two_threads_move_megabytes() {
    const TOTAL: usize = 8 << 20;
    let fd = memory();
    let mut sender = Sender::create(map(&fd), AT, 16384, 1);
    let other = fd.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut receiver = Receiver::take_up(map(&other), AT, 16384, 1).unwrap();
        let mut next = 0_usize;
        loop {
            let (bytes, _) = read(&mut receiver, 9000);
            for byte in &bytes {
                assert_eq!(*byte, (next % 251) as u8);
                next += 1;
            }
            if receiver.is_finished() {
                return next;
            }
            assert!(!receiver.is_broken());
            if bytes.is_empty() {
                std::thread::yield_now();
            }
        }
    });
    let mut sent = 0;
    while sent < TOTAL {
        let bytes: Vec<u8> = (sent..(sent + 7001).min(TOTAL))
            .map(|n| (n % 251) as u8)
            .collect();
        let (count, _) = write(&mut sender, &bytes);
        sent += count;
        if count == 0 {
            std::thread::yield_now();
        }
    }
    sender.end();
    assert_eq!(reader.join().unwrap(), TOTAL);
    assert_eq!(sender.count_space(), 16384);
}
