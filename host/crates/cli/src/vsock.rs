// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs over tunnels: `hallway cat`, `hallway listen`, `hallway perf`. They use AF_VSOCK
//! as any other program does; names of VMs are those that the module knows.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::socket::{
    accept, bind, connect, listen as start, shutdown, socket, AddressFamily, Backlog, Shutdown,
    SockFlag, SockType, VsockAddr,
};

use crate::guest::client;
use crate::options::{Kind, Perf};

/// Names of ports, one a line: `echo 5000`.
const SERVICES: &str = "/etc/hallway.services";

/// Bytes that one call moves.
const PIECE: usize = 64 << 10;
/// What a client of `hallway perf` begins with: the server sends all back, or counts it.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';
/// Connections that wait at most.
const BACKLOG: i32 = 16;

impl Kind {
    fn socket(self) -> Result<OwnedFd> {
        let kind = match self.packets {
            true => SockType::SeqPacket,
            false => SockType::Stream,
        };
        socket(AddressFamily::Vsock, kind, SockFlag::SOCK_CLOEXEC, None)
            .context("there is no AF_VSOCK here: run modprobe hallway_vsock")
    }

    fn connect(self, to: &str) -> Result<File> {
        let (cid, port) = resolve(to)?;
        let socket = self.socket()?;
        connect(socket.as_raw_fd(), &VsockAddr::new(cid, port))
            .with_context(|| format!("{to} (CID {cid}, port {port}) is not reached"))?;
        Ok(socket.into())
    }

    fn listen(self, port: &str) -> Result<OwnedFd> {
        let port = port_of(port)?;
        let socket = self.socket()?;
        bind(socket.as_raw_fd(), &VsockAddr::new(u32::MAX, port))
            .with_context(|| format!("port {port}"))?;
        start(&socket, Backlog::new(BACKLOG)?)?;
        Ok(socket)
    }
}

fn take(listener: &OwnedFd) -> Result<File> {
    let fd = accept(listener.as_raw_fd())?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The port with this number or name.
fn port_of(text: &str) -> Result<u32> {
    if let Ok(port) = text.parse() {
        return Ok(port);
    }
    let lines = match std::fs::read_to_string(SERVICES) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => bail!("{SERVICES}: {error}"),
        other => other.unwrap_or_default(),
    };
    find_service(&lines, text)
        .with_context(|| format!("{text:?} is no port, and no name in {SERVICES}"))
}

fn find_service(lines: &str, name: &str) -> Option<u32> {
    lines.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let is_it = words.next()? == name;
        words.next()?.parse().ok().filter(|_| is_it)
    })
}

/// CID and port of `vm2:5000`, `vm2:echo`, `1821941112:5000`.
fn resolve(to: &str) -> Result<(u32, u32)> {
    let (name, port) = to
        .rsplit_once(':')
        .with_context(|| format!("{to:?}: write NAME:PORT, such as vm2:5000"))?;
    let port = port_of(port)?;
    if let Ok(cid) = name.parse() {
        return Ok((cid, port));
    }
    let mut cids: Vec<u32> = client()?
        .members()?
        .into_iter()
        .filter(|member| member.name == name && !member.is_host && !member.is_self)
        .map(|member| member.cid)
        .collect();
    // It may share several regions with this one.
    cids.sort_unstable();
    cids.dedup();
    match cids[..] {
        [cid] => Ok((cid, port)),
        [] => bail!("no VM {name} is reached: see hallway tunnels"),
        _ => bail!("several VMs are called {name}: give a CID of hallway tunnels"),
    }
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
        println!("serving");
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
        println!(
            "{} round trips of {} bytes: median {:.1} us, 99 of 100 within {:.1} us",
            trips.len(),
            options.size,
            at(50),
            at(99)
        );
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
    println!(
        "{sent} messages of {} bytes in {seconds:.2} s: {:.0} messages/s, {:.1} MB/s",
        options.size,
        sent as f64 / seconds,
        received as f64 / seconds / 1e6
    );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_a_port() {
        let lines = "# ours\necho 5000\n\nssh 22  # of AF_VSOCK\nbad x\n";
        assert_eq!(find_service(lines, "echo"), Some(5000));
        assert_eq!(find_service(lines, "ssh"), Some(22));
        assert_eq!(find_service(lines, "bad"), None);
        assert_eq!(find_service(lines, "#"), None);
    }

    #[test]
    fn an_address_is_a_name_or_a_cid_and_a_port() {
        assert_eq!(resolve("1821941112:5000").unwrap(), (1_821_941_112, 5000));
        assert!(resolve("vm2").is_err());
        assert!(resolve("vm2:none").is_err());
    }
}
