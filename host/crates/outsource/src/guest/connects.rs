// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connects that wait for their turn.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::Guest;
use crate::net::{self, Route};
use crate::orders::Protocol;
use crate::policy;
use crate::rate::PATIENCE;

/// Connects that one turn starts or ends at most.
const TURN: usize = 32;

impl Guest<'_> {
    /// Whether a connect may start now. If so, the next one has to be later.
    pub fn may_start(&mut self) -> bool {
        self.rate.waiting.is_empty() && self.rate.may_start(self.policy, Instant::now())
    }

    /// Where a connection goes out, if the policy allows it. The error is the guest's.
    pub fn find_route(&mut self, to: SocketAddr, wanted: IpAddr) -> Result<Route, i32> {
        policy::check_connect(self.policy, Protocol::Tcp, to, net::is_own)
            .map_err(|cause| self.refuse(cause, &format!("connection to {to}")))?;
        let source = policy::choose_source(self.policy, wanted, to.is_ipv4())
            .inspect_err(|_| self.counts.refuse("source address".into(), "connection"))
            .map_err(|errno| errno as i32)?;
        Ok(Route { source, to })
    }

    /// Starts the connects whose turn it is, and ends those that have waited for too
    /// long.
    pub fn start_waiting(&mut self) {
        for _ in 0..TURN {
            let now = Instant::now();
            let Some(first) = self.rate.waiting.front() else {
                return;
            };
            let is_late = now >= first.since + PATIENCE;
            let own = self.table.find(first.tag);
            if !is_late && !self.rate.may_start(self.policy, now) {
                return;
            }
            let (Some(waiting), Some(own)) = (self.rate.waiting.pop_front(), own) else {
                continue;
            };
            let to = waiting.to;
            if is_late {
                self.counts.refuse("rate".into(), "connection");
                self.end_connect(own, libc::ETIMEDOUT);
                continue;
            }
            // The policy may have become another one.
            match self.find_route(to, waiting.wanted) {
                Ok(route) => self.start(own, &route),
                Err(errno) => self.end_connect(own, errno),
            }
        }
    }
}
