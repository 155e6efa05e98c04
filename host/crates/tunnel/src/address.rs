// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of VMs, hosts and ports.

use std::io;
use std::net::IpAddr;

use hallway_netlink::{Client, Member};
use nix::errno::Errno;

use crate::error::{Error, Result};

/// Names of ports, one a line: `echo 5000`.
pub const SERVICES: &str = "/etc/hallway.services";

/// A VM, as an address names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name<'a> {
    /// Its CID.
    Cid(u32),
    /// Its name.
    Vm(&'a str),
}

/// The VM and the port of `vm2:5000`, `vm2:echo`, `1821941112:5000`.
///
/// # Errors
/// EINVAL: it is no such address, or no port has that name.
pub fn parse(to: &str) -> Result<(Name<'_>, u32)> {
    let (name, port) = split(to)?;
    Ok((vm(name), self::port(port)?))
}

/// The CID of the VM with this name among `members`.
///
/// # Errors
/// EHOSTUNREACH: none has it. ENOTUNIQ: several have it. EACCES: this user is shown no names.
pub fn find(name: &str, members: &[Member]) -> Result<u32> {
    // Each member has a name, and this guest has one of its own.
    if !members.is_empty() && members.iter().all(|member| member.name.is_empty()) {
        return Err(Error::new(
            Errno::EACCES,
            format!(
                "{name}: the module shows names of VMs to root alone (CAP_NET_ADMIN): run as \
                 root, or give the CID"
            ),
        ));
    }
    let mut cids: Vec<u32> = members
        .iter()
        .filter(|member| member.name == name && member.is_vm() && !member.is_self)
        .map(|member| member.cid)
        .collect();
    // It may share several regions with this one.
    cids.sort_unstable();
    cids.dedup();
    match cids[..] {
        [cid] => Ok(cid),
        [] => Err(Error::new(
            Errno::EHOSTUNREACH,
            format!("no VM {name} is reached: see hallway tunnels"),
        )),
        _ => Err(Error::new(
            Errno::ENOTUNIQ,
            format!("several VMs are called {name}: give a CID of hallway tunnels"),
        )),
    }
}

/// The port with this number, or this name in [`SERVICES`].
///
/// # Errors
/// EINVAL: there is none. Those of reading that file.
pub fn port(text: &str) -> Result<u32> {
    if let Ok(port) = text.parse() {
        return Ok(port);
    }
    let lines = match std::fs::read_to_string(SERVICES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other.map_err(|error| Error::io(SERVICES, &error, Errno::EINVAL))?,
    };
    find_service(&lines, text)
        .ok_or_else(|| invalid(format!("{text:?} is no port, and no name in {SERVICES}")))
}

fn find_service(lines: &str, name: &str) -> Option<u32> {
    lines.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let is_it = words.next()? == name;
        words.next()?.parse().ok().filter(|_| is_it)
    })
}

/// Where a connection may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tunnel {
        cid: u32,
        port: u32,
    },
    /// A tunnel between the host and a guest, by the guest's host end.
    HostEnd {
        path: String,
        port: u32,
    },
    Tcp {
        host: String,
        port: u16,
        /// Why it is not a tunnel, if that was not asked for.
        no_tunnel: Option<String>,
    },
}

/// Where one address of a list leads, with the members that the module knows.
pub(crate) fn endpoint(
    address: &str,
    members: impl FnOnce() -> Result<Vec<Member>>,
) -> Result<Endpoint> {
    if let Some(to) = address.strip_prefix("tcp://") {
        return tcp(to, None);
    }
    if let Some(to) = address.strip_prefix("unix://") {
        let (path, port) = path_and_port(to)?;
        return Ok(Endpoint::HostEnd {
            path: path.into(),
            port,
        });
    }
    if let Some(to) = address.strip_prefix("vsock://") {
        return match parse(to)? {
            (Name::Cid(cid), port) => Ok(Endpoint::Tunnel { cid, port }),
            (Name::Vm(name), port) => {
                let cid = find(name, &members()?)?;
                Ok(Endpoint::Tunnel { cid, port })
            }
        };
    }
    match vm(split(address)?.0) {
        Name::Cid(cid) => {
            let port = port(split(address)?.1)?;
            Ok(Endpoint::Tunnel { cid, port })
        }
        // A VM could choose such a name.
        Name::Vm(name) if is_literal(name) => tcp(address, None),
        Name::Vm(name) => match members().and_then(|members| find(name, &members)) {
            Ok(cid) => {
                let port = port(split(address)?.1)?;
                Ok(Endpoint::Tunnel { cid, port })
            }
            Err(error) if error.errno() == Errno::ENOTUNIQ as i32 => Err(error),
            Err(error) => tcp(address, Some(error.to_string())),
        },
    }
}

