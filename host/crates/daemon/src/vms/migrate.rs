// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live migration of a VM, for `hallway migrate`; its first step alone is `hallway release`.
//!
//! 1. The guest lets its ring memory go: its connections go on over TCP.
//! 2. QEMU migrates. The doorbell device goes along: it holds nothing of this host.
//! 3. If that failed or was cancelled, the guest runs on here, and the daemon
//!    plugs its memory in again. If not, the destination's hallwayd plugs in what
//!    its own configuration says, and this QEMU stands still until it is ended.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use hallway_control::{Migration, Release};
use hallway_qmp::{MigrationState, Monitor, Result};

use super::news::{News, LET_GO, PREFIX};

/// Time between two looks at how far QEMU is.
const LOOK: Duration = Duration::from_millis(100);
/// The kind of device that ring memory is, which QEMU cannot migrate.
pub const MEMORY: &str = "ivshmem-plain";

/// Migrates a VM, and returns how that ended. Sends news of each stage, and of each
/// device that is gone. After an error the guest is still here, too.
pub fn run(
    monitor: &mut Monitor,
    uri: &str,
    cancelled: &AtomicBool,
    send: &dyn Fn(News),
) -> Result<Migration> {
    send(News::Migrates(Migration::Unplugging));
    if let Release::Failed { why } = release(monitor, LET_GO, send)? {
        return Ok(stayed(why));
    }
    if cancelled.load(Ordering::Relaxed) {
        return Ok(stayed("cancelled".into()));
    }
    monitor.migrate(uri)?;
    follow(monitor, cancelled, send)
}

/// Has the guest let all its ring memory go, each region within `limit`. Sends news of each
/// device that is gone, and of one that is not. After a failure some may be gone.
pub fn release(monitor: &mut Monitor, limit: Duration, send: &dyn Fn(News)) -> Result<Release> {
    let devices = monitor.devices(MEMORY)?;
    if let Some(other) = devices.iter().find(|id| !id.starts_with(PREFIX)) {
        let why = format!(
            "QEMU can't migrate {MEMORY} device {other}, which hallwayd did not plug in: take it \
             out (device_del {other}) first"
        );
        return Ok(Release::Failed { why });
    }
    // Of a device that has gone, QEMU may have the memory yet.
    let left = monitor.memories()?;
    let left = left.into_iter().filter(|id| id.starts_with(PREFIX));
    for id in devices.into_iter().chain(left).collect::<BTreeSet<_>>() {
        match monitor.unplug(&id, limit) {
            Ok(()) => send(News::Gone(id, true)),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                let why = error.to_string();
                send(not_unplugged(monitor, id, why.clone())?);
                return Ok(Release::Failed { why });
            }
        }
    }
    Ok(Release::Out)
}

/// The news of a device that was not unplugged: its guest has it still, or it has gone and left its
/// memory behind.
pub fn not_unplugged(monitor: &mut Monitor, id: String, why: String) -> Result<News> {
    Ok(match monitor.has_device(&id)? {
        true => News::Held(id, why),
        false => News::Failed(id, why),
    })
}

/// Follows a migration to its end.
pub fn follow(
    monitor: &mut Monitor,
    cancelled: &AtomicBool,
    send: &dyn Fn(News),
) -> Result<Migration> {
    loop {
        if cancelled.swap(false, Ordering::Relaxed) {
            monitor.cancel_migration()?;
        }
        let now = monitor.migration()?;
        match now.state() {
            MigrationState::Completed => {
                return Ok(Migration::Done {
                    downtime_ms: now.downtime.unwrap_or_default(),
                    total_ms: now.total_time.unwrap_or_default(),
                })
            }
            MigrationState::Cancelled => return Ok(stayed("cancelled".into())),
            MigrationState::Failed => {
                let why = now.error.unwrap_or_else(|| "see QEMU's own log".into());
                return Ok(stayed(format!("QEMU failed to migrate: {why}")));
            }
            MigrationState::Active | MigrationState::None => {
                let status = now.status.unwrap_or_default();
                send(News::Migrates(Migration::Moving { status }));
            }
        }
        sleep(LOOK);
    }
}

fn stayed(why: String) -> Migration {
    Migration::Stayed { why }
}

#[cfg(test)]
#[path = "../../../qmp/tests/qemu/mod.rs"]
mod qemu;

#[cfg(test)]
mod tests {
    use super::qemu::{Machine, Qemu, GREETING};
    use super::*;

    #[test]
    fn memory_that_lingers_is_waited_for_though_its_device_has_gone() {
        let mut machine = Machine::default();
        let object = ("hallway-g-memory".into(), "/dev/shm/g".into());
        machine.objects.push(object);
        let device = ("hallway-g".into(), MEMORY.into(), String::new());
        machine.devices.push(device);
        let state = machine.state.clone();
        state.lock().unwrap().lingers = u32::MAX;
        let qemu = Qemu::new(GREETING, machine.answer());
        let mut monitor = Monitor::connect(&qemu.path, LET_GO).unwrap();
        let moment = Duration::from_millis(50);
        let first = release(&mut monitor, moment, &drop).unwrap();
        assert!(matches!(first, Release::Failed { .. }), "{first:?}");
        state.lock().unwrap().lingers = 3;
        assert_eq!(release(&mut monitor, LET_GO, &drop).unwrap(), Release::Out);
        assert_eq!(state.lock().unwrap().lingers, 0);
        assert_eq!(qemu.asked("device_del").len(), 1);
        drop(monitor);
    }
}
