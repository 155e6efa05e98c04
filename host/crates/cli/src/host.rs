// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On the host: what hallwayd tells.

use std::io::Write;
use std::path::Path;

use anyhow::{bail, Result};
use hallway_control::{ask, Answer, Liveness, Query, Status};

use crate::print_json;
use crate::table::{addresses, bytes, Table};

pub fn status(run_dir: &Path, json: bool) -> Result<()> {
    let status = match ask(run_dir, Query::Status)? {
        Answer::Status(status) => status,
        Answer::Error { message } => bail!("hallwayd: {message}"),
        Answer::Stopping | Answer::Migration(_) => bail!("hallwayd answers something else"),
    };
    if json {
        return print_json(&status);
    }
    show(&status)
}

fn show(status: &Status) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "hallwayd {} (ABI {}), pid {}, up {} s, QEMU connects to {}",
        status.version,
        status.abi,
        status.pid,
        status.uptime_seconds,
        status.socket.display()
    )?;
    for region in &status.regions {
        writeln!(
            out,
            "\nregion {}  {}  {}, {} slots of {}  {}",
            region.name,
            region.uuid,
            bytes(region.size),
            region.slots,
            bytes(region.slice_size),
            region.file.display()
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
            let state = match member.liveness {
                Liveness::Alive => "alive".into(),
                Liveness::Joining => "joining".into(),
                Liveness::Absent => "absent".into(),
                Liveness::Silent => {
                    format!("silent for {} s", member.silent_seconds.unwrap_or_default())
                }
            };
            let host = if member.host { " (host)" } else { "" };
            table.row(vec![
                member.slot.to_string(),
                format!("{}{host}", member.name),
                state,
                member.generation.to_string(),
                member.channels.to_string(),
                bytes(member.tx_bytes),
                bytes(member.rx_bytes),
                addresses(&member.addresses),
                member.uuid.clone(),
            ]);
        }
        table.print("  ")?;
    }
    show_machines(status)?;
    writeln!(out)?;
    if status.vms.is_empty() {
        writeln!(out, "no VM is connected")?;
        return Ok(());
    }
    writeln!(out, "QEMUs connected, each by its pid:")?;
    let heading = ["pid", "guest", "regions", "peers", "requests"];
    let mut table = Table::new(&heading);
    for vm in &status.vms {
        let mut doorbells = vm.doorbells.to_string();
        if vm.doorbells_pending > 0 {
            doorbells += &format!(" (+{} unread by QEMU)", vm.doorbells_pending);
        }
        let throttled = if vm.throttled {
            " (too many: they wait)"
        } else {
            ""
        };
        table.row(vec![
            vm.pid.map_or("-".into(), |pid| pid.to_string()),
            vm.name.clone().unwrap_or("-".into()),
            if vm.regions.is_empty() {
                "-".into()
            } else {
                vm.regions.join(" ")
            },
            doorbells,
            format!("{}{throttled}", vm.requests),
        ]);
    }
    table.print("  ")?;
    Ok(())
}

/// The VMs of the configuration, and what they lack.
fn show_machines(status: &Status) -> Result<()> {
    if status.machines.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stdout();
    writeln!(out, "\nVMs of the configuration:")?;
    let mut table = Table::new(&["vm", "monitor", "plugged in", "lacks"]);
    for machine in &status.machines {
        let monitor = match (&machine.monitor, machine.connected) {
            (None, _) => "-".into(),
            (Some(path), true) => path.display().to_string(),
            (Some(path), false) => format!("{} (no answer)", path.display()),
        };
        let of = |plugged: bool| {
            let plugs = machine.plugs.iter().filter(|plug| plug.plugged == plugged);
            let names: Vec<&str> = plugs.map(|plug| plug.region.as_str()).collect();
            if names.is_empty() {
                "-".to_string()
            } else {
                names.join(" ")
            }
        };
        table.row(vec![machine.name.clone(), monitor, of(true), of(false)]);
    }
    table.print("  ")?;
    for machine in &status.machines {
        let problems = machine
            .plugs
            .iter()
            .filter_map(|plug| plug.problem.as_ref());
        for problem in machine.problem.iter().chain(problems) {
            writeln!(out, "  {}: {problem}", machine.name)?;
        }
    }
    Ok(())
}
