// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallwayd`: serves QEMU's ivshmem-doorbell devices, owns the regions, and
//! lets VMs join them.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`server`] | the loop; its head explains the order in which things happen |
//! | [`picture`] | all that the daemon knows, in components that own their data |
//! | [`connections`], [`regions`], [`vms`], [`pairs`], [`helpers`], [`cpus`] | these components |
//! | [`requests`] | decisions about what guests ask for |
//! | [`domains`] | what domains of Xen are said in XenStore |
//! | [`keeper`] | the holder process, and the state that it keeps |
//! | [`clients`] | the control socket |
//! | [`options`], [`config`], [`access`], [`run`] | what people give; what lies in the file system |
//! | [`lines`], [`notify`] | bounds of the log; word to the service manager |
//! | [`stop`] | `hallwayd --stop` |

mod access;
mod cgroup;
mod clients;
mod config;
mod connections;
mod cpus;
mod domains;
mod effect;
mod helpers;
mod keeper;
mod lines;
mod notify;
mod options;
mod pairs;
mod picture;
mod poller;
mod program;
mod regions;
mod regionspec;
mod requests;
mod run;
mod server;
mod stop;
mod vms;

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::stat::{umask, Mode};
use nix::unistd::execv;

use crate::access::Access;
use crate::config::Config;
use crate::domains::{Domains, Rules};
use crate::keeper::Holder;
use crate::options::Options;
use crate::run::RunDir;
use crate::server::{End, Server};

/// Raises the limit of descriptors: each VM takes four here and four in the holder.
fn raise_descriptor_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Root may go beyond its hard limit.
        let enough = hard.max(65536);
        if setrlimit(Resource::RLIMIT_NOFILE, enough, enough).is_err() {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        }
    }
}

/// Becomes a new daemon, with the same process and words. It finds all that is kept by the
/// holder, as after a restart, and reads its configuration. Signals stay blocked: one that
/// comes meanwhile is the new daemon's.
fn exec_again() -> Result<()> {
    let own = std::env::current_exe().context("/proc/self/exe")?;
    // Of an executable that was replaced, only this name is left.
    let path = if own.exists() {
        own
    } else {
        "/proc/self/exe".into()
    };
    let path = CString::new(path.into_os_string().into_vec())?;
    let words = std::env::args_os().map(|word| CString::new(word.into_vec()));
    let words = words.collect::<Result<Vec<_>, _>>()?;
    if let sockets @ 1.. = hallway_unix::wait_for_closes() {
        tracing::warn!(
            sockets,
            "stay open: their peers have sent descriptors that cannot be closed in a moment"
        );
    }
    execv(&path, &words).context("cannot start again")?;
    Ok(())
}

fn serve(options: &Options) -> Result<()> {
    hallway_shm::survive_faults().context("SIGBUS")?;
    let config = Config::of(options)?;
    let path = options.run_dir();
    let qemus = "give --group one that QEMU runs with (libvirt: kvm)";
    let access = Access::new(options.group.as_deref(), qemus)?;
    let askers = "give --status-group one that may see what this host does (such as adm)";
    let askers = Access::new(options.status_group.as_deref(), askers)?;
    let socket = options.socket();
    let option = options.socket.as_ref().map_or("--run-dir", |_| "--socket");
    run::check_socket_path(&socket, option)?;
    run::check_socket_path(&hallway_control::socket(&path), "--run-dir")?;
    let asks = config.has_pairs() || config.has_helpers();
    let by_qemu = options.xen.is_none();
    if config.regions().is_empty() && options.regions().is_empty() && !asks && by_qemu {
        tracing::warn!(
            "neither the configuration nor --region asks for a region: all VMs stay on TCP"
        );
    }
    let mut made = Vec::new();
    let mut make = |dir: &Path, option| -> Result<bool> {
        let new = run::make_dir(dir, option)?;
        access.admit(new.as_ref())?;
        access.check(dir, "its QEMUs will fail: chgrp % and chmod g+x it")?;
        let is_new = new.is_some();
        made.extend(new);
        Ok(is_new)
    };
    if make(&path, "--run-dir")? {
        askers.let_through(&path)?;
    }
    askers.check(&path, "its members cannot ask: chmod o+x it")?;
    if config.has_files(options) {
        make(&options.region_dir, "--region-dir")?;
        run::check_region_dir(&options.region_dir)?;
    }
    let beside = socket.parent().filter(|dir| *dir != Path::new(""));
    let beside = beside.unwrap_or(Path::new("."));
    if beside.is_dir() {
        run::check_dir(beside, "--socket", "pose as hallwayd", 0o1000)?;
    }
    let run = Rc::new(RunDir::take(&path)?);
    let rules = Rules::new(&config);
    let xen = options.xen.as_deref();
    let domains = xen
        .map(|socket| Domains::connect(socket, rules))
        .transpose()?;
    // What was there before is not this daemon's to remove.
    let is_first = !run.holder().exists();
    match Server::new(
        options,
        config,
        [&access, &askers],
        run.clone(),
        made.clone(),
    ) {
        Ok(mut server) => {
            // Signals are blocked already: they are the loop's, not of another thread.
            if let Some(domains) = domains {
                server.show_domains(domains.shown());
                domains.start()?;
            }
            match server.run()? {
                End::Over => Ok(()),
                // The lock goes with this program, and the next one takes it.
                End::Again => exec_again(),
            }
        }
        Err(error) => {
            if is_first {
                if let Ok(Some(holder)) = Holder::find(&run.holder()) {
                    holder.quit();
                }
                run::clean(&run, None, &[], &made);
            }
            Err(error)
        }
    }
}

fn main() -> ExitCode {
    hallway_control::drop_empty_variable();
    let options = Options::parse();
    // Sockets and files are for this user alone.
    umask(Mode::from_bits_truncate(0o077));
    raise_descriptor_limit();
    let result = if options.holder {
        keeper::run_holder()
    } else if options.check_config {
        Config::of(&options).map(|config| {
            let empty = config.groups.is_empty();
            let but = if empty { ", and has no [[group]]" } else { "" };
            println!("the configuration is good{but}");
        })
    } else if options.reload {
        // A signal would have no answer.
        hallway_control::reload(&options.run_dir())
    } else if options.stop {
        Config::of(&options).and_then(|config| stop::stop(&options, &config))
    } else {
        hallway_log::start(options.log_level);
        serve(&options)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            hallway_log::print_error("hallwayd", &error);
            ExitCode::FAILURE
        }
    }
}
