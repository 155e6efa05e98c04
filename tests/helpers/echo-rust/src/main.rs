// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sends back each byte over AF_VSOCK, or has a peer do so and compares:
//!
//! ```text
//! echo-rust serve PORT
//! echo-rust call CID PORT BYTES
//! ```
//!
//! The sockets are those of the crate `vsock`. They block.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

use vsock::{VsockListener, VsockStream, VMADDR_CID_ANY};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let numbers = words
        .map(|word| word.parse())
        .collect::<Result<Vec<u32>, _>>()?;
    match (command.as_str(), numbers.as_slice()) {
        ("serve", &[port]) => serve(port)?,
        ("call", &[cid, port, bytes]) => call(cid, port, bytes)?,
        _ => return Err("usage: echo-rust serve PORT | echo-rust call CID PORT BYTES".into()),
    }
    Ok(())
}

fn serve(port: u32) -> io::Result<()> {
    let listener = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port)?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        io::copy(&mut stream.try_clone()?, &mut stream)?;
    }
    Ok(())
}

fn call(cid: u32, port: u32, bytes: u32) -> io::Result<()> {
    let mut sent = Vec::new();
    File::open("/dev/urandom")?
        .take(bytes.into())
        .read_to_end(&mut sent)?;
    let mut reader = VsockStream::connect_with_cid_port(cid, port)?;
    let mut writer = reader.try_clone()?;
    let mut received = Vec::new();
    thread::scope(|threads| {
        let write = threads.spawn(|| {
            writer.write_all(&sent)?;
            writer.shutdown(Shutdown::Write)
        });
        reader.read_to_end(&mut received)?;
        write.join().expect("the writer does not panic")
    })?;
    if sent != received {
        let text = format!("sent {bytes} bytes, received {} others", received.len());
        return Err(io::Error::other(text));
    }
    println!("same");
    Ok(())
}
