// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway top`: what goes through rings now, on the host by VM and region, in a guest by
//! connection.
//!
//! A look has totals. What is per second follows from the look before: the first frame has
//! none of it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_control::{Liveness, Member, Region, Status};
use hallway_netlink::{Connection, Module};
use terminal_size::{terminal_size, Height, Width};

use crate::host::{ask_status, xen_pairs, RELEASED};
use crate::table::{bytes, or_dash, Table};
use crate::{guest, Place};

/// Clears what is right of the cursor, and what is below it.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const HOME: &str = "\x1b[H";

/// What one look finds.
enum Sight {
    Host(Box<Status>),
    Guest(Module, Vec<Connection>),
}

/// Bytes sent and received, by what they are of.
type Totals = BTreeMap<String, [u64; 2]>;

/// What changed since the look before.
struct Rates {
    before: Totals,
    seconds: f64,
}

impl Rates {
    /// Bytes per second of both directions; nothing where there was no such one before.
    /// 0 where the count has begun again.
    fn of(rates: Option<&Self>, key: &str, now: [u64; 2]) -> Option<[u64; 2]> {
        let rates = rates?;
        let before = rates.before.get(key)?;
        let rate = |n: usize| (now[n].saturating_sub(before[n]) as f64 / rates.seconds) as u64;
        Some([rate(0), rate(1)])
    }
}

fn per_second(rate: Option<u64>) -> String {
    rate.map_or("-".into(), |rate| format!("{}/s", bytes(rate)))
}

fn look(place: Place, run_dir: &Path) -> Result<Sight> {
    match place {
        Place::Host => Ok(Sight::Host(Box::new(ask_status(run_dir)?))),
        Place::Guest => {
            let mut client = guest::client()?;
            Ok(Sight::Guest(client.get()?, client.connections()?))
        }
    }
}

impl Sight {
    fn totals(&self) -> Totals {
        match self {
            Self::Host(status) => {
                let regions = status.regions.iter();
                let members = regions.flat_map(|region| members(region).map(|m| key(region, m)));
                members.collect()
            }
            Self::Guest(_, connections) => connections
                .iter()
                .map(|one| (name(one), [carried(&one.tx), carried(&one.rx)]))
                .collect(),
        }
    }

    fn lines(&self, rates: Option<&Rates>) -> Vec<String> {
        match self {
            Self::Host(status) => host_lines(status, rates),
            Self::Guest(module, connections) => guest_lines(module, connections, rates),
        }
    }
}

fn members(region: &Region) -> impl Iterator<Item = &Member> {
    let members = region.members.iter();
    members.filter(|member| !member.host && member.liveness != Liveness::Absent)
}

/// What a member's bytes are counted by. A member that joins again counts from 0.
fn key(region: &Region, member: &Member) -> (String, [u64; 2]) {
    let key = format!("{} {} {}", region.name, member.slot, member.generation);
    (key, [member.tx_bytes, member.rx_bytes])
}

/// What a VM has in all of its regions.
#[derive(Default)]
struct Row {
    name: String,
    state: &'static str,
    regions: u32,
    connections: u32,
    rates: Option<[u64; 2]>,
    totals: [u64; 2],
    outsourced: Option<u32>,
    tunnels: Option<u32>,
}

fn rows(status: &Status, rates: Option<&Rates>) -> Vec<Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for vm in &status.vms {
        let row = Row {
            name: vm.name.clone(),
            state: if vm.connected { "no memory" } else { "off" },
            outsourced: vm.outsourcer.as_ref().map(|one| one.sockets),
            tunnels: vm.host_end.as_ref().map(|one| one.sockets),
            ..Row::default()
        };
        rows.insert(&vm.uuid, row);
    }
    for region in &status.regions {
        for member in members(region) {
            let row = rows.entry(&member.uuid).or_default();
            if row.name.is_empty() {
                row.name.clone_from(&member.name);
            }
            row.state = match member.liveness {
                Liveness::Unresponsive => "unresponsive",
                _ if row.state == "unresponsive" => row.state,
                Liveness::Joining => "joining",
                Liveness::Alive | Liveness::Absent => "alive",
            };
            row.regions += 1;
            row.connections = row.connections.saturating_add(member.channels);
            let (key, now) = key(region, member);
            let rate = Rates::of(rates, &key, now);
            row.totals = add(row.totals, now);
            row.rates = match (row.rates, rate) {
                (Some(all), Some(rate)) => Some(add(all, rate)),
                (all, rate) => all.or(rate),
            };
        }
    }
    rows.into_values().collect()
}

/// A member counts what it likes.
fn add(one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
    [
        one[0].saturating_add(other[0]),
        one[1].saturating_add(other[1]),
    ]
}

