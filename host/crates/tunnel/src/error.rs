// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors: a number for programs, a text for people.

use std::fmt::Display;
use std::io;

use nix::errno::Errno;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    text: String,
}

/// What a call returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { errno, text }
    }

    /// Makes the error of a system call.
    pub(crate) fn call(what: impl Display, errno: Errno) -> Self {
        Self::new(errno, format!("{what}: {errno}"))
    }

    /// Makes that of the standard library, which has no number for all errors.
    pub(crate) fn io(what: impl Display, error: &io::Error, otherwise: Errno) -> Self {
        let errno = match error.kind() {
            io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
            _ => error.raw_os_error().map_or(otherwise, Errno::from_raw),
        };
        Self::new(errno, format!("{what}: {error}"))
    }

    /// The number of the error in `errno.h`.
    pub fn errno(&self) -> i32 {
        self.errno as i32
    }

    /// Its kind, such as `WouldBlock`.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from(self.errno).kind()
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}
