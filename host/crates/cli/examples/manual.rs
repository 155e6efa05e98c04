// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the manual pages of `hallway`, and completions for shells, to a folder.
#![allow(missing_docs)]

#[path = "../src/options.rs"]
mod options;

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::{generate_to, Shell};

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).expect("usage: manual FOLDER");
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    let mut command = options::Options::command();
    clap_mangen::generate_to(command.clone(), &folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "hallway", &folder)?;
    }
    Ok(())
}
