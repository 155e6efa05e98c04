// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What lacks on a host is shown by each command that shows it, with a hallwayd that the test plays.
#![allow(missing_docs)]

mod played;

use hallway_control::NotRunning;
use played::{status, Hallwayd};

/// The output of each command that shows what lacks, and the exit code of doctor.
fn shown(hallwayd: &Hallwayd) -> (Vec<String>, Option<i32>) {
    let said = |command: &str| {
        let ended = hallwayd.hallway(command).output().unwrap();
        (
            String::from_utf8(ended.stdout).unwrap(),
            ended.status.code(),
        )
    };
    let (doctor, code) = said("doctor");
    (vec![said("status").0, said("top").0, doctor], code)
}

/// Problems of a VM, as metrics count them.
fn count(hallwayd: &Hallwayd, vm: &str) -> String {
    let ended = hallwayd.hallway("metrics").output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    let name = format!("hallway_vm_problems{{vm=\"{vm}\"}} ");
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(&name));
    line.unwrap().into()
}

#[test]
fn a_helper_that_cannot_start_is_shown_and_counted() {
    let hallwayd = Hallwayd::start("helper", |_| {
        let mut status = status(0);
        status.vms[0].not_running = vec![NotRunning {
            helper: "host end".into(),
            why: "no such program".into(),
            next_try_seconds: 8,
        }];
        status
    });
    let line = "web1: its host end is configured, not running: no such program (next try in 8 s)\n";
    let (all, code) = shown(&hallwayd);
    for said in all {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(code, Some(1));
    assert_eq!(count(&hallwayd, "web1"), "1");
}

#[test]
fn a_guest_that_is_refused_is_shown() {
    let hallwayd = Hallwayd::start("refused", |_| status(0));
    let line = "web1 (QEMU pid 2): hallwayd refused its guest: all 4 slots are taken\n";
    let (all, code) = shown(&hallwayd);
    for said in all {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(code, Some(1));
}

#[test]
fn a_vm_that_is_shut_off_is_shown_and_is_no_problem() {
    let hallwayd = Hallwayd::start("off", |_| {
        let mut status = status(0);
        status.version = env!("CARGO_PKG_VERSION").into();
        status.connections.truncate(0);
        status.vms.truncate(1);
        let off = &mut status.vms[0];
        off.connected = false;
        off.off = true;
        off.problem = Some("libvirt does not run domain web1".into());
        status
    });
    let (all, code) = shown(&hallwayd);
    for said in all {
        assert!(
            said.contains("web1: libvirt does not run domain web1\n"),
            "{said}"
        );
    }
    assert_eq!(code, Some(0));
    assert_eq!(count(&hallwayd, "web1"), "0");
}
