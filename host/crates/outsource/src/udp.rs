// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls on UDP sockets of the host. None of them blocks.

use std::mem::{offset_of, zeroed};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use hallway_ring::Runs;
use nix::errno::Errno;
use nix::sys::socket::{bind, socket, AddressFamily, SockFlag, SockProtocol, SockType};

use crate::net::{at, set_option};
use crate::record::{Error, Head};
use hallway_endpoint::socket::{count, header, vectors};

/// `IP_MTU_DISCOVER` of a fresh socket.
pub const DISCOVER_DEFAULT: u8 = libc::IP_PMTUDISC_WANT as u8;

/// Room for the control messages of one datagram.
type Control = [u64; 32];

/// A datagram that has come.
pub struct Received {
    /// Bytes of it that were taken.
    pub length: usize,
    /// The other end.
    pub from: SocketAddr,
    /// Or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The own address to which it came.
    pub at: Option<IpAddr>,
    /// It was longer than the space.
    pub is_truncated: bool,
}

/// Opens a socket at `from`; port 0: at one that is free. It reports what becomes of its
/// datagrams. `is_shared`: others may have the port, too.
pub fn open(from: SocketAddr, is_shared: bool) -> Result<OwnedFd, Errno> {
    let is_v4 = from.is_ipv4();
    let (family, options) = match is_v4 {
        true => (
            AddressFamily::Inet,
            [
                (libc::IPPROTO_IP, libc::IP_RECVERR),
                (libc::IPPROTO_IP, libc::IP_RECVTOS),
                (libc::IPPROTO_IP, libc::IP_RECVTTL),
                (libc::IPPROTO_IP, libc::IP_PKTINFO),
            ],
        ),
        false => (
            AddressFamily::Inet6,
            [
                (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            ],
        ),
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp)?;
    for (level, name) in options {
        set_option(&socket, level, name, 1);
    }
    if !is_v4 {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
    }
    if is_shared {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
    }
    // Without a port, and none left, the first sendmsg() would be EAGAIN, with no event to
    // wait for.
    bind(socket.as_raw_fd(), &*at(from))?;
    Ok(socket)
}

/// Sets `IP_MTU_DISCOVER`.
pub fn set_discover(socket: &OwnedFd, is_v4: bool, value: u8) {
    let (level, name) = match is_v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    };
    set_option(socket, level, name, i32::from(value));
}

/// Appends a control message.
fn put_control(header: &mut libc::msghdr, level: i32, name: i32, value: &[u8]) {
    let length = value.len() as u32;
    // SAFETY: the header's control data is a `Control`, with room for all that is put.
    unsafe {
        let used = header.msg_controllen;
        let message = header
            .msg_control
            .cast::<u8>()
            .add(used)
            .cast::<libc::cmsghdr>();
        (*message).cmsg_level = level;
        (*message).cmsg_type = name;
        (*message).cmsg_len = libc::CMSG_LEN(length) as usize;
        libc::CMSG_DATA(message).copy_from(value.as_ptr(), value.len());
        header.msg_controllen = used + libc::CMSG_SPACE(length) as usize;
    }
}

/// Sends the bytes to where the head says, from that address if there is one.
pub fn send(
    socket: &OwnedFd,
    payload: &Runs,
    head: &Head,
    from: Option<IpAddr>,
) -> Result<usize, Errno> {
    let mut vectors = vectors(payload);
    let mut header = header(&mut vectors);
    let mut control: Control = [0; 32];
    header.msg_control = control.as_mut_ptr().cast();
    let (level, tos, hops) = match head.address.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    for (name, value) in [(tos, head.tos), (hops, head.hops)] {
        if value != 0 {
            put_control(&mut header, level, name, &i32::from(value).to_ne_bytes());
        }
    }
    // The interface is the kernel's choice, and so is the IPv4 address in the header.
    match from {
        Some(IpAddr::V4(ip)) => {
            let mut value = [0; size_of::<libc::in_pktinfo>()];
            value[offset_of!(libc::in_pktinfo, ipi_spec_dst)..][..4].copy_from_slice(&ip.octets());
            put_control(&mut header, libc::IPPROTO_IP, libc::IP_PKTINFO, &value);
        }
        Some(IpAddr::V6(ip)) => {
            let mut value = [0; size_of::<libc::in6_pktinfo>()];
            value[offset_of!(libc::in6_pktinfo, ipi6_addr)..][..16].copy_from_slice(&ip.octets());
            put_control(&mut header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &value);
        }
        None => {}
    }
    if head.segment != 0 {
        let segment = head.segment.to_ne_bytes();
        put_control(&mut header, libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
    }
    let to = at(head.address);
    header.msg_name = to.as_ptr().cast_mut().cast();
    header.msg_namelen = to.len();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the runs lie in a mapping that the ring's end keeps; name and control data
    // live until the call returns. The kernel alone reads all of them.
    count(unsafe { libc::sendmsg(socket.as_raw_fd(), &header, flags) })
}

/// The address that the kernel wrote.
fn read_address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from: *const libc::sockaddr_storage = name;
    // SAFETY: a sockaddr_storage holds both, and any bytes are one.
    unsafe {
        match i32::from(name.ss_family) {
            libc::AF_INET => {
                let v4 = *from.cast::<libc::sockaddr_in>();
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = *from.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, 0).into())
            }
            _ => None,
        }
    }
}

