// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names, sizes and slots of regions, as a person writes them.

use std::str::FromStr;

use hallway_membership::{parse_number, parse_size, Geometry};

/// What the name of a pair's region has before the names of its two VMs.
pub const PAIR: &str = "pair.";

/// What the name of the region of a VM and its outsourcer has before the VM's name.
pub const OUTSOURCED: &str = "out.";

/// What the name of the region of a VM and the host end of its tunnels has before it.
pub const TUNNELED: &str = "tun.";

/// Slots of a region where none are asked for, the host's among them.
pub const SLOTS: u32 = 4;

/// A region, as options or configuration ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionSpec {
    /// Its name, and that of its file.
    pub name: String,
    /// How it is divided.
    pub geometry: Geometry,
}

impl FromStr for RegionSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        check_name(name)?;
        if name.starts_with(PAIR) {
            return Err(format!(
                "{name:?} would be the region of two VMs of a configuration: another name"
            ));
        }
        if name.starts_with(OUTSOURCED) || name.starts_with(TUNNELED) {
            return Err(format!(
                "{name:?} would be the region of a VM and its helper: another name"
            ));
        }
        let size = parse_size(
            parts
                .next()
                .ok_or("a region needs a size: NAME:SIZE, such as web:256M")?,
        )?;
        let slots = match parts.next() {
            None => SLOTS,
            Some(slots) => parse_number(slots)
                .and_then(|number| number.try_into().ok())
                .ok_or_else(|| format!("{slots:?} is no number of slots"))?,
        };
        if parts.next().is_some() {
            return Err("a region is NAME:SIZE or NAME:SIZE:SLOTS".into());
        }
        let geometry = Geometry::new(size, slots).map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.into(),
            geometry,
        })
    }
}

/// Refuses what cannot be the name of a region and of its file.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!(
            "{name:?} is no name for a region or a group: up to 64 letters, digits, - _ ."
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions() {
        let spec: RegionSpec = "web:64M:8".parse().unwrap();
        assert_eq!(
            (spec.name.as_str(), spec.geometry.size()),
            ("web", 64 << 20)
        );
        assert_eq!(spec.geometry.slots(), 8);
        for bad in [
            "",
            "web",
            "web:3M",
            "../x:64M",
            "web:64M:1",
            "web:64M:2:3",
            ".w:64M",
            "w:M",
            "w:+64M",
            "w:64M:+2",
        ] {
            assert!(bad.parse::<RegionSpec>().is_err(), "{bad}");
        }
        let said = "pair.a.b:64M".parse::<RegionSpec>().unwrap_err();
        assert!(said.contains("the region of two VMs"), "{said}");
    }
}