fn host_lines(status: &Status, rates: Option<&Rates>) -> Vec<String> {
    let mut lines = vec![format!(
        "hallwayd {}, pid {}, up {} s: {} VMs, {} regions, {} QEMUs connected",
        status.version,
        status.pid,
        status.uptime_seconds,
        status.vms.len(),
        status.regions.len(),
        status.connections.len()
    )];
    let heading = [
        "vm",
        "state",
        "regions",
        "on rings",
        "sends",
        "receives",
        "sent",
        "received",
        "outsourced",
        "tunnels",
    ];
    let mut table = Table::new(&heading);
    let number = |count: Option<u32>| count.map_or("-".into(), |count| count.to_string());
    for row in rows(status, rates) {
        table.row(vec![
            row.name,
            row.state.into(),
            row.regions.to_string(),
            row.connections.to_string(),
            per_second(row.rates.map(|rate| rate[0])),
            per_second(row.rates.map(|rate| rate[1])),
            bytes(row.totals[0]),
            bytes(row.totals[1]),
            number(row.outsourced),
            number(row.tunnels),
        ]);
    }
    add_table(&mut lines, &table);
    let mut table = Table::new(&["region", "size", "between", "sends"]);
    for region in &status.regions {
        let names: Vec<&str> = members(region).map(|member| member.name.as_str()).collect();
        let sends = members(region).filter_map(|member| {
            let (key, now) = key(region, member);
            Rates::of(rates, &key, now).map(|rate| rate[0])
        });
        let sends = sends.reduce(u64::saturating_add);
        table.row(vec![
            region.name.clone(),
            bytes(region.size),
            or_dash(names.join(" and ")),
            per_second(sends),
        ]);
    }
    add_table(&mut lines, &table);
    if let Some(xen) = &status.xen {
        add_table(&mut lines, &xen_pairs(xen));
    }
    add_reasons(&mut lines, host_reasons(status));
    lines
}

/// Why VMs lack something, and what was refused.
fn host_reasons(status: &Status) -> Vec<String> {
    let mut reasons = Vec::new();
    for vm in &status.vms {
        let name = &vm.name;
        let plugs = vm.plugs.iter().filter_map(|plug| plug.problem.as_ref());
        let problems = vm.problem.iter().chain(plugs);
        reasons.extend(problems.map(|problem| format!("{name}: {problem}")));
        let lacking = vm.not_running.iter();
        reasons.extend(lacking.map(|lacking| format!("{name}: {lacking}")));
        if vm.released {
            reasons.push(format!("{name}: {RELEASED}"));
        }
        for helper in vm.outsourcer.iter().chain(&vm.host_end) {
            let refused = helper.refused.iter();
            let line = |(cause, count)| format!("{name}: refused {count} times: {cause}");
            reasons.extend(refused.map(line));
        }
    }
    for one in &status.connections {
        if let Some(problem) = &one.problem {
            let name = one.name.as_deref().unwrap_or("a QEMU");
            reasons.push(format!("{name}: {problem}"));
        }
    }
    let refused = crate::host::refusals(&status.connections, &status.vms).into_iter();
    reasons.extend(refused.map(|(name, why)| format!("{name}: hallwayd refused its guest: {why}")));
    let xen = status.xen.iter().filter_map(|xen| xen.problem.as_ref());
    reasons.extend(xen.map(|problem| format!("the domains of Xen: {problem}")));
    reasons
}

fn name(connection: &Connection) -> String {
    format!(
        "{} {} {}",
        connection.protocol,
        std::net::SocketAddr::new(connection.local, connection.local_port),
        std::net::SocketAddr::new(connection.remote, connection.remote_port)
    )
}

fn carried(direction: &hallway_netlink::Direction) -> u64 {
    direction.tcp_bytes.saturating_add(direction.ring_bytes)
}

fn guest_lines(module: &Module, connections: &[Connection], rates: Option<&Rates>) -> Vec<String> {
    let via = |word: &str| {
        let both = connections.iter().filter(|one| !one.outsourced);
        both.filter(|one| one.tx.via == word || one.rx.via == word)
            .count()
    };
    let outsourced = connections.iter().filter(|one| one.outsourced).count();
    let mut lines = vec![format!(
        "module hallway {}, switched {}: {} connections, {} with a ring, {} with TCP, {outsourced} \
         executed by the host",
        module.version,
        if module.enabled { "on" } else { "off" },
        connections.len(),
        via("ring"),
        via("tcp")
    )];
    let mut all: Vec<_> = connections
        .iter()
        .map(|one| {
            let totals = [carried(&one.tx), carried(&one.rx)];
            (one, totals, Rates::of(rates, &name(one), totals))
        })
        .collect();
    // Those that move most come first; then those that have moved most.
    all.sort_by_key(|(_, totals, rate)| {
        let sum = |two: [u64; 2]| two[0].saturating_add(two[1]);
        std::cmp::Reverse((rate.map_or(0, sum), sum(*totals)))
    });
    let heading = [
        "connection",
        "peer",
        "sends by",
        "receives by",
        "sends",
        "receives",
        "sent",
        "received",
        "reason",
    ];
    let mut table = Table::new(&heading);
    for (one, totals, rate) in all {
        let via = |direction: &hallway_netlink::Direction| match one.outsourced {
            true => "host".to_string(),
            false => direction.via.into(),
        };
        let reason = match one.reason {
            0 => "-",
            _ => one.reason_name,
        };
        table.row(vec![
            name(one),
            or_dash(one.peer.clone()),
            via(&one.tx),
            via(&one.rx),
            per_second(rate.map(|rate| rate[0])),
            per_second(rate.map(|rate| rate[1])),
            bytes(totals[0]),
            bytes(totals[1]),
            reason.into(),
        ]);
    }
    add_table(&mut lines, &table);
    let mut reasons: BTreeMap<u32, (usize, &Connection)> = BTreeMap::new();
    for one in connections.iter().filter(|one| one.reason != 0) {
        reasons.entry(one.reason).or_insert((0, one)).0 += 1;
    }
    let texts = reasons.values();
    let texts =
        texts.map(|(count, one)| format!("{count} {}: {}", one.reason_name, one.reason_text));
    add_reasons(&mut lines, texts.collect());
    lines
}

