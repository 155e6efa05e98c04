// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's log. In a guest the module names there what a region or a doorbell lacks, with the
//! remedy, and netlink has no place for that. On a host AppArmor says there what it has denied,
//! unless auditd takes its lines.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use nix::time::{clock_gettime, ClockId};

/// `KERN_NOTICE`. A higher number is no complaint, or holds the facility of a program.
const NOTICE: u32 = 5;
/// A record is no longer, or cannot be read.
const RECORD: usize = 8192;
/// Complaints of one cause come within this time, in microseconds; older ones may be obsolete.
const TOGETHER: u64 = 5_000_000;
/// That many are shown at most: as many as a guest has root ports for ring memory.
const MOST: usize = 16;

/// The cause of an older denial may have been mended since. Microseconds.
const RECENT: u64 = 10 * 60 * 1_000_000;
/// What QEMUs open, where a host has no other folders: sockets, monitors, and regions that are files.
const FOLDERS: [&str; 3] = ["/run/hallway/", "/run/hallway-vms/", "/dev/shm/hallway/"];
const REGION_DIR: &str = "/dev/shm/hallway";
/// A higher number holds the facility of a program.
const OF_KERNEL: u32 = 7;

/// A complaint of the module, or the path of a denial.
#[derive(Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Microseconds since the machine's start.
    at: u64,
    /// Address of the PCI device that it is about, if it is about one.
    pub device: Option<String>,
    pub text: String,
}

/// The module's last complaints of those that are still true.
///
/// # Errors
///
/// The log may not be read.
pub fn last_complaints(is_true: impl Fn(&Complaint) -> bool) -> std::io::Result<Vec<String>> {
    Ok(last(read(parse)?, is_true))
}

/// Hallway's paths that AppArmor has denied to QEMUs of libvirt in the last 10 minutes: the last ones.
///
/// # Errors
///
/// The log may not be read.
pub fn last_denials() -> std::io::Result<Vec<String>> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64);
    let since = (now * 1_000_000).saturating_sub(RECENT);
    let denials = read(parse_denial)?;
    Ok(take_last(denials.into_iter().filter(|one| one.at >= since)))
}

fn read(parse: fn(&str) -> Option<Complaint>) -> std::io::Result<Vec<Complaint>> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut log = options.open("/dev/kmsg")?;
    let (mut record, mut complaints) = (vec![0; RECORD], Vec::new());
    loop {
        // Each read is a record.
        match log.read(&mut record) {
            // In some containers it is another file.
            Ok(0) => return Ok(complaints),
            Ok(length) => complaints.extend(parse(&String::from_utf8_lossy(&record[..length]))),
            // The record was overwritten: the next read gets the oldest that is left.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(complaints),
            Err(error) => return Err(error),
        }
    }
}

/// A record's priority, its time in microseconds, and its text.
fn split(record: &str) -> Option<(u32, u64, &str)> {
    let (header, rest) = record.split_once(';')?;
    let mut header = header.split(',');
    let priority = header.next()?.parse().ok()?;
    let at = header.nth(1)?.parse().ok()?;
    Some((priority, at, rest.lines().next()?))
}

/// The denial of one of Hallway's paths that a record is, if it is one.
fn parse_denial(record: &str) -> Option<Complaint> {
    let (priority, at, text) = split(record)?;
    let rest = text.strip_prefix("audit: ")?;
    let (_, rest) = rest.split_once(" apparmor=\"DENIED\" ")?;
    // Programs choose names, but none with a quotation mark: the kernel writes those in hex.
    let (_, rest) = rest.split_once(" profile=\"libvirt-")?;
    let path = rest.split_once(" name=\"")?.1.split('"').next()?;
    let is_own = path == REGION_DIR || FOLDERS.iter().any(|folder| path.starts_with(folder));
    (priority <= OF_KERNEL && is_own).then(|| Complaint {
        at,
        device: None,
        text: path.into(),
    })
}

