// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On the host: what hallwayd shows.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{bail, Result};
use hallway_control::{
    ask, Answer, Connection, Cpus, DomainPair, Helper, Liveness, Member, Query, Region, Status, Vm,
    Xen,
};

use crate::print_json;
use crate::table::{addresses, bytes, or_dash, Table};

/// The text about a VM with released ring memory.
pub const RELEASED: &str = "its ring memory was released, and stays out: hallway resume";

/// Asks hallwayd for its status. Errors: it is not there, or it refuses.
pub fn ask_status(run_dir: &Path) -> Result<Status> {
    match ask(run_dir, Query::Status)? {
        Answer::Status(status) => Ok(status),
        other => refuse(other),
    }
}

/// Prints what hallwayd serves.
pub fn status(run_dir: &Path, json: bool) -> Result<()> {
    let status = ask_status(run_dir)?;
    if json {
        return print_json(&status);
    }
    show(&status)?;
    Ok(())
}

/// Prints the CPUs of the VMs that have `[vm.cpus]`.
pub fn cpus(run_dir: &Path, json: bool) -> Result<()> {
    let status = ask_status(run_dir)?;
    let all = status.vms.iter();
    let all: Vec<(&str, &Cpus)> = all
        .filter_map(|vm| Some((vm.name.as_str(), vm.cpus.as_ref()?)))
        .collect();
    if json {
        return print_json(&all.into_iter().collect::<BTreeMap<_, _>>());
    }
    if all.is_empty() {
        writeln!(io::stdout(), "no VM of the configuration has [vm.cpus]")?;
        return Ok(());
    }
    let mut table = Table::new(&[
        "vm", "given", "online", "weight", "least", "most", "sends on", "busy", "waiting", "since",
        "why",
    ]);
    for (name, cpus) in &all {
        table.row(cpus_row(name, cpus));
    }
    table.print("")?;
    for (name, cpus) in &all {
        if let Some(problem) = &cpus.problem {
            writeln!(io::stdout(), "{name}: {problem}")?;
        }
    }
    Ok(())
}

fn cpus_row(name: &str, cpus: &Cpus) -> Vec<String> {
    let number = |number: Option<u32>| number.map_or("-".into(), |number| number.to_string());
    let percent = |share: Option<u32>| share.map_or("-".into(), |share| format!("{share} %"));
    let since = match cpus.given {
        Some(_) => format!("{} s", cpus.since_seconds),
        None => "-".into(),
    };
    vec![
        name.into(),
        number(cpus.given),
        number(cpus.online),
        number(cpus.weight),
        cpus.min.to_string(),
        cpus.max.to_string(),
        cpus.senders.to_string(),
        percent(cpus.busy_percent),
        percent(cpus.waiting_percent),
        since,
        or_dash(cpus.why.clone()),
    ]
}

/// The error of an answer that is no answer to the query.
pub fn refuse<T>(answer: Answer) -> Result<T> {
    match answer {
        Answer::Error { message } | Answer::Away { message } => bail!("hallwayd: {message}"),
        _ => bail!("hallwayd answers something else"),
    }
}

fn show(status: &Status) -> io::Result<()> {
    show_daemon(status)?;
    for region in &status.regions {
        show_region(region)?;
    }
    show_vms(&status.vms)?;
    if let Some(xen) = &status.xen {
        show_xen(xen)?;
        if status.connections.is_empty() {
            return Ok(());
        }
    }
    show_connections(&status.connections, &status.vms)
}

fn show_daemon(status: &Status) -> io::Result<()> {
    writeln!(
        io::stdout(),
        "hallwayd {} (ABI {}), pid {}, up {} s, QEMU connects to {}",
        status.version,
        status.abi,
        status.pid,
        status.uptime_seconds,
        status.socket.display()
    )
}

