// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway enable` and `hallway disable`.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Error, Result};
use hallway_control::{ask, has_holder, is_vm_name, Answer, Query, Status, VM_NAMES};
use hallway_membership::parse_size;
use toml::Table;
use virt::connect::Connect;
use virt::error::ErrorNumber;
use virt::sys;

use crate::domain::{self, Enabled, Wanted};
use crate::group::{self, Content, Group, Vm};
use crate::monitor;
use crate::options::{Common, CONFIG_DIR};
use crate::step::within;

/// Room for ring memory at a root port: twice the largest region that is usual.
const ROOM: u64 = 512 << 20;
/// Root ports of a VM: as many as a guest takes regions.
const PORTS: u32 = 8;
/// Members of a shared region, the host included, if nothing else is said.
const SLOTS: u32 = 8;
/// Tables of a VM that an operator may add: they name memory for the outsourcer and the host end.
const HELPED: [&str; 2] = ["outsource", "tunnels"];
/// How long a guest may take to let its ring memory go.
const LET_GO: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(50);

/// Gives domains what Hallway needs, and puts them in a group. `shared`: size of the region that
/// they share; `slots`: number of its members; `ports`: of root ports.
pub fn enable(
    common: &Common,
    shared: Option<String>,
    slots: Option<u32>,
    ports: Option<u32>,
) -> Result<()> {
    let path = group::path(&common.config_dir, &common.group)?;
    // A hallwayd that does not run yet would not start with another name.
    if let Some(name) = common.vms.iter().find(|name| !is_vm_name(name)) {
        bail!("{name:?} is no name for a VM of hallwayd, {VM_NAMES}: use virsh domrename");
    }
    let _lock = group::lock(&common.config_dir, common.limit())?;
    let libvirt = Libvirt::connect(common.limit())?;
    let before = group::read(&path)?;
    let mut content = before.clone().unwrap_or_else(|| Content {
        group: vec![Group {
            name: common.group.clone(),
            isolation: if shared.is_some() { "shared" } else { "pair" }.into(),
            size: shared.clone(),
            slots: shared.is_some().then_some(slots.unwrap_or(SLOTS)),
            more: Table::new(),
        }],
        vm: Vec::new(),
        more: Table::new(),
    });
    if let Some(size) = &shared {
        if !has_region(&content, size, slots)? {
            bail!(
                "group {} is there with another region: name another --group",
                common.group
            );
        }
    }
    let status = status(&common.run_dir);
    match &status {
        Err(error) if has_holder(&common.run_dir) => bail!("VMs have ring memory, but {error:#}"),
        _ => {}
    }
    let socket = status.as_ref().map(|status| status.socket.clone());
    let socket = socket.unwrap_or_else(|_| common.run_dir.join("hallwayd.sock"));
    let mut changed = Vec::new();
    for name in &common.vms {
        let (domain, xml) = libvirt.find(name)?;
        refuse_other_group(&common.config_dir, &path, &domain.uuid)?;
        let at = content.vm.iter().position(|vm| vm.uuid == domain.uuid);
        let before = at.map(|at| content.vm.remove(at));
        let had = before.as_ref().map_or(0, |vm| vm.ports.len() as u32);
        let (mut groups, mut more) = before.map(|vm| (vm.groups, vm.more)).unwrap_or_default();
        if !groups.contains(&common.group) {
            groups.push(common.group.clone());
        }
        libvirt.free_name(&mut content.vm, name)?;
        let wanted = Wanted {
            socket: &socket,
            ports: ports.unwrap_or(if had > 0 { had } else { PORTS }),
            room: room(&content, &more)?,
        };
        let Enabled {
            xml: new,
            ports,
            cid,
        } = domain::enable(&xml, &wanted).with_context(|| format!("{name} cannot be enabled"))?;
        // Programs of the VM find this CID to be its own.
        if let Some(cid) = cid {
            more.entry("cid").or_insert(cid.into());
        }
        content.vm.push(Vm {
            name: name.clone(),
            uuid: domain.uuid.clone(),
            groups,
            monitor: "libvirt".into(),
            ports,
            more,
        });
        let is_new = !domain::is_enabled(&xml)?;
        changed.push((name, domain, new, is_new));
    }
    // hallwayd's check comes first: what it refuses leaves no domain changed.
    group::write(&path, &content)?;
    let uuids = content.vm.iter().map(|vm| vm.uuid.as_str());
    let taken = match status {
        Ok(_) => reload(&common.run_dir).and_then(|status| check_known(&status, uuids, &path)),
        Err(_) => check(&common.config_dir),
    };
    if let Err(error) = taken {
        let old = before.unwrap_or(Content {
            group: Vec::new(),
            vm: Vec::new(),
            more: Table::new(),
        });
        return Err(restore(&path, &old, error));
    }
    for (name, domain, xml, is_new) in changed {
        libvirt.define(name, xml)?;
        let next = match (is_new, domain.is_active) {
            (true, false) if domain.is_saved => {
                "it was saved without a doorbell, which it has once it was shut down and started"
            }
            (true, true) => {
                "it runs without a doorbell: shut it down and start it (a reboot is not enough)"
            }
            (false, true) => {
                "it was enabled before, and runs: what changed comes with its next start"
            }
            (true, false) => "ready for its next start",
            (false, false) => "it was enabled before: what changed comes with its next start",
        };
        say(&format!(
            "{name}: enabled in group {}; {next}",
            common.group
        ));
    }
    if let Err(error) = status {
        say(&format!(
            "hallwayd does not run yet: start it before the VMs, as QEMU ends where its socket is \
             missing ({error:#})"
        ));
    }
    Ok(())
}

