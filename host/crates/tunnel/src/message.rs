// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages in place: in ring memory, or in a buffer.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Error, Result};
use crate::loan::Place;

/// A message where it lies, to be read.
///
/// A peer that breaks the rules can change one in ring memory at any time. So it is no slice, and
/// what a program decides by, it copies first.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a>(Place, PhantomData<&'a [u8]>);

/// Space for a message, to be written.
#[derive(Debug)]
pub struct Space<'a>(Place, PhantomData<&'a mut [u8]>);

impl<'a> Message<'a> {
    /// # Safety
    /// The place can be read for as long as the message is there.
    pub(crate) unsafe fn new(place: Place) -> Self {
        Self(place, PhantomData)
    }

    /// Bytes of it: at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Where it begins, for calls of C.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.start.as_ptr()
    }

    /// Reads bytes of it, from the one at `from` on.
    ///
    /// # Panics
    /// It ends before.
    pub fn copy_to(&self, from: usize, bytes: &mut [u8]) {
        check(from, bytes.len(), self.len());
        // SAFETY: there are as many. If the peer writes there at once, others are read.
        unsafe { ptr::copy(self.as_ptr().add(from), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Writes all of it to a file.
    ///
    /// # Errors
    /// Those of `write()`. A part may be written.
    pub fn write_to(&self, file: impl AsFd) -> Result<()> {
        let fd = file.as_fd().as_raw_fd();
        let mut done = 0;
        while done < self.len() {
            // SAFETY: there are as many bytes.
            let count =
                unsafe { libc::write(fd, self.as_ptr().add(done).cast(), self.len() - done) };
            let count = Errno::result(count).map_err(|errno| Error::call("writing", errno))?;
            done += count as usize;
        }
        Ok(())
    }
}

impl<'a> Space<'a> {
    /// # Safety
    /// The place can be written for as long as the space is there, and nothing else in this
    /// program uses it.
    pub(crate) unsafe fn new(place: Place) -> Self {
        Self(place, PhantomData)
    }

    /// Bytes of it: at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Where it begins, for calls of C.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// Writes bytes of it, from the one at `to` on.
    ///
    /// # Panics
    /// It ends before.
    pub fn copy_from(&mut self, to: usize, bytes: &[u8]) {
        check(to, bytes.len(), self.len());
        // SAFETY: there are as many.
        unsafe { ptr::copy(bytes.as_ptr(), self.as_mut_ptr().add(to), bytes.len()) }
    }

    /// Reads as much of a file as it holds, and returns how many bytes came: 0 is the file's end.
    ///
    /// # Errors
    /// Those of `read()`.
    pub fn read_from(&mut self, file: impl AsFd) -> Result<usize> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: there are as many bytes.
        let count = unsafe { libc::read(fd, self.as_mut_ptr().cast(), self.len()) };
        let count = Errno::result(count).map_err(|errno| Error::call("reading", errno))?;
        Ok(count as usize)
    }
}

fn check(first: usize, count: usize, length: usize) {
    let end = first.checked_add(count);
    assert!(
        end.is_some_and(|end| end <= length),
        "{count} bytes from {first} on are not within {length}"
    );
}
