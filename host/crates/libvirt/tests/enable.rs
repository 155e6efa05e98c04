// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway enable`, where libvirt or another one does not go on.
#![allow(missing_docs)]

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::fcntl::{Flock, FlockArg};

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("hwl-{}-{name}", std::process::id()));
    std::fs::create_dir_all(dir.join("config")).unwrap();
    dir
}

/// Enables web1 with one second for each step.
fn enable(dir: &Path, uri: &str) -> Output {
    enable_domain(dir, uri, "web1")
}

fn enable_domain(dir: &Path, uri: &str, name: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hallway-libvirt"))
        .args(["enable", name, "--timeout", "1", "--run-dir"])
        .arg(dir.join("none"))
        .arg("--config-dir")
        .arg(dir.join("config"))
        .env("LIBVIRT_DEFAULT_URI", uri)
        .output()
        .unwrap()
}

fn error(ended: &Output) -> String {
    assert!(!ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stderr.clone()).unwrap()
}

#[test]
fn a_libvirt_that_does_not_answer_is_named_with_the_step() {
    let dir = scratch("hangs");
    let path = dir.join("libvirt");
    // It lets us connect, and says nothing.
    let _hangs = UnixListener::bind(&path).unwrap();
    let uri = format!("qemu+unix:///system?socket={}", path.display());
    let said = error(&enable(&dir, &uri));
    let wanted = "connecting with libvirt: libvirt does not answer within 1 s";
    assert!(said.contains(wanted), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn two_commands_do_not_change_a_directory_at_once() {
    let dir = scratch("locked");
    let file = File::open(dir.join("config")).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let said = error(&enable(&dir, "test:///default"));
    assert!(
        said.contains("another hallway enable or disable is at work"),
        "{said}"
    );
    drop(lock);
    // It comes further: that libvirt has another domain.
    let said = error(&enable(&dir, "test:///default"));
    assert!(said.contains("libvirt has no domain web1"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// UUID of `test`, the domain that libvirt's test:///default has.
const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";

#[test]
fn a_domain_of_another_group_is_named_with_the_command_that_takes_it_out() {
    let dir = scratch("grouped");
    let file = dir.join("config/web.toml");
    let before = format!(
        "[[group]]\nname = \"web\"\nisolation = \"pair\"\n[[vm]]\nname = \"old\"\n\
         uuid = \"{UUID}\"\ngroups = [\"web\"]\nmonitor = \"libvirt\"\n"
    );
    std::fs::write(file, before).unwrap();
    let said = error(&enable_domain(&dir, "test:///default", "test"));
    let wanted = format!(
        "old is in group web: hallway disable --config-dir {}/config --group web old",
        dir.display()
    );
    assert!(said.contains(&wanted), "{said}");
    let files = std::fs::read_dir(dir.join("config")).unwrap();
    assert_eq!(files.count(), 1);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_libvirt_that_is_not_there_is_said_with_what_to_do() {
    let dir = scratch("none");
    let uri = format!("qemu+unix:///system?socket={}/none", dir.display());
    let said = error(&enable(&dir, &uri));
    assert!(said.contains("start libvirtd (or virtqemud)"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_domain_with_a_name_that_hallwayd_refuses_is_not_enabled() {
    let dir = scratch("named");
    let said = error(&enable_domain(&dir, "test:///default", "web.1"));
    assert!(said.contains("\"web.1\" is no name for a VM"), "{said}");
    let files = std::fs::read_dir(dir.join("config")).unwrap();
    assert_eq!(files.count(), 0);
    std::fs::remove_dir_all(&dir).unwrap();
}
