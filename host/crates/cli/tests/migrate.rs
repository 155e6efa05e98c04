// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway migrate` and `hallway release`, with a hallwayd that the test plays.
#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use hallway_control::{socket, Answer, Migration, Release};

fn listen(name: &str) -> (PathBuf, UnixListener) {
    let dir = std::env::temp_dir().join(format!("hwc-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let listener = UnixListener::bind(socket(&dir)).unwrap();
    (dir, listener)
}

fn migrate(name: &str, answers: Vec<Option<Answer>>) -> Output {
    run(name, &["migrate", "web1", "tcp:b:1"], &[], answers)
}

/// Runs a command, with `more` after the options; nothing for an answer: hallwayd hangs up.
fn run(name: &str, command: &[&str], more: &[&str], answers: Vec<Option<Answer>>) -> Output {
    let (dir, listener) = listen(name);
    // That there are no outsourced connections comes first.
    let drained = (command[0] != "resume").then_some(Some(Answer::Draining { connections: 0 }));
    // Not waited for: a client that gives up early leaves it without a question.
    std::thread::spawn(move || {
        for answer in drained.into_iter().chain(answers) {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            if let Some(answer) = answer {
                writeln!(stream, "{}", serde_json::to_string(&answer).unwrap()).unwrap();
            }
        }
    });
    let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
    let ended = hallway.args(command).arg("--run-dir").arg(&dir);
    let ended = ended.args(more).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    ended
}

fn moving() -> Option<Answer> {
    let status = "active".into();
    Some(Answer::Migration(Migration::Moving { status }))
}

fn refused() -> Option<Answer> {
    let message = "web1 does not migrate".into();
    Some(Answer::Error { message })
}

#[test]
fn a_hallwayd_that_is_killed_meanwhile_is_waited_for() {
    // The next one knows nothing before the monitor has answered.
    let done = Migration::Done {
        downtime_ms: 3,
        total_ms: 5,
    };
    let answers = vec![moving(), None, refused(), Some(Answer::Migration(done))];
    let ended = migrate("killed", answers);
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("web1 runs at tcp:b:1 now"), "{said}");
}

#[test]
fn what_failed_or_is_not_known_is_said() {
    let why = "QEMU hung up".into();
    let lost = Some(Answer::Migration(Migration::Unknown { why }));
    for (name, answers, part) in [
        ("refused", vec![refused()], "web1 does not migrate"),
        (
            "lost",
            vec![moving(), lost],
            "look whether web1 runs at tcp:b:1",
        ),
    ] {
        let ended = migrate(name, answers);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success() && said.contains(part), "{said}");
    }
}

#[test]
fn a_release_that_ended_is_known_to_the_next_hallwayd() {
    let stage = |stage| Some(Answer::Release(stage));
    let answers = vec![
        stage(Release::Unplugging),
        None,
        refused(),
        stage(Release::Out),
    ];
    let ended = run("released", &["release", "web1"], &[], answers);
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("web1: its ring memory is out"), "{said}");

    let why = "the guest does not let it go".into();
    let failed = vec![stage(Release::Unplugging), stage(Release::Failed { why })];
    let ended = run("kept", &["release", "web1"], &[], failed);
    let said = String::from_utf8(ended.stderr).unwrap();
    let wanted = "web1 keeps its ring memory: the guest does not let it go";
    assert!(!ended.status.success() && said.contains(wanted), "{said}");

    // The command's status is its own, and the memory comes back.
    for code in [0, 3] {
        let answers = vec![stage(Release::Out), Some(Answer::Resuming)];
        let script = format!("exit {code}");
        let ended = run(
            "while",
            &["release", "web1"],
            &["--", "sh", "-c", &script],
            answers,
        );
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    }
    // A VM that has gone gets none. Another refusal is an error, but the command's status counts.
    let away = || {
        let message = "web1 does not run here".into();
        Some(Answer::Away { message })
    };
    let refusal = || {
        let message = "no VM \"web1\" is in the configuration".into();
        Some(Answer::Error { message })
    };
    for (last, script, code, part) in [
        (away(), "exit 0", 0, ""),
        (refusal(), "exit 0", 1, "web1 lacks its ring memory"),
        (refusal(), "exit 3", 3, "is in the configuration"),
    ] {
        let ended = run(
            "refused-after",
            &["release", "web1"],
            &["--", "sh", "-c", script],
            vec![stage(Release::Out), last],
        );
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code), "{said}");
        assert!(
            said.contains(part) && (code != 0 || said.is_empty()),
            "{said}"
        );
    }
    // hallwayd is restarted meanwhile.
    let ended = run(
        "restarted",
        &["release", "web1"],
        &["--", "true"],
        vec![stage(Release::Out), None, Some(Answer::Resuming)],
    );
    assert!(ended.status.success(), "{ended:?}");
    // A signal for `hallway` alone ends the command, and the memory comes back.
    let ended = run(
        "ended",
        &["release", "web1"],
        &["--", "sh", "-c", "kill -TERM $PPID; exec sleep 60"],
        vec![stage(Release::Out), Some(Answer::Resuming)],
    );
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("sh: signal: 15"), "{said}");

    for program in ["true", "/no/such/program"] {
        let ended = run(
            "not-back",
            &["release", "web1"],
            &["--", program],
            vec![stage(Release::Out)],
        );
        let said = String::from_utf8(ended.stderr).unwrap();
        let wanted = "lacks its ring memory: hallway resume web1";
        assert!(!ended.status.success() && said.contains(wanted), "{said}");
    }

    let ended = run(
        "resumed",
        &["resume", "web1"],
        &[],
        vec![Some(Answer::Resuming)],
    );
    assert!(ended.status.success(), "{ended:?}");
    let ended = run("not-resumed", &["resume", "web1"], &[], vec![refused()]);
    assert!(!ended.status.success(), "{ended:?}");
}

#[test]
fn a_hallwayd_that_hangs_up_in_the_middle_is_an_error() {
    // It reads no more: the question is longer than what a socket holds.
    let (dir, listener) = listen("unread");
    let deaf = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream)
            .read_line(&mut String::new())
            .unwrap();
        let drained = Answer::Draining { connections: 0 };
        writeln!(stream, "{}", serde_json::to_string(&drained).unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.shutdown(Shutdown::Read).unwrap();
        stream
    });
    let long = "x".repeat(120_000);
    let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
    let ended = hallway.args(["migrate", &long, &long, "--run-dir"]);
    let ended = ended.arg(&dir).output().unwrap();
    deaf.join().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success(), "{said}");
    assert!(said.contains("does not answer: Broken pipe"), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();

    // It says a part of its answer.
    let (dir, listener) = listen("part");
    let speaker = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        BufReader::new(&stream)
            .read_line(&mut String::new())
            .unwrap();
        stream.write_all(b"{\"answer\":\"error\"").unwrap();
    });
    let mut hallway = Command::new(env!("CARGO_BIN_EXE_hallway"));
    let ended = hallway.args(["migrate", "web1", "--cancel", "--run-dir"]);
    let ended = ended.arg(&dir).output().unwrap();
    speaker.join().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(
        !ended.status.success() && said.contains("hung up before the end"),
        "{said}"
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
