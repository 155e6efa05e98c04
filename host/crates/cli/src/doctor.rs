// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway doctor`: why nothing goes through rings, and what to do about each reason.

mod domains;
mod log;
mod reasons;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{bail, Result};
use hallway_control::{ask, Answer, Connection, Liveness, NotPermitted, Query, Region, Status, Vm};
use hallway_netlink::{Connection as Socket, Member, Module, OfReason};
use nix::unistd::geteuid;

use self::log::Complaint;
use self::reasons::{advise, Advice};
use crate::guest;
use crate::host::refusals;
use crate::xen::{self, Domain};

/// What to do where a look was not allowed: nothing is known then, and no other advice given.
const AS_ROOT: &str = "run hallway doctor as root: what it could not look at may be well";

/// A reason, and its remedy.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    what: String,
    remedy: String,
}

#[derive(Default)]
struct Findings {
    /// What there is something to do about.
    found: Vec<Finding>,
    /// What needs nothing, and why.
    notes: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(Finding {
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    fn note(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.notes.push(Finding {
            what: what.into(),
            remedy: why.into(),
        });
    }

    /// Prints them. An error if there is something to do: scripts see it by the exit code.
    fn report(self, good: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        for Finding { what, remedy } in self.found.iter().chain(&self.notes) {
            writeln!(out, "- {what}\n  {}", remedy.replace('\n', "\n  "))?;
        }
        match self.found.len() {
            0 if !self.notes.is_empty() => writeln!(out, "there is nothing to do")?,
            0 => writeln!(out, "{good}")?,
            1 => bail!("found one thing to look at"),
            count => bail!("found {count} things to look at"),
        }
        Ok(())
    }
}

/// Looks at a host.
pub fn host(run_dir: &Path) -> Result<()> {
    let mut found = Findings::default();
    let domain = xen::domain();
    match ask(run_dir, Query::Status) {
        Ok(Answer::Status(status)) => judge(&status, domain, &mut found),
        Ok(other) => return crate::host::refuse(other),
        Err(error) if error.is::<NotPermitted>() => found.add(error.to_string(), AS_ROOT),
        Err(error) => found.add(
            format!("hallwayd: {error:#}"),
            match domain {
                Some(Domain::Dom0) => domains::START,
                _ => "systemctl start hallwayd; journalctl -u hallwayd says why it ended",
            },
        ),
    }
    if confines() {
        look_for_denials(&mut found);
    }
    found.report("all is well, as far as the host can see: hallway doctor in a guest sees the rest")
}

fn judge(status: &Status, domain: Option<Domain>, found: &mut Findings) {
    let own = env!("CARGO_PKG_VERSION");
    if status.version != own {
        found.add(
            format!("hallwayd is {}, and hallway {own}", status.version),
            "systemctl restart hallwayd (no connection is lost), or install one release of both",
        );
    }
    if let Some(xen) = &status.xen {
        domains::judge(xen, found);
    } else if domain == Some(Domain::Dom0) {
        found.add("hallwayd serves no domain of Xen", domains::START);
    } else if status.vms.is_empty() && status.regions.is_empty() {
        found.add(
            "no VM is in any group",
            "hallway enable VM VM; without libvirt: hallway qemu-args, and /etc/hallway/hallwayd.toml",
        );
    }
    for vm in &status.vms {
        judge_vm(vm, status, found);
    }
    for one in &status.connections {
        judge_connection(one, found);
    }
    for (name, why) in refusals(&status.connections, &status.vms) {
        found.add(
            format!("{name}: hallwayd refused its guest: {why}"),
            "the text names what to change; the guest asks again by itself",
        );
    }
    for region in &status.regions {
        judge_region(region, found);
    }
}

fn judge_vm(vm: &Vm, status: &Status, found: &mut Findings) {
    judge_state(vm, status, found);
    if let Some(problem) = vm.cpus.as_ref().and_then(|cpus| cpus.problem.as_ref()) {
        found.add(
            format!("{}: CPUs: {problem}", vm.name),
            "docs/cpus.md says what the host and the guest need; hallway cpus shows more",
        );
    }
    for lacking in &vm.not_running {
        found.add(
            format!("{}: {lacking}", vm.name),
            "the text names what to change; journalctl -u hallwayd has more",
        );
    }
    for plug in &vm.plugs {
        if let Some(problem) = &plug.problem {
            found.add(
                format!("{}: region {}: {problem}", vm.name, plug.region),
                format!(
                    "the text names what to change; hallwayd tries again every 10 s, but \
                     what another took out is plugged in by hallway resume {}",
                    vm.name
                ),
            );
        }
    }
}

/// Judges whether a VM runs, and has or could have ring memory.
fn judge_state(vm: &Vm, status: &Status, found: &mut Findings) {
    let joined = |uuid: &str| {
        let of = |region: &Region| {
            let mut members = region.members.iter();
            members.any(|m| m.uuid == uuid && m.liveness != Liveness::Absent)
        };
        status.regions.iter().any(of)
    };
    if let Some(why) = vm.problem.as_ref().filter(|_| vm.off) {
        found.note(
            format!("{}: {why}", vm.name),
            format!("virsh start {} starts it, if it is to run", vm.name),
        );
    } else if let Some(problem) = &vm.problem {
        let remedy = match vm.monitor.as_deref() == Some(Path::new("libvirt")) {
            true => "look at libvirt (systemctl status libvirtd), or at the VM (virsh list --all)",
            false => "start its QEMU with the -qmp of hallway qemu-args; /run/hallway-vms belongs to QEMU's user",
        };
        found.add(format!("{}: {problem}", vm.name), remedy);
    } else if vm.connected
        && !status
            .connections
            .iter()
            .any(|one| has_asked(one, &vm.uuid))
    {
        found.add(
            format!(
                "{}: runs, and its guest has not asked for anything",
                vm.name
            ),
            "install hallway-guest in it (hallway doctor there says what it lacks); if the VM \
             was enabled while it ran, shut it down and start it, since a reboot adds no device",
        );
    } else if vm.released {
        found.add(
            format!("{}: its ring memory was released, and stays out", vm.name),
            format!(
                "hallway resume {}, once its snapshot is made or its migration has failed; a \
                 VM that was restored, or came here, gets it by itself",
                vm.name
            ),
        );
    } else if vm.connected && vm.plugs.is_empty() && !joined(&vm.uuid) {
        found.note(
            format!("{}: has no ring memory", vm.name),
            "VMs of a group with isolation = \"pair\" get it at their first traffic with each other",
        );
    }
}

fn judge_connection(one: &Connection, found: &mut Findings) {
    if let Some(problem) = &one.problem {
        let name = one.name.as_deref().unwrap_or("a QEMU");
        found.add(
            format!("{name}: {problem}"),
            "raise the limit of descriptors of its QEMU: LimitNOFILE of what starts it, or \
             max_files in /etc/libvirt/qemu.conf",
        );
    }
}

fn judge_region(region: &Region, found: &mut Findings) {
    let still = region.members.iter();
    for member in still.filter(|member| member.liveness == Liveness::Unresponsive) {
        found.add(
            format!("{} in region {} is unresponsive", member.name, region.name),
            "it is paused, hangs, or has no CPU: its connections go by TCP until it responds",
        );
    }
}

/// Whether the guest of a connection has asked for anything as the VM with this UUID.
fn has_asked(one: &Connection, uuid: &str) -> bool {
    let refused = one.refusal.as_ref().map(|refusal| refusal.vm.as_str());
    one.uuid.as_deref() == Some(uuid) || refused == Some(uuid)
}

/// Whether AppArmor is on.
fn confines() -> bool {
    std::fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text[..] == *b"Y\n")
}

fn look_for_denials(found: &mut Findings) {
    match log::last_denials() {
        Ok(_) if Path::new("/run/auditd.pid").exists() => found.note(
            "what AppArmor has denied is in auditd's log",
            "ausearch -m AVC -ts recent shows it; docs/install.md has rules for by-hand set-ups",
        ),
        Ok(paths) => judge_denials(&paths, found),
        Err(error) => found.note(
            format!("what AppArmor has denied is not known: the kernel's log: {error}"),
            "hallway doctor as root looks there, too",
        ),
    }
}

/// Judges what AppArmor denied: QEMU, and what started it, say no more than "Permission denied".
fn judge_denials(paths: &[String], found: &mut Findings) {
    for path in paths {
        found.add(
            format!("in the last 10 minutes AppArmor has denied {path} to a QEMU"),
            "unless that is mended: use hallway enable, which needs no rules, or add those of docs/install.md to \
             /etc/apparmor.d/local/abstractions/libvirt-qemu and start the VM again",
        );
    }
}

/// Says what another user than root is not shown: without an error, it looks as if it were well.
fn judge_user(is_root: bool, found: &mut Findings) {
    if !is_root {
        found.note(
            "not root: the kernel's log and other namespaces were not looked at",
            "hallway doctor as root looks there, too",
        );
    }
}

/// Looks at a guest.
pub fn guest() -> Result<()> {
    let mut found = Findings::default();
    let domain = xen::domain();
    judge_user(geteuid().is_root(), &mut found);
    let devices = find_devices();
    judge_devices(&devices, domain, &mut found);
    if domain.is_none() {
        judge_cpus(is_emulated(), find_places(), &mut found);
    }
    if guest::is_loaded() {
        let mut client = guest::client()?;
        let module = client.get()?;
        let members = client.members()?;
        judge_module(&module, &mut found);
        if members.is_empty() {
            judge_absence(&devices, domain, &mut found);
        } else {
            judge_members(&members, &mut found);
        }
        judge_sockets(&client.connections()?, &mut found);
        judge_natives(&module.natives, &mut found);
    } else {
        let lacking = guest::not_loaded();
        found.add(lacking.what, lacking.remedy);
    }
    found.report("all is well: connections to members go through rings")
}

/// A device of QEMU's shared memory, by its resources.
#[derive(Debug, Default, PartialEq, Eq)]
struct Device {
    address: String,
    /// Whether it is a doorbell, and no memory.
    is_doorbell: bool,
    /// Whether the module drives it. The module leaves what it can't use.
    is_bound: bool,
    /// Where its memory is, if the kernel has a place for it.
    memory: Option<u64>,
}

/// Reads the file `resource` of a device: start, end and flags of each BAR a line.
fn device(address: &str, resource: &str) -> Device {
    let bar = |number: usize| {
        let line = resource.lines().nth(number)?;
        let mut words = line.split_whitespace();
        let mut word = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (start, end, flags) = (word()?, word()?, word()?);
        (flags != 0).then_some((start, end))
    };
    Device {
        address: address.into(),
        is_doorbell: bar(1).is_some(),
        is_bound: false,
        memory: bar(2)
            .filter(|(start, _)| *start != 0)
            .map(|(start, _)| start),
    }
}

fn find_devices() -> Vec<Device> {
    let find = |folder: PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let resource = std::fs::read_to_string(folder.join("resource")).unwrap_or_default();
        let driver = std::fs::read_link(folder.join("driver")).unwrap_or_default();
        Device {
            is_bound: driver.ends_with("hallway"),
            ..device(&name, &resource)
        }
    };
    guest::devices().into_iter().map(find).collect()
}

