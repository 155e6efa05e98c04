// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rings of a tunnel in this program's memory, by the device of `abi/hallway/loan.h`.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process;
use std::ptr::NonNull;

use hallway_abi::loan::{self, Attach, Receive, Send};
use nix::errno::Errno;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

const DEVICE: &str = "/dev/hallway-loan";

nix::ioctl_readwrite!(attach, loan::LETTER, loan::ATTACH, Attach);
nix::ioctl_readwrite!(send, loan::LETTER, loan::SEND, Send);
nix::ioctl_readwrite!(receive, loan::LETTER, loan::RECEIVE, Receive);

/// Both rings of a tunnel.
#[derive(Debug)]
pub(crate) struct Loan {
    /// Of this process: a child has no mapping, but perhaps other memory there.
    process: u32,
    file: File,
    tx: Ring,
    rx: Ring,
}

/// What [`Loan::look`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    End,
    Message(Place),
}

/// Where a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub start: NonNull<u8>,
    pub length: usize,
}

impl Place {
    pub fn of(bytes: &mut [u8]) -> Self {
        Self {
            start: NonNull::from(&mut *bytes).cast(),
            length: bytes.len(),
        }
    }
}

// SAFETY: it is an address, and all that it needs is kept by what has the place.
unsafe impl std::marker::Send for Place {}

/// A ring, mapped twice, one mapping after the other: no message wraps.
#[derive(Debug)]
struct Ring {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping has no thread, and nothing here reads or writes it.
unsafe impl std::marker::Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Loan {
    /// Attaches a file of the device to a socket.
    pub fn take(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let file = File::options().read(true).write(true).open(DEVICE);
        let file =
            file.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        let mut rings = Attach {
            socket: socket.as_raw_fd(),
            ..Attach::default()
        };
        // SAFETY: the structure is the one that this call takes.
        unsafe { attach(file.as_raw_fd(), &mut rings) }?;
        let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let tx = Ring::map(&file, rings.tx_size, rings.tx_offset, read_write)?;
        let rx = Ring::map(&file, rings.rx_size, rings.rx_offset, ProtFlags::PROT_READ)
            .inspect_err(|_| tx.unmap())?;
        Ok(Self {
            process: process::id(),
            file,
            tx,
            rx,
        })
    }

    /// Whether it is this process's, and no parent's.
    pub fn is_own(&self) -> bool {
        self.process == process::id()
    }

    /// Sends `commit` bytes of the message that was reserved, if that is not 0, then reserves
    /// space for another one, if `reserve` is not 0. Nothing: there is no space yet.
    pub fn send(&self, commit: usize, reserve: usize) -> Result<Option<Place>, Errno> {
        let mut words = Send {
            commit: commit as u32,
            reserve: reserve as u32,
            ..Send::default()
        };
        // SAFETY: the structure is the one that this call takes.
        unsafe { send(self.file.as_raw_fd(), &mut words) }?;
        Ok((words.state == loan::FOUND).then(|| self.tx.place(words.offset, reserve as u32)))
    }

    /// Looks for the next message, after it has released the one before, if that is asked for.
    pub fn look(&self, release: bool) -> Result<Found, Errno> {
        let mut words = Receive {
            release: release.into(),
            ..Receive::default()
        };
        // SAFETY: the structure is the one that this call takes.
        unsafe { receive(self.file.as_raw_fd(), &mut words) }?;
        Ok(match words.state {
            loan::FOUND => Found::Message(self.rx.place(words.offset, words.length)),
            loan::END => Found::End,
            _ => Found::Nothing,
        })
    }
}

impl Ring {
    fn map(file: &File, size: u32, offset: u64, access: ProtFlags) -> Result<Self, Errno> {
        let size = size as usize;
        let length = NonZeroUsize::new(2 * size).ok_or(Errno::EINVAL)?;
        let offset = offset.try_into().map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: it takes the place of no other mapping.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, offset) }?;
        let start = start.cast();
        Ok(Self { start, size })
    }

    fn unmap(&self) {
        // SAFETY: nothing has a place in it any more.
        let _ = unsafe { munmap(self.start.cast(), 2 * self.size) };
    }

    /// A message, by what the kernel says of it.
    fn place(&self, offset: u32, length: u32) -> Place {
        let (offset, length) = (offset as usize, length as usize);
        assert!(offset < self.size && length <= self.size);
        Place {
            // SAFETY: the mapping has twice that size.
            start: unsafe { self.start.add(offset) },
            length,
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.is_own() {
            self.tx.unmap();
            self.rx.unmap();
        }
    }
}
