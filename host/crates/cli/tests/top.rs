// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway top`, with a hallwayd that the test plays.
#![allow(missing_docs)]

mod played;

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;

use played::{status, xen, Hallwayd};

/// The columns of the line that begins with a word.
fn cells<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
    let mut lines = text.lines().map(|line| line.split("  "));
    let line = lines.find(|cells| cells.clone().next() == Some(first));
    let cells = line.unwrap_or_else(|| panic!("no {first}: {text}"));
    let cells = cells.map(str::trim).filter(|cell| !cell.is_empty());
    cells.collect()
}

#[test]
fn an_output_that_is_no_terminal_gets_one_frame() {
    let hallwayd = Hallwayd::start("once", |_| status(5 << 20));
    for words in [&[][..], &["--once"]] {
        let ended = hallwayd.hallway("top").args(words).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let text = String::from_utf8(ended.stdout).unwrap();
        assert!(!text.contains('\x1b'), "{text:?}");
        let web1 = [
            "web1", "alive", "1", "3", "-", "-", "5 MiB", "0 B", "-", "-",
        ];
        assert_eq!(cells(&text, "web1"), web1);
        let web2 = [
            "web2", "alive", "1", "3", "-", "-", "0 B", "5 MiB", "7", "-",
        ];
        assert_eq!(cells(&text, "web2"), web2);
        assert_eq!(cells(&text, "db1")[1], "off");
        let pair = ["pair-1", "64 MiB", "web1 and web2", "-"];
        assert_eq!(cells(&text, "pair-1"), pair);
        assert!(text.contains("db1: no free root port is left\n"), "{text}");
        assert!(text.contains("web2: refused 5 times: no rule\n"), "{text}");
    }
}

#[test]
fn dom0_shows_the_pairs_of_its_domains() {
    let hallwayd = Hallwayd::start("xen", |_| {
        let mut status = status(0);
        let mut xen = xen();
        xen.problem = Some("no answer".into());
        status.xen = Some(Box::new(xen));
        status
    });
    let ended = hallwayd.hallway("top").output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    for part in [
        "dom-1 dom-2  none: dom-1 offers none",
        "dom-1 dom-3  none: no group of both",
        "the domains of Xen: no answer\n",
    ] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
}

#[test]
fn without_a_hallwayd_it_fails() {
    let hallwayd = Hallwayd::start("none", |_| status(0));
    std::fs::remove_file(hallway_control::socket(&hallwayd.dir)).unwrap();
    let ended = hallwayd.hallway("top").arg("--host").output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        !ended.status.success() && said.contains("no hallwayd answers"),
        "{said}"
    );
}

fn terminal() -> (File, OwnedFd) {
    let size = libc::winsize {
        ws_row: 20,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (mut own, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: the call writes two descriptors, which nothing else owns then.
    unsafe {
        let made = libc::openpty(&mut own, &mut theirs, none, none.cast(), &size);
        assert_eq!(made, 0);
        (File::from_raw_fd(own), OwnedFd::from_raw_fd(theirs))
    }
}

#[test]
fn a_terminal_gets_frames_with_rates_until_it_is_ended() {
    // Much more with each question: whatever the time between, it is more than a MiB a second.
    let hallwayd = Hallwayd::start("live", |number| status(number << 40));
    let (mut own, theirs) = terminal();
    let mut hallway = hallwayd.hallway("top");
    let mut hallway = hallway
        .args(["--interval", "1"])
        .stdout(Stdio::from(theirs))
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut bytes = [0; 4096];
    // A frame that is whole ends with what clears the rest.
    while text.matches("\x1b[J").count() < 2 {
        let count = own.read(&mut bytes).unwrap();
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    hallway.kill().unwrap();
    hallway.wait().unwrap();
    let frames: Vec<&str> = text.split("\x1b[H").skip(1).collect();
    let (first, second) = (cells(frames[0], "web1"), cells(frames[1], "web1"));
    assert_eq!(first[4], "-");
    assert!(second[4].ends_with("GiB/s"), "{second:?}");
    assert_eq!(second[5], "0 B/s");
    assert_eq!(second[6], "1 TiB");
    assert!(cells(frames[1], "pair-1")[3].starts_with(second[4]));
}