fn show_region(region: &Region) -> io::Result<()> {
    let mut out = io::stdout();
    let place = region.file.as_ref().map(|file| file.display().to_string());
    let place = place.unwrap_or("(plugged in by hallwayd)".into());
    writeln!(
        out,
        "\nregion {}  {}  {}, {} slots of {}  {}",
        region.name,
        region.uuid,
        bytes(region.size),
        region.slots,
        bytes(region.slice_size),
        place
    )?;
    if region.repairs > 0 {
        writeln!(
            out,
            "  a member wrote on its header {} times; put back",
            region.repairs
        )?;
    }
    let heading = [
        "slot",
        "name",
        "state",
        "gen",
        "channels",
        "sent",
        "received",
        "addresses",
        "uuid",
    ];
    let mut table = Table::new(&heading);
    for member in &region.members {
        table.row(member_row(member));
    }
    table.print("  ")
}

fn member_row(member: &Member) -> Vec<String> {
    let state = match member.liveness {
        Liveness::Alive => "alive".into(),
        Liveness::Joining => "joining".into(),
        Liveness::Absent => "absent".into(),
        Liveness::Unresponsive => {
            let seconds = member.still_seconds.unwrap_or_default();
            format!("unresponsive for {seconds} s")
        }
    };
    let host = if member.host { " (host)" } else { "" };
    vec![
        member.slot.to_string(),
        format!("{}{host}", member.name),
        state,
        member.generation.to_string(),
        member.channels.to_string(),
        bytes(member.tx_bytes),
        bytes(member.rx_bytes),
        addresses(&member.addresses),
        member.uuid.clone(),
    ]
}

fn show_connections(connections: &[Connection], vms: &[Vm]) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out)?;
    if connections.is_empty() {
        return writeln!(out, "no VM is connected");
    }
    writeln!(out, "QEMUs connected, each by its pid:")?;
    let mut table = Table::new(&["pid", "guest", "regions", "peers", "requests"]);
    for connection in connections {
        table.row(connection_row(connection));
    }
    table.print("  ")?;
    for connection in connections {
        if let Some(problem) = &connection.problem {
            let name = connection.name.as_deref().unwrap_or("-");
            writeln!(out, "  {name}: {problem}")?;
        }
    }
    for (name, why) in refusals(connections, vms) {
        writeln!(out, "  {name}: hallwayd refused its guest: {why}")?;
    }
    Ok(())
}

/// The requests of guests that were refused: what to call the guest, and why.
pub fn refusals<'a>(connections: &'a [Connection], vms: &'a [Vm]) -> Vec<(String, &'a str)> {
    let refused = connections.iter().filter_map(|one| {
        let refusal = one.refusal.as_ref()?;
        let vm = vms.iter().find(|vm| vm.uuid == refusal.vm);
        let name = vm.map(|vm| vm.name.as_str()).or(one.name.as_deref());
        let name = name.unwrap_or("a VM");
        // Two may say that they are the same VM.
        let name = match one.pid {
            Some(pid) => format!("{name} (QEMU pid {pid})"),
            None => name.into(),
        };
        Some((name, refusal.why.as_str()))
    });
    refused.collect()
}

fn connection_row(connection: &Connection) -> Vec<String> {
    let unread = match connection.doorbells_pending {
        0 => String::new(),
        unread => format!(" (+{unread} unread by QEMU)"),
    };
    let throttled = if connection.throttled {
        " (too many: they wait)"
    } else {
        ""
    };
    vec![
        connection.pid.map_or("-".into(), |pid| pid.to_string()),
        connection.name.clone().unwrap_or("-".into()),
        or_dash(connection.regions.join(" ")),
        format!("{}{unread}", connection.doorbells),
        format!("{}{throttled}", connection.requests),
    ]
}

fn show_xen(xen: &Xen) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "\ndomains of Xen:")?;
    if let Some(problem) = &xen.problem {
        writeln!(out, "  as they were, since {problem}")?;
    }
    let mut table = Table::new(&["domain", "name", "uuid"]);
    for domain in &xen.domains {
        table.row(vec![
            domain.number.to_string(),
            domain.name.clone(),
            domain.uuid.clone(),
        ]);
    }
    table.print("  ")?;
    xen_pairs(xen).print("  ")
}

