// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text in columns.

use std::io::{self, Write};

use comfy_table::presets::NOTHING;

/// Rows under a heading. Columns are as wide as they must be; a cell's width is
/// that on a terminal.
pub struct Table(comfy_table::Table);

impl Table {
    /// Makes a table without rows.
    pub fn new(heading: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(NOTHING).set_header(heading);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self(table)
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.0.add_row(cells);
    }

    /// The lines of the table.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.0.lines();
        lines.map(|line| line.trim_end().into()).collect()
    }

    /// Prints the table, each line after `indent`, with one call of `write`.
    pub fn print(&self, indent: &str) -> io::Result<()> {
        let lines = self.lines().into_iter();
        let text: String = lines.map(|line| format!("{indent}{line}\n")).collect();
        io::stdout().write_all(text.as_bytes())
    }
}

/// Writes a number of bytes for people.
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
    use super::Table;

    #[test]
    fn columns_line_up_on_a_terminal() {
        let mut table = Table::new(&["name", "state"]);
        table.row(vec!["東京".into(), "a b".into()]);
        table.row(vec!["long-name".into(), String::new()]);
        let lines = table.lines();
        assert_eq!(lines, ["name       state", "東京       a b", "long-name"]);
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(super::bytes(0), "0 B");
        assert_eq!(super::bytes(256 << 20), "256 MiB");
        assert_eq!(super::bytes(1536), "1.5 KiB");
    }
}
