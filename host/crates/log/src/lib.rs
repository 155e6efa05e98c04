// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of Hallway's programs: lines on standard error. Where that leads to the journal,
//! each line has its priority in front, as sd-daemon(3) says, and no time, which the journal
//! adds.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use nix::sys::stat::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::registry::LookupSpan;

/// The variable in which the service manager names the journal's stream: `DEVICE:INODE`, as
/// systemd.exec(5) says. A program that gets this one's standard error needs it, too.
pub const STREAM_VARIABLE: &str = "JOURNAL_STREAM";

/// Whether standard error leads to the journal. It is found out once: a program that has confined
/// itself can't do so.
fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        // The variable alone says little: programs that are started by a service inherit it.
        let stream = std::env::var(STREAM_VARIABLE);
        let own = fstat(std::io::stderr());
        matches!((stream, own), (Ok(stream), Ok(own))
            if stream == format!("{}:{}", own.st_dev, own.st_ino))
    })
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// A format of lines, with priorities.
struct Prioritised<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// Begins the log of a program. It has the events of `tracing` down to this level.
///
/// # Panics
///
/// On a second call.
pub fn start(level: Level) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // The reader of the log may have ended. That must not end the program: eprintln! panics
        // then.
        .log_internal_errors(false);
    if is_journal() {
        lines.without_time().map_event_format(Prioritised).init();
    } else {
        lines.init();
    }
}

/// An error of the system; it says that root may do this, if another user may not.
pub fn with_remedy(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => anyhow::anyhow!("{error}: run as root"),
        _ => error.into(),
    }
}

/// Prints the error with which a program of this name ends. [`start`] need not have been called.
pub fn print_error(name: &str, error: &anyhow::Error) {
    let priority = match is_journal() {
        true => format!("<{}>", priority(Level::ERROR)),
        false => String::new(),
    };
    // The journal takes each line of its own.
    let text = format!("{name}: {error:#}").replace('\n', &format!("\n{priority}"));
    // At once: others may write there, too. As for the log, the reader may have ended.
    let _ = std::io::stderr().write_all(format!("{priority}{text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn what_root_alone_may_do_says_so() {
        for (errno, is_said) in [
            (Errno::EACCES, true),
            (Errno::EPERM, true),
            (Errno::ENOENT, false),
        ] {
            let error = with_remedy(errno.into()).to_string();
            assert_eq!(error.ends_with("run as root"), is_said, "{error}");
        }
    }
}
