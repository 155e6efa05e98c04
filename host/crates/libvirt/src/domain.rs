// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the XML of a domain needs for Hallway, put in and taken out.
//!
//! Text is inserted and removed; all else stays as it is. What is ours has an alias that
//! begins with [`ALIAS`]:
//!
//! - the doorbell, with `master=on`, without which QEMU would not migrate, and the role
//!   without which libvirt would not. On a machine with PCI Express it has a slot of the root
//!   complex: without one, libvirt adds a bridge and a port for it, which nothing takes out again;
//! - on a machine with PCI Express some root ports, each with room for ring memory: the
//!   guest's firmware gives a port no more than it asks for.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

use anyhow::{anyhow, bail, Context, Result};
use hallway_abi::tunnel::CID_FIRST;
use roxmltree::{Document, Node};

/// What aliases of ours begin with; libvirt demands the first part.
pub const ALIAS: &str = "ua-hallway";
/// libvirt's namespace for words of QEMU.
const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// The slot of q35's own devices.
const CHIPSET: u32 = 0x1f;

/// What a domain is to get.
pub struct Wanted<'a> {
    /// Path of the socket at which hallwayd serves doorbells.
    pub socket: &'a Path,
    /// Number of root ports, where the machine has such.
    pub ports: u32,
    /// Bytes of ring memory for which each port has room.
    pub room: u64,
}

/// A domain's XML with Hallway.
#[derive(Debug)]
pub struct Enabled {
    /// The XML.
    pub xml: String,
    /// Ids of the root ports for ring memory; none on a machine without root ports.
    pub ports: Vec<String>,
    /// The CID of its virtio-vsock, if it is the same at each start.
    pub cid: Option<u32>,
}

/// Puts in what a domain needs. What an earlier call put in is replaced.
pub fn enable(xml: &str, wanted: &Wanted) -> Result<Enabled> {
    let mut xml = disable(xml)?;
    let document = parse(&xml)?;
    let domain = document.root_element();
    check(&domain)?;
    let devices = child(&domain, "devices").context("the domain has no devices")?;
    let has_ports = has_root_ports(&devices)?;
    let count = if has_ports { wanted.ports } else { 0 };
    let ports: Vec<_> = (0..count).map(|at| format!("{ALIAS}-port{at}")).collect();
    let slot = find_slot(&domain, &devices).filter(|_| has_ports);
    let place = slot.map_or(String::new(), |slot| {
        format!("\n      <address type='pci' bus='0x00' slot='{slot:#04x}' function='0x0'/>")
    });

    let mut added = format!(
        "  <shmem name='hallway' role='master'>\n      <model type='ivshmem-doorbell'/>\n      \
         <server path='{}'/>\n      <msi vectors='1'/>\n      <alias name='{ALIAS}'/>{place}\n    \
         </shmem>\n  ",
        wanted.socket.display()
    );
    let mut properties = property(ALIAS, "master", "string", "on");
    for port in &ports {
        write!(
            added,
            "  <controller type='pci' model='pcie-root-port'>\n      <alias name='{port}'/>\n    \
             </controller>\n  "
        )?;
        let room = wanted.room.to_string();
        properties += &property(port, "pref64-reserve", "unsigned", &room);
    }
    let cid = find_cid(&devices);
    let close = |node: &Node| node.range().end - format!("</{}>", name(node, &xml)).len();
    let mut inserts = vec![(close(&devices), added)];
    match child_of(&domain, NAMESPACE, "override") {
        Some(found) => inserts.push((close(&found), properties)),
        None => {
            let prefix = domain.lookup_prefix(NAMESPACE);
            if prefix.is_none() {
                let at = domain.range().start + "<domain".len();
                inserts.push((at, format!(" xmlns:qemu='{NAMESPACE}'")));
            }
            if prefix.is_some_and(|prefix| prefix != "qemu") {
                bail!("its XML has another prefix than qemu for {NAMESPACE}: rename it");
            }
            let text = format!("  <qemu:override>\n{properties}  </qemu:override>\n");
            inserts.push((close(&domain), text));
        }
    }
    inserts.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    drop(document);
    for (at, text) in inserts {
        xml.insert_str(at, &text);
    }
    Ok(Enabled { xml, ports, cid })
}

fn find_cid(devices: &Node) -> Option<u32> {
    let cid = child(&child(devices, "vsock")?, "cid")?;
    let is_fixed = cid.attribute("auto") != Some("yes");
    let number = is_fixed.then(|| cid.attribute("address")?.parse().ok())??;
    // Those from there on are for VMs that have none, as hallwayd gives them.
    (number < CID_FIRST).then_some(number)
}

