// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the manual pages of `hallwayd` and of its configuration to a folder.

// The daemon's: of them this uses the command line alone.
#[allow(dead_code)]
#[path = "../src/options.rs"]
mod options;
#[allow(dead_code)]
#[path = "../src/regionspec.rs"]
mod regionspec;

use std::fs::File;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_mangen::roff::{roman, Roff};
use clap_mangen::Man;

/// The configuration by example: each key has its comment.
const EXAMPLE: &str = include_str!("../../../hallwayd.toml");

fn configuration() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["hallwayd.toml", "5", "", env!("CARGO_PKG_VERSION")])
        .control("SH", ["NAME"])
        .text([roman("hallwayd.toml - the configuration of hallwayd(8)")])
        .control("SH", ["DESCRIPTION"])
        .control("nf", [])
        .text([roman(EXAMPLE)])
        .control("fi", []);
    page
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).expect("usage: manpage FOLDER");
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    let mut page = File::create(folder.join("hallwayd.8"))?;
    Man::new(options::Options::command())
        .section("8")
        .render(&mut page)?;
    let mut page = File::create(folder.join("hallwayd.toml.5"))?;
    configuration().to_writer(&mut page)
}
