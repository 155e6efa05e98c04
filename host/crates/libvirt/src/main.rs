// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway-libvirt`: what Hallway does by libvirt, for `hallway` and for `hallwayd`.
//!
//! It is a program of its own since hosts without libvirt, and guests, lack its library.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`domain`] | what a domain's XML needs, put in and taken out |
//! | [`enable`] | `hallway enable` and `hallway disable` |
//! | [`group`] | the configuration files that these write |
//! | [`step`] | time limits |
//! | [`serve`] | the monitors of domains, for `hallwayd` |
//! | [`monitor`] | a domain's monitor, by libvirt |
//! | [`places`] | how many commands wait for QEMUs at a time |
//! | [`options`] | the command line |

mod domain;
mod enable;
mod group;
mod monitor;
mod options;
mod places;
mod serve;
mod step;

use std::process::ExitCode;

use clap::Parser;

use crate::options::{Command, Options};

fn main() -> ExitCode {
    hallway_control::drop_empty_variable();
    let (name, result) = match Options::parse().command {
        Command::Enable {
            common,
            shared,
            slots,
            ports,
        } => ("hallway", enable::enable(&common, shared, slots, ports)),
        Command::Disable { common } => ("hallway", enable::disable(&common)),
        Command::Serve => ("hallway-libvirt", serve::serve()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            hallway_log::print_error(name, &error);
            ExitCode::FAILURE
        }
    }
}
