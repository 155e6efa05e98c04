// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ringing doorbells that hostile processes share.
//!
//! QEMUs share the open file of each doorbell: one can clear its `O_NONBLOCK`, and fill
//! its counter. From then on write() to it blocks until a read, and no flag of
//! one write prevents that (`RWF_NOWAIT`: an eventfd refuses it). The kernel itself
//! rings an eventfd without ever waiting, and does so where asynchronous I/O ends. So
//! the daemon starts a read of nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context, Result};

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    reqprio: i16,
    fildes: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// Rings doorbells without waiting.
pub struct Ringer {
    /// A context of asynchronous I/O; the kernel ends it with the process.
    context: libc::c_ulong,
    /// Has nothing to read.
    null: File,
}

impl Ringer {
    /// Makes one.
    pub fn new() -> Result<Self> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context, and nothing else.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
        if result < 0 {
            return Err(io::Error::last_os_error()).context(
                "no asynchronous I/O, by which doorbells are rung: raise fs.aio-max-nr, or use a \
                 kernel with CONFIG_AIO",
            );
        }
        let null = File::open("/dev/null").context("/dev/null")?;
        Ok(Self { context, null })
    }

    /// Rings a doorbell. One that is full stays so.
    pub fn ring(&self, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        let mut read = Iocb {
            opcode: IOCB_CMD_PREAD,
            fildes: self.null.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            resfd: doorbell.as_raw_fd() as u32,
            ..Iocb::default()
        };
        let reads = [&raw mut read];
        // SAFETY: it reads no byte. A read of /dev/null has ended when the call returns.
        let result = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, reads.as_ptr()) };
        if result != 1 {
            return Err(io::Error::last_os_error());
        }
        // Its result makes room for the next.
        let mut event = [0u64; 4];
        let no_time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the kernel writes one `struct io_event`, which is four words long.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                1,
                event.as_mut_ptr(),
                &raw const no_time,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    #[test]
    fn a_full_doorbell_that_blocks_is_rung_without_waiting() {
        let ringer = Ringer::new().unwrap();
        let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        for _ in 0..1000 {
            ringer.ring(doorbell.as_fd()).unwrap();
        }
        assert_eq!(doorbell.read().unwrap(), 1000);
        doorbell.write(u64::MAX - 1).unwrap();
        ringer.ring(doorbell.as_fd()).unwrap();
        ringer.ring(doorbell.as_fd()).unwrap();
        assert_eq!(doorbell.read().unwrap(), u64::MAX);
    }
}