/// Whether a guest is ready for ring memory, and has none yet.
fn is_ready(devices: &[Device]) -> bool {
    let mut doorbells = devices.iter().filter(|one| one.is_doorbell);
    doorbells.any(|one| one.is_bound) && devices.iter().all(|one| one.is_doorbell)
}

/// Whether a complaint of the module is still true, as the devices show it.
fn is_true(complaint: &Complaint, devices: &[Device]) -> bool {
    let has = |is_doorbell| {
        let mut all = devices.iter();
        all.any(|one| one.is_doorbell == is_doorbell && one.is_bound)
    };
    match &complaint.device {
        Some(address) => {
            let mut all = devices.iter();
            all.any(|one| one.address == *address && !one.is_bound)
        }
        None if complaint.text.starts_with("no doorbell in use") => !has(true),
        None if complaint.text.starts_with("no region in use") => !has(false),
        None => true,
    }
}

fn judge_devices(all: &[Device], domain: Option<Domain>, found: &mut Findings) {
    // Domains of Xen need none.
    if all.is_empty() && domain.is_none() {
        found.add(
            "this VM has no doorbell",
            "on the host: hallway enable VM, then shut it down and start it (a reboot is not enough)",
        );
    }
    for Device {
        address, memory, ..
    } in all.iter().filter(|one| !one.is_doorbell)
    {
        match memory {
            None => found.add(
                format!("{address}: no room for its memory (BAR 2: no space)"),
                "on q35 its root port needs a larger window: hallway enable VM on the host does \
                 that, or QEMU's -global pcie-root-port.pref64-reserve=512M; then start the VM again",
            ),
            Some(start) if *start < 1 << 32 => found.add(
                format!("{address}: its memory lies below 4 GiB, where the kernel maps it uncached"),
                "plug it in after boot: hallwayd does that for VMs with a monitor in its configuration",
            ),
            Some(_) => {}
        }
    }
}

