// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What to do about each reason of `spec/netlink.yaml` for which a connection is on TCP, or is
//! not outsourced.

/// What an operator does about a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// There is something to do: the remedy.
    Do(&'static str),
    /// Nothing: how it passes by itself, or why it is as it should be.
    Leave(&'static str),
}

use Advice::{Do, Leave};

/// Every reason, in the order of their numbers.
#[rustfmt::skip]
const ADVICE: &[(&str, Advice)] = &[
    ("NONE", Leave("nothing prevents a ring")),
    ("YOUNG", Leave("it gets a ring once it has moved 16 KiB or been in use for 10 ms, if the module's promote_bytes and promote_ms are the default")),
    ("OFFERED", Leave("it passes with the peer's answer")),
    ("NO_MATCH", Do("NAT or a proxy lies between: connect to the address that the other VM has itself")),
    ("NO_MEMORY", Do("make the group's region larger, or its slots fewer (docs/faq.md says how, while VMs use it); between domains of Xen load the module with a larger xen_slice")),
    ("NO_ENDPOINT", Do("the peer has as many connections as a member can have: spread them over VMs")),
    ("BUSY", Leave("it passes once that call returns, or the earlier ring is drained")),
    ("FOREIGN", Leave("it passes if the kernel user reads by calls of the socket, as NFS does; any other needs TCP")),
    ("UNACCEPTED", Leave("it passes once its program calls accept()")),
    ("STATE", Leave("it is being opened or closed: later connections get rings")),
    ("OFF", Do("hallway on, in the guest that is switched off: this one, or the peer's")),
    ("UNLOAD", Do("modprobe hallway, in the guest in which the module was unloaded")),
    ("PEER_LEFT", Do("if the peer's VM runs, run hallway doctor in it: it says what it lacks to join again")),
    ("REGION_GONE", Do("on the host: hallway status says which regions hallwayd plugs in; hallway resume plugs in what a VM released")),
    ("ULP", Do("turn kTLS off in the program: TLS of its own library goes through rings")),
    ("SOCKMAP", Do("take the connection out of the sockmap of that BPF program, such as a service mesh's")),
    ("REPAIR", Leave("the connection goes on over TCP after the checkpoint; later connections get rings")),
    ("ADDRFORM", Leave("the connection goes on as one of IPv4; later connections get rings")),
    ("ZEROCOPY", Do("turn zero-copy off in the program: rings need none")),
    ("URGENT", Do("turn urgent data (MSG_OOB) off in the program, if it can do without")),
    ("SECURED", Do("IPsec, TCP MD5 or AO protect its packets: leave them out between VMs of one host")),
    ("CORRUPT", Do("the peer broke the protocol: look at dmesg in both, and whether you trust it")),
    ("TIMEOUT", Do("look at the peer's VM: it is paused, hangs, or has no CPU")),
    ("CLOSED", Leave("the connection ends: later ones get rings")),
    ("KIND", Do("install one release of hallway-guest in both VMs")),
    ("UNRESPONSIVE", Do("look at the peer's VM: it is paused, hangs, or has no CPU")),
    ("TIMESTAMP", Do("turn SO_TIMESTAMP and SO_TIMESTAMPING off in the program: bytes in rings have no packets")),
    ("IDLE", Leave("it gets a ring again when it is used")),
    ("FILTERED", Do("packet rules in the guest see its packets: remove them, or: echo N >/sys/module/hallway/parameters/honour_filters")),
    ("SMALL", Do("echo 16777216 >/sys/module/hallway/parameters/ring_bytes_max, or have the program wait for fewer bytes (SO_RCVLOWAT)")),
    ("SUSPENDED", Leave("it passes once the machine goes on")),
    ("NAMESPACE", Leave("containers with a network of their own use that: --net=host shares the VM's")),
    ("SCOPE", Leave("hallway outsource on --cgroup names all its cgroups, hallway outsource on is for all programs")),
    ("LOCAL", Leave("the host has other addresses of its own there")),
    ("MEMBER", Leave("such connections get rings between the VMs")),
    ("BOUND", Do("have the program call connect() without bind(): the host chooses the address (source in hallwayd's configuration)")),
    ("OPTION", Do("leave the option out, if the program can do without: docs/outsourcing.md names them")),
    ("REFUSED", Do("on the host: hallway status says which rule is against it, and connect in [vm.outsource] allows it")),
    ("NO_OUTSOURCER", Do("on the host: hallway status says whether this VM has an outsourcer")),
];

/// A module that is newer knows more reasons.
const UNKNOWN: Advice =
    Do("install one release of module and hallway: this hallway does not know the reason");

/// What to do about a reason, by its name.
pub fn advise(reason: &str) -> Advice {
    let mut known = ADVICE.iter();
    let row = known.find(|(name, _)| *name == reason);
    row.map_or(UNKNOWN, |(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use hallway_abi::reason::REASONS;

    use super::*;

    /// One more or another name in spec/netlink.yaml needs a row here.
    #[test]
    fn each_reason_has_one_row_and_each_row_a_reason() {
        let reasons: Vec<&str> = REASONS.iter().map(|(name, _)| *name).collect();
        let rows: Vec<&str> = ADVICE.iter().map(|(name, _)| *name).collect();
        assert_eq!(rows, reasons);
        for (name, _) in REASONS {
            assert_ne!(advise(name), UNKNOWN, "{name}");
        }
        assert_eq!(advise("UNKNOWN"), UNKNOWN);
    }

    #[test]
    fn a_parameter_that_can_be_written_needs_no_other_load() {
        const FILTERS: &str = include_str!("../../../../../kmod/switch/filters.c");
        const BUDGET: &str = include_str!("../../../../../kmod/switch/budget.c");
        for (reason, name, source) in [
            ("FILTERED", "honour_filters", FILTERS),
            ("SMALL", "ring_bytes_max", BUDGET),
        ] {
            let Advice::Do(remedy) = advise(reason) else {
                panic!("{reason} has no remedy");
            };
            let path = format!(">/sys/module/hallway/parameters/{name}");
            assert!(remedy.contains(&path), "{remedy}");
            let mut lines = source.lines();
            let is_it = |line: &&str| line.starts_with("module_param") && line.contains(name);
            assert!(lines.find(is_it).unwrap().contains("0644"), "{name}");
        }
    }
}
