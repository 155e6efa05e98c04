// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway doctor`, where it may not look.
#![allow(missing_docs)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use hallway_control::socket;

/// Capabilities by which root needs no permission, by their numbers.
const DAC_OVERRIDE: libc::c_ulong = 1;
const DAC_READ_SEARCH: libc::c_ulong = 2;

/// What the doctor says where nothing of Hallway runs: of its program in `DIR/bin`.
fn without_all(dir: &Path, words: &[&str]) -> String {
    let mut hallway = Command::new(dir.join("bin/hallway"));
    hallway.arg("doctor").args(words);
    let ended = hallway.arg("--run-dir").arg(dir).output().unwrap();
    assert!(!ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn a_machine_without_hallwayd_is_a_vm_that_lacks_its_doorbell() {
    let dir = std::env::temp_dir().join(format!("hwv-{}", std::process::id()));
    for folder in ["bin", "sbin"] {
        std::fs::create_dir_all(dir.join(folder)).unwrap();
    }
    std::fs::copy(env!("CARGO_BIN_EXE_hallway"), dir.join("bin/hallway")).unwrap();
    let (at_host, in_guest) = ("systemctl start hallwayd", "this VM has no doorbell");
    let usual = ["/usr/local/sbin/hallwayd", "/usr/sbin/hallwayd"];
    let is_host = usual.iter().any(|path| Path::new(path).exists());
    let expected = if is_host { at_host } else { in_guest };
    for (words, part) in [
        (&[][..], expected),
        (&["--guest"], in_guest),
        (&["--host"], at_host),
    ] {
        let said = without_all(&dir, words);
        assert!(said.contains(part), "{words:?}: {said}");
    }
    std::fs::write(dir.join("sbin/hallwayd"), "").unwrap();
    let said = without_all(&dir, &[]);
    assert!(said.contains(at_host), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

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
