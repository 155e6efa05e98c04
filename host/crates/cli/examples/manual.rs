// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the manual pages of `hallway`, and completions for shells, to a folder.
#![allow(missing_docs)]

#[path = "../src/options.rs"]
mod options;
// `hallway` hands its words over to this program.
#[allow(dead_code)]
#[path = "../../libvirt/src/options.rs"]
mod libvirt;

use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_complete::{generate_to, Shell};

/// The command line, with those of commands that another program does.
fn command() -> Command {
    let libvirt = libvirt::Options::command();
    let mut command = options::Options::command();
    for name in ["enable", "disable"] {
        let whole = libvirt
            .find_subcommand(name)
            .expect("hallway-libvirt has it");
        command = command.mut_subcommand(name, |words| {
            whole.clone().display_order(words.get_display_order())
        });
    }
    command
}

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).expect("usage: manual FOLDER");
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder)?;
    let mut command = command();
    clap_mangen::generate_to(command.clone(), &folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "hallway", &folder)?;
    }
    Ok(())
}