fn add_table(lines: &mut Vec<String>, table: &Table) {
    lines.push(String::new());
    lines.extend(table.lines());
}

fn add_reasons(lines: &mut Vec<String>, reasons: Vec<String>) {
    if !reasons.is_empty() {
        lines.push(String::new());
        lines.extend(reasons);
    }
}

/// Draws a frame in the place of the one before, as much of it as the terminal shows.
fn draw(lines: &[String]) -> io::Result<()> {
    let (Width(width), Height(height)) = terminal_size().unwrap_or((Width(80), Height(24)));
    let mut out = io::stdout().lock();
    write!(out, "{HOME}")?;
    // The last line is the cursor's.
    for line in lines.iter().take(usize::from(height.saturating_sub(1))) {
        let shown: String = line.chars().take(width.into()).collect();
        writeln!(out, "{shown}{CLEAR_LINE}")?;
    }
    write!(out, "{CLEAR_BELOW}")?;
    out.flush()
}

/// Shows a frame each `interval` until a signal comes, or one.
pub fn show(place: Place, run_dir: &Path, interval: Duration, once: bool) -> Result<()> {
    let mut sight = look(place, run_dir)?;
    let mut at = Instant::now();
    if once || !io::stdout().is_terminal() {
        let mut out = io::stdout().lock();
        let mut lines = sight.lines(None).into_iter();
        return Ok(lines.try_for_each(|line| writeln!(out, "{line}"))?);
    }
    let mut rates = None;
    loop {
        draw(&sight.lines(rates.as_ref()))?;
        std::thread::sleep(interval);
        match look(place, run_dir) {
            Ok(next) => {
                let seconds = at.elapsed().as_secs_f64();
                let before = sight.totals();
                rates = Some(Rates { before, seconds });
                (sight, at) = (next, Instant::now());
            }
            // A daemon that is restarted, or a module that is loaded again, comes back.
            Err(error) => {
                draw(&[format!("hallway: {error:#}")])?;
                std::thread::sleep(interval);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(sent: u64, received: u64) -> Totals {
        BTreeMap::from([("a".into(), [sent, received])])
    }

    #[test]
    fn rates_are_of_what_was_there_before() {
        let rates = Rates {
            before: totals(1000, 7000),
            seconds: 2.0,
        };
        assert_eq!(Rates::of(Some(&rates), "a", [5000, 7000]), Some([2000, 0]));
        // A count that began again.
        assert_eq!(Rates::of(Some(&rates), "a", [10, 9000]), Some([0, 1000]));
        assert_eq!(Rates::of(Some(&rates), "b", [5000, 7000]), None);
        assert_eq!(Rates::of(None, "a", [5000, 7000]), None);
        assert_eq!(per_second(Some(2048)), "2 KiB/s");
        assert_eq!(per_second(None), "-");
    }

    #[test]
    fn a_guest_shows_what_moves_most_first_and_why_the_rest_is_on_tcp() {
        let direction = |via, ring_bytes| hallway_netlink::Direction {
            via,
            carrier: 0,
            tcp_bytes: 10,
            ring_bytes,
        };
        let connection = |port, via, bytes, reason| Connection {
            protocol: "tcp",
            local: [10, 0, 0, 1].into(),
            local_port: port,
            remote: [10, 0, 0, 2].into(),
            remote_port: 80,
            netns: 1,
            state: "ESTABLISHED",
            peer: "web2".into(),
            outsourced: false,
            tx: direction(via, bytes),
            rx: direction(via, 0),
            reason,
            reason_name: if reason == 0 { "NONE" } else { "FILTERED" },
            reason_text: "packet rules".into(),
        };
        let connections = [connection(1, "tcp", 0, 15), connection(2, "ring", 5000, 0)];
        let module = Module {
            enabled: true,
            ..Module::default()
        };
        let lines = guest_lines(&module, &connections, None);
        assert!(lines[0].contains("switched on: 2 connections, 1 with a ring, 1 with TCP"));
        assert!(
            lines[3].starts_with("tcp 10.0.0.1:2 10.0.0.2:80"),
            "{lines:?}"
        );
        assert!(lines[4].contains("FILTERED"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "1 FILTERED: packet rules");
    }
}
