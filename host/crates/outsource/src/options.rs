// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options that the guest's program has set on a socket. The guest's kernel has checked
//! them; the host's checks them again.

use std::os::fd::{AsFd, AsRawFd};

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

/// Sets an option by its number. Where the host's kernel refuses, the connection goes on
/// without it, as with IPV6_TCLASS on the IPv4 socket behind a mapped address.
pub fn set(socket: &impl AsFd, number: usize, value: i32) {
    if let Some((level, name)) = OPTIONS.get(number) {
        net::set_option(socket, *level, *name, value);
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
