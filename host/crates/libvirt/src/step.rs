// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps that have a time limit: libvirt's calls have none, and a libvirtd that hangs
//! answers none of them.

use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::time::Duration;

use anyhow::{bail, Context, Result};

/// Does one step of a command, which `what` names. An error where it takes longer than
/// `limit`: the step goes on then, in a thread of its own, until the process ends.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    step: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = sync_channel(1);
    // The receiver may have given up.
    std::thread::Builder::new().spawn(move || drop(sender.send(step())))?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result.with_context(|| what.to_owned()),
        Err(RecvTimeoutError::Timeout) => bail!(
            "{what}: libvirt does not answer within {} s: see whether libvirtd (or virtqemud) \
             hangs, then try again, or give it longer with --timeout",
            limit.as_secs()
        ),
        Err(RecvTimeoutError::Disconnected) => bail!("{what}: the step ended without a result"),
    }
}
