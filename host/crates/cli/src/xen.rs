// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether this machine is a domain of Xen, as its kernel shows it.

/// Number of the feature that dom0 alone has: `XENFEAT_dom0` of Xen's `features.h`.
const DOM0: u32 = 11;

/// A domain's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// It runs the toolstack, and `hallwayd --xen`.
    Dom0,
    /// Any other: a guest.
    Guest,
}

/// What this machine is; nothing if it does not run on Xen.
pub fn domain() -> Option<Domain> {
    let read =
        |file: &str| std::fs::read_to_string(format!("/sys/hypervisor/{file}")).unwrap_or_default();
    find(&read("type"), &read("properties/features"))
}

fn find(hypervisor: &str, features: &str) -> Option<Domain> {
    if hypervisor.trim() != "xen" {
        return None;
    }
    let features = u64::from_str_radix(features.trim(), 16).unwrap_or_default();
    Some(match features >> DOM0 & 1 {
        1 => Domain::Dom0,
        _ => Domain::Guest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dom0_differs_from_guests() {
        for (hypervisor, features, domain) in [
            ("", "", None),
            ("xen\n", "00000afd\n", Some(Domain::Dom0)),
            ("xen\n", "000002fd\n", Some(Domain::Guest)),
            ("xen\n", "", Some(Domain::Guest)),
        ] {
            assert_eq!(
                find(hypervisor, features),
                domain,
                "{hypervisor} {features}"
            );
        }
    }
}
