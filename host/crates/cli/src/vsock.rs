// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs over tunnels: `hallway cat`, `hallway listen`, `hallway perf`. They use AF_VSOCK
//! as any other program does; the crate of tunnels resolves names.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use hallway_abi::tunnel::{CID_HOST, LETTER_MAX};
use hallway_tunnel::{vsock, Name};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    connect, recvfrom, recvmsg, sendto, setsockopt, shutdown, MsgFlags, Shutdown, SockType,
    VsockAddr,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::guest::client;
use crate::options::{Kind, Perf};

/// Bytes that one call moves: as many as the longest datagram has.
const PIECE: usize = LETTER_MAX as usize;
/// What a client of `hallway perf` begins with, or each of its datagrams: the server sends all
/// back, or counts it.
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';
/// A datagram that asks for the count of those before it.
const ASK: u8 = b'a';
/// The question is lost if the server is still busy with a full buffer. It is repeated soon, as
/// the time until the answer counts.
const ASK_AGAIN_MS: i64 = 10;
const QUESTIONS: u32 = 1000;
/// A datagram that is not answered by then is lost.
const ANSWER_MS: i64 = 1000;
/// Clients whose datagrams a server counts at a time; a peer may use any number of ports.
const COUNTS_MAX: usize = 1024;
/// Datagrams have no end: `hallway cat` waits for answers as long as socat does.
const LINGER: Duration = Duration::from_millis(500);

impl Kind {
    fn socket_type(self) -> SockType {
        match (self.packets, self.datagrams) {
            (true, _) => SockType::SeqPacket,
            (_, true) => SockType::Datagram,
            _ => SockType::Stream,
        }
    }

    fn connect(self, to: &str) -> Result<File> {
        let (name, port) = hallway_tunnel::parse(to)?;
        let cid = match name {
            Name::Cid(cid) => cid,
            Name::Vm(name) => hallway_tunnel::find(name, &client()?.members()?)?,
        };
        ensure!(
            !self.datagrams || cid != CID_HOST,
            "{to}: there are no datagrams with the host; leave --datagrams out, or use --packets"
        );
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
    let sender = thread::spawn(move || {
        let result = copy(io::stdin(), &writer);
        let _ = shutdown(writer.as_raw_fd(), Shutdown::Write);
        result
    });
    copy(&socket, io::stdout()).context("receiving")?;
    // The other end may have ended its own direction alone.
    sender.join().expect("it does not panic").context("sending")
}

/// Copies the input to datagrams, and datagrams to the output, until that fails, or for `linger`
/// after the input's end.
fn exchange(socket: File, linger: Option<Duration>) -> Result<()> {
    let writer = socket.try_clone()?;
    let (ended, end) = mpsc::channel();
    let received = ended.clone();
    thread::spawn(move || {
        let mut result = Ok(());
        // What ends one copy is an empty datagram.
        while result.is_ok() {
            result = copy(&socket, io::stdout());
        }
        let _ = received.send(result.context("receiving"));
    });
    thread::spawn(move || {
        let result = copy(io::stdin(), &writer).context("sending");
        match linger {
            Some(time) => thread::sleep(time),
            None if result.is_ok() => return,
            None => {}
        }
        let _ = ended.send(result);
    });
    end.recv()?
}

/// `hallway cat`: a connection to a VM.
pub fn cat(kind: Kind, to: &str) -> Result<()> {
    let socket = kind.connect(to)?;
    match kind.datagrams {
        true => exchange(socket, Some(LINGER)),
        false => join(socket),
    }
}

/// `hallway listen`: one connection from a VM, or all datagrams.
pub fn listen(kind: Kind, port: &str) -> Result<()> {
    let listener = kind.listen(port)?;
    if !kind.datagrams {
        return join(take(&listener)?);
    }
    // The first datagram stays there: only its sender is asked for.
    let first = recvmsg(listener.as_raw_fd(), &mut [], None, MsgFlags::MSG_PEEK)?;
    let sender: VsockAddr = first.address.context("a datagram without a sender")?;
    connect(listener.as_raw_fd(), &sender).context("the sender")?;
    exchange(listener.into(), None)
}

/// `hallway perf`.
pub fn perf(options: &Perf) -> Result<()> {
    match (&options.serve, options.round_trip) {
        (Some(port), _) => serve(options.kind, port),
        (None, true) => measure_trips(options),
        (None, false) => measure_rate(options),
    }
}

fn serve(kind: Kind, port: &str) -> Result<()> {
    let listener = kind.listen(port)?;
    writeln!(io::stdout(), "serving")?;
    if kind.datagrams {
        return answer_datagrams(&listener);
    }
    loop {
        let socket = take(&listener)?;
        thread::spawn(move || answer(socket));
    }
}

/// Calls the server; a read of datagrams waits for that time.
fn call(options: &Perf, word: u8, wait_ms: i64) -> Result<File> {
    let mut socket = options
        .kind
        .connect(options.to.as_deref().unwrap_or_default())?;
    match options.kind.datagrams {
        true => setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(wait_ms))?,
        false => socket.write_all(&[word])?,
    }
    Ok(socket)
}