/// Takes out what [`enable`] put in.
pub fn disable(xml: &str) -> Result<String> {
    let document = parse(xml)?;
    let domain = document.root_element();
    let is_ours = |alias: Option<&str>| alias.is_some_and(|alias| alias.starts_with(ALIAS));
    let devices = child(&domain, "devices");
    let devices = devices.iter().flat_map(Node::children);
    let mut gone: Vec<Range<usize>> = devices
        .filter(|device| is_ours(child(device, "alias").and_then(|alias| alias.attribute("name"))))
        .map(|device| device.range())
        .collect();
    if let Some(found) = child_of(&domain, NAMESPACE, "override") {
        let (ours, others): (Vec<_>, Vec<_>) = found
            .children()
            .filter(Node::is_element)
            .partition(|device| is_ours(device.attribute("alias")));
        match others.is_empty() && !ours.is_empty() {
            true => gone.push(found.range()),
            false => gone.extend(ours.iter().map(Node::range)),
        }
    }
    gone.sort_by_key(|range| std::cmp::Reverse(range.start));
    let mut text = xml.to_string();
    for range in gone {
        // With the space before it: the line is gone, then.
        let start = text[..range.start].trim_end_matches([' ', '\n']).len();
        text.replace_range(start..range.end, "");
    }
    Ok(text)
}

/// Whether [`enable`] put something in.
pub fn is_enabled(xml: &str) -> Result<bool> {
    Ok(disable(xml)? != xml)
}

fn parse(xml: &str) -> Result<Document<'_>> {
    Document::parse(xml).map_err(|error| anyhow!("libvirt's XML cannot be read: {error}"))
}

fn property(alias: &str, name: &str, kind: &str, value: &str) -> String {
    format!(
        "    <qemu:device alias='{alias}'>\n      <qemu:frontend>\n        <qemu:property \
         name='{name}' type='{kind}' value='{value}'/>\n      </qemu:frontend>\n    \
         </qemu:device>\n"
    )
}

/// The name of a node, as its text has it.
fn name<'a>(node: &Node, xml: &'a str) -> &'a str {
    let text = &xml[node.range().start + 1..];
    let end = text.find([' ', '>', '\n', '/']).unwrap_or(text.len());
    &text[..end]
}