/// Writes a file as it was before something failed, and returns why that did.
fn restore(path: &Path, before: &Content, error: Error) -> Error {
    match group::write(path, before) {
        Ok(()) => error,
        Err(lost) => error.context(format!("{} stays changed: {lost:#}", path.display())),
    }
}

/// Says what is done. A reader that has had enough does not keep the rest from being done.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Takes back what [`enable`] did. A VM stays in the file until its domain is as it was before, so
/// that the command can be given again after an error.
pub fn disable(common: &Common) -> Result<()> {
    let path = group::path(&common.config_dir, &common.group)?;
    let _lock = group::lock(&common.config_dir, common.limit())?;
    let libvirt = Libvirt::connect(common.limit())?;
    let refuse =
        |name: &str| refuse_found(&common.config_dir, &path, |vms| libvirt.find_in(vms, name));
    let Some(before) = group::read(&path)? else {
        common.vms.iter().try_for_each(|name| refuse(name))?;
        bail!("there is no group {} in {}", common.group, path.display());
    };
    let mut content = before.clone();
    let mut leaving = Vec::new();
    for name in &common.vms {
        let Some(at) = libvirt.find_in(&content.vm, name)? else {
            refuse(name)?;
            bail!("{name} is not in group {}", common.group);
        };
        let vm = &mut content.vm[at];
        vm.groups.clear();
        // Memory with these goes, too.
        for helped in HELPED {
            vm.more.remove(helped);
        }
        leaving.push(vm.clone());
    }
    let status = status(&common.run_dir);
    match &status {
        Ok(_) => {
            let taken = take_memory(common, &libvirt, &path, &content, &leaving);
            if let Err(error) = taken {
                let error = restore(&path, &before, error);
                // What failed before says more.
                let _ = reload(&common.run_dir);
                return Err(error);
            }
        }
        Err(error) if has_holder(&common.run_dir) => {
            if let Some(vm) = libvirt.find_active(&leaving)?.first() {
                bail!(
                    "{} runs, and only hallwayd takes its ring memory out: {error:#}",
                    vm.name
                );
            }
        }
        Err(_) => {}
    }
    let mut done = Vec::new();
    for vm in &leaving {
        let name = &vm.name;
        // A domain that was removed needs no change.
        let Some((domain, xml)) = libvirt.look_up_uuid(vm)? else {
            done.push((name, "; libvirt has no such domain"));
            continue;
        };
        libvirt.define(name, domain::disable(&xml)?)?;
        let next = match domain.is_active {
            true => "; it keeps its doorbell, of no use now, until it is shut down",
            false if domain.is_saved => {
                "; it was saved with a doorbell: start it while hallwayd runs, and shut it down"
            }
            false => "",
        };
        done.push((name, next));
    }
    let mut rest = content.clone();
    rest.vm
        .retain(|vm| !leaving.iter().any(|left| left.uuid == vm.uuid));
    group::write(&path, &rest)?;
    let taken = match &status {
        Ok(_) => reload(&common.run_dir).map(drop),
        Err(_) => check(&common.config_dir),
    };
    if let Err(error) = taken {
        // As when another file names the group: a hallwayd that starts later would end.
        let error = restore(&path, &content, error);
        if status.is_ok() || check(&common.config_dir).is_ok() {
            return Err(error.context(format!(
                "the VMs are disabled, and stay in {} without a group",
                path.display()
            )));
        }
        // hallwayd would not start in any case.
        group::write(&path, &rest)?;
    }
    for (name, next) in done {
        say(&format!("{name}: disabled{next}"));
    }
    Ok(())
}

