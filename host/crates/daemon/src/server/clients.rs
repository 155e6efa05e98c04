// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Those who ask for the status, or for the end: `hallway`, `hallwayd --stop`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::Result;
use hallway_abi::region as abi;
use hallway_control::{self as control, Answer, Migration, Query, Status};
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::event::Source;
use super::served::Served;
use super::{Server, Stop};

/// A client's longest question, and how many clients there may be.
const QUESTION_MAX: usize = 4096;
const CLIENTS_MAX: usize = 32;

pub(super) struct Client {
    stream: UnixStream,
    question: Vec<u8>,
    answer: Vec<u8>,
}

fn migration(told: Result<Migration, String>) -> Answer {
    match told {
        Ok(stage) => Answer::Migration(stage),
        Err(message) => Answer::Error { message },
    }
}

impl Server {
    pub(super) fn accept_clients(&mut self) {
        while let Ok((stream, _)) = self.control.accept() {
            let number = self.next_client;
            self.next_client += 1;
            let ready = stream
                .set_nonblocking(true)
                .map_err(Into::into)
                .and_then(|()| self.watch(&stream, Source::Client(number), EpollFlags::EPOLLIN));
            if ready.is_ok() && self.clients.len() < CLIENTS_MAX {
                let client = Client {
                    stream,
                    question: Vec::new(),
                    answer: Vec::new(),
                };
                self.clients.insert(number, client);
            }
        }
    }

    pub(super) fn serve_client(&mut self, number: u64) {
        let Some(mut client) = self.clients.remove(&number) else {
            return;
        };
        // Done, or gone: closing it ends the watch too.
        if let Ok(false) = self.advance_client(number, &mut client) {
            self.clients.insert(number, client);
        }
    }

    /// Reads the question or writes the answer. True once that is done.
    fn advance_client(&mut self, number: u64, client: &mut Client) -> Result<bool> {
        if client.answer.is_empty() {
            let mut bytes = [0; 1024];
            loop {
                match client.stream.read(&mut bytes) {
                    Ok(0) => return Ok(true),
                    Ok(count) => client.question.extend_from_slice(&bytes[..count]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
                if client.question.len() > QUESTION_MAX {
                    return Ok(true);
                }
            }
            let Some(end) = client.question.iter().position(|byte| *byte == b'\n') else {
                return Ok(false);
            };
            let answer = match serde_json::from_slice(&client.question[..end]) {
                Ok(Query::Status) => Answer::Status(self.status()),
                Ok(Query::Migrate { vm, uri }) => migration(self.migrate(&vm, uri)),
                Ok(Query::Migration { vm }) => migration(self.migration(&vm)),
                Ok(Query::CancelMigration { vm }) => migration(self.cancel_migration(&vm)),
                Ok(Query::Stop) => {
                    self.stopping = Some(Stop::Clean);
                    Answer::Stopping
                }
                Err(error) => Answer::Error {
                    message: format!("unknown question: {error}"),
                },
            };
            client.answer = serde_json::to_vec(&answer)?;
            client.answer.push(b'\n');
        }
        while !client.answer.is_empty() {
            match client.stream.write(&client.answer) {
                Ok(count) => drop(client.answer.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let source = Source::Client(number).into();
                    let mut event = EpollEvent::new(EpollFlags::EPOLLOUT, source);
                    self.epoll.modify(&client.stream, &mut event)?;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            abi: format!("{}.{}", abi::MAJOR, abi::MINOR),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            recovered_vms: self.recovered,
            socket: self.socket.clone(),
            regions: self.regions.iter().map(Served::status).collect(),
            machines: self.machine_status(),
            vms: self
                .vms
                .values()
                .map(|vm| control::Vm {
                    connection: vm.saved.number,
                    pid: vm.pid,
                    name: vm.saved.name.clone(),
                    uuid: vm.saved.uuid.map(Into::into),
                    regions: vm
                        .saved
                        .entries
                        .iter()
                        .filter_map(|e| e.region.clone())
                        .collect(),
                    doorbells: vm.saved.peers.len() - vm.unknown(),
                    doorbells_pending: vm.unknown(),
                    requests: vm.requests,
                    throttled: vm.throttled(),
                })
                .collect(),
        }
    }
}
