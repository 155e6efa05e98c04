// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway qemu-args`: what a QEMU that no libvirt runs needs for Hallway.

use std::path::Path;

use crate::options::Machine;

/// Ring memory for which a root port has room: twice the largest region that is usual.
const ROOM: &str = "512M";

/// Prints the words, a device a line, and what goes into hallwayd's configuration.
pub fn print(run_dir: &Path, name: &str, machine: Machine, ports: u32) {
    for line in words(run_dir, name, machine, ports) {
        println!("{line}");
    }
    let ids = (0..ports).map(|port| format!("\"hallway{port}\""));
    let ids = ids.collect::<Vec<_>>().join(", ");
    println!(
        "\n# In /etc/hallway/hallwayd.toml, with the VM's UUID in both places, and the group once:"
    );
    println!("#   [[group]]\n#   name = \"default\"\n#   isolation = \"pair\"\n");
    println!("#   [[vm]]\n#   name = \"{name}\"\n#   uuid = \"UUID\"\n#   groups = [\"default\"]");
    println!("#   monitor = \"/run/hallway-vms/{name}.qmp\"");
    if machine != Machine::Pc {
        println!("#   ports = [{ids}]");
    }
}

fn words(run_dir: &Path, name: &str, machine: Machine, ports: u32) -> Vec<String> {
    let socket = run_dir.join("hallwayd.sock");
    let mut words = vec!["-uuid UUID".to_string()];
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
