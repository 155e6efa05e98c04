// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls on sockets of the host. None of them blocks.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    accept4, bind, connect, listen, setsockopt, socket, sockopt, AddressFamily, Backlog, SockFlag,
    SockProtocol, SockType, SockaddrIn, SockaddrIn6, SockaddrLike,
};

/// Whether it is an error of a host that has too few descriptors, or too little memory. ENOSPC is
/// that of epoll.
pub fn is_short(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOBUFS | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC
    )
}

/// Where a connection goes out, and where it goes.
pub struct Route {
    /// Nothing: the kernel chooses.
    pub source: Option<IpAddr>,
    /// The other end.
    pub to: SocketAddr,
}

fn open(is_v4: bool) -> nix::Result<OwnedFd> {
    let family = if is_v4 {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(family, SockType::Stream, flags, SockProtocol::Tcp)
}

pub(crate) fn at(address: SocketAddr) -> Box<dyn SockaddrLike> {
    match address {
        SocketAddr::V4(address) => Box::new(SockaddrIn::from(address)),
        SocketAddr::V6(address) => Box::new(SockaddrIn6::from(address)),
    }
}

/// Sets an option of type int. The caller can do without it: errors are not reported.
pub fn set_option(socket: &impl AsFd, level: i32, name: i32, value: i32) {
    // SAFETY: the value is an int, which lives until the call returns.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Has `bind` leave the choice of the port to `connect`, which knows more: else there
/// are as many ports for all destinations as for one.
fn defer_port(socket: &OwnedFd) {
    // Where it fails, the port is chosen at once, which works as well.
    set_option(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
}

/// Whether a socket may have that address. An error: nothing shows it. None can be made now, or
/// the host lets the process bind nothing.
fn may_bind(ip: IpAddr) -> Result<bool, Errno> {
    let socket = match open(ip.is_ipv4()) {
        Ok(socket) => socket,
        Err(Errno::EAFNOSUPPORT) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    defer_port(&socket);
    match bind(socket.as_raw_fd(), &*at(SocketAddr::new(ip, 0))) {
        Ok(()) => Ok(true),
        Err(Errno::EADDRNOTAVAIL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether an address is one of the network namespace's own. Nothing: that cannot be found
/// out, as without descriptors. False as well where its sysctl `ip_nonlocal_bind`
/// lets programs have any address: nothing shows it there.
pub fn find_own(ip: IpAddr) -> Option<bool> {
    // No machine has an address for documents.
    let others = if ip.is_ipv4() {
        IpAddr::from([192, 0, 2, 77])
    } else {
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 77])
    };
    let may = may_bind(ip).ok()?;
    Some(may && !may_bind(others).unwrap_or(false))
}

/// Whether an address is one of the network namespace's own, or may be.
pub fn is_own(ip: IpAddr) -> bool {
    find_own(ip).unwrap_or(true)
}

/// Starts a connection. It is there once the socket is writable without an error. It ends
/// with RST, unless [`finish`] is called. `prepare` sets options first.
pub fn start_connect(route: &Route, prepare: impl FnOnce(&OwnedFd)) -> Result<TcpStream, Errno> {
    let socket = open(route.to.is_ipv4())?;
    set_reset(&socket, true);
    prepare(&socket);
    if let Some(source) = route.source {
        defer_port(&socket);
        bind(socket.as_raw_fd(), &*at(SocketAddr::new(source, 0)))?;
    }
    match connect(socket.as_raw_fd(), &*at(route.to)) {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error),
    }
}

/// Listens at `at`. The unspecified address of IPv6 means both families where `is_v6_only` is
/// false: IPv4 alone on a host without IPv6.
pub fn start_listen(
    at: SocketAddr,
    is_v6_only: bool,
    is_port_shared: bool,
    backlog: u32,
) -> Result<OwnedFd, Errno> {
    let socket = match open(at.is_ipv4()) {
        Err(Errno::EAFNOSUPPORT) if at.ip().is_unspecified() && !is_v6_only && at.is_ipv6() => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port()));
            return start_listen(any, true, is_port_shared, backlog);
        }
        result => result?,
    };
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    if is_port_shared {
        setsockopt(&socket, sockopt::ReusePort, &true)?;
    }
    if at.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &is_v6_only)?;
    }
    bind(socket.as_raw_fd(), &*self::at(at))?;
    let backlog = Backlog::new(backlog as i32).unwrap_or(Backlog::MAXCONN);
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Takes a connection that has arrived; with it comes the address of the other end. It ends
/// with RST, unless [`finish`] is called.
pub fn accept(listener: &OwnedFd) -> Result<(TcpStream, SocketAddr), Errno> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd: RawFd = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    set_reset(&socket, true);
    // A connection that was reset meanwhile has none.
    let remote = socket.peer_addr().map_err(|_| Errno::ECONNABORTED)?;
    let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
    Ok((socket, remote))
}

/// Takes the error that a socket has, of a connect, too; 0: it has none.
pub fn take_error(socket: &TcpStream) -> i32 {
    match socket.take_error() {
        Ok(None) => 0,
        Ok(Some(error)) | Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Sets how a connection ends when its socket is closed: by RST or by FIN. It is RST from the
/// beginning, since the process may be killed: after FIN the other end would take a part of
/// the stream for all of it.
fn set_reset(socket: &impl AsFd, is_reset: bool) {
    let at_once = libc::linger {
        l_onoff: is_reset.into(),
        l_linger: 0,
    };
    let _ = setsockopt(&socket.as_fd(), sockopt::Linger, &at_once);
}

/// Has a connection end by FIN once its socket is closed.
pub fn finish(socket: &TcpStream) {
    set_reset(socket, false);
}

/// Closes a connection by RST.
pub fn reset(socket: TcpStream) {
    set_reset(&socket, true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_distinguished_from_others() {
        let is = |text: &str| is_own(text.parse().unwrap());
        assert!(is("127.0.0.1"));
        assert!(!is("192.0.2.78") && !is("2001:db8::78"));
        // Without an interface bind() says nothing of it.
        assert!(is("fe80::78") || open(false).is_err());
    }
}