fn child<'a, 'i>(node: &Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn child_of<'a, 'i>(node: &Node<'a, 'i>, namespace: &str, name: &str) -> Option<Node<'a, 'i>> {
    let mut children = node.children();
    children.find(|child| child.has_tag_name((namespace, name)))
}

/// Whether ring memory takes root ports in this machine.
fn has_root_ports(devices: &Node) -> Result<bool> {
    let roots = devices
        .children()
        .filter(|one| one.has_tag_name("controller"));
    let mut models = roots.filter_map(|one| one.attribute("model"));
    match models.find(|model| ["pcie-root", "pci-root"].contains(model)) {
        Some(model) => Ok(model == "pcie-root"),
        None => bail!("its machine has no PCI bus, and ring memory is a PCI device"),
    }
}

/// A slot of the first bus that no device has. libvirt places its own from the other end.
fn find_slot(domain: &Node, devices: &Node) -> Option<u32> {
    let hexadecimal = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let number = |node: &Node, name| hexadecimal(node.attribute(name).unwrap_or("0x0"));
    let places = devices.descendants().filter(|node| {
        node.has_tag_name("address")
            && node.attribute("type") == Some("pci")
            && number(node, "domain") == Some(0)
            && number(node, "bus") == Some(0)
    });
    let mut used: Vec<_> = places.filter_map(|node| number(&node, "slot")).collect();
    // Devices that the XML has as words for QEMU, `addr=SLOT[.FUNCTION]`, on whatever bus.
    let words = domain
        .descendants()
        .filter(|node| node.has_tag_name((NAMESPACE, "arg")));
    let words = words.filter_map(|node| node.attribute("value"));
    let addresses = words
        .flat_map(|word| word.split(','))
        .filter_map(|one| one.strip_prefix("addr="));
    used.extend(addresses.filter_map(|address| hexadecimal(address.split('.').next()?)));
    (1..CHIPSET).rev().find(|slot| !used.contains(slot))
}

/// Refuses domains for which Hallway cannot work.
fn check(domain: &Node) -> Result<()> {
    let kind = domain.attribute("type").unwrap_or_default();
    if !["kvm", "qemu"].contains(&kind) {
        bail!("it is a domain of type {kind}, and Hallway needs QEMU");
    }
    let os = child(domain, "os").and_then(|os| child(&os, "type"));
    let arch = os.and_then(|os| os.attribute("arch")).unwrap_or("x86_64");
    if arch != "x86_64" {
        bail!("it is a machine for {arch}, and guests are x86-64");
    }
    let cpus = child(domain, "vcpu").and_then(|vcpu| vcpu.text());
    if kind == "qemu" && cpus.is_none_or(|cpus| cpus.trim() == "1") {
        bail!(
            "QEMU emulates its one CPU, and emits no memory barriers then: make room for a \
             second one in its XML, <vcpu current='1'>2</vcpu>"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PC: &str = "<domain type='kvm'>\n  <name>a</name>\n  <vcpu>1</vcpu>\n  <os>\n    \
        <type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type>\n  </os>\n  <devices>\n    \
        <controller type='pci' index='0' model='pci-root'/>\n    <shmem name='of-another'>\n      \
        <model type='ivshmem-plain'/>\n    </shmem>\n  </devices>\n</domain>\n";

    fn wanted() -> Wanted<'static> {
        Wanted {
            socket: Path::new("/run/hallway/hallwayd.sock"),
            ports: 2,
            room: 512 << 20,
        }
    }

    #[test]
    fn what_is_put_in_can_be_taken_out() {
        let others = "  <qemu:override>\n    <qemu:device alias='net0'>\n    </qemu:device>\n  \
            </qemu:override>\n</domain>";
        let q35 = PC.replace("pci-root", "pcie-root");
        let other = q35.replace("</domain>", others);
        let other = other.replace("<domain", &format!("<domain xmlns:qemu='{NAMESPACE}'"));
        for (before, ports) in [(PC, 0), (&q35, 2), (&other, 2)] {
            assert!(!is_enabled(before).unwrap());
            let after = enable(before, &wanted()).unwrap();
            assert_eq!(after.ports.len(), ports);
            assert!(is_enabled(&after.xml).unwrap());
            let document = Document::parse(&after.xml).unwrap();
            let aliases = |name| {
                let nodes = document
                    .descendants()
                    .filter(move |n| n.tag_name().name() == name);
                nodes.filter(|n| n.is_element()).count()
            };
            assert_eq!(aliases("shmem"), 2);
            assert_eq!(aliases("override"), 1);
            assert_eq!(aliases("controller"), 1 + ports);
            assert_eq!(aliases("property"), 1 + ports);
            let words = |xml: &str| {
                let xml = xml.replace(&format!(" xmlns:qemu='{NAMESPACE}'"), "");
                let words = xml.split_whitespace().map(String::from);
                words.collect::<Vec<_>>()
            };
            let again = enable(&after.xml, &wanted()).unwrap();
            assert_eq!(words(&again.xml), words(&after.xml));
            let back = disable(&after.xml).unwrap();
            assert_eq!(words(&back), words(before));
        }
    }

    #[test]
    fn a_cid_that_stays_is_found() {
        let cid = |auto: &str, number: u32| {
            let words = format!(
                "<vsock model='virtio'><cid auto='{auto}' address='{number}'/></vsock></devices>"
            );
            let xml = PC.replace("</devices>", &words);
            enable(&xml, &wanted()).unwrap().cid
        };
        assert_eq!(cid("no", 42), Some(42));
        assert_eq!(cid("yes", 42), None);
        assert_eq!(cid("no", CID_FIRST - 1), Some(CID_FIRST - 1));
        assert_eq!(cid("no", CID_FIRST), None, "hallwayd gives such to others");
        assert_eq!(enable(PC, &wanted()).unwrap().cid, None);
    }

    #[test]
    fn the_doorbell_has_a_slot_that_is_free() {
        let place = |xml: &str| {
            let after = enable(xml, &wanted()).unwrap().xml;
            let document = Document::parse(&after).unwrap();
            let ours = document.descendants().find(|node| {
                node.has_tag_name("shmem") && node.attribute("name") == Some("hallway")
            });
            child(&ours.unwrap(), "address").map(|node| node.attribute("slot").unwrap().to_string())
        };
        let q35 = PC.replace("pci-root", "pcie-root");
        let taken = "<disk><address type='pci' domain='0x0000' bus='0x00' slot='0x1e'/></disk>\
            <disk><address type='pci' domain='0x0000' bus='0x01' slot='0x1d'/></disk></devices>";
        assert_eq!(place(PC), None);
        assert_eq!(place(&q35).as_deref(), Some("0x1e"));
        assert_eq!(
            place(&q35.replace("</devices>", taken)).as_deref(),
            Some("0x1d")
        );
        let words = "</devices><qemu:commandline><qemu:arg value='-device'/>\
            <qemu:arg value='pcie-root-port,id=a,addr=0x1e'/><qemu:arg value='-device'/>\
            <qemu:arg value='pcie-root-port,addr=1d.0,id=b'/></qemu:commandline>";
        let by_words = q35.replace("</devices>", words);
        let by_words = by_words.replace("<domain", &format!("<domain xmlns:qemu='{NAMESPACE}'"));
        assert_eq!(place(&by_words).as_deref(), Some("0x1c"));
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_reason() {
        for (old, new, part) in [
            ("type='kvm'", "type='lxc'", "needs QEMU"),
            ("type='kvm'", "type='qemu'", "<vcpu current='1'>2</vcpu>"),
            ("x86_64", "aarch64", "x86-64"),
            ("model='pci-root'", "model='none'", "no PCI bus"),
            ("</devices>", "", "cannot be read"),
        ] {
            let said = enable(&PC.replace(old, new), &wanted()).unwrap_err();
            assert!(said.to_string().contains(part), "{said}");
        }
    }
}
