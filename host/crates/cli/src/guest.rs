// SPDX-License-Identifier: Apache-2.0 OR MIT
//! In a guest: what the module shows, and its switch.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{bail, Context, Result};
use hallway_log::with_remedy;
use hallway_netlink::{Client, Connection, Direction, Error, Member, Module};
use serde::Serialize;

use crate::print_json;
use crate::table::{addresses, bytes, or_dash, Table};
use crate::xen::{self, Domain};

/// PCI vendor (Red Hat) and device number of ivshmem.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");

/// What to do in a guest that has neither device nor module.
pub const NO_DEVICE: &str =
    "it needs its doorbell first: hallway enable VM on the host, then shut \
                             the VM down and start it";

/// The module's socket; an error that says what to do if there is none.
pub fn client() -> Result<Client> {
    match Client::new() {
        Ok(client) => Ok(client),
        Err(Error::NotLoaded) => bail!("{}", not_loaded()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the module is loaded.
pub fn is_loaded() -> bool {
    Client::new().is_ok()
}

/// The ivshmem devices of this machine: their folders in sysfs.
pub fn devices() -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/bus/pci/devices");
    let paths = devices
        .into_iter()
        .flatten()
        .flatten()
        .map(|one| one.path());
    let is_ivshmem = |path: &PathBuf| {
        let is = |file: &str, value: &str| {
            fs::read_to_string(path.join(file)).is_ok_and(|v| v.trim() == value)
        };
        is("vendor", IVSHMEM.0) && is("device", IVSHMEM.1)
    };
    paths.filter(is_ivshmem).collect()
}

/// Whether this looks like a guest with Hallway: it has an ivshmem device, or is a domain of
/// Xen, which needs none.
pub fn is_guest() -> bool {
    !devices().is_empty() || xen::domain() == Some(Domain::Guest)
}

/// That the module is not loaded.
pub struct NotLoaded {
    /// What lacks.
    pub what: &'static str,
    /// What to do, and what may be in its way.
    pub remedy: String,
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

/// The message that the module is not loaded.
pub fn not_loaded() -> NotLoaded {
    let mut text = String::from("run modprobe hallway (until then connections are plain TCP)");
    if !is_guest() {
        text += &format!(
            "\nthis machine has no ivshmem device: on a host run hallway status; in a guest {NO_DEVICE}"
        );
    } else if devices().is_empty() {
        text += "\nthis domain of Xen has no device for which udev would load it: name hallway in \
                 /etc/modules-load.d/hallway.conf";
    }
    let release = read("/proc/sys/kernel/osrelease");
    let release = release.trim();
    if !read(&format!("/lib/modules/{release}/modules.dep")).contains("/hallway.ko") {
        text += &format!(
            "\nnone is installed for this kernel, {release}, and one of another kernel is refused \
             (Invalid module format): with dkms and the headers of {release} installed, run dkms \
             autoinstall, or make dkms in Hallway's sources"
        );
    }
    if let Some(cause) = demands_signature() {
        text += &format!(
            "\nthis kernel takes signed modules only ({cause}): have it trust the key that DKMS \
             signs with (mokutil --import /var/lib/dkms/mok.pub, reboot, and confirm it on the \
             console within 10 s), or turn {cause} off"
        );
    }
    NotLoaded {
        what: "module hallway is not loaded",
        remedy: text,
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What makes the kernel refuse a module without a signature.
fn demands_signature() -> Option<&'static str> {
    let lockdown = read("/sys/kernel/security/lockdown");
    if secure_boot() {
        Some("Secure Boot")
    } else if lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
        Some("lockdown")
    } else if read("/sys/module/module/parameters/sig_enforce").trim() == "Y" {
        Some("module.sig_enforce")
    } else {
        None
    }
}

fn secure_boot() -> bool {
    let variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    // Four bytes of attributes, then the value.
    fs::read(Path::new(variable)).is_ok_and(|bytes| bytes.get(4) == Some(&1))
}

#[derive(Serialize)]
struct Status {
    module: Module,
    members: Vec<Member>,
}

/// Prints the module's switch, the members and the counters that have counted.
pub fn status(json: bool) -> Result<()> {
    let mut client = client()?;
    let status = Status {
        module: client.get()?,
        members: client.members()?,
    };
    if json {
        return print_json(&status);
    }
    let Status {
        module,
        mut members,
    } = status;
    members.sort_by(|a, b| (&a.transport, a.slot).cmp(&(&b.transport, b.slot)));
    let word = |on| if on { "on" } else { "off" };
    let scope = match module.cgroups.len() {
        0 => String::new(),
        count => format!(" in {count} cgroups"),
    };
    let mut out = io::stdout();
    writeln!(
        out,
        "module hallway {}, switched {}, outsourcing {}{scope}\n",
        module.version,
        word(module.enabled),
        word(module.outsourcing)
    )?;
    if members.is_empty() {
        writeln!(
            out,
            "no members: this guest has not joined a region (see dmesg)"
        )?;
    } else {
        let heading = [
            "transport",
            "slot",
            "name",
            "gen",
            "cid",
            "addresses",
            "uuid",
        ];
        let mut table = Table::new(&heading);
        for member in &members {
            let role = match member {
                Member { is_self: true, .. } => " (this guest)",
                Member { is_host: true, .. } => " (host)",
                _ => "",
            };
            table.row(vec![
                member.transport.clone(),
                member.slot.to_string(),
                format!("{}{role}", member.name),
                member.generation.to_string(),
                member.cid.to_string(),
                addresses(&member.addresses),
                member.uuid.clone(),
            ]);
        }
        table.print("")?;
    }
    for (what, all) in [
        ("demoted", &module.demotions),
        ("left native", &module.natives),
    ] {
        let mut table = Table::new(&[what, "reason"]);
        for one in all {
            table.row(vec![one.count.to_string(), one.reason_name.into()]);
        }
        if !all.is_empty() {
            writeln!(out)?;
            table.print("")?;
        }
    }
    let counted: Vec<_> = module.counters.iter().filter(|c| c.value != 0).collect();
    if !counted.is_empty() {
        let mut table = Table::new(&["counter", "value"]);
        for counter in counted {
            table.row(vec![counter.name.clone(), counter.value.to_string()]);
        }
        writeln!(out)?;
        table.print("")?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Tunnels {
    loaded: bool,
    enabled: bool,
    vms: Vec<Member>,
}

/// There once their module is loaded.
const TUNNELS: &str = "/sys/module/hallway_vsock";
/// The switch of tunnels, a parameter of their module.
const TUNNELS_ENABLED: &str = "/sys/module/hallway_vsock/parameters/enabled";
const TUNNELS_UNLOADED: &str = "module hallway_vsock is not loaded: run modprobe hallway_vsock";

/// Switches tunnels on; or off, which resets those that are open.
pub fn switch_tunnels(on: bool) -> Result<()> {
    if !Path::new(TUNNELS).exists() {
        bail!("{TUNNELS_UNLOADED}");
    }
    if !Path::new(TUNNELS_ENABLED).exists() {
        bail!("module hallway_vsock has no switch: it is older than hallway; load the one of this release");
    }
    let value = if on { "1" } else { "0" };
    fs::write(TUNNELS_ENABLED, value)
        .map_err(with_remedy)
        .with_context(|| format!("switching tunnels, by {TUNNELS_ENABLED}"))?;
    let what = match on {
        true => "on",
        false => "off: those that were open are reset, and no VM is reached by AF_VSOCK",
    };
    writeln!(io::stdout(), "tunnels are {what}")?;
    Ok(())
}

/// Prints the VMs that tunnels reach, and their CIDs.
pub fn tunnels(json: bool) -> Result<()> {
    let mut vms = client()?.members()?;
    vms.retain(Member::is_vm);
    let loaded = Path::new(TUNNELS).exists();
    // An older module has no switch.
    let switch = fs::read_to_string(TUNNELS_ENABLED);
    let enabled = loaded && switch.map_or(true, |one| one.trim() == "Y");
    if json {
        return print_json(&Tunnels {
            loaded,
            enabled,
            vms,
        });
    }
    if !loaded {
        writeln!(
            io::stdout(),
            "{TUNNELS_UNLOADED} (until then no VM is reached by AF_VSOCK)"
        )?;
    } else if !enabled {
        writeln!(
            io::stdout(),
            "tunnels are off: run hallway tunnels on (until then no VM is reached by AF_VSOCK)"
        )?;
    }
    let mut table = Table::new(&["cid", "name", "tunnels", "transport"]);
    for vm in vms {
        let role = if vm.is_self { " (this guest)" } else { "" };
        table.row(vec![
            vm.cid.to_string(),
            format!("{}{role}", vm.name),
            vm.tunnels.to_string(),
            vm.transport,
        ]);
    }
    table.print("")?;
    Ok(())
}

/// Prints all counters.
pub fn counters(json: bool) -> Result<()> {
    let module = client()?.get()?;
    if json {
        let map: serde_json::Map<_, _> = module
            .counters
            .into_iter()
            .map(|c| (c.name, c.value.into()))
            .collect();
        return print_json(&map);
    }
    let mut table = Table::new(&["counter", "value"]);
    for counter in module.counters {
        table.row(vec![counter.name, counter.value.to_string()]);
    }
    table.print("")?;
    Ok(())
}

/// Prints the connections to members, and the sockets that the host executes.
pub fn connections(json: bool) -> Result<()> {
    let mut connections = client()?.connections()?;
    // The module lists them in the order of a hash.
    connections.sort_by_key(|one| {
        (
            one.netns,
            one.protocol,
            (one.local, one.local_port),
            (one.remote, one.remote_port),
        )
    });
    if json {
        return print_json(&connections);
    }
    if connections.is_empty() {
        writeln!(
            io::stdout(),
            "no connections to members, and none that the host executes"
        )?;
        return Ok(());
    }
    let heading = [
        "protocol", "local", "remote", "peer", "state", "sends", "receives", "reason",
    ];
    let mut table = Table::new(&heading);
    for connection in connections {
        table.row(row(&connection));
    }
    table.print("")?;
    Ok(())
}

fn row(connection: &Connection) -> Vec<String> {
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    let direction = |d: &Direction| {
        if connection.outsourced {
            return format!("host ({})", bytes(d.ring_bytes));
        }
        let Direction {
            via,
            tcp_bytes,
            ring_bytes,
            ..
        } = d;
        format!(
            "{via} (tcp {}, ring {})",
            bytes(*tcp_bytes),
            bytes(*ring_bytes)
        )
    };
    let reason = match connection.reason {
        0 => "-".into(),
        number => format!(
            "{number} {}: {}",
            connection.reason_name, connection.reason_text
        ),
    };
    vec![
        connection.protocol.into(),
        end(connection.local, connection.local_port),
        end(connection.remote, connection.remote_port),
        or_dash(connection.peer.clone()),
        connection.state.into(),
        direction(&connection.tx),
        direction(&connection.rx),
        reason,
    ]
}

/// Switches the module.
pub fn switch(on: bool) -> Result<()> {
    client()?.set_promotion(on)?;
    writeln!(
        io::stdout(),
        "hallway is {}",
        if on {
            "on"
        } else {
            "off: all connections go by plain TCP"
        }
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_not_loaded_has_a_remedy_apart() {
        let NotLoaded { what, remedy } = not_loaded();
        assert!(remedy.starts_with("run modprobe hallway ("), "{remedy}");
        let text = not_loaded().to_string();
        assert_eq!(text, format!("{what}: {remedy}"));
        assert!(text.starts_with("module hallway is not loaded: run modprobe"));
    }
}
