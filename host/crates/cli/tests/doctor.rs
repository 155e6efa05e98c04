// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway doctor`, where it may not look.
#![allow(missing_docs)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use hallway_control::socket;

/// Capabilities by which root needs no permission, by their numbers.
const DAC_OVERRIDE: libc::c_ulong = 1;
const DAC_READ_SEARCH: libc::c_ulong = 2;

#[test]
fn a_socket_that_it_may_not_use_is_said_and_nothing_is_advised() {
    let dir = std::env::temp_dir().join(format!("hwx-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let _hallwayd = UnixListener::bind(socket(&dir)).unwrap();
    std::fs::set_permissions(socket(&dir), Permissions::from_mode(0o000)).unwrap();
    let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
    hallway.args(["doctor", "--run-dir"]).arg(&dir);
    // SAFETY: the calls take numbers only. They fail without such capabilities.
    unsafe {
        hallway.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, DAC_OVERRIDE, 0, 0, 0);
            libc::prctl(libc::PR_CAPBSET_DROP, DAC_READ_SEARCH, 0, 0, 0);
            Ok(())
        });
    }
    let ended = hallway.output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(!ended.status.success(), "{said}");
    assert!(said.contains("not permitted"), "{said}");
    assert!(said.contains("run hallway doctor as root"), "{said}");
    assert!(!said.contains("systemctl start hallwayd"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}
