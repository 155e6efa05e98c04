// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs over tunnels: `hallway cat`, `hallway listen`, `hallway perf`. They use AF_VSOCK
//! as any other program does; the crate of tunnels resolves names.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use hallway_tunnel::{vsock, Name};
use nix::sys::socket::{shutdown, Shutdown, SockType};

use crate::guest::client;
use crate::options::{Kind, Perf};

/// Bytes that one call moves.
const PIECE: usize = 64 << 10;
/// What a client of `hallway perf` begins with: the server sends all back, or counts it.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';

impl Kind {
    fn socket_type(self) -> SockType {
        match self.packets {
            true => SockType::SeqPacket,
            false => SockType::Stream,
        }
    }

    fn connect(self, to: &str) -> Result<File> {
        let (name, port) = hallway_tunnel::parse(to)?;
        let cid = match name {
            Name::Cid(cid) => cid,
            Name::Vm(name) => hallway_tunnel::find(name, &client()?.members()?)?,
        };
        let socket = vsock::connect(self.socket_type(), cid, port).context(to.to_string())?;
        Ok(socket.into())
    }

    fn listen(self, port: &str) -> Result<OwnedFd> {
        let port = hallway_tunnel::port(port)?;
        Ok(vsock::listen(self.socket_type(), port)?)
    }
}

fn take(listener: &OwnedFd) -> Result<File> {
    Ok(vsock::accept(listener.as_fd())?.into())
}

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            count => to.write_all(&piece[..count])?,
        }
        to.flush()?;
    }
}

/// Copies the input to a connection and the connection to the output, until both have ended.
fn join(socket: File) -> Result<()> {
    let writer = socket.try_clone()?;
    let sender = std::thread::spawn(move || {
        let result = copy(io::stdin(), &writer);
        let _ = shutdown(writer.as_raw_fd(), Shutdown::Write);
        result
    });
    copy(&socket, io::stdout()).context("receiving")?;
    // The other end may have ended its own direction alone.
    sender.join().expect("it does not panic").context("sending")
}

/// `hallway cat`: a connection to a VM.
pub fn cat(kind: Kind, to: &str) -> Result<()> {
    join(kind.connect(to)?)
}

/// `hallway listen`: one connection from a VM.
pub fn listen(kind: Kind, port: &str) -> Result<()> {
    join(take(&kind.listen(port)?)?)
}

/// `hallway perf`.
pub fn perf(options: &Perf) -> Result<()> {
    if let Some(port) = &options.serve {
        let listener = options.kind.listen(port)?;
        writeln!(io::stdout(), "serving")?;
        loop {
            let socket = take(&listener)?;
            std::thread::spawn(move || answer(socket));
        }
    }
    let to = options.to.as_deref().unwrap_or_default();
    let mut socket = options.kind.connect(to)?;
    let mut message = vec![0; options.size as usize];
    let (mut sent, mut trips) = (0_u64, Vec::new());
    let since = Instant::now();
    let limit = Duration::from_secs(options.seconds);
    if options.round_trip {
        socket.write_all(&[ECHO])?;
        while since.elapsed() < limit {
            let begun = Instant::now();
            socket.write_all(&message)?;
            socket.read_exact(&mut message)?;
            trips.push(begun.elapsed());
        }
        trips.sort();
        let at = |part: usize| trips[(trips.len() - 1) * part / 100].as_secs_f64() * 1e6;
        writeln!(
            io::stdout(),
            "{} round trips of {} bytes: median {:.1} us, 99 of 100 within {:.1} us",
            trips.len(),
            options.size,
            at(50),
            at(99)
        )?;
        return Ok(());
    }
    socket.write_all(&[COUNT])?;
    while since.elapsed() < limit {
        socket.write_all(&message)?;
        sent += 1;
    }
    shutdown(socket.as_raw_fd(), Shutdown::Write)?;
    let mut count = [0; 8];
    socket
        .read_exact(&mut count)
        .context("the other end's count")?;
    let (received, seconds) = (u64::from_le_bytes(count), since.elapsed().as_secs_f64());
    ensure!(
        received == sent * u64::from(options.size),
        "{received} bytes arrived of {sent} messages of {} bytes",
        options.size
    );
    writeln!(
        io::stdout(),
        "{sent} messages of {} bytes in {seconds:.2} s: {:.0} messages/s, {:.1} MB/s",
        options.size,
        sent as f64 / seconds,
        received as f64 / seconds / 1e6
    )?;
    Ok(())
}

/// The other end of one client.
fn answer(mut socket: File) -> io::Result<()> {
    let mut word = [0];
    socket.read_exact(&mut word)?;
    let mut piece = vec![0; PIECE];
    let mut total = 0_u64;
    loop {
        let count = socket.read(&mut piece)?;
        total += count as u64;
        match (word[0], count) {
            (ECHO, 0) => return Ok(()),
            (ECHO, _) => socket.write_all(&piece[..count])?,
            (_, 0) => return socket.write_all(&total.to_le_bytes()),
            _ => {}
        }
    }
}
