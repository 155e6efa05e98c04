// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of a mapping that are not there.
//!
//! Sealed memory has its size for ever, but all that share it can empty its pages, as a guest
//! does with a balloon. The next access allocates such a page again. Where the kernel may
//! not (`vm.overcommit_memory=2`, and all is committed), the access ends the process (SIGBUS).

use std::io;
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use nix::libc;
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};

use crate::sealed_memory;

/// Bytes of a page; a larger one is replaced in parts.
const PAGE: usize = 4096;
/// A page that is there, in no other process: to map more memory of one's own may be refused.
static SPARE: AtomicI32 = AtomicI32::new(-1);
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// From now on, a page that is not there is replaced by one that no other process has. All
/// such pages have the same content, until they are mapped again.
pub fn survive_faults() -> io::Result<()> {
    let spare = sealed_memory("hallway-spare", PAGE)?;
    SPARE.store(spare.into_raw_fd(), Ordering::Release);
    let handler = SigHandler::SigAction(replace);
    let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler makes system calls alone, and nothing else uses this signal.
    unsafe { sigaction(Signal::SIGBUS, &action)? };
    Ok(())
}

/// How many pages were replaced since the last call.
pub fn take_faults() -> usize {
    FAULTS.swap(0, Ordering::Relaxed)
}

extern "C" fn replace(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_FIXED,
    );
    // SAFETY: the kernel gives the reason. What is replaced is a page of a file that cannot be
    // accessed: of a mapping, as the program's own files are not changed while it runs.
    unsafe {
        let page = ((*info).si_addr() as usize / PAGE * PAGE) as *mut libc::c_void;
        let spare = SPARE.load(Ordering::Acquire);
        if (*info).si_code == libc::BUS_ADRERR
            && libc::mmap(page, PAGE, access, flags, spare, 0) != libc::MAP_FAILED
        {
            FAULTS.fetch_add(1, Ordering::Relaxed);
        } else {
            // The same access again ends the process.
            libc::sigaction(libc::SIGBUS, &std::mem::zeroed(), null_mut());
        }
    }
}