/// What the report says of datagrams that were lost.
fn lost_text(kind: Kind, lost: u64) -> String {
    match kind.datagrams {
        true => format!(", {lost} lost"),
        false => String::new(),
    }
}

fn measure_trips(options: &Perf) -> Result<()> {
    let mut socket = call(options, ECHO, ANSWER_MS)?;
    let mut message = vec![ECHO; options.size as usize];
    let (mut trips, mut lost) = (Vec::new(), 0);
    let limit = Duration::from_secs(options.seconds);
    let since = Instant::now();
    while since.elapsed() < limit {
        let begun = Instant::now();
        socket.write_all(&message)?;
        match socket.read_exact(&mut message) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                lost += 1;
                // A late answer goes to the old port, and is not taken for that to the next one.
                socket = call(options, ECHO, ANSWER_MS)?;
            }
            other => {
                other?;
                trips.push(begun.elapsed());
            }
        }
    }
    ensure!(!trips.is_empty(), "no message came back, {lost} were lost");
    trips.sort();
    let at = |part: usize| trips[(trips.len() - 1) * part / 100].as_secs_f64() * 1e6;
    writeln!(
        io::stdout(),
        "{} round trips of {} bytes: median {:.1} us, 99 of 100 within {:.1} us{}",
        trips.len(),
        options.size,
        at(50),
        at(99),
        lost_text(options.kind, lost)
    )?;
    Ok(())
}

fn measure_rate(options: &Perf) -> Result<()> {
    let mut socket = call(options, COUNT, ASK_AGAIN_MS)?;
    let message = vec![COUNT; options.size as usize];
    let size = u64::from(options.size);
    let mut sent = 0;
    let limit = Duration::from_secs(options.seconds);
    let since = Instant::now();
    while since.elapsed() < limit {
        socket.write_all(&message)?;
        sent += 1;
    }
    let mut count = [0; 8];
    match options.kind.datagrams {
        true => ask(&mut socket, &mut count),
        false => {
            shutdown(socket.as_raw_fd(), Shutdown::Write)?;
            socket.read_exact(&mut count)
        }
    }
    .context("the other end's count")?;
    let (received, seconds) = (u64::from_le_bytes(count), since.elapsed().as_secs_f64());
    ensure!(
        received == sent * size || options.kind.datagrams,
        "{received} bytes arrived of {sent} messages of {size} bytes"
    );
    let arrived = received / size;
    writeln!(
        io::stdout(),
        "{sent} messages of {size} bytes in {seconds:.2} s: {:.0} messages/s, {:.1} MB/s{}",
        arrived as f64 / seconds,
        received as f64 / seconds / 1e6,
        lost_text(options.kind, sent.saturating_sub(arrived))
    )?;
    Ok(())
}

/// Asks how many bytes of this client's datagrams have arrived.
fn ask(socket: &mut File, count: &mut [u8]) -> io::Result<()> {
    for _ in 0..QUESTIONS {
        socket.write_all(&[ASK])?;
        match socket.read_exact(count) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
    Err(ErrorKind::TimedOut.into())
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

/// The other end of all clients that send datagrams.
fn answer_datagrams(socket: &OwnedFd) -> Result<()> {
    let mut counts: HashMap<VsockAddr, u64> = HashMap::new();
    let mut piece = vec![0; PIECE];
    loop {
        let (length, sender) = recvfrom::<VsockAddr>(socket.as_raw_fd(), &mut piece)?;
        let sender = sender.context("a datagram without a sender")?;
        let reply = |answer: &[u8]| {
            // A client that is gone or stopped delays no other one.
            let _ = sendto(socket.as_raw_fd(), answer, &sender, MsgFlags::MSG_DONTWAIT);
        };
        match piece[..length].first() {
            Some(&ECHO) => reply(&piece[..length]),
            Some(&COUNT) if counts.len() < COUNTS_MAX || counts.contains_key(&sender) => {
                *counts.entry(sender).or_default() += length as u64;
            }
            Some(&ASK) => reply(&counts.remove(&sender).unwrap_or(0).to_le_bytes()),
            _ => {}
        }
    }
}
