// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client against a false xenstored, which also breaks the rules.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

use hallway_xenstore::{Error, Event, Store};

type Step = (Vec<u8>, Vec<u8>);

fn message(kind: u32, number: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [kind, number, 0, body.len() as u32] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Runs a server that expects each request, gives each answer, and hangs up.
fn serve(steps: Vec<Step>) -> (Store, JoinHandle<()>) {
    let name = format!(
        "hallway-xenstore-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
        for (request, answer) in steps {
            let mut got = vec![0; request.len()];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, request);
            stream.write_all(&answer).unwrap();
        }
    });
    let store = Store::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    (store, server)
}

#[test]
fn requests_have_the_form_of_the_protocol() {
    let (mut store, server) = serve(vec![
        (message(2, 1, b"/a\0"), message(2, 1, b"value")),
        (message(1, 2, b"/a\0"), message(1, 2, b"1\x002\x00")),
        (message(11, 3, b"/a/1\0new"), message(11, 3, b"OK\0")),
        (message(14, 4, b"/a/1\0n3\0r4\0"), message(14, 4, b"OK\0")),
        (message(13, 5, b"/a/1\0"), message(13, 5, b"OK\0")),
        (message(4, 6, b"/a\0t\0"), message(4, 6, b"OK\0")),
    ]);
    assert_eq!(store.read("/a").unwrap().as_deref(), Some("value"));
    assert_eq!(store.list("/a").unwrap(), ["1", "2"]);
    store.write("/a/1", "new").unwrap();
    store.permit("/a/1", 3, &[4]).unwrap();
    store.remove("/a/1").unwrap();
    store.watch("/a", "t").unwrap();
    server.join().unwrap();
}

#[test]
fn a_node_that_is_not_there_is_no_error() {
    let (mut store, server) = serve(vec![
        (message(2, 1, b"/a\0"), message(16, 1, b"ENOENT\0")),
        (message(1, 2, b"/a\0"), message(16, 2, b"ENOENT\0")),
        (message(13, 3, b"/a\0"), message(16, 3, b"ENOENT\0")),
        (message(11, 4, b"/a\0x"), message(16, 4, b"EACCES\0")),
    ]);
    assert_eq!(store.read("/a").unwrap(), None);
    assert!(store.list("/a").unwrap().is_empty());
    store.remove("/a").unwrap();
    let refused = store.write("/a", "x").unwrap_err();
    assert!(matches!(refused, Error::Refused { reason, .. } if reason == "EACCES"));
    server.join().unwrap();
}

#[test]
fn events_come_between_answers_and_once() {
    let event = |path: &str, token| message(15, 0, format!("{path}\0{token}\0").as_bytes());
    // A guest chooses names below a watched node.
    let many: Vec<u8> = (0..1000)
        .flat_map(|n| event(&format!("/a/{n}"), "t"))
        .collect();
    let many = [
        many,
        event("/b", "u"),
        event("/c", "v"),
        message(2, 1, b"v"),
    ]
    .concat();
    let (mut store, server) = serve(vec![
        (message(2, 1, b"/a\0"), many),
        (message(5, 2, b"/b\0u\0"), message(5, 2, b"OK\0")),
    ]);
    assert_eq!(store.read("/a").unwrap().as_deref(), Some("v"));
    store.unwatch("/b", "u").unwrap();
    let patience = Some(Duration::from_millis(50));
    for token in ["t", "v"] {
        let expected = Event {
            token: token.into(),
        };
        assert_eq!(store.wait(patience).unwrap(), Some(expected));
    }
    server.join().unwrap();
    // It has hung up, which is not silence.
    assert!(matches!(store.wait(patience), Err(Error::Broken(_))));
}

#[test]
fn silence_ends_with_the_patience() {
    let (listening, _kept) = {
        let path =
            std::env::temp_dir().join(format!("hallway-xenstore-silent-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let store = Store::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (store, listener)
    };
    let mut store = listening;
    assert_eq!(store.wait(Some(Duration::from_millis(20))).unwrap(), None);
}

#[test]
fn a_server_that_breaks_the_rules_is_an_error() {
    let long = [16u32, 1, 0, 4097].map(u32::to_ne_bytes).concat();
    for answer in [
        long,
        message(2, 7, b"of another"),
        message(11, 1, b"OK\0"),
        message(15, 0, b"no token\0"),
        message(2, 1, b"cut off")[..20].to_vec(),
    ] {
        let (mut store, server) = serve(vec![(message(2, 1, b"/a\0"), answer)]);
        let error = store.read("/a").unwrap_err();
        assert!(
            matches!(error, Error::Protocol(_) | Error::Broken(_)),
            "{error}"
        );
        server.join().unwrap();
    }
    let (mut store, server) = serve(vec![]);
    assert!(store.write("/a", &"x".repeat(5000)).is_err());
    server.join().unwrap();
}
