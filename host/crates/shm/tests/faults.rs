// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that are not there, by a file that others truncate.

use std::fs::File;

use hallway_shm::{survive_faults, take_faults, Mapping};
use nix::sys::memfd::{memfd_create, MFdFlags};

const PAGE: usize = 4096;

#[test]
fn a_page_that_is_not_there_ends_no_process() {
    survive_faults().unwrap();
    let file = File::from(memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(3 * PAGE as u64).unwrap();
    let mapping = Mapping::new(&file, 3 * PAGE).unwrap();
    mapping.write_u64(0, 7);
    mapping.write_u64(PAGE, 8);
    file.set_len(PAGE as u64).unwrap();
    assert_eq!(take_faults(), 0);
    assert_eq!(mapping.read_u64(PAGE + 8), 0);
    mapping.write_u64(2 * PAGE, 9);
    assert_eq!(take_faults(), 2);
    // What was replaced stays so, and the rest is as it was.
    assert_eq!((mapping.read_u64(0), mapping.read_u64(PAGE)), (7, 9));
    file.set_len(3 * PAGE as u64).unwrap();
    assert_eq!(mapping.read_u64(2 * PAGE), 9);
    assert_eq!(take_faults(), 0);
    assert_eq!(Mapping::new(&file, 3 * PAGE).unwrap().read_u64(2 * PAGE), 0);
}
