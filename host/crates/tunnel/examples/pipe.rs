// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pipe between programs: `pipe send ADDRESS` sends its input, `pipe listen ADDRESS` prints
//! it. In a tunnel, no copy is made but those of `read()` and `write()`, from and to ring memory.

use std::error::Error;
use std::io::{stdin, stdout};
use std::process::ExitCode;

use hallway_tunnel::{Connection, Listener};

/// Bytes of a message at most.
const PIECE: usize = 64 << 10;

fn listen(at: &str) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(at)?;
    eprintln!("listening at {}", listener.address());
    let mut connection = listener.accept()?;
    while let Some(message) = connection.peek()? {
        message.write_to(stdout())?;
        connection.release()?;
    }
    eprintln!("lent: {}", connection.is_lent());
    Ok(())
}

fn send(to: &str) -> Result<(), Box<dyn Error>> {
    let mut connection = Connection::connect(to)?;
    eprintln!("connected to {}", connection.peer());
    loop {
        let count = connection.reserve(PIECE)?.read_from(stdin())?;
        if count == 0 {
            break;
        }
        connection.commit(count)?;
    }
    connection.shutdown()?;
    // The peer ends once it has printed all.
    if connection.peek()?.is_some() {
        return Err("an answer came".into());
    }
    eprintln!("lent: {}", connection.is_lent());
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["listen", at] => listen(at),
        ["send", to] => send(to),
        _ => Err("usage: pipe listen|send ADDRESS".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pipe: {error}");
            ExitCode::FAILURE
        }
    }
}
