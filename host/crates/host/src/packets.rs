// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SOCK_SEQPACKET: each message lies in its ring after a frame, and goes whole.

use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;

use hallway_abi::tunnel as abi;
use hallway_endpoint::socket as wire;
use hallway_ring::{Receiver, Sender};
use nix::errno::Errno;

use crate::step::{Failure, Step};
use crate::unix;

const FRAME: usize = size_of::<abi::Frame>();

fn frame_size(length: usize) -> usize {
    (FRAME + length).next_multiple_of(abi::FRAME_ALIGN as usize)
}

/// The program's close with messages unread gives ECONNRESET once, to a call of any kind, and
/// before what the program has sent. A second call finds that.
fn past_reset<T>(call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match call() {
        Err(Errno::ECONNRESET) => call(),
        result => result,
    }
}

/// Sends the guest's next message. The bytes that moved are those of its frame, too.
pub fn send(socket: &OwnedFd, ring: &mut Receiver) -> Result<Step, Failure> {
    // One look for all of the message: in the next one the ring may be broken.
    let runs = ring.used_runs(u32::MAX);
    let used = runs.len();
    if used == 0 {
        return Ok(Step::Empty);
    }
    if used < FRAME {
        return Err(Failure::Corrupt);
    }
    let mut frame = [0; FRAME];
    runs.part(0, FRAME).read(&mut frame);
    let at = offset_of!(abi::Frame, length);
    let length = u32::from_le_bytes(std::array::from_fn(|n| frame[at + n])) as usize;
    // To a reader one without bytes would be the end.
    if length == 0 || length > used || frame_size(length) > used {
        return Err(Failure::Corrupt);
    }
    match wire::send(socket, &runs.part(FRAME, length), true) {
        Ok(_) => Ok(Step::Moved(frame_size(length))),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(Step::Blocked),
        Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(Step::Ended),
        Err(Errno::EMSGSIZE) => Err(Failure::TooLong),
        Err(_) => Err(Failure::Socket),
    }
}

/// Receives the host's next message into the ring. `need` becomes the free bytes that it
/// waits for.
pub fn receive(socket: &OwnedFd, ring: &mut Sender, need: &mut u32) -> Result<Step, Failure> {
    let length = match past_reset(|| unix::next_length(socket)) {
        // A message without bytes looks like the end, as to each program.
        Ok(0) => return Ok(Step::Ended),
        Ok(length) => length,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Step::Blocked),
        Err(_) => return Err(Failure::Socket),
    };
    let total = frame_size(length);
    if total > ring.size() as usize {
        return Err(Failure::TooLong);
    }
    let runs = ring.free_runs(total as u32);
    if runs.len() < total {
        *need = total as u32;
        return Ok(Step::Empty);
    }
    match past_reset(|| wire::receive(socket, &runs.part(FRAME, length))) {
        Ok(_) => {}
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Step::Blocked),
        Err(_) => return Err(Failure::Socket),
    }
    let mut frame = [0; FRAME];
    let at = offset_of!(abi::Frame, length);
    frame[at..at + 4].copy_from_slice(&(length as u32).to_le_bytes());
    runs.part(0, FRAME).write(&frame);
    let rest = total - FRAME - length;
    runs.part(FRAME + length, rest).write(&[0; FRAME][..rest]);
    Ok(Step::Moved(total))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use hallway_abi::ring;
    use hallway_shm::{sealed_memory, Mapping};
    use nix::sys::socket::{socketpair, AddressFamily, MsgFlags, SockFlag, SockType};

    use super::*;

    const SIZE: usize = 16 << 10;
    const CARRIER: u32 = 1;
    /// Enough for a head that moves in between: one round of a million or less finds it.
    const ROUNDS: u32 = 3_000_000;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
    }

    /// Ends the other thread, also where this one panics.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// The program's close gives ECONNRESET to the first call, whichever that is.
    #[test]
    fn what_a_program_has_sent_is_received_after_its_close_with_messages_unread() {
        let memory = || {
            let length = ring::RING_HEADER + SIZE;
            let memory = sealed_memory("close", length).unwrap();
            Rc::new(Mapping::new(&memory, length).unwrap())
        };
        for sends_first in [true, false] {
            let (socket, program) = pair();
            let flags = MsgFlags::empty();
            nix::sys::socket::send(program.as_raw_fd(), b"R", flags).unwrap();
            nix::sys::socket::send(socket.as_raw_fd(), b"unread", flags).unwrap();
            drop(program);
            let theirs = memory();
            let mut guest = Sender::create(theirs.clone(), 0, SIZE as u32, CARRIER);
            guest.free_runs(8).write(&[8, 0, 0, 0, 0, 0, 0, 0]);
            guest.publish(16);
            let mut from_guest = Receiver::take_up(theirs, 0, SIZE as u32, CARRIER).unwrap();
            let mut to_guest = Sender::create(memory(), 0, SIZE as u32, CARRIER);
            let mut is_refused = || matches!(send(&socket, &mut from_guest), Ok(Step::Ended));
            assert!(!sends_first || is_refused());
            for is_it in [
                |step| matches!(step, Ok(Step::Moved(16))),
                |step| matches!(step, Ok(Step::Ended)),
            ] {
                assert!(is_it(receive(&socket, &mut to_guest, &mut 0)));
            }
            assert!(is_refused());
        }
    }

    /// A guest that moves its head between two looks of one call.
    #[test]
    fn a_head_that_flickers_breaks_its_ring_alone() {
        let length = ring::RING_HEADER + SIZE;
        let memory = sealed_memory("flicker", length).unwrap();
        let map = || Mapping::new(&memory, length).unwrap();
        let own = Rc::new(map());
        let (socket, other) = pair();
        let is_over = AtomicBool::new(false);
        let head = offset_of!(ring::Ring, head);
        let (good, bad) = ((FRAME + 8) as u64, u64::MAX);
        Sender::create(own.clone(), 0, SIZE as u32, CARRIER);
        own.write_u32(ring::RING_HEADER, 8);
        // What is sent finds no reader: that is quick, and shows that the frame was whole.
        drop(other);
        let (mut whole, mut broken) = (0, 0);
        std::thread::scope(|scope| {
            let theirs = map();
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    theirs.write_u64(head, good);
                    theirs.write_u64(head, bad);
                }
            });
            let _over = Over(is_over);
            for _ in 0..ROUNDS {
                let mut ring = Receiver::take_up(own.clone(), 0, SIZE as u32, CARRIER).unwrap();
                match send(&socket, &mut ring) {
                    Ok(Step::Ended) => whole += 1,
                    Ok(_) => broken += u32::from(ring.is_broken()),
                    Err(_) => panic!("the frame is a good one"),
                }
            }
        });
        assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
    }
}