/// Host and port of TCP; the host is not looked up.
pub(crate) fn host_and_port(to: &str) -> Result<(String, u16)> {
    let (host, port) = split(to)?;
    let number = self::port(port)?;
    let port = u16::try_from(number).map_err(|_| invalid(format!("TCP has no port {number}")))?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bare {
        None if host.contains(':') => Err(invalid(format!("{to:?}: write [ADDRESS]:PORT"))),
        _ => Ok((bare.unwrap_or(host).to_string(), port)),
    }
}

/// Path of a host end, and port.
pub(crate) fn path_and_port(to: &str) -> Result<(&str, u32)> {
    let (path, port) = to
        .rsplit_once(':')
        .filter(|(path, _)| path.starts_with('/'))
        .ok_or_else(|| {
            invalid(format!(
                "{to:?}: write unix:///PATH:PORT, with the path `socket` of [vm.tunnels]"
            ))
        })?;
    Ok((path, self::port(port)?))
}

/// What the module knows of VMs.
pub(crate) fn members() -> Result<Vec<Member>> {
    Client::new()
        .and_then(|mut client| client.members())
        .map_err(|error| Error::new(Errno::ENODEV, error.to_string()))
}

fn tcp(to: &str, no_tunnel: Option<String>) -> Result<Endpoint> {
    let (host, port) = host_and_port(to)?;
    Ok(Endpoint::Tcp {
        host,
        port,
        no_tunnel,
    })
}

fn split(to: &str) -> Result<(&str, &str)> {
    to.rsplit_once(':')
        .filter(|(name, port)| !name.is_empty() && !port.is_empty())
        .ok_or_else(|| invalid(format!("{to:?}: write NAME:PORT, such as vm2:5000")))
}

fn vm(name: &str) -> Name<'_> {
    name.parse().map_or(Name::Vm(name), Name::Cid)
}

/// Does the resolver take it for an address, or for this host, without asking a server?
fn is_literal(host: &str) -> bool {
    // inet_aton() takes "127.1", too.
    let is_short = host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    host.starts_with('[')
        || is_short
        || host.parse::<IpAddr>().is_ok()
        || host == "localhost"
        || host.ends_with(".localhost")
}