/// The complaint that a record is, if it is one.
pub fn parse(record: &str) -> Option<Complaint> {
    let (priority, at, text) = split(record)?;
    let of_transport = text
        .strip_prefix("hallway: ivshmem: ")
        .or_else(|| text.strip_prefix("hallway: xen: "));
    let (device, text) = match of_transport {
        Some(text) => (None, text),
        None => {
            // The kernel names the driver and the device first.
            let (device, text) = text.split_once(": hallway: ")?;
            (device.split_whitespace().last(), text)
        }
    };
    (priority <= NOTICE).then(|| Complaint {
        at,
        device: device.map(String::from),
        text: text.into(),
    })
}

/// The texts of those that are true, and came with the last such one, each once.
fn last(mut complaints: Vec<Complaint>, is_true: impl Fn(&Complaint) -> bool) -> Vec<String> {
    complaints.retain(is_true);
    let since = complaints.last().map_or(0, |one| one.at);
    let since = since.saturating_sub(TOGETHER);
    take_last(complaints.into_iter().filter(|one| one.at >= since))
}

/// The texts of the last ones, each once.
fn take_last(complaints: impl DoubleEndedIterator<Item = Complaint>) -> Vec<String> {
    let mut texts = Vec::new();
    for one in complaints.rev() {
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
        let device = Some("0000:00:05.0");
        for (record, said) in [
            (
                format!("4,339,514,-;hallway: ivshmem: {absent}\n SUBSYSTEM=pci\n"),
                Some(None),
            ),
            (format!("5,339,514,-;hallway: xen: {absent}\n"), Some(None)),
            (
                format!("3,9,514,-;hallway 0000:00:05.0: hallway: {absent}\n"),
                Some(device),
            ),
            (format!("6,9,514,-;hallway: ivshmem: {absent}\n"), None),
            // A program's.
            (format!("12,9,514,-;hallway: ivshmem: {absent}\n"), None),
            (
                "4,9,514,-;hallway: loading out-of-tree module\n".into(),
                None,
            ),
            (String::new(), None),
        ] {
            let found = said.map(|device| Complaint {
                at: 514,
                device: device.map(String::from),
                text: absent.into(),
            });
            assert_eq!(parse(&record), found, "{record}");
        }
    }

    #[test]
    fn a_denial_of_a_path_of_hallway_differs_from_others() {
        let denial = |priority: u32, path: &str| {
            format!(
                "{priority},339,514,-;audit: type=1400 audit(1700000000.1:45): apparmor=\"DENIED\" \
                 operation=\"open\" class=\"file\" profile=\"libvirt-7d1f\" name=\"{path}\" pid=9 \
                 comm=\"qemu-system-x86\" requested_mask=\"wr\" denied_mask=\"wr\"\n"
            )
        };
        let file = "/dev/shm/hallway/r";
        let found = Complaint {
            at: 514,
            device: None,
            text: file.into(),
        };
        assert_eq!(parse_denial(&denial(5, file)), Some(found));
        let allowed = denial(5, file).replace("DENIED", "ALLOWED");
        let of_another = denial(5, file).replace("libvirt-", "collector");
        let metrics = denial(5, "/run/hallway-metrics/metrics.sock");
        let elsewhere = denial(5, "/dev/shm/r");
        for other in [
            &elsewhere,
            &denial(13, file),
            &allowed,
            &of_another,
            &metrics,
            "",
        ] {
            assert_eq!(parse_denial(other), None, "{other}");
        }
    }

    #[test]
    fn what_came_with_the_last_one_is_shown_once() {
        let at = |seconds: u64, text: &str| Complaint {
            at: seconds * 1_000_000,
            device: None,
            text: text.into(),
        };
        let before = at(1, "obsolete");
        let many = [at(9, "a"), at(10, "b"), at(10, "a"), at(11, "c")];
        let after = at(60, "mended");
        let all = std::iter::once(before).chain(many).chain([after]).collect();
        let said = last(all, |one| one.text != "mended");
        assert_eq!(said, ["b", "a", "c"]);
        assert!(last(Vec::new(), |_| true).is_empty());
    }
}
