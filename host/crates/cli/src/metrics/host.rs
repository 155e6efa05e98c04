// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of a host: VMs, regions and members.
//!
//! Bytes are those through rings, as the members count them: a hostile member may count what
//! it likes, for itself alone.

use hallway_control::{Liveness, Status};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

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

/// Adds all metrics of what hallwayd shows.
pub fn register(registry: &mut Registry, status: &Status) {
    let connected = Gauge::<i64>::default();
    registry.register("qemus", "QEMUs that are connected", connected.clone());
    connected.set(status.connections.len() as i64);
    let up = Family::<OfVm, Gauge>::default();
    registry.register(
        "vm_monitor_up",
        "Whether the monitor of a VM of the configuration answers",
        up.clone(),
    );
    let problems = Family::<OfVm, Gauge>::default();
    registry.register(
        "vm_problems",
        "What hallway doctor would say of a VM of the configuration",
        problems.clone(),
    );
    let given = Family::<OfVm, Gauge>::default();
    registry.register(
        "vm_cpus",
        "CPUs that a VM with [vm.cpus] is to have online",
        given.clone(),
    );
    for vm in &status.vms {
        let label = OfVm {
            vm: vm.name.clone(),
        };
        up.get_or_create(&label).set(vm.connected.into());
        let of_plugs = vm.plugs.iter().filter(|plug| plug.problem.is_some());
        let cpus = vm.cpus.as_ref();
        if let Some(count) = cpus.and_then(|cpus| cpus.given) {
            given.get_or_create(&label).set(count.into());
        }
        let of_cpus = cpus.is_some_and(|cpus| cpus.problem.is_some());
        let count = of_plugs.count() + usize::from(vm.problem.is_some()) + usize::from(of_cpus);
        problems.get_or_create(&label).set(count as i64);
    }
    let memory = Family::<OfRegion, Gauge>::default();
    registry.register("region_bytes", "Ring memory", memory.clone());
    let repairs = Family::<OfRegion, Counter>::default();
    registry.register(
        "region_repairs",
        "How often a member wrote on a region's header",
        repairs.clone(),
    );
    let alive = Family::<OfMember, Gauge>::default();
    registry.register(
        "member_alive",
        "Whether a member's heartbeat counts",
        alive.clone(),
    );
    let channels = Family::<OfMember, Gauge>::default();
    registry.register(
        "member_connections",
        "Promoted connections of a member",
        channels.clone(),
    );
    let sent = Family::<OfMember, Counter>::default();
    registry.register(
        "member_sent_bytes",
        "Bytes that a member sent through rings",
        sent.clone(),
    );
    let received = Family::<OfMember, Counter>::default();
    registry.register(
        "member_received_bytes",
        "Bytes that a member received through rings",
        received.clone(),
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
                vm: member.name.clone(),
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
