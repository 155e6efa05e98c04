// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of a host: hallwayd, VMs and their helpers, QEMUs, regions and members, and pairs
//! of Xen's domains.
//!
//! Bytes are those through rings, as the members count them: a hostile member may change the
//! counts of each member of its region.

use hallway_control::{Helper, Liveness, Status, Vm, Xen};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{counters, gauges};
use crate::host::name_domain;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRegion {
    region: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMember {
    region: String,
    vm: String,
    uuid: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVm {
    vm: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfHelper {
    vm: String,
    helper: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCause {
    vm: String,
    helper: &'static str,
    cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDomain {
    domain: String,
    peer: String,
}

/// Adds all metrics of what hallwayd shows.
pub fn register(registry: &mut Registry, status: &Status) {
    daemon(registry, status);
    qemus(registry, status);
    vms(registry, status);
    helpers(registry, status);
    regions(registry, status);
    if let Some(xen) = &status.xen {
        domains(registry, xen);
    }
}

fn daemon(registry: &mut Registry, status: &Status) {
    let version = [("version", &status.version), ("abi", &status.abi)];
    let version = version.map(|(name, value)| (name, value.clone()));
    registry.register("daemon", "hallwayd", Info::new(version.to_vec()));
    let uptime = Gauge::<i64>::default();
    registry.register(
        "uptime_seconds",
        "Time since hallwayd started, or read its configuration again",
        uptime.clone(),
    );
    uptime.set(status.uptime_seconds as i64);
}

/// The name of a VM: that of the configuration, or the guest's own word, unless another VM of the
/// configuration has that.
fn name(status: &Status, uuid: &str, given: &str) -> String {
    let vms = &status.vms;
    match vms.iter().find(|vm| vm.uuid == uuid) {
        Some(vm) => vm.name.clone(),
        None if vms.iter().any(|vm| vm.name == given) => uuid.into(),
        None => given.into(),
    }
}

fn qemus(registry: &mut Registry, status: &Status) {
    let connected = Gauge::<i64>::default();
    registry.register("qemus", "QEMUs that are connected", connected.clone());
    connected.set(status.connections.len() as i64);
    let doorbells = gauges(
        registry,
        "qemu_doorbells",
        "Doorbells of other VMs that the QEMUs of a VM know",
    );
    let pending = gauges(
        registry,
        "qemu_doorbells_pending",
        "Doorbells of other VMs that the QEMUs of a VM have not read yet",
    );
    let requests = counters(registry, "qemu_requests", "Requests of a guest");
    let throttled = gauges(
        registry,
        "qemus_throttled",
        "QEMUs of a VM with requests that wait, because the guest makes too many",
    );
    for one in &status.connections {
        // Nothing before its guest has asked for anything.
        let given = one.name.as_deref().unwrap_or_default();
        let label = OfVm {
            vm: name(status, one.uuid.as_deref().unwrap_or_default(), given),
        };
        doorbells.get_or_create(&label).inc_by(one.doorbells as i64);
        pending
            .get_or_create(&label)
            .inc_by(one.doorbells_pending as i64);
        requests.get_or_create(&label).inc_by(one.requests);
        throttled.get_or_create(&label).inc_by(one.throttled.into());
    }
}

fn vms(registry: &mut Registry, status: &Status) {
    let up = gauges(
        registry,
        "vm_monitor_up",
        "Whether the monitor of a VM of the configuration answers",
    );
    let problems = gauges(
        registry,
        "vm_problems",
        "Problems of a VM of the configuration: its monitor, ring memory, CPUs and helpers",
    );
    let given = gauges(
        registry,
        "vm_cpus",
        "CPUs that a VM with [vm.cpus] is given",
    );
    let released = gauges(
        registry,
        "vm_released",
        "Whether the ring memory of a VM of the configuration was released, and stays out",
    );
    for vm in &status.vms {
        let label = OfVm {
            vm: vm.name.clone(),
        };
        released.get_or_create(&label).set(vm.released.into());
        up.get_or_create(&label).set(vm.connected.into());
        let cpus = vm.cpus.as_ref();
        if let Some(count) = cpus.and_then(|cpus| cpus.given) {
            given.get_or_create(&label).set(count.into());
        }
        problems
            .get_or_create(&label)
            .set(count_problems(vm) as i64);
    }
}

fn count_problems(vm: &Vm) -> usize {
    let of_plugs = vm.plugs.iter().filter(|plug| plug.problem.is_some());
    let of_cpus = vm.cpus.as_ref().and_then(|cpus| cpus.problem.as_ref());
    let others = [vm.problem.is_some() && !vm.off, of_cpus.is_some()];
    of_plugs.count() + others.map(usize::from).iter().sum::<usize>() + vm.not_running.len()
}

/// Adds what the processes that serve one VM each count.
fn helpers(registry: &mut Registry, status: &Status) {
    let sockets = gauges(
        registry,
        "helper_connections",
        "Connections of a helper, also those that are being made or ended",
    );
    let closing = gauges(
        registry,
        "helper_closing_connections",
        "Connections besides, which the guest has ended: the host still sends",
    );
    let listeners = gauges(registry, "helper_listeners", "Published ports of a helper");
    let datagrams = gauges(registry, "helper_udp_sockets", "UDP sockets of a helper");
    let sent = counters(
        registry,
        "helper_sent_bytes",
        "Bytes sent by the host's sockets of a helper",
    );
    let received = counters(
        registry,
        "helper_received_bytes",
        "Bytes received by the host's sockets of a helper",
    );
    let refused = counters(
        registry,
        "helper_refused",
        "What a helper refused the guest, by the rule or cause",
    );
    let delayed = counters(
        registry,
        "helper_delayed",
        "Connections that had to wait, as the guest makes too many in a second",
    );
    let corrupt = counters(
        registry,
        "helper_corrupt",
        "How often the guest broke the protocol",
    );
    for vm in &status.vms {
        let add = |helper, of: &Helper| {
            let vm = vm.name.clone();
            for (cause, count) in &of.refused {
                let label = OfCause {
                    vm: vm.clone(),
                    helper,
                    cause: cause.clone(),
                };
                refused.get_or_create(&label).inc_by(*count);
            }
            let label = OfHelper { vm, helper };
            sockets.get_or_create(&label).set(of.sockets.into());
            closing.get_or_create(&label).set(of.closing.into());
            listeners.get_or_create(&label).set(of.listeners.into());
            datagrams.get_or_create(&label).set(of.datagrams.into());
            sent.get_or_create(&label).inc_by(of.sent_bytes);
            received.get_or_create(&label).inc_by(of.received_bytes);
            delayed.get_or_create(&label).inc_by(of.delayed);
            corrupt.get_or_create(&label).inc_by(of.corrupt);
        };
        if let Some(one) = &vm.outsourcer {
            add("outsourcer", one);
        }
        if let Some(one) = &vm.host_end {
            add("host end", one);
        }
    }
}

/// Adds what pairs of Xen's domains share. One whose domains may share nothing is left out.
fn domains(registry: &mut Registry, xen: &Xen) {
    let offering = gauges(
        registry,
        "xen_pair_offering",
        "Whether a domain offers a peer memory, where they may share it",
    );
    let may = xen.pairs.iter().filter(|pair| pair.refused.is_none());
    for pair in may {
        let [one, other] = pair.domains;
        for (domain, peer) in [(one, other), (other, one)] {
            let label = OfDomain {
                domain: name_domain(xen, domain),
                peer: name_domain(xen, peer),
            };
            let is_offered = pair.offering.contains(&domain);
            offering.get_or_create(&label).set(is_offered.into());
        }
    }
}

fn regions(registry: &mut Registry, status: &Status) {
    let memory = gauges(registry, "region_bytes", "Ring memory");
    let repairs = counters(
        registry,
        "region_repairs",
        "How often a member wrote on a region's header",
    );
    let alive = gauges(
        registry,
        "member_alive",
        "Whether a member's heartbeat counts",
    );
    let channels = gauges(
        registry,
        "member_connections",
        "Promoted connections of a member",
    );
    let sent = counters(
        registry,
        "member_sent_bytes",
        "Bytes that a member sent through rings",
    );
    let received = counters(
        registry,
        "member_received_bytes",
        "Bytes that a member received through rings",
    );
    for region in &status.regions {
        let label = OfRegion {
            region: region.name.clone(),
        };
        memory.get_or_create(&label).set(region.size as i64);
        repairs.get_or_create(&label).inc_by(region.repairs);
        for member in region.members.iter().filter(|member| !member.host) {
            let label = OfMember {
                region: region.name.clone(),
                vm: name(status, &member.uuid, &member.name),
                uuid: member.uuid.clone(),
            };
            let is_alive = member.liveness == Liveness::Alive;
            alive.get_or_create(&label).set(is_alive.into());
            channels.get_or_create(&label).set(member.channels.into());
            sent.get_or_create(&label).inc_by(member.tx_bytes);
            received.get_or_create(&label).inc_by(member.rx_bytes);
        }
    }
}
