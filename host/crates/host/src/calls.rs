// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest asks for, and answers, by messages.

use std::path::{Path, PathBuf};

use hallway_abi::message as abi;
use hallway_abi::reason::{
    REASON_BUSY, REASON_CORRUPT, REASON_KIND, REASON_NO_MATCH, REASON_NO_MEMORY, REASON_STATE,
};
use hallway_abi::region::ENDPOINTS_MAX;
use hallway_abi::tunnel::{TUNNEL_SEQPACKET as SEQPACKET, TUNNEL_STREAM as STREAM};
use hallway_endpoint::member::RING_STREAM;
use hallway_endpoint::message::{Message, Offer, Other, Tunnel, CARRIER};
use hallway_endpoint::table::Queue;
use nix::errno::Errno;

use crate::guest::Guest;
use crate::pipe::{Pipe, Stage};
use crate::unix;

/// Where the listener of a port of the host is.
fn path_of(socket: &Path, port: u32) -> PathBuf {
    let mut path = socket.as_os_str().to_os_string();
    path.push(format!("_{port}"));
    path.into()
}

impl Guest<'_> {
    /// Does what a message says. The guest is hostile: any message is possible.
    pub fn take_message(&mut self, message: &Message) {
        match message {
            Message::Offer(offer) => self.take_offer(offer),
            Message::Other(other) if other.carrier != CARRIER => {}
            Message::Other(other) => match other.r#type {
                abi::DECLINE => self.take_decline(other),
                abi::DONE => self.take_done(other),
                // Nothing is offered to which these are an answer.
                _ => {}
            },
        }
    }

    fn take_offer(&mut self, offer: &Offer) {
        if offer.to != 0 || !(1..ENDPOINTS_MAX as u32).contains(&offer.from) {
            self.counts.corrupt("an OFFER of or to no endpoint");
            return;
        }
        let result = match &offer.tunnel {
            None => Err(REASON_KIND),
            Some(_) if offer.carrier != CARRIER => Err(REASON_CORRUPT),
            Some(_) if offer.answers != 0 => self.take_answer(offer),
            Some(tunnel) => self.take_request(offer, tunnel),
        };
        if let Err(reason) = result {
            self.peer.send(&Message::Other(Other {
                r#type: abi::DECLINE,
                to: offer.from,
                carrier: offer.carrier,
                reason,
                ..Other::default()
            }));
        }
    }

    /// The guest connects to a listener of the host.
    fn take_request(&mut self, offer: &Offer, tunnel: &Tunnel) -> Result<(), u32> {
        let is_packets = match tunnel.r#type {
            STREAM => false,
            SEQPACKET => true,
            _ => return Err(REASON_NO_MATCH),
        };
        let Some(from_guest) = self.peer.take_up(offer.handle, offer.ring_size) else {
            self.counts.corrupt("an OFFER without a ring");
            return Err(REASON_CORRUPT);
        };
        // First: a program of the host is to see no connection that ends at once.
        if !self.may_enter() {
            return Err(REASON_BUSY);
        }
        let ring = self.peer.make_ring(RING_STREAM, self.policy.sockets);
        let Some((to_guest, handle)) = ring else {
            self.counts.refuse("memory".into(), "connection");
            return Err(REASON_NO_MEMORY);
        };
        let path = path_of(&self.policy.socket, tunnel.remote_port);
        let opened = unix::open(&path, is_packets).map_err(|errno| {
            let what = format!("connection to port {}", tunnel.remote_port);
            self.counts.refuse(errno.desc().into(), &what);
            self.peer.free_ring(handle);
            match errno {
                Errno::EAGAIN => REASON_BUSY,
                _ => REASON_NO_MATCH,
            }
        });
        let socket = opened?;
        let pipe = Pipe {
            port: tunnel.remote_port,
            its: offer.from,
            from_guest: Some(from_guest),
            to_guest: Some(to_guest),
            handle,
            ..Pipe::new(socket, is_packets, Stage::Open)
        };
        let Some(own) = self.enter(pipe) else {
            self.peer.free_ring(handle);
            return Err(REASON_BUSY);
        };
        self.offer(own, tunnel.local_port, offer.from);
        Ok(())
    }

    /// Offers the own ring of a connection: it is a request, or `answers` one.
    pub fn offer(&mut self, own: u32, remote_port: u32, answers: u32) {
        let Some(pipe) = self.table.get(own) else {
            return;
        };
        let Some(ring) = &pipe.to_guest else {
            return;
        };
        let offer = Offer {
            from: own,
            kind: abi::KIND_TUNNEL,
            answers,
            tunnel: Some(Tunnel {
                r#type: if pipe.is_packets { SEQPACKET } else { STREAM },
                local_port: pipe.port,
                remote_port,
            }),
            ring_size: ring.size(),
            handle: pipe.handle,
            ..Offer::default()
        };
        self.peer.send(&Message::Offer(offer));
    }

    /// The guest accepts a request.
    fn take_answer(&mut self, offer: &Offer) -> Result<(), u32> {
        let own = offer.answers;
        let pipe = self.table.get(own);
        let pipe = pipe.filter(|pipe| pipe.stage == Stage::Calling);
        let pipe = pipe.ok_or(REASON_STATE)?;
        // Whatever comes of it, the guest has taken the own ring up.
        (pipe.stage, pipe.its) = (Stage::Open, offer.from);
        let Some(ring) = self.peer.take_up(offer.handle, offer.ring_size) else {
            pipe.socket = None;
            self.counts.corrupt("an OFFER without a ring");
            return Err(REASON_CORRUPT);
        };
        pipe.from_guest = Some(ring);
        let said = match &pipe.socket {
            Some(socket) => unix::say(socket, &format!("OK {}\n", pipe.port)),
            None => Err(Errno::EPIPE),
        };
        if said.is_err() {
            pipe.reset(self.peer);
        }
        self.table.push(Queue::Ready, own);
        Ok(())
    }

    fn take_decline(&mut self, decline: &Other) {
        let own = decline.to;
        let Some(pipe) = self.table.get(own) else {
            return;
        };
        pipe.drop_ring(self.peer);
        pipe.reset(self.peer);
        self.remove_if_over(own);
    }

    fn take_done(&mut self, done: &Other) {
        let own = done.to;
        let Some(pipe) = self.table.get(own) else {
            return;
        };
        pipe.take_done(done, self.peer, self.counts);
        self.remove_if_over(own);
    }
}
