// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway qemu-args`: what a QEMU that no libvirt runs needs for Hallway.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{bail, Result};
use hallway_control::{is_vm_name, VM_NAMES};

use crate::options::Machine;

/// Ring memory for which a root port has room: twice the largest region that is usual.
const ROOM: &str = "512M";

/// What else these words need. Comments, so that a shell can read all of the output.
const BEFORE: &str = "
# Before QEMU starts: hallwayd runs, QEMU's user is in its group (--group: kvm with the package),
# and has a directory for the monitor, made at each boot:
#   echo \"d /run/hallway-vms 0700 QEMU_USER -\" >/etc/tmpfiles.d/hallway-vms.conf
#   systemd-tmpfiles --create hallway-vms.conf
# Without KVM (TCG) QEMU needs room for a second CPU: -smp 1,maxcpus=2

# In /etc/hallway/hallwayd.toml, with the VM's UUID in both places, and the group once; then
# systemctl reload hallwayd:
";

/// What other machines have by their firmware.
fn guest_words() -> String {
    format!(
        "
# This machine's firmware has no UUID, and prepares no hot-plug. On the guest's kernel command line:
#   hallway.uuid=UUID
#   pcie_ports=native
#   pci=hpmmioprefsize={ROOM}
# Without KVM it has no timer to measure the TSC by, either. The rate of the host's TSC in kHz, from
# its dmesg (tsc: Detected 2300.000 MHz):
#   tsc_early_khz=KHZ
"
    )
}

/// Prints the words, a device a line, and as comments what goes with them.
pub fn print(run_dir: &Path, name: &str, machine: Machine, ports: u32) -> Result<()> {
    if !is_vm_name(name) {
        bail!("{name:?} is no name for a VM of hallwayd: {VM_NAMES}");
    }
    let mut out = io::stdout().lock();
    for line in words(run_dir, name, machine, ports) {
        writeln!(out, "{line}")?;
    }
    if machine == Machine::Microvm {
        write!(out, "{}", guest_words())?;
    }
    write!(
        out,
        "{BEFORE}#   [[group]]\n#   name = \"default\"\n#   isolation = \"pair\"\n#\n#   [[vm]]\n\
         #   name = \"{name}\"\n#   uuid = \"UUID\"\n#   groups = [\"default\"]\n\
         #   monitor = \"/run/hallway-vms/{name}.qmp\"\n"
    )?;
    if machine != Machine::Pc {
        let ids = (0..ports).map(|port| format!("\"hallway{port}\""));
        let ids = ids.collect::<Vec<_>>().join(", ");
        writeln!(out, "#   ports = [{ids}]")?;
    }
    Ok(())
}

fn words(run_dir: &Path, name: &str, machine: Machine, ports: u32) -> Vec<String> {
    let socket = run_dir.join("hallwayd.sock");
    let machine_word = match machine {
        Machine::Pc => "pc",
        Machine::Q35 => "q35",
        Machine::Microvm => "microvm,pcie=on",
    };
    // Of two such words QEMU takes the machine of the last, and the properties of both.
    let mut words = vec![format!("-machine {machine_word}"), "-uuid UUID".into()];
    if machine != Machine::Pc {
        // A root port each: the bus beneath has no hot-plug of its own.
        words.extend((0..ports).map(|port| {
            format!(
                "-device pcie-root-port,id=hallway{port},chassis={},pref64-reserve={ROOM}",
                port + 100
            )
        }));
    }
    words.push(format!("-chardev socket,id=hd,path={}", socket.display()));
    words.push("-device ivshmem-doorbell,chardev=hd,vectors=1,master=on".into());
    words.push(format!(
        "-qmp unix:/run/hallway-vms/{name}.qmp,server=on,wait=off"
    ));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_machines_with_root_ports_get_some() {
        for (machine, ports) in [(Machine::Pc, 0), (Machine::Q35, 2), (Machine::Microvm, 2)] {
            let words = words(Path::new("/run/hallway"), "web1", machine, 2);
            let found = words.iter().filter(|word| word.contains("pcie-root-port"));
            assert_eq!(found.count(), ports);
        }
    }
}
