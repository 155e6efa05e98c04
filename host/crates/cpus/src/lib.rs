// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs for VMs that send: how busy they are ([`Meter`]), and which one gets another CPU
//! or gives one back ([`Scheduler`]).
//!
//! The finding is that of *inter-domain tunnels* (IDTS): a VM gains by as many CPUs as
//! it has connections and tunnels on which it sends; receivers gain nothing.
//!
//! [`Scheduler`] is a pure function of what it is given, and knows no clock: each step has
//! its time. `hallwayd` gives it measurements, tells guests of the orders, and hands back
//! what they answer.

mod meter;
mod policy;

pub use meter::{idle_cpus, Idle, Meter};
pub use policy::{
    Answer, Change, Host, Limits, Look, Mechanism, Rules, Sample, Scheduler, Usage, Vm, Why,
};
