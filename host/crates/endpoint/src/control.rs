// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: orders of hallwayd, with descriptors.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{recvmsg, send, ControlMessageOwned, MsgFlags};
use serde::de::DeserializeOwned;

use crate::orders::{Order, Report, PACKET_MAX};

/// Descriptors that come with one order at most.
const DESCRIPTORS: usize = 4;

/// What the control socket had.
pub enum Packet<P> {
    /// An order.
    Order(Order<P>, Vec<OwnedFd>),
    /// No packet is there now.
    Nothing,
    /// hallwayd ended.
    End,
}

/// The program's end of the control socket.
pub struct Control {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Control {
    /// Takes the socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: vec![0; PACKET_MAX],
        }
    }

    /// The socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Receives one packet. An error is about this packet alone.
    pub fn receive<P: DeserializeOwned>(&mut self) -> Result<Packet<P>> {
        let mut space = nix::cmsg_space!([i32; DESCRIPTORS]);
        let mut vectors = [IoSliceMut::new(&mut self.buffer)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let socket = self.socket.as_raw_fd();
        let message = match recvmsg::<()>(socket, &mut vectors, Some(&mut space), flags) {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Packet::Nothing),
            Err(_) => return Ok(Packet::End),
        };
        let mut descriptors = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just made these descriptors for this process.
                let owned = raw.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
                descriptors.extend(owned);
            }
        }
        let truncated = MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC;
        ensure!(
            !message.flags.intersects(truncated),
            "the order is too long"
        );
        let length = message.bytes;
        if length == 0 {
            return Ok(Packet::End);
        }
        let order = serde_json::from_slice(&self.buffer[..length]).context("the order")?;
        Ok(Packet::Order(order, descriptors))
    }

    /// Answers with the state.
    pub fn report(&self, report: &Report) -> Result<()> {
        let text = serde_json::to_vec(report)?;
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.socket.as_raw_fd(), &text, flags) {
            Ok(_) => Ok(()),
            Err(errno) => bail!("the report: {errno}"),
        }
    }
}
