// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text in columns.

use std::io::{self, Write};

/// Rows under a heading; columns are as wide as they must be.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(heading: &[&str]) -> Self {
        Self {
            rows: vec![heading.iter().map(|cell| (*cell).into()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints it.
    pub fn print(&self, indent: &str) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = io::stdout().lock();
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(out, "{indent}{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number of bytes for people.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Writes addresses for people.
pub fn addresses(list: &[std::net::IpAddr]) -> String {
    let list: Vec<_> = list.iter().map(ToString::to_string).collect();
    or_dash(list.join(" "))
}

/// A text, or a dash where it is empty.
pub fn or_dash(text: String) -> String {
    if text.is_empty() {
        "-".into()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_for_people() {
        assert_eq!(super::bytes(0), "0 B");
        assert_eq!(super::bytes(256 << 20), "256 MiB");
        assert_eq!(super::bytes(1536), "1.5 KiB");
    }
}
