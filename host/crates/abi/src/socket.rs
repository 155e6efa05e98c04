// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What programs in a guest ask for, socket by socket (`abi/hallway/socket.h`).

pub use crate::constants::socket::*;