/// Whether QEMU emulates this CPU, and no hypervisor runs it: its signature says so. The CPU's name
/// does not, since some models have the same name under both.
#[cfg(target_arch = "x86_64")]
fn is_emulated() -> bool {
    use std::arch::x86_64::__cpuid;

    const SIGNATURE: u32 = 0x4000_0000;
    const HYPERVISOR: u32 = 1 << 31;
    #[allow(unused_unsafe)] // safe since a later Rust
    // SAFETY: each x86-64 CPU has this instruction.
    let (features, signature) = unsafe { (__cpuid(1).ecx, __cpuid(SIGNATURE)) };
    let text = [signature.ebx, signature.ecx, signature.edx].map(u32::to_le_bytes);
    features & HYPERVISOR != 0 && text.as_flattened() == b"TCGTCGTCGTCG"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_emulated() -> bool {
    false
}

/// How many CPUs the machine has room for. Root alone may read the table, and some machines have
/// none: then what the kernel has found.
fn find_places() -> usize {
    match std::fs::read("/sys/firmware/acpi/tables/APIC") {
        Ok(madt) => count_places(&madt),
        Err(_) => std::fs::read_to_string("/sys/devices/system/cpu/possible")
            .map_or(0, |possible| if possible.trim() == "0" { 1 } else { 2 }),
    }
}

/// How many CPUs the machine has room for, by the interrupt controllers in ACPI's table of them
/// (MADT). The kernel's own number is smaller where its command line says so.
fn count_places(madt: &[u8]) -> usize {
    const ENTRIES: usize = 44; // where they begin
    let mut rest = madt.get(ENTRIES..).unwrap_or_default();
    let mut count = 0;
    while let [kind, length, ..] = *rest {
        // Local APIC, and local x2APIC. QEMU lists those of CPUs that may still come.
        count += usize::from(kind == 0 || kind == 9);
        rest = rest.get(usize::from(length).max(2)..).unwrap_or_default();
    }
    count
}

/// QEMU's emulation of one CPU has no memory barriers.
fn judge_cpus(is_emulated: bool, places: usize, found: &mut Findings) {
    if is_emulated && places == 1 {
        found.add(
            "the CPU is emulated, with room for one: QEMU then emits no memory barriers",
            "give QEMU -smp 1,maxcpus=2 (libvirt: <vcpu current='1'>2</vcpu>), or use KVM",
        );
    }
}

fn judge_module(module: &Module, found: &mut Findings) {
    let own = env!("CARGO_PKG_VERSION");
    if module.version != own {
        found.add(
            format!("the module is {}, and hallway {own}", module.version),
            "close tunnels, and: modprobe -r hallway_vsock hallway && modprobe hallway (connections \
             stay, except outsourced ones, which are reset)",
        );
    }
    if !module.enabled {
        found.add("it is switched off", "hallway on");
    }
}

/// Judges a guest without members.
fn judge_absence(devices: &[Device], domain: Option<Domain>, found: &mut Findings) {
    if domain.is_none() && is_ready(devices) {
        return found.note(
            "this guest has no ring memory yet",
            "hallwayd plugs it in at the first traffic with another VM of its group; where that \
             changes nothing, hallway doctor on the host says what this VM lacks",
        );
    }
    let complaints = log::last_complaints(|one| is_true(one, devices));
    judge_complaints(&complaints.unwrap_or_default(), domain, found);
}

/// Says what the module complained of in a guest without members.
fn judge_complaints(complaints: &[String], domain: Option<Domain>, found: &mut Findings) {
    let (what, elsewhere) = match domain {
        Some(_) => (
            "this domain shares memory with no other",
            "in dom0: hallway doctor says what each domain lacks",
        ),
        None => (
            "this guest has not joined a region",
            "on the host: hallway doctor says whether hallwayd runs, and what this VM lacks",
        ),
    };
    let said = complaints.iter();
    let mut lines: Vec<String> = said.map(|one| format!("the module says: {one}")).collect();
    lines.push(elsewhere.into());
    found.add(what, lines.join("\n"));
}

/// Judges the members of a guest that has some.
fn judge_members(members: &[Member], found: &mut Findings) {
    let is_other = |one: &Member| !one.is_self && one.is_vm() && !one.is_host_end();
    if !members.iter().any(is_other) {
        found.note(
            "there is no other VM in its regions",
            "enable another VM in the same group; VMs of pairs meet at their first traffic",
        );
    }
}

/// Counts the connections on TCP by their reasons.
fn judge_sockets(connections: &[Socket], found: &mut Findings) {
    let mut reasons: BTreeMap<u32, (usize, &Socket)> = BTreeMap::new();
    for one in connections
        .iter()
        .filter(|one| one.reason != 0 && !one.outsourced)
    {
        reasons.entry(one.reason).or_insert((0, one)).0 += 1;
    }
    for (count, one) in reasons.values() {
        let what = format!("{count} on TCP, {}: {}", one.reason_name, one.reason_text);
        match advise(one.reason_name) {
            Advice::Do(remedy) => found.add(what, remedy),
            Advice::Leave(why) => found.note(what, why),
        }
    }
}

/// Says why connections are not outsourced. They are past, and may be as the operator wants it:
/// no finding.
fn judge_natives(natives: &[OfReason], found: &mut Findings) {
    for one in natives {
        let (name, text) = (one.reason_name, one.reason_text);
        let (Advice::Do(advice) | Advice::Leave(advice)) = match name {
            "OFF" => Advice::Do("hallway outsource on"),
            _ => advise(name),
        };
        found.note(
            format!("{} not outsourced, {name}: {text}", one.count),
            advice,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    const BAR0: &str = "0x00000000fe800000 0x00000000fe8000ff 0x0000000000040200\n";

    fn memory(start: &str) -> Device {
        device(
            "0000:01:00.0",
            &format!("{BAR0}{NONE}{start} 0x000000ffffffffff 0x000000000014220c\n"),
        )
    }

    #[test]
    fn an_empty_configuration_differs_from_dom0_of_xen() {
        let dom0 = Some(Domain::Dom0);
        for (domain, xen, what) in [
            (None, None, "no VM is in any group"),
            (dom0, None, "hallwayd serves no domain of Xen"),
            (dom0, Some(Box::default()), "there are no two domains"),
        ] {
            let status = Status {
                version: env!("CARGO_PKG_VERSION").into(),
                abi: String::new(),
                pid: 1,
                uptime_seconds: 0,
                recovered_connections: 0,
                socket: "/run/hallway/hallwayd.sock".into(),
                regions: vec![],
                connections: vec![],
                vms: vec![],
                xen,
            };
            let mut found = Findings::default();
            judge(&status, domain, &mut found);
            assert_eq!(found.found.len(), 1, "{:?}", found.found);
            assert!(found.found[0].what.starts_with(what), "{:?}", found.found);
        }
    }

    /// A host with one VM, and nothing to do.
    fn healthy() -> serde_json::Value {
        serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "abi": "", "pid": 1, "uptime_seconds": 9,
            "recovered_vms": 0, "socket": "/run/hallway/hallwayd.sock",
            "regions": [{
                "name": "web", "uuid": "r", "file": null, "size": 1 << 26, "slots": 4,
                "slice_size": 1 << 23, "repairs": 0,
                "members": [{
                    "slot": 1, "host": false, "name": "web1", "uuid": "u", "generation": 1,
                    "liveness": "alive", "silent_seconds": 0, "addresses": [],
                    "tx_bytes": 0, "rx_bytes": 0, "channels": 0,
                }],
            }],
            "vms": [{
                "connection": 1, "pid": 2, "name": "web1", "uuid": "u", "regions": ["web"],
                "doorbells": 1, "doorbells_pending": 0, "requests": 1, "throttled": false,
                "problem": null,
            }],
            "machines": [{
                "name": "web1", "uuid": "u", "monitor": "/run/hallway-vms/web1.qmp",
                "connected": true, "problem": null,
                "plugs": [{"region": "web", "plugged": true, "problem": null}],
            }],
        })
    }

    #[test]
    fn each_problem_of_a_host_has_a_remedy() {
        let cpus = serde_json::json!({
            "mechanism": "park", "min": 1, "max": 2, "given": 1, "why": "", "since_seconds": 1,
            "online": 2, "weight": null, "senders": 0, "busy_percent": null,
            "waiting_percent": null, "problem": "its guest refuses",
        });
        for (place, value, what, remedy) in [
            (
                "/version",
                "0.0.1".into(),
                "hallwayd is 0.0.1",
                "restart hallwayd",
            ),
            (
                "/machines/0/problem",
                "no monitor".into(),
                "web1: no monitor",
                "-qmp",
            ),
            (
                "/vms/0/uuid",
                "another".into(),
                "has not asked",
                "install hallway-guest",
            ),
            (
                "/machines/0/released",
                true.into(),
                "was released",
                "hallway resume web1",
            ),
            (
                "/machines/0/cpus",
                cpus,
                "web1: CPUs: its guest refuses",
                "docs/cpus.md",
            ),
            (
                "/machines/0/not_running",
                serde_json::json!([{
                    "helper": "host end", "why": "no program", "next_try_seconds": 4,
                }]),
                "web1: its host end is configured, not running: no program (next try in 4 s)",
                "journalctl -u hallwayd",
            ),
            (
                "/machines/0/plugs/0/problem",
                "no slot".into(),
                "region web: no slot",
                "every 10 s",
            ),
            (
                "/vms/0/problem",
                "too many files".into(),
                "web1: too many files",
                "LimitNOFILE",
            ),
            (
                "/vms/0/refusal",
                serde_json::json!({"vm": "u", "why": "another VM has its UUID"}),
                "web1 (QEMU pid 2): hallwayd refused its guest: another VM has its UUID",
                "asks again by itself",
            ),
            (
                "/regions/0/members/0/liveness",
                "silent".into(),
                "is unresponsive",
                "paused",
            ),
        ] {
            let mut status = healthy();
            let (parent, name) = place.rsplit_once('/').unwrap();
            status.pointer_mut(parent).unwrap()[name] = value;
            let mut found = Findings::default();
            judge(&serde_json::from_value(status).unwrap(), None, &mut found);
            assert_eq!(found.found.len(), 1, "{place}: {:?}", found.found);
            let one = &found.found[0];
            assert!(one.what.contains(what), "{place}: {one:?}");
            assert!(one.remedy.contains(remedy), "{place}: {one:?}");
        }
        let mut found = Findings::default();
        judge(
            &serde_json::from_value(healthy()).unwrap(),
            None,
            &mut found,
        );
        assert!(found.found.is_empty() && found.notes.is_empty());
    }

    #[test]
    fn a_guest_that_is_refused_has_asked_for_something() {
        let mut status = healthy();
        status["vms"][0]["uuid"] = serde_json::Value::Null;
        status["vms"][0]["name"] = serde_json::Value::Null;
        status["vms"][0]["refusal"] = serde_json::json!({"vm": "u", "why": "another ABI"});
        let mut found = Findings::default();
        judge(&serde_json::from_value(status).unwrap(), None, &mut found);
        assert_eq!(found.found.len(), 1, "{:?}", found.found);
        assert!(found.found[0].what.ends_with("another ABI"));
    }

    #[test]
    fn a_vm_without_memory_is_a_note_and_libvirt_has_its_own_remedy() {
        let mut status = healthy();
        status["machines"][0]["plugs"] = serde_json::json!([]);
        status["regions"] = serde_json::json!([]);
        let mut found = Findings::default();
        judge(
            &serde_json::from_value(status.clone()).unwrap(),
            None,
            &mut found,
        );
        assert!(found.found.is_empty());
        assert!(found.notes[0].what.contains("has no ring memory"));

        status["machines"][0]["monitor"] = "libvirt".into();
        status["machines"][0]["problem"] = "libvirt has hung up".into();
        let mut found = Findings::default();
        judge(&serde_json::from_value(status).unwrap(), None, &mut found);
        assert!(found.found[0].remedy.contains("virsh list"));
    }

    #[test]
    fn devices_without_room_are_distinguished_from_others() {
        let doorbell = device("0000:00:05.0", &format!("{BAR0}{BAR0}{NONE}"));
        assert!(doorbell.is_doorbell);
        for (devices, domain, part) in [
            (vec![], None, Some("no doorbell")),
            (vec![], Some(Domain::Guest), None),
            (vec![doorbell], None, None),
            (vec![memory("0x0000000800000000")], None, None),
            (vec![memory("0x0000000000000000")], None, Some("no space")),
            (vec![memory("0x00000000c0000000")], None, Some("uncached")),
        ] {
            let mut found = Findings::default();
            judge_devices(&devices, domain, &mut found);
            assert_eq!(
                found.found.len(),
                usize::from(part.is_some()),
                "{devices:?}"
            );
            assert!(
                part.is_none_or(|part| found.found[0].what.contains(part)),
                "{:?}",
                found.found
            );
        }
    }

    #[test]
    fn places_for_cpus_are_counted_in_any_table() {
        let local_apic = [0, 8, 0, 0, 1, 0, 0, 0];
        let io_apic = [1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let table = [&[0; 44][..], &local_apic, &io_apic, &local_apic].concat();
        assert_eq!(count_places(&table), 2);
        assert_eq!(count_places(&table[..60]), 1);
        assert_eq!(count_places(&[]), 0);
        // Lengths that lead nowhere.
        assert_eq!(count_places(&[&[0; 44][..], &[1, 0, 0, 255]].concat()), 1);
    }

    #[test]
    fn one_emulated_cpu_and_another_version_have_remedies() {
        let judge_all = |is_emulated, places, module: &Module| {
            let mut found = Findings::default();
            judge_cpus(is_emulated, places, &mut found);
            judge_module(module, &mut found);
            found.found
        };
        let mut module = Module {
            version: env!("CARGO_PKG_VERSION").into(),
            enabled: true,
            ..Module::default()
        };
        assert!(judge_all(true, 2, &module).is_empty());
        assert!(judge_all(true, 0, &module).is_empty());
        assert!(judge_all(false, 1, &module).is_empty());
        module.version = "0.0.1".into();
        module.enabled = false;
        let found = judge_all(true, 1, &module);
        let parts = [
            ("room for one", "maxcpus=2"),
            ("the module is 0.0.1", "modprobe -r"),
            ("switched off", "hallway on"),
        ];
        assert_eq!(found.len(), parts.len(), "{found:?}");
        for (one, (what, remedy)) in found.iter().zip(parts) {
            assert!(
                one.what.contains(what) && one.remedy.contains(remedy),
                "{one:?}"
            );
        }
    }

    #[test]
    fn a_guest_without_members_says_what_the_module_complained_of() {
        let absent = String::from("hallwayd does not answer: start it, and this guest joins");
        for (domain, complaints, what, remedies) in [
            (
                None,
                vec![absent.clone()],
                "this guest has not joined a region",
                vec![absent.as_str(), "on the host: hallway doctor"],
            ),
            (
                Some(Domain::Guest),
                vec![],
                "this domain shares memory with no other",
                vec!["in dom0"],
            ),
        ] {
            let mut found = Findings::default();
            judge_complaints(&complaints, domain, &mut found);
            assert_eq!(found.found[0].what, what);
            for remedy in remedies {
                assert!(found.found[0].remedy.contains(remedy), "{:?}", found.found);
            }
        }
    }

    #[test]
    fn a_guest_without_memory_before_its_first_traffic_lacks_nothing() {
        let bound = |mut one: Device| {
            one.is_bound = true;
            one
        };
        let doorbell = || device("0000:00:05.0", &format!("{BAR0}{BAR0}{NONE}"));
        let unusable = || memory("0x0000000000000000");
        for (devices, finding) in [
            (vec![bound(doorbell())], false),
            (vec![doorbell()], true),
            (vec![bound(doorbell()), unusable()], true),
            (vec![], true),
        ] {
            let mut found = Findings::default();
            judge_absence(&devices, None, &mut found);
            assert_eq!(found.found.len(), usize::from(finding), "{devices:?}");
            assert_eq!(found.notes.len(), usize::from(!finding), "{devices:?}");
        }
        // A domain of Xen has no such device.
        let mut found = Findings::default();
        judge_absence(&[bound(doorbell())], Some(Domain::Guest), &mut found);
        assert!(found.found[0].what.contains("this domain"));
    }

    #[test]
    fn outsourcer_and_host_end_are_no_other_vm() {
        let own = Member {
            is_self: true,
            ..Member::default()
        };
        let outsourcer = Member {
            is_outsourcer: true,
            ..Member::default()
        };
        let host_end = Member {
            cid: hallway_abi::tunnel::CID_HOST,
            ..Member::default()
        };
        for (others, notes) in [
            (vec![], 1),
            (vec![outsourcer, host_end], 1),
            (vec![Member::default()], 0),
        ] {
            let members: Vec<Member> = [own.clone()].into_iter().chain(others).collect();
            let mut found = Findings::default();
            judge_members(&members, &mut found);
            assert_eq!(found.notes.len(), notes, "{members:?}");
        }
    }

    #[test]
    fn another_user_than_root_hears_what_was_not_looked_at() {
        for (is_root, count) in [(true, 0), (false, 1)] {
            let mut found = Findings::default();
            judge_user(is_root, &mut found);
            assert_eq!((found.found.len(), found.notes.len()), (0, count));
        }
    }

    #[test]
    fn complaints_end_with_what_they_are_about() {
        let record = |text: &str| log::parse(&format!("4,1,1,-;{text}\n")).unwrap();
        let doorbell = || device("0000:00:05.0", &format!("{BAR0}{BAR0}{NONE}"));
        let bound = |mut one: Device| {
            one.is_bound = true;
            one
        };
        let room = || memory("0x0000000800000000");
        let none = "hallway: ivshmem: no region in use: plug in ivshmem-plain";
        let no_doorbell = "hallway: ivshmem: no doorbell in use: start QEMU";
        let refused = "hallway: ivshmem: hallwayd 1.0 refused this VM";
        let uncached = "hallway 0000:01:00.0: hallway: BAR2 is mapped uncached";
        for (text, devices, expected) in [
            (none, vec![bound(doorbell()), room()], true),
            (none, vec![bound(doorbell()), bound(room())], false),
            (no_doorbell, vec![doorbell()], true),
            (no_doorbell, vec![bound(doorbell())], false),
            (uncached, vec![room()], true),
            (uncached, vec![bound(room())], false),
            (uncached, vec![doorbell()], false),
            (refused, vec![bound(room())], true),
        ] {
            let said = record(text);
            assert_eq!(is_true(&said, &devices), expected, "{text}: {devices:?}");
        }
    }

    #[test]
    fn what_passes_by_itself_is_no_finding() {
        let socket = |number: u32| {
            let (reason_name, text) = hallway_abi::reason::find(number).unwrap();
            let address = std::net::Ipv4Addr::LOCALHOST.into();
            let direction = hallway_netlink::Direction {
                via: "tcp",
                carrier: 0,
                tcp_bytes: 0,
                ring_bytes: 0,
            };
            Socket {
                protocol: "tcp",
                local: address,
                local_port: 1,
                remote: address,
                remote_port: 2,
                netns: 0,
                state: "ESTABLISHED",
                peer: "vm2".into(),
                outsourced: false,
                tx: direction.clone(),
                rx: direction,
                reason: number,
                reason_name,
                reason_text: text.into(),
            }
        };
        let (young, filtered) = (1, 28);
        let mut found = Findings::default();
        judge_sockets(&[young, filtered, young].map(socket), &mut found);
        let whats = |all: &[Finding]| all.iter().map(|one| one.what.clone()).collect::<Vec<_>>();
        assert_eq!(
            whats(&found.found),
            ["1 on TCP, FILTERED: packet filters must see its packets"]
        );
        assert_eq!(
            whats(&found.notes),
            ["2 on TCP, YOUNG: too new, and too few bytes so far, to earn a ring"]
        );
    }
}
