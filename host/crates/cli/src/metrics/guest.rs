// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Metrics of a guest: the module's counters, each under its own name, what demoted
//! connections, and what carries them now.

use hallway_netlink::{Connection, Direction, Module, OfReason};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{counters, gauges};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Carried {
    sends: &'static str,
    receives: &'static str,
    reason: &'static str,
}

/// Adds all metrics of a guest.
pub fn register(registry: &mut Registry, module: Module, connections: &[Connection]) {
    let enabled = Gauge::<i64>::default();
    registry.register(
        "enabled",
        "Whether connections are promoted",
        enabled.clone(),
    );
    enabled.set(module.enabled.into());
    for one in module.counters {
        let counted = Counter::<u64>::default();
        counted.inc_by(one.value);
        let text = one.text().unwrap_or("A counter of a newer module.");
        // The registry ends it with a full stop itself.
        registry.register(one.name, text.trim_end_matches('.'), counted);
    }
    let mut register_reasons = |name, text, all: Vec<OfReason>| {
        let family = counters(registry, name, text);
        for one in all {
            let reason = one.reason_name;
            family.get_or_create(&Reason { reason }).inc_by(one.count);
        }
    };
    register_reasons(
        "demotions",
        "Directions that this end sends, demoted; NONE: a larger ring replaced theirs",
        module.demotions,
    );
    register_reasons(
        "outsource_natives",
        "Calls of connect() left to the native stack, since there was an outsourcer",
        module.natives,
    );
    let carried = gauges(
        registry,
        "connections",
        "Connections to members and outsourced sockets, by what carries them, and why not a ring",
    );
    for one in connections {
        let via = |direction: &Direction| {
            if one.outsourced {
                "host"
            } else {
                direction.via
            }
        };
        let label = Carried {
            sends: via(&one.tx),
            receives: via(&one.rx),
            reason: one.reason_name,
        };
        carried.get_or_create(&label).inc();
    }
}