/// Has hallwayd take the memory of VMs out, for which it needs their monitors: with this content
/// of the file, they are in no group.
fn take_memory(
    common: &Common,
    libvirt: &Libvirt,
    path: &Path,
    content: &Content,
    leaving: &[Vm],
) -> Result<()> {
    group::write(path, content)?;
    reload(&common.run_dir)?;
    for vm in libvirt.find_active(leaving)? {
        await_release(&common.run_dir, &vm.name)?;
    }
    Ok(())
}

/// What these commands want to know of a domain.
struct Domain {
    name: String,
    uuid: String,
    is_active: bool,
    /// Whether its next start goes on from an image, with the devices that this has.
    is_saved: bool,
}

/// libvirt, of which each step has a time limit.
struct Libvirt {
    connect: Arc<Connect>,
    limit: Duration,
}

impl Libvirt {
    fn connect(limit: Duration) -> Result<Self> {
        let connect = within(limit, "connecting with libvirt", monitor::connect)?;
        Ok(Self {
            connect: Arc::new(connect),
            limit,
        })
    }

    /// The domain with that name, and its XML as it is at its next start; nothing: there is none.
    fn look_up_name(&self, name: &str) -> Result<Option<(Domain, String)>> {
        let wanted = name.to_owned();
        self.look_up(name, move |connect| connect.lookup_domain_by_name(&wanted))
    }

    /// The domain that a VM of a file is, and its XML: it may have been renamed.
    fn look_up_uuid(&self, vm: &Vm) -> Result<Option<(Domain, String)>> {
        let uuid = vm.uuid.clone();
        self.look_up(&vm.name, move |connect| {
            connect.lookup_domain_by_uuid_string(&uuid)
        })
    }

    fn look_up(
        &self,
        name: &str,
        find: impl FnOnce(&Connect) -> Result<virt::domain::Domain, virt::error::Error> + Send + 'static,
    ) -> Result<Option<(Domain, String)>> {
        let connect = self.connect.clone();
        let look = move || {
            let domain = match find(&connect) {
                Err(error) if error.code() == ErrorNumber::NoDomain.into() => return Ok(None),
                other => other?,
            };
            if !domain.is_persistent()? {
                bail!("a transient domain, which libvirt forgets when it ends: define it first");
            }
            let flags = sys::VIR_DOMAIN_XML_INACTIVE | sys::VIR_DOMAIN_XML_SECURE;
            let xml = domain.xml_desc(flags)?;
            let domain = Domain {
                name: domain.name()?,
                uuid: domain.uuid_string()?,
                is_active: domain.is_active()?,
                is_saved: domain.has_managed_save(0)?,
            };
            Ok(Some((domain, xml)))
        };
        within(self.limit, &format!("looking up domain {name}"), look)
    }

