// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bytes ([`crate::pipe`]) and messages ([`crate::packets`]) have in common.

/// Why a connection cannot go on.
pub enum Failure {
    /// The socket failed.
    Socket,
    /// The guest resets.
    Reset,
    /// A message is longer than the ring, or than the host's kernel takes.
    TooLong,
    /// The guest broke the rules of a ring.
    Corrupt,
}

/// What became of a step.
pub enum Step {
    /// This number of bytes of the ring.
    Moved(usize),
    /// There is nothing to move.
    Empty,
    /// The socket has nothing, or no space.
    Blocked,
    /// The program of the host has ended this direction.
    Ended,
}
