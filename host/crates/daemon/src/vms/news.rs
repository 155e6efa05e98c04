// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon's loop and the monitors' threads send each other.

use std::time::Duration;

use hallway_control::{Migration, Release};
use hallway_membership::printable;
use hallway_qmp::{Identity, Memory};

/// How long a guest may take to let a device go.
pub const LET_GO: Duration = Duration::from_secs(30);
/// Devices of one VM that are kept in mind: more than can be plugged in.
pub const PLUGS_MAX: usize = 64;
/// Threads of vCPUs that are kept in mind: more than any VM may be given.
pub const VCPUS_MAX: usize = 1024;
/// News of one monitor that wait for the loop; with more, its thread waits.
pub const NEWS_MAX: usize = 16;
/// What the id of a region's device has before the region's name.
pub const PREFIX: &str = "hallway-";

/// A job for a monitor's thread.
#[derive(Debug)]
pub enum Job {
    /// Plug memory in.
    Plug(Memory),
    /// Plug the device with this id out.
    Unplug(String),
    /// Migrate to this URI.
    Migrate(String),
    /// Plug all ring memory out, each region within this time.
    Release(Duration),
    /// Find the threads of the vCPUs.
    Vcpus,
    /// Look again later, for this reason.
    HangUp(String),
}

/// News from a monitor's thread.
#[derive(Debug)]
pub enum News {
    /// QEMU answers; whether its guest is elsewhere: has yet to arrive by
    /// migration, or has gone; the ids of its memory devices.
    Up(Identity, bool, Vec<String>),
    /// The guest stood still, or was elsewhere, and runs.
    Runs,
    /// The guest was reset, and boots.
    Reset,
    /// QEMU does not answer yet, or no longer, for this reason.
    Down(String),
    /// The VM is shut off; libvirt says it in these words.
    Off(String),
    /// The device with this id is plugged in.
    Plugged(String),
    /// The device with this id could not be plugged in, for this reason.
    Failed(String, String),
    /// The device with this id could not be plugged out, for this reason.
    Held(String, String),
    /// The device with this id is gone; whether the daemon asked for that.
    Gone(String, bool),
    /// The migration has reached this stage.
    Migrates(Migration),
    /// The release of all ring memory ended so.
    Released(Release),
    /// A migration that another client of QEMU began, such as libvirt, has failed or was
    /// cancelled.
    Stays,
    /// These are the threads of the vCPUs; none if QEMU does not say.
    Vcpus(Vec<i32>),
}

/// Characters of the longest text of a QEMU that is shown.
const TEXT_MAX: usize = 500;

fn clean(text: &str) -> String {
    let text: String = text.chars().take(TEXT_MAX).collect();
    printable(text.as_bytes())
}

impl News {
    /// Makes its texts fit for terminal and log: QEMU may be hostile.
    pub fn printable(self) -> Self {
        match self {
            Self::Up(identity, elsewhere, ids) => {
                let uuid = clean(&identity.uuid);
                let ids = ids.iter().take(PLUGS_MAX).map(|id| clean(id)).collect();
                Self::Up(Identity { uuid, ..identity }, elsewhere, ids)
            }
            Self::Down(why) => Self::Down(clean(&why)),
            Self::Off(why) => Self::Off(clean(&why)),
            Self::Plugged(id) => Self::Plugged(clean(&id)),
            Self::Failed(id, why) => Self::Failed(clean(&id), clean(&why)),
            Self::Held(id, why) => Self::Held(clean(&id), clean(&why)),
            Self::Gone(id, asked) => Self::Gone(clean(&id), asked),
            Self::Migrates(Migration::Moving { status }) => {
                let status = clean(&status);
                Self::Migrates(Migration::Moving { status })
            }
            Self::Migrates(Migration::Stayed { why }) => {
                let why = clean(&why);
                Self::Migrates(Migration::Stayed { why })
            }
            Self::Released(Release::Failed { why }) => {
                let why = clean(&why);
                Self::Released(Release::Failed { why })
            }
            Self::Vcpus(mut threads) => {
                threads.truncate(VCPUS_MAX);
                Self::Vcpus(threads)
            }
            Self::Runs | Self::Reset | Self::Stays | Self::Migrates(_) | Self::Released(_) => self,
        }
    }
}
