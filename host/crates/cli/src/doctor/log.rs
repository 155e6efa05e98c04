// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the module said in the kernel's log. It names there what a region or a doorbell
//! lacks, with the remedy, and netlink has no place for that.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;

/// `KERN_NOTICE`. A higher number is no complaint, or holds the facility of a program.
const NOTICE: u32 = 5;
/// A record is no longer, or cannot be read.
const RECORD: usize = 8192;
/// Complaints of one cause come within this time, in microseconds; older ones may be obsolete.
const TOGETHER: u64 = 5_000_000;
/// That many are shown at most: as many as a guest has root ports for ring memory.
const MOST: usize = 16;

/// A complaint of the module.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    /// Microseconds since the machine's start.
    at: u64,
    text: String,
}

/// The module's last complaints; none where the log may not be read.
pub fn last_complaints() -> Vec<String> {
    last(read().unwrap_or_default())
}

fn read() -> std::io::Result<Vec<Complaint>> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut log = options.open("/dev/kmsg")?;
    let (mut record, mut complaints) = (vec![0; RECORD], Vec::new());
    loop {
        // Each read is a record.
        match log.read(&mut record) {
            Ok(length) => complaints.extend(parse(&String::from_utf8_lossy(&record[..length]))),
            // The record was overwritten: the next read gets the oldest that is left.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(complaints),
            Err(error) => return Err(error),
        }
    }
}

/// The complaint that a record is, if it is one.
fn parse(record: &str) -> Option<Complaint> {
    let (header, rest) = record.split_once(';')?;
    let mut header = header.split(',');
    let priority: u32 = header.next()?.parse().ok()?;
    let at = header.nth(1)?.parse().ok()?;
    let text = rest.lines().next()?;
    let of_transport = text
        .strip_prefix("hallway: ivshmem: ")
        .or_else(|| text.strip_prefix("hallway: xen: "));
    // The kernel names the device first.
    let text = of_transport.or_else(|| Some(text.split_once(": hallway: ")?.1))?;
    (priority <= NOTICE).then(|| Complaint {
        at,
        text: text.into(),
    })
}

/// The texts of those that came with the last one, each once.
fn last(complaints: Vec<Complaint>) -> Vec<String> {
    let since = complaints.last().map_or(0, |one| one.at);
    let since = since.saturating_sub(TOGETHER);
    let mut texts = Vec::new();
    for one in complaints.into_iter().rev().filter(|one| one.at >= since) {
        if texts.len() < MOST && !texts.contains(&one.text) {
            texts.push(one.text);
        }
    }
    texts.reverse();
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_differs_from_other_records() {
        let absent = "hallwayd does not answer: start it, and this guest joins";
        for (record, said) in [
            (
                format!("4,339,514,-;hallway: ivshmem: {absent}\n SUBSYSTEM=pci\n"),
                true,
            ),
            (format!("5,339,514,-;hallway: xen: {absent}\n"), true),
            (
                format!("3,9,514,-;hallway 0000:00:05.0: hallway: {absent}\n"),
                true,
            ),
            (format!("6,9,514,-;hallway: ivshmem: {absent}\n"), false),
            // A program's.
            (format!("12,9,514,-;hallway: ivshmem: {absent}\n"), false),
            (
                "4,9,514,-;hallway: loading out-of-tree module\n".into(),
                false,
            ),
            (String::new(), false),
        ] {
            let found = said.then(|| Complaint {
                at: 514,
                text: absent.into(),
            });
            assert_eq!(parse(&record), found, "{record}");
        }
    }

    #[test]
    fn what_came_with_the_last_one_is_shown_once() {
        let at = |seconds: u64, text: &str| Complaint {
            at: seconds * 1_000_000,
            text: text.into(),
        };
        let before = at(1, "obsolete");
        let many = [at(9, "a"), at(10, "b"), at(10, "a"), at(11, "c")];
        let all = std::iter::once(before).chain(many).collect();
        assert_eq!(last(all), ["b", "a", "c"]);
        assert!(last(Vec::new()).is_empty());
    }
}
