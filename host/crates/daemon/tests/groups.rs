// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon makes of members that the configuration before it admitted.
#![allow(missing_docs)]

mod common;
#[path = "../../qmp/tests/qemu/mod.rs"]
mod qemu;

use common::{member_state, memory_of, until, Daemon, SIZE};
use hallway_abi::region as abi;
use hallway_membership::Uuid;
use qemu::{Machine, GREETING};

const GROUP: &str = "[[group]]\nname = \"web\"\nisolation = \"shared\"\nsize = \"16M\"\n";

fn vm(uuid: Uuid, groups: &str, monitor: Option<&qemu::Qemu>) -> String {
    let monitor = monitor.map(|qemu| format!("monitor = \"{}\"\n", qemu.path.display()));
    let monitor = monitor.unwrap_or_default();
    format!("[[vm]]\nname = \"a\"\nuuid = \"{uuid}\"\ngroups = [{groups}]\n{monitor}")
}

/// Ends the daemon, and starts the next one with another configuration.
fn reconfigure(daemon: &mut Daemon, config: &str) {
    daemon.kill();
    std::fs::write(daemon.dir.join("hallwayd.toml"), config).unwrap();
    daemon.start();
}

fn is_member(daemon: &Daemon, slot: usize) -> bool {
    let memory = memory_of(daemon.dir.join("mem/web"), SIZE);
    member_state(&memory, slot) == abi::MEMBER_PRESENT
}

#[test]
fn a_group_that_is_taken_out_of_the_configuration_admits_no_vm() {
    let uuid = Uuid::random().unwrap();
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", None));
    let mut daemon = Daemon::configured(&[], Some(&config));
    let region = daemon.region();
    let (mut member, mut other) = (common::Qemu::new(&daemon), common::Qemu::new(&daemon));
    member.uuid = uuid;
    assert_eq!(member.join(region), abi::STATUS_OK);
    assert_eq!(other.join(region), abi::STATUS_DENIED);
    let slot = member.slot();
    for _ in 0..2 {
        reconfigure(&mut daemon, "[limits]\nhost = \"1G\"\n");
        assert_eq!(daemon.region(), region);
        assert!(!is_member(&daemon, slot));
        assert_eq!(other.join(region), abi::STATUS_DENIED);
        assert_eq!(member.join(region), abi::STATUS_DENIED);
    }
    assert!(daemon.log().contains("has no monitor by which"));
    reconfigure(&mut daemon, &config);
    assert_eq!(member.join(region), abi::STATUS_OK);
    assert_eq!(other.join(region), abi::STATUS_DENIED);
}

#[test]
fn a_vm_that_is_taken_out_of_its_group_loses_membership_and_memory() {
    let uuid = Uuid::random().unwrap();
    let start = || {
        let machine = Machine {
            uuid: uuid.to_string(),
            ..Machine::default()
        };
        qemu::Qemu::new(GREETING, machine.answer())
    };
    let before = start();
    let config = format!("{GROUP}{}", vm(uuid, "\"web\"", Some(&before)));
    let mut daemon = Daemon::configured(&[], Some(&config));
    let region = daemon.region();
    let mut guest = common::Qemu::new(&daemon);
    guest.uuid = uuid;
    assert_eq!(guest.join(region), abi::STATUS_OK);
    until("the region is plugged in", || {
        before.asked("device_add").len() == 1
    });
    while guest.rung() {}
    // A monitor that a test plays takes one client only.
    let after = start();
    let config = format!("{GROUP}{}", vm(uuid, "", Some(&after)));
    reconfigure(&mut daemon, &config);
    assert!(!is_member(&daemon, guest.slot()));
    until("the guest is rung", || guest.rung());
    assert_eq!(guest.doorbell(0), 0);
    until("the region is plugged out", || {
        daemon.log().contains("plugged out")
    });
    assert_eq!(guest.join(region), abi::STATUS_DENIED);
    assert_eq!(after.asked("device_add").len(), 0);
    daemon.kill();
}

#[test]
fn a_region_that_was_asked_for_once_keeps_its_members_and_admits_no_other() {
    let mut daemon = Daemon::serving(&["web:16M"]);
    let region = daemon.region();
    let (mut member, mut other) = (common::Qemu::new(&daemon), common::Qemu::new(&daemon));
    assert_eq!(member.join(region), abi::STATUS_OK);
    daemon.regions = vec!["other:16M"];
    daemon.kill();
    daemon.start();
    let regions = daemon.status().regions;
    assert!(regions.iter().any(|served| served.name == "web"));
    assert!(is_member(&daemon, member.slot()));
    assert_eq!(other.join(region), abi::STATUS_DENIED);
    assert!(daemon.log().contains("was not asked for again"));
    assert_eq!(member.join(region), abi::STATUS_OK);
}
