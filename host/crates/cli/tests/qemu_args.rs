// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `hallway qemu-args` prints besides the words themselves.
#![allow(missing_docs)]

use std::process::{Command, Output};

fn qemu_args(words: &[&str]) -> Output {
    let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
    hallway.arg("qemu-args").args(words).output().unwrap()
}

#[test]
fn the_words_name_their_machine_and_comments_the_rest() {
    for (machine, word) in [
        ("pc", "-machine pc"),
        ("q35", "-machine q35"),
        ("microvm", "-machine microvm,pcie=on"),
    ] {
        let ended = qemu_args(&["web1", "--machine", machine]);
        let text = String::from_utf8(ended.stdout).unwrap();
        let is_word = |line: &str| line.starts_with('-');
        let is_known = |line: &str| is_word(line) || line.starts_with('#') || line.is_empty();
        assert!(text.lines().all(is_known), "{text}");
        assert!(text.lines().any(|line| line == word), "{text}");
        for part in [
            "systemd-tmpfiles --create",
            "in its group",
            "-smp 1,maxcpus=2",
            "systemctl reload hallwayd",
        ] {
            assert!(text.contains(part), "no {part}: {text}");
        }
        // What firmware of the others does.
        for part in ["hallway.uuid=UUID", "pcie_ports=native"] {
            assert_eq!(text.contains(part), machine == "microvm", "{text}");
        }
    }
}

#[test]
fn a_name_that_hallwayd_refuses_is_refused() {
    let ended = qemu_args(&["web 1"]);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && ended.stdout.is_empty());
    assert!(said.contains("\"web 1\" is no name for a VM"), "{said}");
}
