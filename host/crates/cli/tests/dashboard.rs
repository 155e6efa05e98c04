// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Grafana's dashboard asks for what `hallway metrics` prints, and for all of it; docs/metrics.md
//! lists it.
#![allow(missing_docs)]

mod played;

use std::collections::{BTreeMap, BTreeSet};

use played::{status, xen, Hallwayd};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../../../packaging/grafana.json");
const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");

type Metrics = BTreeMap<String, BTreeSet<String>>;

/// What is printed on a host that has some of everything.
fn text(name: &str) -> String {
    let hallwayd = Hallwayd::start(name, |_| {
        let mut status = status(1000);
        status.xen = Some(Box::new(xen()));
        status
    });
    let ended = hallwayd.hallway("metrics").output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn each_metric_says_what_it_is_of() {
    let text = text("values");
    for line in [
        r#"hallway_daemon_info{version="1",abi="1.0"} 1"#,
        "hallway_uptime_seconds 60",
        r#"hallway_vm_released{vm="web1"} 0"#,
        r#"hallway_qemu_doorbells{vm="web1"} 3"#,
        r#"hallway_qemu_doorbells_pending{vm="web1"} 1"#,
        r#"hallway_qemu_requests_total{vm="web1"} 9"#,
        r#"hallway_helper_connections{vm="web2",helper="outsourcer"} 7"#,
        r#"hallway_helper_closing_connections{vm="web2",helper="outsourcer"} 2"#,
        r#"hallway_helper_refused_total{vm="web2",helper="outsourcer",cause="no rule"} 5"#,
        r#"hallway_xen_pair_offering{domain="dom-1",peer="dom-2"} 0"#,
        r#"hallway_xen_pair_offering{domain="dom-2",peer="dom-1"} 1"#,
    ] {
        assert!(text.lines().any(|one| one == line), "no {line}: {text}");
    }
    assert!(!text.contains("dom-3"), "{text}");
}

#[test]
fn a_guest_that_takes_the_name_of_another_vm_has_its_uuid() {
    let hallwayd = Hallwayd::start("names", |_| {
        let mut status = status(0);
        status.connections[0].name = Some("web2".into());
        status.connections[0].uuid = Some("u-other".into());
        status.regions[0].members[1].name = "web1".into();
        status.regions[0].members[1].uuid = "u-web2".into();
        status
    });
    let ended = hallwayd.hallway("metrics").output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    for line in [
        r#"hallway_qemu_requests_total{vm="u-other"} 9"#,
        r#"hallway_member_alive{region="pair-1",vm="web2",uuid="u-web2"} 1"#,
    ] {
        assert!(text.lines().any(|one| one == line), "no {line}: {text}");
    }
}

/// The metrics of a text, with the names of their labels.
fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let pairs = labels.trim_end_matches('}').split(',');
        let names = pairs.filter_map(|pair| Some(pair.split_once('=')?.0.to_string()));
        metrics.entry(name.into()).or_default().extend(names);
    }
    metrics
}

/// The queries, each with its legend.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let text = |target: &Value, key: &str| target[key].as_str().unwrap().to_string();
    let both = |target| (text(target, "expr"), text(target, "legendFormat"));
    targets.map(both).collect()
}

/// What lies between each `open` and the `close` that follows.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    let parts = text.split(open).skip(1);
    parts
        .map(|part| part.split(close).next().unwrap())
        .collect()
}

#[test]
fn each_query_names_metrics_that_are_printed_and_each_metric_is_shown() {
    let metrics = parse(&text("dashboard"));
    let mut shown = BTreeSet::new();
    for (query, legend) in queries() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = query.split(|c| !is_word(c));
        let names: Vec<&str> = words.filter(|word| word.starts_with("hallway_")).collect();
        assert!(!names.is_empty(), "{query:?} names no metric");
        let by = between(&query, "by (", ")").into_iter();
        let mut labels: Vec<&str> = by.flat_map(|all| all.split(", ")).collect();
        labels.extend(between(&legend, "{{", "}}"));
        for name in names {
            let known = metrics.get(name);
            let known = known.unwrap_or_else(|| panic!("{query:?}: no metric {name}"));
            for label in &labels {
                assert!(known.contains(*label), "{query:?}: {name} has no {label}");
            }
            // The rate of a gauge, or a counter as it is, would be nonsense.
            let is_counter = name.ends_with("_total");
            let is_rate = query.contains("rate(") || query.contains("increase(");
            assert_eq!(is_counter, is_rate, "{query:?}");
            shown.insert(name.to_string());
        }
    }
    let all: BTreeSet<String> = metrics.into_keys().collect();
    assert_eq!(shown, all);
}

/// The rows of the document's table, in the order of the text.
fn rows(text: &str) -> Vec<String> {
    let metrics = parse(text);
    let mut help = "";
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# HELP ") {
            help = said.split_once(' ').unwrap().1;
        }
        let Some(said) = line.strip_prefix("# TYPE ") else {
            continue;
        };
        let (family, kind) = said.split_once(' ').unwrap();
        let name = match kind {
            "counter" => format!("{family}_total"),
            "info" => format!("{family}_info"),
            _ => family.into(),
        };
        let labels: Vec<String> = metrics[&name].iter().map(|of| format!("`{of}`")).collect();
        let labels = labels.join(", ");
        rows.push(format!("| `{name}` | {kind} | {labels} | {help} |"));
    }
    rows
}

#[test]
fn the_document_lists_each_metric_of_a_host() {
    let rows = rows(&text("document"));
    let listed = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
    let listed: Vec<&str> = listed.collect();
    assert_eq!(listed, rows, "the table:\n{}", rows.join("\n"));
}
