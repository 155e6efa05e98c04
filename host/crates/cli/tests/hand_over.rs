// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway enable`, which `hallway-libvirt` does.
#![allow(missing_docs)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn the_program_is_found_where_make_install_puts_it() {
    let dir = std::env::temp_dir().join(format!("hwo-{}", std::process::id()));
    for folder in ["bin", "sbin"] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    let (hallway, program) = (dir.join("bin/hallway"), dir.join("sbin/hallway-libvirt"));
    std::fs::copy(env!("CARGO_BIN_EXE_hallway"), &hallway).unwrap();
    std::fs::write(&program, "#!/bin/sh\necho \"$@\"\n").unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let ended = Command::new(hallway).args(["enable", "web1"]).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, b"enable web1\n");
    std::fs::remove_dir_all(&dir).unwrap();
}
