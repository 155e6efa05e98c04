// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hallwayd that a test plays.
#![allow(dead_code, missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use hallway_control::{
    socket, Answer, Connection, Cpus, Domain, DomainPair, Helper, Liveness, Member, NotRunning,
    Plug, Refusal, Region, Status, Vm, Xen,
};

/// A hallwayd; its run directory is removed when the test ends.
pub struct Hallwayd {
    pub dir: PathBuf,
}

impl Hallwayd {
    /// Answers each question with the status that `status` makes for its number.
    pub fn start(name: &str, status: impl Fn(u64) -> Status + Send + 'static) -> Self {
        let dir = std::env::temp_dir().join(format!("hwp-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let listener = UnixListener::bind(socket(&dir)).unwrap();
        std::thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                let mut stream = stream.unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                let answer = Answer::Status(status(number));
                let _ = writeln!(stream, "{}", serde_json::to_string(&answer).unwrap());
            }
        });
        Self { dir }
    }

    /// `hallway`, which asks it.
    pub fn hallway(&self, command: &str) -> Command {
        let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
        hallway.args([command, "--run-dir"]).arg(&self.dir);
        hallway
    }
}

impl Drop for Hallwayd {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn member(slot: usize, name: &str, sent: u64, received: u64) -> Member {
    Member {
        slot,
        host: slot == 0,
        name: name.into(),
        uuid: format!("u-{name}"),
        cid: (slot != 0).then_some(50),
        generation: 1,
        liveness: Liveness::Alive,
        still_seconds: None,
        addresses: Vec::new(),
        tx_bytes: sent,
        rx_bytes: received,
        channels: 3,
    }
}

fn vm(name: &str) -> Vm {
    Vm {
        name: name.into(),
        uuid: format!("u-{name}"),
        monitor: Some("libvirt".into()),
        connected: true,
        problem: None,
        off: false,
        plugs: Vec::new(),
        released: false,
        outsourcer: None,
        host_end: None,
        not_running: Vec::new(),
        cpus: None,
    }
}

/// A host with a pair of VMs, of which one sends `sent` bytes to the other, and one VM that
/// lacks something.
pub fn status(sent: u64) -> Status {
    let mut lacking = vm("db1");
    lacking.connected = false;
    lacking.not_running = vec![NotRunning {
        helper: "outsourcer".into(),
        why: "its namespace is not there".into(),
        next_try_seconds: 4,
    }];
    lacking.plugs = vec![Plug {
        region: "pair-2".into(),
        plugged: false,
        problem: Some("no free root port is left".into()),
    }];
    let mut outsourced = vm("web2");
    outsourced.outsourcer = Some(Helper {
        sockets: 7,
        closing: 2,
        refused: [("no rule".into(), 5)].into(),
        ..Helper::default()
    });
    outsourced.cpus = Some(Cpus {
        given: Some(2),
        ..Cpus::default()
    });
    Status {
        version: "1".into(),
        abi: "1.0".into(),
        pid: 1,
        uptime_seconds: 60,
        recovered_connections: 0,
        socket: "/s".into(),
        regions: vec![Region {
            name: "pair-1".into(),
            uuid: "r".into(),
            file: None,
            size: 64 << 20,
            slots: 4,
            slice_size: 16 << 20,
            repairs: 0,
            members: vec![
                member(0, "host", 0, 0),
                member(1, "web1", sent, 0),
                member(2, "web2", 0, sent),
            ],
        }],
        connections: vec![Connection {
            connection: 1,
            pid: Some(2),
            name: Some("web1".into()),
            uuid: Some("u-web1".into()),
            regions: vec!["pair-1".into()],
            doorbells: 3,
            doorbells_pending: 1,
            requests: 9,
            throttled: false,
            problem: None,
            refusal: Some(Refusal {
                vm: "u-web1".into(),
                why: "all 4 slots are taken".into(),
            }),
        }],
        vms: vec![vm("web1"), outsourced, lacking],
        xen: None,
    }
}

/// Three domains: of the first two one offers the other memory, and the third may share none.
pub fn xen() -> Xen {
    let domain = |number: u32| Domain {
        number,
        name: format!("dom-{number}"),
        uuid: format!("u-{number}"),
    };
    let pair = |domains: [u32; 2], refused: Option<&str>, offering| DomainPair {
        domains,
        announced: domains.into(),
        refused: refused.map(String::from),
        offering,
    };
    let why = Some("no group of both");
    Xen {
        problem: None,
        domains: [1, 2, 3].map(domain).into(),
        pairs: vec![
            pair([1, 2], None, vec![2]),
            pair([1, 3], why, Vec::new()),
            pair([2, 3], why, Vec::new()),
        ],
    }
}
