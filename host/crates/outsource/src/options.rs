// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options that the guest's program has set on a socket. The guest's kernel has checked
//! them; the host's checks them again.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use hallway_abi::ring as abi;
use libc::{c_int, socklen_t};

use crate::net;

/// Level and name of each option, by its number.
pub const OPTIONS: [(c_int, c_int); abi::OPTION_MAX as usize + 1] = {
    let mut all = [(0, 0); abi::OPTION_MAX as usize + 1];
    all[abi::OPTION_KEEPALIVE as usize] = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    all[abi::OPTION_NODELAY as usize] = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    all[abi::OPTION_CORK as usize] = (libc::IPPROTO_TCP, libc::TCP_CORK);
    all[abi::OPTION_KEEPIDLE as usize] = (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE);
    all[abi::OPTION_KEEPINTVL as usize] = (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL);
    all[abi::OPTION_KEEPCNT as usize] = (libc::IPPROTO_TCP, libc::TCP_KEEPCNT);
    all[abi::OPTION_USER_TIMEOUT as usize] = (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT);
    all[abi::OPTION_SYNCNT as usize] = (libc::IPPROTO_TCP, libc::TCP_SYNCNT);
    all[abi::OPTION_MAXSEG as usize] = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    all[abi::OPTION_TOS as usize] = (libc::IPPROTO_IP, libc::IP_TOS);
    all[abi::OPTION_TTL as usize] = (libc::IPPROTO_IP, libc::IP_TTL);
    all[abi::OPTION_TCLASS as usize] = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
    all[abi::OPTION_HOPS as usize] = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
    all
};

/// Whether an option has the kernel hold bytes back. Where it changes it also lets go of
/// those that it holds, also where it has the value of before again.
pub fn holds_bytes(number: usize) -> bool {
    number == abi::OPTION_CORK as usize || number == abi::OPTION_NODELAY as usize
}

/// Sets an option by its number. Where the host's kernel refuses, the connection goes on
/// without it, as with IPV6_TCLASS on the IPv4 socket behind a mapped address.
pub fn set(socket: &impl AsFd, number: usize, value: i32) {
    let Some((level, name)) = OPTIONS.get(number) else {
        return;
    };
    if holds_bytes(number) {
        let let_go = i32::from(number == abi::OPTION_NODELAY as usize);
        net::set_option(socket, *level, *name, let_go);
    }
    net::set_option(socket, *level, *name, value);
}

/// How long the kernel sends in vain after the guest has ended a connection: about as long as
/// Linux does after `close()`.
pub const LAST_TIMEOUT: Duration = Duration::from_secs(200);

/// Has the guest choose no more how long the kernel sends in vain.
pub fn bound_sending(socket: &impl AsFd) {
    let number = abi::OPTION_USER_TIMEOUT as usize;
    set(socket, number, LAST_TIMEOUT.as_millis() as i32);
}

/// States of TCP in which a socket that has been shut down sends: `include/net/tcp_states.h`.
const SENDING: [u8; 3] = [4, 9, 11];

/// Whether the kernel still sends what a socket had when it was shut down, or the FIN.
pub fn is_sending(socket: &impl AsFd) -> bool {
    // The state is the first byte.
    let info = read_info(socket);
    info.first().is_some_and(|state| SENDING.contains(state))
}

/// Bytes that are sent, or are to be, and that the other end's kernel has not acknowledged.
/// A FIN counts as one.
pub fn count_unacked(socket: &impl AsFd) -> u32 {
    let mut count: c_int = 0;
    // SAFETY: the kernel writes an int, which lives until the call returns.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if result == 0 {
        count.max(0) as u32
    } else {
        0
    }
}

/// The kernel's `struct tcp_info` of a connection; nothing where it has none.
pub fn read_info(socket: &impl AsFd) -> Vec<u8> {
    let mut info = vec![0_u8; abi::INFO_MAX];
    let mut length = abi::INFO_MAX as socklen_t;
    // SAFETY: the buffer has as many bytes as the length says, and both live until the
    // call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    info.truncate(if result == 0 { length as usize } else { 0 });
    info
}