    /// Those that run. Others have no ring memory, nor those that are not there.
    fn find_active<'a>(&self, vms: &'a [Vm]) -> Result<Vec<&'a Vm>> {
        let mut found = Vec::new();
        for vm in vms {
            if matches!(self.look_up_uuid(vm)?, Some((domain, _)) if domain.is_active) {
                found.push(vm);
            }
        }
        Ok(found)
    }

    fn find(&self, name: &str) -> Result<(Domain, String)> {
        let found = self.look_up_name(name)?;
        found.with_context(|| format!("libvirt has no domain {name}"))
    }

    /// Finds a VM by the name that its domain has now, or else by its name in the file. The name
    /// in the file does not count if it is now the name of another domain.
    fn find_in(&self, vms: &[Vm], name: &str) -> Result<Option<usize>> {
        let domain = self.look_up_name(name)?.map(|(domain, _)| domain);
        let is_it = |vm: &Vm| domain.as_ref().is_some_and(|domain| domain.uuid == vm.uuid);
        if let Some(at) = vms.iter().position(is_it) {
            return Ok(Some(at));
        }
        let Some(at) = vms.iter().position(|vm| vm.name == name) else {
            return Ok(None);
        };
        let is_another = domain.is_some() && self.look_up_uuid(&vms[at])?.is_some();
        Ok((!is_another).then_some(at))
    }

    /// Takes a name from the VM that had it before: its domain was renamed, or removed.
    fn free_name(&self, vms: &mut Vec<Vm>, name: &str) -> Result<()> {
        let Some(at) = vms.iter().position(|vm| vm.name == name) else {
            return Ok(());
        };
        match self.look_up_uuid(&vms[at])? {
            Some((domain, _)) => vms[at].name = domain.name,
            None => drop(vms.remove(at)),
        }
        Ok(())
    }

    fn define(&self, name: &str, xml: String) -> Result<()> {
        let connect = self.connect.clone();
        let define = move || Ok(connect.define_domain_xml(&xml).map(drop)?);
        within(self.limit, &format!("defining domain {name}"), define)
    }
}

/// Whether the group of a file has one region for all, of this size and with as many members.
fn has_region(content: &Content, size: &str, slots: Option<u32>) -> Result<bool> {
    let [group] = &content.group[..] else {
        return Ok(false);
    };
    let Some(other) = &group.size else {
        return Ok(false);
    };
    Ok(group.isolation == "shared"
        && bytes(other)? == bytes(size)?
        && (slots.is_none() || slots == group.slots))
}

/// Room for the largest ring memory that a VM may get, at least what is usual. `more`: what an
/// operator has added to it.
fn room(content: &Content, more: &Table) -> Result<u64> {
    let of_groups = content.group.iter().map(|group| group.size.as_deref());
    let of_helpers = HELPED.map(|name| more.get(name)?.get("memory")?.as_str());
    let mut room = ROOM;
    for size in of_groups.chain(of_helpers).flatten() {
        room = room.max(bytes(size)?.saturating_mul(2));
    }
    Ok(room)
}

fn bytes(size: &str) -> Result<u64> {
    parse_size(size).map_err(Error::msg)
}

/// Refuses a domain that is in a group with another file: hallwayd takes a VM once.
fn refuse_other_group(dir: &Path, own: &Path, uuid: &str) -> Result<()> {
    let find = |vms: &[Vm]| Ok(vms.iter().position(|vm| vm.uuid == uuid));
    refuse_found(dir, own, find)
}