/// Each two domains of Xen, and whether they share memory.
pub fn xen_pairs(xen: &Xen) -> Table {
    let mut table = Table::new(&["pair", "memory"]);
    for pair in &xen.pairs {
        let names = pair.domains.map(|number| name_domain(xen, number));
        table.row(vec![names.join(" "), shared_memory(xen, pair)]);
    }
    table
}

/// The name of a domain, or its number where it has gone.
pub fn name_domain(xen: &Xen, number: u32) -> String {
    let domain = xen.domains.iter().find(|domain| domain.number == number);
    domain.map_or_else(|| number.to_string(), |domain| domain.name.clone())
}

fn shared_memory(xen: &Xen, pair: &DomainPair) -> String {
    if let Some(why) = &pair.refused {
        return format!("none: {why}");
    }
    let lacking = |having: &[u32]| {
        let domains = pair.domains.iter();
        let lacking = domains.filter(|number| !having.contains(number));
        let names: Vec<String> = lacking.map(|number| name_domain(xen, *number)).collect();
        (!names.is_empty()).then(|| names.join(" and "))
    };
    if let Some(names) = lacking(&pair.announced) {
        return format!("none: no module is loaded in {names}");
    }
    if let Some(names) = lacking(&pair.offering) {
        return format!("none: {names} offers none; its log says why");
    }
    "each offers the other a slice".into()
}

/// Shows the VMs of the configuration, and what they lack.
fn show_vms(vms: &[Vm]) -> io::Result<()> {
    if vms.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout();
    writeln!(out, "\nVMs of the configuration:")?;
    let mut table = Table::new(&["vm", "monitor", "plugged in", "lacks"]);
    for vm in vms {
        table.row(vm_row(vm));
    }
    table.print("  ")?;
    for vm in vms {
        if let Some(outsourcer) = &vm.outsourcer {
            let mut served = format!(
                "{} UDP sockets, {} published ports, ",
                outsourcer.datagrams, outsourcer.listeners
            );
            if outsourcer.closing > 0 {
                served = format!(
                    "{} closed ones that still send, {served}",
                    outsourcer.closing
                );
            }
            print_helper(&vm.name, "executes sockets for it", &served, outsourcer)?;
        }
        if let Some(end) = &vm.host_end {
            print_helper(&vm.name, "is the host's end of its tunnels", "", end)?;
        }
        for lacking in &vm.not_running {
            writeln!(out, "  {}: {lacking}", vm.name)?;
        }
        if vm.released {
            writeln!(out, "  {}: {RELEASED}", vm.name)?;
        }
        let of_plugs = vm.plugs.iter().filter_map(|plug| plug.problem.as_ref());
        for problem in vm.problem.iter().chain(of_plugs) {
            writeln!(out, "  {}: {problem}", vm.name)?;
        }
    }
    Ok(())
}

fn vm_row(vm: &Vm) -> Vec<String> {
    let monitor = match (&vm.monitor, vm.connected) {
        (None, _) => "-".into(),
        (Some(path), true) => path.display().to_string(),
        (Some(path), false) => format!("{} (no answer)", path.display()),
    };
    let regions = |plugged: bool| {
        let plugs = vm.plugs.iter().filter(|plug| plug.plugged == plugged);
        let names: Vec<&str> = plugs.map(|plug| plug.region.as_str()).collect();
        or_dash(names.join(" "))
    };
    vec![vm.name.clone(), monitor, regions(true), regions(false)]
}

fn print_helper(vm: &str, what: &str, served: &str, helper: &Helper) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(
        out,
        "  {vm}: pid {} {what}: {} connections, {served}{} sent, {} received",
        helper.pid,
        helper.sockets,
        bytes(helper.sent_bytes),
        bytes(helper.received_bytes)
    )?;
    for (cause, count) in &helper.refused {
        writeln!(out, "  {vm}: refused {count} times: {cause}")?;
    }
    if helper.delayed != 0 {
        writeln!(out, "  {vm}: delayed {} connections: rate", helper.delayed)?;
    }
    if helper.corrupt != 0 {
        writeln!(out, "  {vm}: broke the protocol {} times", helper.corrupt)?;
    }
    Ok(())
}
