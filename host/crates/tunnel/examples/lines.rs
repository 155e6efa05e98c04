// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines as messages: `lines listen ADDRESS` prints those of one peer, then says how many came;
//! `lines send ADDRESS` sends those of its input.

use std::error::Error;
use std::io::{stdin, stdout, BufRead, Write};
use std::process::ExitCode;

use hallway_tunnel::{Connection, Listener};

fn listen(at: &str) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(at)?;
    eprintln!("listening at {}", listener.address());
    let mut connection = listener.accept()?;
    let (mut count, mut output) = (0, stdout().lock());
    while let Some(message) = connection.recv()? {
        output.write_all(message)?;
        output.write_all(b"\n")?;
        count += 1;
    }
    output.flush()?;
    Ok(connection.send(format!("{count} messages").as_bytes())?)
}

fn send(to: &str) -> Result<(), Box<dyn Error>> {
    let mut connection = Connection::connect(to)?;
    eprintln!("connected to {}", connection.peer());
    for line in stdin().lock().split(b'\n') {
        connection.send(&line?)?;
    }
    connection.shutdown()?;
    let answer = connection.recv()?.ok_or("no answer")?;
    println!("{}", String::from_utf8_lossy(answer));
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["listen", at] => listen(at),
        ["send", to] => send(to),
        _ => Err("usage: lines listen|send ADDRESS".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lines: {error}");
            ExitCode::FAILURE
        }
    }
}