/// An error that names the group of a VM, and the command that takes the VM out of it, where
/// `find` finds one in the file of another group than `own`.
fn refuse_found(
    dir: &Path,
    own: &Path,
    find: impl Fn(&[Vm]) -> Result<Option<usize>>,
) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path == own || path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        // What hallwayd says of one that is written otherwise says more.
        let Ok(Some(other)) = group::read(&path) else {
            continue;
        };
        if let Some(at) = find(&other.vm)? {
            let (name, group) = (&other.vm[at].name, path.file_stem().unwrap_or_default());
            let group = group.to_string_lossy();
            let place = match dir == Path::new(CONFIG_DIR) {
                true => String::new(),
                false => format!("--config-dir {} ", dir.display()),
            };
            bail!("{name} is in group {group}: hallway disable {place}--group {group} {name}");
        }
    }
    Ok(())
}

/// Has a hallwayd that ends at once check the configuration, where none runs.
fn check(config_dir: &Path) -> Result<()> {
    let config = config_dir.with_extension("toml");
    if !config.exists() {
        return Ok(());
    }
    let program = std::env::current_exe()?.with_file_name("hallwayd");
    let mut hallwayd = Command::new(&program);
    let hallwayd = hallwayd.arg("--check-config").arg("--config").arg(config);
    let ended = hallwayd.output();
    let ended = ended.with_context(|| program.display().to_string())?;
    if !ended.status.success() {
        bail!("{}", String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(())
}

fn status(run_dir: &Path) -> Result<Status> {
    match ask(run_dir, Query::Status)? {
        Answer::Status(status) => Ok(status),
        other => bail!("hallwayd answers {other:?}"),
    }
}

/// Refuses to go on where hallwayd reads other files than that of the group.
fn check_known<'a>(
    status: &Status,
    mut uuids: impl Iterator<Item = &'a str>,
    path: &Path,
) -> Result<()> {
    let is_known = |uuid: &str| status.vms.iter().any(|vm| vm.uuid == uuid);
    if !uuids.all(is_known) {
        bail!(
            "hallwayd does not read {}: give the directory beside its --config as --config-dir",
            path.display()
        );
    }
    Ok(())
}

/// Has hallwayd read its configuration, waits until it has, and returns its state then.
fn reload(run_dir: &Path) -> Result<Status> {
    let before = Instant::now();
    hallway_control::reload(run_dir)?;
    loop {
        match status(run_dir) {
            Ok(status) => return Ok(status),
            Err(error) if before.elapsed() > LET_GO => return Err(error),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Waits until a VM that runs has no ring memory, as its monitor says: before that answers,
/// a hallwayd that has read its configuration again does not know what the VM has.
fn await_release(run_dir: &Path, name: &str) -> Result<()> {
    let deadline = Instant::now() + LET_GO;
    loop {
        let status = status(run_dir)?;
        let Some(vm) = status.vms.iter().find(|vm| vm.name == name) else {
            return Ok(());
        };
        let held = vm.plugs.iter().find(|plug| plug.plugged);
        if vm.connected && held.is_none() {
            return Ok(());
        }
        if Instant::now() > deadline {
            match (held, &vm.problem) {
                (Some(held), _) if vm.connected => bail!(
                    "{name} does not let region {} go: shut it down, and try again",
                    held.region
                ),
                (_, why) => bail!(
                    "hallwayd has no monitor of {name} to take its memory out ({}): shut it down, \
                     and try again",
                    why.as_deref().unwrap_or("it does not answer")
                ),
            }
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_memory_that_a_vm_may_get_has_room() {
        let content = |size| {
            let text =
                format!("[[group]]\nname = \"web\"\nisolation = \"shared\"\nsize = {size:?}");
            toml::from_str::<Content>(&text).unwrap()
        };
        let none = Table::new();
        assert_eq!(room(&content("64M"), &none).unwrap(), ROOM);
        assert_eq!(room(&content("1G"), &none).unwrap(), 2 << 30);
        let helped: Table = "[tunnels]\nmemory = \"4G\"".parse().unwrap();
        assert_eq!(room(&content("1G"), &helped).unwrap(), 8 << 30);
        let said = room(&content("+64M"), &none).unwrap_err().to_string();
        assert!(said.contains("\"+64M\" is no size"), "{said}");
    }
}
