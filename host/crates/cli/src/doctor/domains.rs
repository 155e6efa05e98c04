// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What domains of Xen lack, as dom0 sees it.

use hallway_control::Xen;

use super::Findings;

/// What to do in dom0 where hallwayd does not serve domains.
pub const START: &str = "this is dom0 of Xen: start hallwayd with --xen, as its unit does with \
     xen.conf of its documents; docs/xen.md says which file that is, and what domains need";

/// Judges each domain by the pairs that it is in.
pub fn judge(xen: &Xen, found: &mut Findings) {
    if let Some(problem) = &xen.problem {
        found.add(
            format!("the domains of Xen: {problem}"),
            "look at xenstored (systemctl status xenstored): hallwayd tries again by itself",
        );
    }
    if xen.domains.len() < 2 {
        found.add(
            "there are no two domains of Xen besides dom0, which is no member",
            "start another one (xl create)",
        );
    }
    for domain in &xen.domains {
        let (name, number) = (&domain.name, domain.number);
        let own = || {
            xen.pairs
                .iter()
                .filter(|pair| pair.domains.contains(&number))
        };
        let mut allowed = own().filter(|pair| pair.refused.is_none()).peekable();
        if allowed.peek().is_some() {
            if !allowed.any(|pair| pair.announced.contains(&number)) {
                found.add(
                    format!("{name}: has no module loaded"),
                    "install hallway-guest in it, and if it has no network device, name hallway in \
                     /etc/modules-load.d/hallway.conf there; hallway doctor in it says more",
                );
            }
            if is_refusing(xen, number) {
                found.add(
                    format!("{name}: offers memory to no domain with a module"),
                    "its log (dmesg) says why: it tries again by itself",
                );
            }
        } else if let Some(why) = own().find_map(|pair| pair.refused.as_ref()) {
            found.add(
                format!("{name}: may share memory with no other domain: {why}"),
                "give it and another domain a group in common in hallwayd's configuration, by the \
                 UUIDs that hallway status shows",
            );
        }
    }
}

/// Whether a domain and others know of each other, and it offers none of them memory.
fn is_refusing(xen: &Xen, number: u32) -> bool {
    let mut known = xen.pairs.iter().filter(|pair| {
        pair.domains.contains(&number)
            && pair.domains.iter().all(|one| pair.announced.contains(one))
    });
    known.clone().next().is_some() && !known.any(|pair| pair.offering.contains(&number))
}

#[cfg(test)]
mod tests {
    use hallway_control::{Domain, DomainPair};

    use super::*;

    /// The findings about three domains: the third may share memory with none.
    fn said(announced: &[u32], offering: &[u32]) -> Vec<String> {
        let domain = |number: u32| Domain {
            number,
            name: format!("vm{number}"),
            uuid: String::new(),
        };
        let refused = |domains| DomainPair {
            domains,
            refused: Some("the configuration has no group of both".into()),
            announced: vec![],
            offering: vec![],
        };
        let xen = Xen {
            problem: None,
            domains: [1, 2, 3].map(domain).into(),
            pairs: vec![
                DomainPair {
                    domains: [1, 2],
                    refused: None,
                    announced: announced.into(),
                    offering: offering.into(),
                },
                refused([1, 3]),
                refused([2, 3]),
            ],
        };
        let mut found = Findings::default();
        judge(&xen, &mut found);
        found.found.into_iter().map(|one| one.what).collect()
    }

    #[test]
    fn each_domain_says_what_it_lacks() {
        let alone = "vm3: may share memory with no other domain: \
                     the configuration has no group of both";
        assert_eq!(said(&[1, 2], &[1, 2]), [alone]);
        assert_eq!(said(&[1], &[]), ["vm2: has no module loaded", alone]);
        let refusing = "vm2: offers memory to no domain with a module";
        assert_eq!(said(&[1, 2], &[1]), [refusing, alone]);
    }

    #[test]
    fn dom0_alone_is_said() {
        let xen = Xen {
            problem: Some("no answer".into()),
            ..Xen::default()
        };
        let mut found = Findings::default();
        judge(&xen, &mut found);
        let whats: Vec<&str> = found.found.iter().map(|one| one.what.as_str()).collect();
        assert_eq!(whats.len(), 2, "{whats:?}");
        assert!(whats[0].contains("no answer") && whats[1].contains("no two domains"));
    }
}
