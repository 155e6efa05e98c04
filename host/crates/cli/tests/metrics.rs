// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway metrics --listen`, with a hallwayd that the test plays.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use hallway_control::{socket, Answer, Region, Status};

const PATIENCE: Duration = Duration::from_secs(30);
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";
/// More of them than a socket holds.
const REGIONS: usize = 4000;

fn status() -> Status {
    let regions = (0..REGIONS).map(|n| Region {
        name: format!("region-with-a-long-name-{n}"),
        uuid: String::new(),
        file: None,
        size: 1,
        slots: 2,
        slice_size: 1,
        repairs: 0,
        members: Vec::new(),
    });
    Status {
        version: "1".into(),
        abi: "1.0".into(),
        pid: 1,
        uptime_seconds: 1,
        recovered_connections: 0,
        socket: "/s".into(),
        regions: regions.collect(),
        connections: Vec::new(),
        vms: Vec::new(),
        xen: None,
    }
}

/// `hallway metrics --listen`, which ends with the test.
struct Served {
    dir: PathBuf,
    hallway: Child,
}

impl Served {
    fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("hwm-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let daemon = UnixListener::bind(socket(&dir)).unwrap();
        let answer = serde_json::to_string(&Answer::Status(status())).unwrap();
        std::thread::spawn(move || {
            for stream in daemon.incoming() {
                let mut stream = stream.unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                let _ = writeln!(stream, "{answer}");
            }
        });
        let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
        hallway.arg("metrics").arg("--run-dir").arg(&dir);
        let hallway = hallway.arg("--listen").arg(dir.join("m")).spawn().unwrap();
        Self { dir, hallway }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("m")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.hallway.kill();
        let _ = self.hallway.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn connect(path: &Path) -> UnixStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_that_do_not_read_or_say_nothing_delay_no_other() {
    let served = Served::start("idle");
    let idle: Vec<UnixStream> = (0..40)
        .map(|n| {
            let mut client = connect(&served.path());
            if n % 2 == 0 {
                // One that was hung up on by then gets an error.
                let _ = client.write_all(REQUEST);
            }
            client
        })
        .collect();
    let mut client = connect(&served.path());
    client.write_all(REQUEST).unwrap();
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(said.matches("hallway_region_bytes{").count(), REGIONS);
    drop(idle);
}

#[test]
fn a_client_that_takes_its_time_is_hung_up_on() {
    let served = Served::start("slow");
    let mut client = connect(&served.path());
    let end = Instant::now() + PATIENCE;
    while client.write_all(b"x").is_ok() {
        assert!(Instant::now() < end, "it is still served");
        std::thread::sleep(Duration::from_millis(100));
    }
}