pub(crate) fn invalid(text: String) -> Error {
    Error::new(Errno::EINVAL, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, cid: u32) -> Member {
        Member {
            name: name.into(),
            cid,
            ..Member::default()
        }
    }

    fn known() -> Result<Vec<Member>> {
        let own = Member {
            is_self: true,
            ..member("vm1", 5)
        };
        Ok(vec![
            own,
            member("vm2", 7),
            member("vm2", 7),
            member("twin", 8),
            member("twin", 9),
            member("192.0.2.1", 10),
            member("localhost", 11),
            member("127.1", 12),
            Member {
                is_outsourcer: true,
                ..member("outsourcer", 13)
            },
        ])
    }

    fn to(address: &str) -> Result<Endpoint> {
        endpoint(address, known)
    }

    fn tunnel(cid: u32, port: u32) -> Result<Endpoint> {
        Ok(Endpoint::Tunnel { cid, port })
    }

    fn host(host: &str, port: u16) -> Result<Endpoint> {
        Ok(Endpoint::Tcp {
            host: host.into(),
            port,
            no_tunnel: None,
        })
    }

    #[test]
    fn services_have_a_port() {
        let lines = "# ours\necho 5000\n\nssh 22  # of AF_VSOCK\nbad x\n";
        assert_eq!(find_service(lines, "echo"), Some(5000));
        assert_eq!(find_service(lines, "ssh"), Some(22));
        assert_eq!(find_service(lines, "bad"), None);
        assert_eq!(find_service(lines, "#"), None);
    }

    #[test]
    fn an_address_is_a_name_or_a_cid_and_a_port() {
        let cid = Name::Cid(1_821_941_112);
        assert_eq!(parse("1821941112:5000").unwrap(), (cid, 5000));
        assert_eq!(parse("vm2:5000").unwrap(), (Name::Vm("vm2"), 5000));
        for wrong in ["vm2", "vm2:", ":5000", "vm2:none", "vm2:-1", ""] {
            assert_eq!(parse(wrong).unwrap_err().errno(), Errno::EINVAL as i32);
        }
    }

    #[test]
    fn a_vm_of_this_host_is_reached_by_a_tunnel() {
        for address in ["vm2:5000", "vsock://vm2:5000", "7:5000", "vsock://7:5000"] {
            assert_eq!(to(address), tunnel(7, 5000));
        }
        assert_eq!(to("vm2:70000"), tunnel(7, 70000));
    }

    #[test]
    fn a_guest_is_reached_by_its_host_end() {
        let host_end = |path: &str, port| {
            let path = path.into();
            Ok(Endpoint::HostEnd { path, port })
        };
        assert_eq!(
            to("unix:///run/vm1.sock:5000"),
            host_end("/run/vm1.sock", 5000)
        );
        assert_eq!(to("unix:///run/a:b:70000"), host_end("/run/a:b", 70000));
    }

    #[test]
    fn others_are_reached_by_tcp() {
        assert_eq!(to("tcp://vm2:5000"), host("vm2", 5000));
        assert_eq!(to("tcp://7:5000"), host("7", 5000));
        assert_eq!(to("tcp://[2001:db8::1]:5000"), host("2001:db8::1", 5000));
        // No name of a VM counts here.
        assert_eq!(to("192.0.2.1:5000"), host("192.0.2.1", 5000));
        assert_eq!(to("[::1]:5000"), host("::1", 5000));
        assert_eq!(to("localhost:5000"), host("localhost", 5000));
        assert_eq!(to("127.1:5000"), host("127.1", 5000));
        let Endpoint::Tcp { no_tunnel, .. } = to("host.example:5000").unwrap() else {
            panic!("a tunnel");
        };
        assert!(no_tunnel.unwrap().contains("no VM host.example"));
        let none = || Err(Error::new(Errno::ENODEV, "no module"));
        assert!(matches!(
            endpoint("vm2:5000", none),
            Ok(Endpoint::Tcp { .. })
        ));
        assert_eq!(
            endpoint("vsock://vm2:5000", none).unwrap_err().errno(),
            Errno::ENODEV as i32
        );
    }

    #[test]
    fn names_are_for_those_that_the_module_shows_them() {
        let nameless = || {
            let all = known()?.into_iter();
            let forget = |member: Member| Member {
                name: String::new(),
                ..member
            };
            Ok(all.map(forget).collect())
        };
        let error = endpoint("vsock://vm2:5000", nameless).unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES as i32);
        assert!(error.to_string().contains("run as root, or give the CID"));
        assert_eq!(endpoint("vsock://7:5000", nameless), tunnel(7, 5000));
        // It may be a host of TCP.
        let Ok(Endpoint::Tcp { no_tunnel, .. }) = endpoint("vm2:5000", nameless) else {
            panic!("a tunnel");
        };
        assert!(no_tunnel.unwrap().contains("run as root"));
        let none = || Ok(Vec::new());
        let error = endpoint("vsock://vm2:5000", none).unwrap_err();
        assert_eq!(error.errno(), Errno::EHOSTUNREACH as i32);
    }

    #[test]
    fn what_is_no_address_has_an_error() {
        let wrong = [
            ("twin:5000", Errno::ENOTUNIQ),
            ("vsock://twin:5000", Errno::ENOTUNIQ),
            ("vsock://vm1:5000", Errno::EHOSTUNREACH),
            ("vsock://outsourcer:5000", Errno::EHOSTUNREACH),
            ("vsock://vm2", Errno::EINVAL),
            ("tcp://host:70000", Errno::EINVAL),
            ("host.example:70000", Errno::EINVAL),
            ("tcp://2001:db8::1:5000", Errno::EINVAL),
            ("tcp://host:", Errno::EINVAL),
            ("unix://run/vm1.sock:5000", Errno::EINVAL),
            ("unix:///run/vm1.sock", Errno::EINVAL),
            ("unix:///run/vm1.sock:", Errno::EINVAL),
            ("unix://", Errno::EINVAL),
            ("", Errno::EINVAL),
        ];
        for (address, errno) in wrong {
            assert_eq!(to(address).unwrap_err().errno(), errno as i32, "{address}");
        }
    }
}
