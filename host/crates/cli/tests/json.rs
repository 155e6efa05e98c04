// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/json.md lists each field that `--json` prints.
#![allow(missing_docs)]

mod played;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use hallway_control::Helper;
use hallway_netlink::{Connection, Counter, Direction, Member, Module, OfReason};
use played::{status, xen, Hallwayd};
use serde_json::{json, Value};

const DOCUMENT: &str = include_str!("../../../../docs/json.md");
/// Objects without a row for each field. They have the fields of another object, or any names.
const WHOLE: [&str; 4] = [".host_end", ".refused", ".natives", ".rx"];
/// Objects that may be absent: the document says so.
const OPTIONAL: [&str; 4] = [".outsourcer", ".refusal", ".cpus", "xen"];

/// Adds the paths of a value's fields.
fn collect(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    let is_whole = WHOLE.iter().any(|end| path.ends_with(end));
    match value {
        Value::Object(of) if !is_whole => {
            if OPTIONAL.iter().any(|end| path.ends_with(end)) {
                fields.insert(path.into());
            }
            for (name, value) in of {
                let dot = if path.is_empty() { "" } else { "." };
                collect(value, &format!("{path}{dot}{name}"), fields);
            }
        }
        Value::Array(of) if of.iter().any(Value::is_object) && !is_whole => {
            for value in of {
                collect(value, &format!("{path}[]"), fields);
            }
        }
        _ => {
            fields.insert(path.into());
        }
    }
}

/// Checks that the table of a section lists the fields of a value.
fn check(section: &str, value: &Value) {
    let (_, text) = DOCUMENT.split_once(&format!("## {section}\n")).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeSet<String> = rows
        .map(|row| row.split('`').nth(1).unwrap().to_string())
        .collect();
    let mut fields = BTreeSet::new();
    collect(value, "", &mut fields);
    // Those of an empty list are listed where another one has elements.
    let all = fields.clone();
    fields.retain(|one| {
        !all.iter()
            .any(|other| other.starts_with(&format!("{one}[]")))
    });
    assert_eq!(listed, fields, "{section}");
}

#[test]
fn the_document_lists_the_status_of_a_host() {
    let hallwayd = Hallwayd::start("json", |_| {
        let mut status = status(1000);
        status.xen = Some(Box::new(xen()));
        for vm in &mut status.vms {
            vm.host_end = Some(Helper::default());
        }
        status
    });
    let ended = hallwayd.hallway("status").arg("--json").output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let value = serde_json::from_slice(&ended.stdout).unwrap();
    check("`hallway status --json` on a host", &value);
}

#[test]
fn the_document_lists_the_status_of_a_guest() {
    let demotion = OfReason {
        reason: 0,
        reason_name: "",
        reason_text: "",
        count: 0,
    };
    let module = Module {
        counters: vec![Counter::default()],
        demotions: vec![demotion],
        ..Module::default()
    };
    let value = json!({ "module": module, "members": [Member::default()] });
    check("`hallway status --json` in a guest", &value);
}

#[test]
fn the_document_lists_the_fields_of_a_connection() {
    let direction = Direction {
        via: "",
        carrier: 0,
        tcp_bytes: 0,
        ring_bytes: 0,
    };
    let nowhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let connection = Connection {
        protocol: "",
        local: nowhere,
        local_port: 0,
        remote: nowhere,
        remote_port: 0,
        netns: 0,
        state: "",
        peer: String::new(),
        outsourced: false,
        tx: direction.clone(),
        rx: direction,
        reason: 0,
        reason_name: "",
        reason_text: String::new(),
    };
    check("`hallway connections --json`", &json!([connection]));
}
