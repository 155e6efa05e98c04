// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regions and their members, and the page by which a VM joins.
//!
//! A [`Region`] is memory that VMs map whole. It has no path, and its size is sealed;
//! where a person plugs it in, it is a file. Its header is written by the
//! daemon alone, but nothing stops a member from scribbling on it: the daemon
//! keeps a private copy, which decides, and puts it back whenever it differs.
//! Each member publishes about itself in its slice, read by [`slice::read`].
//! Each guest asks in its private [`Page`], which it alone and the daemon write.
//! What a guest wrote is read once, bounded, and kept as a copy.

mod lock;
mod page;
mod region;
mod size;
pub mod slice;
mod text;

pub use lock::{is_own, lock_file, FileLock};
pub use page::{Address, CpuReport, Page, Reply, Request, CANDIDATES_MAX};
pub use region::{
    check_memory, check_room, is_in_memory, Error, Geometry, Header, Member, Region, HOST_SLOT,
};
pub use size::{parse_number, parse_size};
pub use text::{printable, random_bytes, Uuid};
