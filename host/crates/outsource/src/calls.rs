// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest asks for, by messages.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use hallway_abi::message as abi;
use hallway_abi::reason::REASON_KIND;
use hallway_abi::region::ENDPOINTS_MAX;
use hallway_ring::Receiver;
use nix::errno::Errno;

use crate::guest::Guest;
use crate::listener::Listener;
use crate::net::{self, Route};
use crate::options;
use crate::orders::Protocol;
use crate::policy;
use crate::rate::Waiting;
use crate::stream::{Stage, Stream};
use crate::table::Entry;
use hallway_endpoint::message::{Message, Offer, Other, CARRIER};
use hallway_endpoint::table::Queue;

/// Connections that wait for the guest's answer at one listener, at most.
const BACKLOG_MAX: u32 = 4096;
/// The errno of what the guest is to do by its own stack.
const NATIVELY: i32 = libc::EACCES;

impl Guest<'_> {
    /// Does what a message says. The guest is hostile: any message is possible.
    pub fn take_message(&mut self, message: &Message) {
        match message {
            Message::Offer(offer) => self.take_offer(offer),
            Message::Other(other) => match other.r#type {
                abi::DECLINE => self.take_decline(other),
                abi::DONE => self.take_done(other),
                // Nothing is offered or asked for to which these are an answer.
                _ => {}
            },
        }
    }

    /// Declines an OFFER.
    pub fn decline(&mut self, to: u32, carrier: u32, errno: i32) {
        self.send_decline(to, carrier, errno as u64, 0);
    }

    fn send_decline(&mut self, to: u32, carrier: u32, position: u64, reason: u32) {
        self.peer.send(&Message::Other(Other {
            r#type: abi::DECLINE,
            from: 0,
            to,
            carrier,
            position,
            reason,
        }));
    }

    fn take_offer(&mut self, offer: &Offer) {
        if offer.to != 0 || !(1..ENDPOINTS_MAX as u32).contains(&offer.from) {
            self.counts.corrupt("an OFFER of or to no endpoint");
            return;
        }
        self.peer.grows |= offer.features & abi::FEATURE_GROWTH != 0;
        let result = match offer.kind {
            abi::KIND_SOCKET if offer.carrier != CARRIER => Err(libc::EINVAL),
            abi::KIND_SOCKET if offer.answers != 0 => self.take_answer(offer),
            abi::KIND_SOCKET => self.connect(offer),
            abi::KIND_LISTENER => self.listen(offer),
            abi::KIND_DATAGRAM if offer.carrier != CARRIER => Err(libc::EINVAL),
            abi::KIND_DATAGRAM => self.open_datagrams(offer),
            _ => return self.send_decline(offer.from, offer.carrier, 0, REASON_KIND),
        };
        if let Err(errno) = result {
            self.decline(offer.from, offer.carrier, errno);
        }
    }

    /// Counts what the policy does not allow, or the host has no room for: the guest does it
    /// by its own stack. Returns the errno that says so.
    pub fn refuse(&mut self, cause: impl Into<String>, what: &str) -> i32 {
        self.counts.refuse(cause.into(), what);
        NATIVELY
    }

    /// The errno for the guest where the host could not do what the policy allows. That it has
    /// too little, or no IPv6, or that the process may not have a port, is no matter of the
    /// guest's program.
    pub fn explain(&mut self, errno: Errno, what: &str) -> i32 {
        let cause = match errno {
            _ if net::is_short(errno) => "memory or descriptors of the host",
            Errno::EACCES => "permissions of the host",
            Errno::EAFNOSUPPORT => "address families of the host",
            _ => return errno as i32,
        };
        self.refuse(cause, what)
    }

    /// The errno for the guest where a port was not published, as by [`Self::explain`]. The
    /// address is the choice of the host. `is_taken`: by a socket that the guest has at another
    /// address of its own, where this one does not stand in the way.
    pub fn explain_port(&mut self, errno: Errno, is_taken: bool, what: &str) -> i32 {
        match errno {
            Errno::EADDRINUSE if is_taken => self.refuse("port of another socket", what),
            Errno::EADDRNOTAVAIL => self.refuse("addresses of the host", what),
            _ => self.explain(errno, what),
        }
    }

    fn connect(&mut self, offer: &Offer) -> Result<(), i32> {
        let (to, wanted) = (offer.remote, offer.local.ip());
        let route = self.find_route(to, wanted)?;
        if !self.has_place() {
            return Err(self.refuse("limit of sockets", "connection"));
        }
        // It could have all those of the namespace, which are for others, too.
        if offer.local.port() != 0 {
            self.counts.corrupt("an OFFER from a port of its choice");
            return Err(libc::EINVAL);
        }
        let Some(from_guest) = self.peer.take_up_stream(offer) else {
            self.counts.corrupt("an OFFER without a ring");
            return Err(libc::EINVAL);
        };
        let others = self.count_others();
        let Some((to_guest, handle)) = self.peer.make_stream_ring(others) else {
            return Err(self.refuse("memory", "connection"));
        };
        let stream = Stream {
            its: offer.from,
            from_guest: Some(from_guest),
            ..Stream::new(Stage::Connecting, to, to_guest, handle)
        };
        let own = self
            .insert_stream(stream)
            .map_err(|errno| self.explain(errno, "connection"))?;
        if self.may_start() {
            self.start(own, &route);
        } else {
            self.counts.delayed += 1;
            self.rate.waiting.push_back(Waiting {
                tag: self.table.tag(own),
                to,
                wanted,
                since: Instant::now(),
            });
        }
        Ok(())
    }

    /// Starts a connect on the host, or ends it.
    pub fn start(&mut self, own: u32, route: &Route) {
        if let Err(errno) = self.try_start(own, route) {
            let errno = self.explain(errno, "connection");
            self.end_connect(own, errno);
        }
    }

    fn try_start(&mut self, own: u32, route: &Route) -> Result<(), Errno> {
        let stream = self.table.stream(own).ok_or(Errno::EINVAL)?;
        let options = stream.from_guest.as_ref().map(Receiver::take_options);
        let prepare = |socket: &OwnedFd| {
            for (number, value) in options.into_iter().flatten() {
                options::set(socket, number, value);
            }
        };
        stream.socket = Some(net::start_connect(route, prepare)?);
        self.watch(own)
    }

    /// Whether the guest may have one more socket.
    pub fn has_place(&self) -> bool {
        self.table.count_sockets() < self.policy.sockets && self.table.has_free()
    }

    /// Listeners, and UDP sockets with a published port.
    pub fn count_published(&self) -> u32 {
        self.table.count_listeners() + self.table.published
    }

    /// Sockets with a ring that the guest may have besides those that it has: one that is
    /// closing has none, and leaves its place to one that needs it.
    pub fn count_places(&self) -> u32 {
        let taken = self.table.count_sockets() - self.table.count_closing();
        self.policy.sockets.saturating_sub(taken)
    }

    /// The same besides the next one, too.
    pub fn count_others(&self) -> u32 {
        self.count_places().saturating_sub(1)
    }

    /// Takes a connection up, and watches its socket. Returns its endpoint.
    pub fn insert_stream(&mut self, stream: Stream) -> Result<u32, Errno> {
        let handle = stream.handle;
        let Some((own, _)) = self.table.insert(Entry::Stream(Box::new(stream))) else {
            self.peer.free_ring(handle);
            return Err(Errno::ENOBUFS);
        };
        if let Some(stream) = self.table.stream(own) {
            stream.own = own;
        }
        if let Err(errno) = self.watch(own) {
            // Nothing is free that was not before: else all that wait at listeners would be
            // accepted, and reset, one after another.
            let is_freed = self.table.is_freed;
            self.table.remove(own);
            self.table.is_freed = is_freed;
            self.peer.free_ring(handle);
            return Err(errno);
        }
        Ok(own)
    }

    /// Watches a connection's socket, if there is one.
    fn watch(&mut self, own: u32) -> Result<(), Errno> {
        let tag = self.table.tag(own);
        match self.table.stream(own).map(|stream| &stream.socket) {
            Some(Some(socket)) => self.poller.watch_edges(socket, tag),
            _ => Ok(()),
        }
    }

    /// The network has answered a connect.
    pub fn finish_connect(&mut self, own: u32) {
        let Some(stream) = self.table.stream(own) else {
            return;
        };
        let (its, remote) = (stream.its, stream.remote);
        let error = stream.socket.as_ref().map_or(libc::EIO, net::take_error);
        if error != 0 {
            self.end_connect(own, error);
            return;
        }
        stream.stage = Stage::Open;
        self.offer(own, remote, its, 0);
        self.table.push(Queue::Ready, own);
    }

    /// Ends a connect that has no connection, and says so.
    pub fn end_connect(&mut self, own: u32, errno: i32) {
        if let Some(Entry::Stream(mut stream)) = self.table.remove(own) {
            stream.drop_ring(self.peer);
            self.decline(stream.its, CARRIER, errno);
        }
    }

    /// Offers the own ring of a connection.
    pub fn offer(&mut self, own: u32, remote: SocketAddr, answers: u32, listener: u32) {
        let Some(stream) = self.table.stream(own) else {
            return;
        };
        let Some(ring) = &stream.to_guest else {
            return;
        };
        let mut offer = Offer {
            from: own,
            kind: abi::KIND_SOCKET,
            features: abi::FEATURE_GROWTH,
            answers,
            listener,
            remote,
            ring_size: ring.size(),
            handle: stream.handle,
            ..Offer::default()
        };
        if let Some(Ok(local)) = stream.socket.as_ref().map(TcpStream::local_addr) {
            offer.local = local;
        }
        self.peer.send(&Message::Offer(offer));
    }

    /// The guest takes a connection that has arrived.
    fn take_answer(&mut self, offer: &Offer) -> Result<(), i32> {
        let own = offer.answers;
        let Some(stream) = self.table.stream(own) else {
            return Err(libc::EINVAL);
        };
        let Stage::Offered(listener) = stream.stage else {
            return Err(libc::EINVAL);
        };
        stream.stage = Stage::Open;
        stream.its = offer.from;
        stream.from_guest = self.peer.take_up_stream(offer);
        let result = if stream.from_guest.is_some() {
            self.table.push(Queue::Ready, own);
            Ok(())
        } else {
            // The own ring stays until the guest's DONE: it has taken that one.
            stream.reset(libc::EINVAL, self.peer);
            self.counts.corrupt("an OFFER without a ring");
            Err(libc::EINVAL)
        };
        self.count_answer(listener);
        result
    }

    /// One connection fewer waits at a listener, if that is still there.
    fn count_answer(&mut self, tag: u64) {
        if let Some(listener) = self.table.find(tag) {
            if let Some(listener) = self.table.listener(listener) {
                listener.unanswered = listener.unanswered.saturating_sub(1);
            }
            self.table.is_freed = true;
        }
    }

    fn take_decline(&mut self, decline: &Other) {
        let own = decline.to;
        if own == 0 {
            // The program has given up a connect, or a listener before it knew the answer.
            if let Some(own) = self.table.find_connecting(decline.from) {
                self.rate.forget(self.table.tag(own));
                self.end_connect(own, libc::ECONNABORTED);
            } else if let Some(own) = self.table.find_listening(decline.from) {
                self.close_listener(own, 0);
            }
            return;
        }
        if let Some(Entry::Datagrams(datagrams)) = self.table.get(own) {
            if decline.from == 0 || decline.from == datagrams.its {
                datagrams.drop_ring(self.peer);
                datagrams.close(0, self.peer);
            }
            self.remove_if_over(own);
            return;
        }
        let Some(stream) = self.table.stream(own) else {
            return;
        };
        match stream.stage {
            Stage::Offered(listener) => {
                stream.drop_ring(self.peer);
                stream.reset(0, self.peer);
                self.remove_if_over(own);
                self.count_answer(listener);
            }
            // The answer to this connect came too late.
            Stage::Open if decline.from == 0 || decline.from == stream.its => {
                stream.drop_ring(self.peer);
                stream.reset(0, self.peer);
                self.remove_if_over(own);
            }
            _ => {}
        }
    }

    fn take_done(&mut self, done: &Other) {
        let own = done.to;
        match self.table.get(own) {
            Some(Entry::Stream(stream))
                if stream.stage == Stage::Open && stream.its == done.from =>
            {
                stream.take_done(done, self.peer, self.counts);
                self.table.push(Queue::Ready, own);
                self.remove_if_over(own);
            }
            Some(Entry::Datagrams(datagrams)) if datagrams.its == done.from => {
                datagrams.take_done(done, self.peer, self.counts);
                self.table.push(Queue::Ready, own);
                self.remove_if_over(own);
            }
            Some(Entry::Listener(listener)) if listener.its == done.from => {
                self.close_listener(own, 0);
                self.table.remove(own);
            }
            _ => {}
        }
    }

    /// Removes a connection or UDP socket that both sides have ended.
    pub fn remove_if_over(&mut self, own: u32) {
        let is_over = match self.table.get(own) {
            Some(Entry::Stream(stream)) => stream.is_over(),
            Some(Entry::Datagrams(datagrams)) => datagrams.is_over(),
            _ => false,
        };
        if is_over {
            self.table.remove(own);
        }
    }

    fn listen(&mut self, offer: &Offer) -> Result<(), i32> {
        let local = offer.local;
        let published = policy::find_published(self.policy, Protocol::Tcp, local, offer.flags);
        let Some((at, is_v6_only)) = published else {
            return Err(self.refuse("not published", &format!("listener at {local}")));
        };
        if self.count_published() >= self.policy.listeners || !self.table.has_free() {
            return Err(self.refuse("limit of listeners", "listener"));
        }
        let is_port_shared = offer.flags & abi::SOCKET_REUSEPORT != 0;
        let backlog = offer.ring_size.clamp(1, BACKLOG_MAX);
        let socket = net::start_listen(at, is_v6_only, is_port_shared, backlog);
        let socket = socket.map_err(|errno| {
            let has_port = |one: &Listener| one.at == (at, is_v6_only) && one.local != local;
            let taken = self.table.listeners().into_iter().any(|own| {
                let other = self.table.listener(own);
                other.is_some_and(|one| has_port(one))
            });
            self.explain_port(errno, taken, &format!("listener at {at}"))
        })?;
        let listener = Listener {
            socket: Some(socket),
            its: offer.from,
            carrier: offer.carrier,
            flags: offer.flags,
            local,
            at: (at, is_v6_only),
            backlog,
            unanswered: 0,
            is_readable: true,
        };
        let Some((own, tag)) = self.table.insert(Entry::Listener(listener)) else {
            return Err(libc::ENOBUFS);
        };
        let mut watched = Err(Errno::EBADF);
        if let Some(Listener {
            socket: Some(socket),
            ..
        }) = self.table.listener(own)
        {
            watched = self.poller.watch_edges(socket, tag);
        }
        if let Err(errno) = watched {
            self.table.remove(own);
            return Err(self.explain(errno, "listener"));
        }
        self.peer.send(&Message::Other(Other {
            r#type: abi::ACCEPT,
            from: own,
            to: offer.from,
            carrier: offer.carrier,
            ..Other::default()
        }));
        self.table.push(Queue::Ready, own);
        Ok(())
    }
}