/// What one call of recvmsg() gives.
struct Call {
    length: usize,
    flags: i32,
    name: Option<SocketAddr>,
    control: Vec<(i32, i32, Vec<u8>)>,
}

fn call(socket: &OwnedFd, space: &Runs, flags: i32) -> Result<Call, Errno> {
    let mut vectors = vectors(space);
    let mut header = header(&mut vectors);
    let mut control: Control = [0; 32];
    // SAFETY: zeros are a sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>();
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the runs are free bytes of a ring, in a mapping that the ring's end keeps;
    // name and control data live until the call returns.
    let length = count(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) })?;
    let mut messages = Vec::new();
    // SAFETY: the kernel wrote the control data, and its length to the header.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while !message.is_null() {
            let size = (*message).cmsg_len - libc::CMSG_LEN(0) as usize;
            let data = std::slice::from_raw_parts(libc::CMSG_DATA(message), size);
            messages.push(((*message).cmsg_level, (*message).cmsg_type, data.to_vec()));
            message = libc::CMSG_NXTHDR(&header, message);
        }
    }
    Ok(Call {
        length,
        flags: header.msg_flags,
        name: read_address(&name),
        control: messages,
    })
}

/// TOS or traffic class, and TTL or hop limit, of the packet; 0: they are not known.
fn read_packet(control: &[(i32, i32, Vec<u8>)]) -> (u8, u8) {
    let mut packet = (0, 0);
    for (level, name, value) in control {
        // IP_TOS is one byte, the others are ints: of both the first byte counts.
        let first = value.first().copied().unwrap_or(0);
        match (*level, *name) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                packet.0 = first;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                packet.1 = first;
            }
            _ => {}
        }
    }
    packet
}

/// The own address to which it came, from which an answer can go.
fn read_own(control: &[(i32, i32, Vec<u8>)]) -> Option<IpAddr> {
    let own = control
        .iter()
        .find_map(|(level, name, value)| match (*level, *name) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let at = offset_of!(libc::in_pktinfo, ipi_spec_dst);
                let bytes: [u8; 4] = value.get(at..at + 4)?.try_into().ok()?;
                Some(IpAddr::from(bytes))
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let at = offset_of!(libc::in6_pktinfo, ipi6_addr);
                let bytes: [u8; 16] = value.get(at..at + 16)?.try_into().ok()?;
                Some(IpAddr::from(bytes))
            }
            _ => None,
        })?;
    (!own.is_multicast() && !own.is_unspecified()).then_some(own)
}

/// Length of the next datagram, which stays.
pub fn look(socket: &OwnedFd) -> Result<usize, Errno> {
    let nothing = Runs([(std::ptr::dangling_mut(), 0); 2]);
    Ok(call(socket, &nothing, libc::MSG_PEEK | libc::MSG_TRUNC)?.length)
}

/// Receives a datagram to free bytes of a ring.
pub fn receive(socket: &OwnedFd, space: &Runs) -> Result<Received, Errno> {
    let call = call(socket, space, 0)?;
    let (tos, hops) = read_packet(&call.control);
    Ok(Received {
        length: call.length,
        from: call.name.ok_or(Errno::EINVAL)?,
        tos,
        hops,
        at: read_own(&call.control),
        is_truncated: call.flags & libc::MSG_TRUNC != 0,
    })
}

/// Takes an error of a datagram that was sent, and where that went. Nothing: there is none.
pub fn receive_error(socket: &OwnedFd) -> Option<(SocketAddr, Error)> {
    const HEAD: usize = size_of::<libc::sock_extended_err>();
    let nothing = Runs([(std::ptr::dangling_mut(), 0); 2]);
    let call = call(socket, &nothing, libc::MSG_ERRQUEUE).ok()?;
    let address = call.name?;
    let is_error = |(level, name, value): &&(i32, i32, Vec<u8>)| {
        matches!(
            (*level, *name),
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        ) && value.len() >= HEAD
    };
    let (_, _, value) = call.control.iter().find(is_error)?;
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| value[at + n]));
    let byte = |at: usize| value[at];
    let mut offender = [0_u8; size_of::<libc::sockaddr_storage>()];
    let length = (value.len() - HEAD).min(offender.len());
    offender[..length].copy_from_slice(&value[HEAD..][..length]);
    // SAFETY: any bytes are a sockaddr_storage.
    let offender = unsafe {
        offender
            .as_ptr()
            .cast::<libc::sockaddr_storage>()
            .read_unaligned()
    };
    let offender = read_address(&offender).map(|offender| offender.ip());
    let error = Error {
        errno: word(offset_of!(libc::sock_extended_err, ee_errno)),
        origin: byte(offset_of!(libc::sock_extended_err, ee_origin)),
        icmp: (
            byte(offset_of!(libc::sock_extended_err, ee_type)),
            byte(offset_of!(libc::sock_extended_err, ee_code)),
        ),
        info: word(offset_of!(libc::sock_extended_err, ee_info)),
        offender: offender.unwrap_or(Ipv6Addr::UNSPECIFIED.into()),
        packet: read_packet(&call.control),
    };
    Some((address, error))
}
