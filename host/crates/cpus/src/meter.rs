// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How busy the host and the threads of a VM are, by `/proc`.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use nix::unistd::{sysconf, SysconfVar};

use crate::policy::Usage;

/// What a thread has had since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    /// Nanoseconds for which it ran.
    run: u64,
    /// Nanoseconds for which it waited for a CPU.
    delay: u64,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{what}: not as expected"))
}

/// Reads `schedstat` of a thread.
fn times(text: &str) -> Option<Times> {
    let mut words = text.split_whitespace().map(str::parse);
    let run = words.next()?.ok()?;
    let delay = words.next()?.ok()?;
    Some(Times { run, delay })
}

/// Measures the threads of one process.
#[derive(Debug, Default)]
pub struct Meter {
    last: Option<(Duration, BTreeMap<i32, Times>)>,
}

impl Meter {
    /// How busy each of the `threads` of the process was since the last call. Nothing: it is
    /// the first one. `now` is since any time that stays the same. An error if a thread is
    /// not one of the process, or out of sight.
    pub fn measure(
        &mut self,
        proc: &Path,
        pid: i32,
        threads: &[i32],
        now: Duration,
    ) -> io::Result<Option<Vec<Usage>>> {
        let last = self.last.take();
        let mut all = BTreeMap::new();
        for thread in threads {
            let path = proc.join(format!("{pid}/task/{thread}/schedstat"));
            let text = std::fs::read_to_string(path)?;
            all.insert(*thread, times(&text).ok_or_else(|| invalid("schedstat"))?);
        }
        let usages = last.and_then(|(at, before)| {
            let elapsed = now.checked_sub(at).filter(|time| !time.is_zero())?;
            let share = |new: u64, old: u64| {
                let share = new.saturating_sub(old) as f64 / elapsed.as_nanos() as f64;
                share.min(1.0)
            };
            let usage = |(thread, new): (&i32, &Times)| {
                let old = before.get(thread)?;
                Some(Usage {
                    run: share(new.run, old.run),
                    delay: share(new.delay, old.delay),
                })
            };
            all.iter().map(usage).collect()
        });
        self.last = Some((now, all));
        Ok(usages)
    }
}

/// Ticks of a second in `/proc/stat`.
fn ticks_per_second() -> u64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    ticks.and_then(|ticks| ticks.try_into().ok()).unwrap_or(100)
}

/// Ticks for which CPUs of the host have been idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    ticks: u64,
    at: Duration,
}

impl Idle {
    /// Reads it.
    pub fn read(proc: &Path, now: Duration) -> io::Result<Self> {
        let text = std::fs::read_to_string(proc.join("stat"))?;
        let ticks = idle_ticks(&text).ok_or_else(|| invalid("/proc/stat"))?;
        Ok(Self { ticks, at: now })
    }
}

fn idle_ticks(stat: &str) -> Option<u64> {
    // cpu user nice system idle iowait ...
    let mut words = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace();
    let idle: u64 = words.nth(3)?.parse().ok()?;
    let waits: u64 = words.next()?.parse().ok()?;
    Some(idle + waits)
}

/// How many CPUs of the host were idle from one time to another.
pub fn idle_cpus(before: &Idle, after: &Idle) -> f64 {
    let elapsed = after.at.saturating_sub(before.at).as_secs_f64();
    if elapsed <= 0.0 {
        return 0.0;
    }
    let ticks = after.ticks.saturating_sub(before.ticks);
    ticks as f64 / ticks_per_second() as f64 / elapsed
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::path::PathBuf;

    /// A false `/proc`, which ends with the test.
    struct Proc(PathBuf);

    impl Proc {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("hallway-cpus-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn thread(&self, pid: i32, thread: i32, text: &str) {
            let folder = self.0.join(format!("{pid}/task/{thread}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("schedstat"), text).unwrap();
        }
    }

    impl Drop for Proc {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn threads_have_run_and_waited() {
        let proc = Proc::new("threads");
        let mut meter = Meter::default();
        let mut measure =
            |seconds| meter.measure(&proc.0, 7, &[8, 9], Duration::from_secs(seconds));
        proc.thread(7, 8, "1000000000 0 1\n");
        proc.thread(7, 9, "0 0 0\n");
        assert_eq!(measure(10).unwrap(), None);
        proc.thread(7, 8, "2500000000 500000000 9\n");
        let (run, delay) = (0.75, 0.25);
        let idle = Usage {
            run: 0.0,
            delay: 0.0,
        };
        assert_eq!(measure(12).unwrap(), Some(vec![Usage { run, delay }, idle]));
        // Of the same time there is nothing to say.
        assert_eq!(measure(12).unwrap(), None);
        proc.thread(7, 8, "what\n");
        assert_eq!(measure(13).unwrap_err().kind(), ErrorKind::InvalidData);
        // A thread of another process is none of this one.
        let mut other = Meter::default();
        let missing = other.measure(&proc.0, 6, &[8], Duration::ZERO).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn this_thread_is_measured() {
        let (pid, proc) = (std::process::id() as i32, Path::new("/proc"));
        let mut meter = Meter::default();
        meter.measure(proc, pid, &[pid], Duration::ZERO).unwrap();
        let usage = meter.measure(proc, pid, &[pid], Duration::from_secs(1));
        assert_eq!(usage.unwrap().unwrap().len(), 1);
        Idle::read(proc, Duration::ZERO).unwrap();
    }

    #[test]
    fn the_host_was_idle() {
        let proc = Proc::new("idle");
        let at = |text: &str, seconds| {
            fs::write(proc.0.join("stat"), text).unwrap();
            Idle::read(&proc.0, Duration::from_secs(seconds))
        };
        let tick = ticks_per_second();
        let before = at("cpu  5 5 5 1000 10 0 0 0 0 0\n", 10).unwrap();
        let text = format!("cpu  9 9 9 {} 10 0 0 0 0 0\n", 1000 + 3 * tick);
        let after = at(&text, 12).unwrap();
        assert!((idle_cpus(&before, &after) - 1.5).abs() < 1e-9);
        assert_eq!(idle_cpus(&after, &after), 0.0);
        assert!(at("intr 5\n", 13).is_err());
    }
}
