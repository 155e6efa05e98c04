// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway enable`, where libvirt or another one does not go on.
#![allow(missing_docs)]

use std::fs::{File, Permissions};
use std::io::{IoSlice, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    bind, listen, sendmsg, socket, socketpair, AddressFamily, Backlog, ControlMessage, MsgFlags,
    SockFlag, SockType, UnixAddr,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hallway-libvirt");

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
    run("enable", dir, uri, name)
}

fn run(command: &str, dir: &Path, uri: &str, name: &str) -> Output {
    run_program(PROGRAM.as_ref(), command, dir, uri, name)
}

fn run_program(program: &Path, command: &str, dir: &Path, uri: &str, name: &str) -> Output {
    Command::new(program)
        .args([command, name, "--timeout", "1", "--run-dir"])
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
fn a_libvirt_that_does_not_answer_ends_what_serves_hallwayd() {
    let dir = scratch("mute");
    let path = dir.join("libvirt");
    let _hangs = UnixListener::bind(&path).unwrap();
    let (hallwayd, its) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .unwrap();
    let mut served = Command::new(env!("CARGO_BIN_EXE_hallway-libvirt"))
        .arg("serve")
        .env(
            "LIBVIRT_DEFAULT_URI",
            format!("qemu+unix:///system?socket={}", path.display()),
        )
        .stdin(its)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Many VMs at once have it ended no later than one does.
    let mut streams = Vec::new();
    for _ in 0..20 {
        let (stream, its) = UnixStream::pair().unwrap();
        let rights = [its.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&rights)];
        let uuid = [IoSlice::new(UUID.as_bytes())];
        let flags = MsgFlags::empty();
        sendmsg::<()>(hallwayd.as_raw_fd(), &uuid, &rights, flags, None).unwrap();
        streams.push(stream);
    }
    let begin = Instant::now();
    while served.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = served.kill();
    assert_eq!(served.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    let mut stderr = served.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(
        said.contains("libvirt does not answer within 20 s"),
        "{said}"
    );
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn two_commands_do_not_change_a_directory_at_once() {
    let dir = scratch("locked");
    // Any user can lock the directory: that keeps nobody from anything.
    let file = File::open(dir.join("config")).unwrap();
    let _lock = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let file = File::create(dir.join("config/.lock")).unwrap();
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
    // So does a command that would take it out of a group with a file, or without one.
    for with_file in [false, true] {
        if with_file {
            file_with(
                &dir,
                "other",
                "5b0c4b7e-6f52-4d6e-9a39-3f1c5d1b7a01",
                &["default"],
            );
        }
        for name in ["test", "old"] {
            let said = error(&run("disable", &dir, "test:///default", name));
            assert!(said.contains(&wanted), "{said}");
        }
    }
    let said = error(&run("disable", &dir, "test:///default", "none"));
    assert!(said.contains("none is not in group default"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn memory_that_no_hallwayd_takes_out_keeps_a_domain_enabled() {
    let dir = scratch("held");
    let file = dir.join("config/default.toml");
    let before = format!(
        "[[group]]\nname = \"default\"\nisolation = \"pair\"\n[[vm]]\nname = \"test\"\n\
         uuid = \"{UUID}\"\ngroups = [\"default\"]\nmonitor = \"libvirt\"\n"
    );
    std::fs::write(&file, &before).unwrap();
    std::fs::create_dir(dir.join("none")).unwrap();
    let holder = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    let at = UnixAddr::new(&dir.join("none/holder.sock")).unwrap();
    bind(holder.as_raw_fd(), &at).unwrap();
    listen(&holder, Backlog::new(1).unwrap()).unwrap();
    let said = error(&run("disable", &dir, "test:///default", "test"));
    assert!(
        said.contains("test runs, and only hallwayd takes its ring memory out"),
        "{said}"
    );
    let said = error(&enable_domain(&dir, "test:///default", "test"));
    assert!(said.contains("VMs have ring memory, but"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    // There is a socket, and no holder.
    drop(holder);
    let ended = run("disable", &dir, "test:///default", "test");
    assert!(ended.status.success(), "{ended:?}");
    assert!(!file.exists());
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

/// The URI of a libvirt of the test's own, which has one domain.
fn libvirt_with(dir: &Path, name: &str) -> String {
    let node = format!(
        "<node><domain type='test'><name>{name}</name><uuid>{UUID}</uuid><memory>8192</memory>\
         <os><type arch='x86_64' machine='pc'>hvm</type></os><devices/></domain></node>"
    );
    let path = dir.join("node.xml");
    std::fs::write(&path, node).unwrap();
    format!("test://{}", path.display())
}

/// The file of a group with one VM.
fn file_with(dir: &Path, name: &str, uuid: &str, groups: &[&str]) -> PathBuf {
    let file = dir.join("config/default.toml");
    let text = format!(
        "[[group]]\nname = \"default\"\nisolation = \"pair\"\n[[vm]]\nname = \"{name}\"\n\
         uuid = \"{uuid}\"\ngroups = {groups:?}\nmonitor = \"libvirt\"\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// The VMs of a file: their names, UUIDs and groups.
fn vms(file: &Path) -> Vec<(String, String, Vec<String>)> {
    let content: toml::Table = std::fs::read_to_string(file).unwrap().parse().unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_string();
    let vms = content["vm"].as_array().unwrap().iter().map(|vm| {
        let groups = vm["groups"].as_array().unwrap().iter().map(text);
        (text(&vm["name"]), text(&vm["uuid"]), groups.collect())
    });
    vms.collect()
}

#[test]
fn a_domain_that_was_renamed_is_found_by_its_uuid() {
    let dir = scratch("renamed");
    let uri = libvirt_with(&dir, "web9");
    for name in ["web1", "web9"] {
        let file = file_with(&dir, "web1", UUID, &["default"]);
        let ended = run("disable", &dir, &uri, name);
        assert!(ended.status.success(), "{ended:?}");
        let said = String::from_utf8(ended.stdout).unwrap();
        assert!(!said.contains("no such domain"), "{said}");
        assert!(!file.exists());
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_file_without_which_hallwayd_does_not_start_stays() {
    // On the file system of the program.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("needed-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("config")).unwrap();
    let uri = libvirt_with(&dir, "web1");
    let file = file_with(&dir, "web1", UUID, &["default"]);
    // A hallwayd that wants the file, beside the program.
    let program = dir.join("hallway-libvirt");
    std::fs::hard_link(PROGRAM, &program).unwrap();
    let hallwayd = dir.join("hallwayd");
    let script = format!(
        "#!/bin/sh\ntest -e {} || {{ echo no group has this name >&2; exit 1; }}\n",
        file.display()
    );
    std::fs::write(&hallwayd, script).unwrap();
    std::fs::set_permissions(&hallwayd, Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.join("config.toml"), "").unwrap();
    let said = error(&run_program(&program, "disable", &dir, &uri, "web1"));
    assert!(said.contains("no group has this name"), "{said}");
    assert!(said.contains("stay in"), "{said}");
    assert_eq!(vms(&file), [("web1".into(), UUID.into(), Vec::new())]);
    std::fs::remove_dir_all(&dir).unwrap();
}
