// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounds-checked access to memory that a hostile peer writes at the same time.
//!
//! A [`Mapping`] never hands out a reference: the peer may change a byte between
//! two reads of it, which no Rust reference allows. Words go through acquire and
//! release atomics, runs of bytes through volatile copies. Each read gives the
//! caller a private copy, to be bounded and kept. An access outside the mapping,
//! or to a misaligned word, is a bug of the caller and panics: offsets come from
//! the ABI or from private geometry, never from the shared memory itself.

mod faults;
mod shared;

pub use faults::{survive_faults, take_faults};
pub use shared::Shared;

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{fcntl, posix_fallocate, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

/// A mapping of shared memory.
pub struct Mapping {
    base: NonNull<c_void>,
    length: usize,
}

// SAFETY: the mapping is plain memory of this process, tied to no thread; all
// access goes through atomics and volatile copies.
unsafe impl Send for Mapping {}

macro_rules! words {
    ($get:ident, $set:ident, $word:ty, $atomic:ty) => {
        /// Reads one word once (acquire).
        pub fn $get(&self, offset: usize) -> $word {
            self.word::<$atomic>(offset).load(Ordering::Acquire)
        }

        /// Writes one word (release: what was written before is seen before).
        pub fn $set(&self, offset: usize, value: $word) {
            self.word::<$atomic>(offset).store(value, Ordering::Release);
        }
    };
}

impl Mapping {
    /// Maps the first `length` bytes of `fd`, for reading and writing.
    pub fn new(fd: impl AsFd, length: usize) -> io::Result<Self> {
        let size = NonZeroUsize::new(length).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlays
        // nothing that exists.
        let base = unsafe {
            mmap(
                None,
                size,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                fd,
                0,
            )?
        };
        Ok(Self { base, length })
    }

    /// Number of bytes mapped.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no byte is mapped; never the case.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length).expect("offset overflows");
        assert!(
            end <= self.length,
            "{offset}+{length} is outside the mapping"
        );
        // SAFETY: just checked to lie within the mapping.
        unsafe { self.base.as_ptr().cast::<u8>().add(offset) }
    }

    /// The word at `offset`. `T` is one of the atomics: only these may be read through
    /// a reference while others write.
    fn word<T>(&self, offset: usize) -> &T {
        let pointer = self.at(offset, size_of::<T>()).cast::<T>();
        assert!(pointer.is_aligned(), "misaligned word at {offset}");
        // SAFETY: in bounds, aligned, mapped as long as self lives, and any bit
        // pattern is a valid atomic integer.
        unsafe { &*pointer }
    }

    words!(read_u16, write_u16, u16, AtomicU16);
    words!(read_u32, write_u32, u32, AtomicU32);
    words!(read_u64, write_u64, u64, AtomicU64);

    /// Sets bits of a word, by an instruction that locks the bus.
    pub fn set_bits_u64(&self, offset: usize, bits: u64) {
        self.word::<AtomicU64>(offset)
            .fetch_or(bits, Ordering::SeqCst);
    }

    /// Puts a word in the place of another, by an instruction that locks the bus.
    pub fn swap_u64(&self, offset: usize, value: u64) -> u64 {
        self.word::<AtomicU64>(offset).swap(value, Ordering::SeqCst)
    }

    /// Changes a word from 0 to `value`, by an instruction that locks the bus. Returns
    /// what the word held: 0 if it was changed.
    pub fn set_once_u64(&self, offset: usize, value: u64) -> u64 {
        let word = self.word::<AtomicU64>(offset);
        match word.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }

    /// Address of `length` bytes. Others write them at the same time: they are for
    /// system calls, which copy them, and no reference to them may be made. The address
    /// is good as long as the mapping.
    pub fn address(&self, offset: usize, length: usize) -> *mut u8 {
        self.at(offset, length)
    }

    /// Copies `N` bytes out.
    pub fn read_bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let from = self.at(offset, N);
        let mut copy = [0; N];
        for (n, byte) in copy.iter_mut().enumerate() {
            // SAFETY: from..from+N was just checked to lie within the mapping.
            *byte = unsafe { from.add(n).read_volatile() };
        }
        copy
    }

    /// Copies bytes in.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: to..to+len was just checked to lie within the mapping.
            unsafe { to.add(n).write_volatile(*byte) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of a mapping that only this value
        // owns, and no reference into it outlives a method of self.
        let _ = unsafe { munmap(self.base, self.length) };
    }
}

/// Allocates all memory of a file: what finds no memory later is killed.
pub fn allocate(file: &File, length: u64) -> io::Result<()> {
    loop {
        match posix_fallocate(file, 0, length as i64) {
            Err(Errno::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Makes allocated anonymous memory with a sealed size: access to a mapping of it cannot
/// fault, unless one that shares it has emptied the page ([`survive_faults`]).
pub fn sealed_memory(name: &str, length: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let file = File::from(fd);
    file.set_len(length as u64)?;
    allocate(&file, length as u64)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn two_mappings_see_each_other() {
        let fd = sealed_memory("test", 4096).unwrap();
        let (a, b) = (
            Mapping::new(&fd, 4096).unwrap(),
            Mapping::new(&fd, 4096).unwrap(),
        );
        a.write_u32(8, 0x0102_0304);
        a.write_bytes(16, b"hallway");
        assert_eq!(b.read_u16(8), 0x0304);
        assert_eq!(&b.read_bytes::<7>(16), b"hallway");
        let file = File::from(fd);
        assert_eq!(file.metadata().unwrap().blocks(), 8);
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        let more = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
        assert!(fcntl(&file, more).is_err());
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn out_of_bounds() {
        let fd = sealed_memory("test", 4096).unwrap();
        Mapping::new(&fd, 4096).unwrap().read_u32(4096);
    }
}
