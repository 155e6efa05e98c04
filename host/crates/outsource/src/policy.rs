// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides what the guest may connect to and publish.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hallway_abi::message::{SOCKET_IPV6, SOCKET_V6ONLY};
use nix::errno::Errno;

use crate::orders::{longest, Policy, Protocol, Publish, Rule};

/// Networks that only a rule about a part of them allows: they are the host's own, or
/// of its neighbours, and "all addresses" does not mean them. The last ones have an
/// IPv4 address within, to which a gateway may send: rules about that one would not count.
const SPECIAL: [(IpAddr, u8); 20] = [
    (IpAddr::V4(Ipv4Addr::new(0, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V4(Ipv4Addr::BROADCAST), 32),
    // Metadata services of clouds that have no link-local address: Oracle's, in a network for
    // protocols, Azure's and Alibaba's, and by IPv6 Amazon's and Google's.
    (IpAddr::V4(Ipv4Addr::new(192, 0, 0, 0)), 24),
    (IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), 32),
    (IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), 32),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        128,
    ),
    (
        IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
        128,
    ),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 128),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 96),
    (IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0)), 96),
    (
        IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0)),
        96,
    ),
    (
        IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0)),
        48,
    ),
    (IpAddr::V6(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0)), 32),
    (IpAddr::V6(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0)), 16),
];

fn is_within(address: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits())
                .checked_shr(32 - u32::from(prefix))
                .unwrap_or(0)
                == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits())
                .checked_shr(128 - u32::from(prefix))
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

fn find_special(ip: IpAddr) -> Option<&'static (IpAddr, u8)> {
    SPECIAL
        .iter()
        .find(|(network, prefix)| is_within(ip, *network, *prefix))
}

fn matches(rule: &Rule, protocol: Protocol, to: SocketAddr, is_own: impl Fn() -> bool) -> bool {
    if rule.protocol.is_some_and(|one| one != protocol)
        || !is_within(to.ip(), rule.address, rule.prefix)
    {
        return false;
    }
    if rule
        .ports
        .is_some_and(|(first, last)| !(first..=last).contains(&to.port()))
    {
        return false;
    }
    match find_special(to.ip()) {
        Some((network, prefix)) if rule.allow => {
            let is_named = rule.prefix == longest(to.ip()) || to.ip().is_loopback();
            rule.prefix >= *prefix
                && is_within(rule.address, *network, *prefix)
                && (is_named || !is_own())
        }
        None if rule.allow && rule.prefix < longest(to.ip()) => !is_own(),
        _ => true,
    }
}

/// Decides about a connection, or about datagrams to an end. An error names the rule, or says
/// that there is none.
/// `is_own` says whether an address is the host's: only a rule for it alone allows it,
/// since what listens there may trust all that comes from the host. 127.0.0.0/8 is one address.
pub fn check_connect(
    policy: &Policy,
    protocol: Protocol,
    to: SocketAddr,
    is_own: impl Fn(IpAddr) -> bool,
) -> Result<(), String> {
    match policy.is_draining {
        true => Err("draining".into()),
        false => check_rules(policy, protocol, to, is_own),
    }
}

/// The same for an end that was allowed before: datagrams to it go on while the VM is drained.
pub fn check_rules(
    policy: &Policy,
    protocol: Protocol,
    to: SocketAddr,
    is_own: impl Fn(IpAddr) -> bool,
) -> Result<(), String> {
    let known = OnceCell::new();
    let is_own = || *known.get_or_init(|| is_own(to.ip()));
    let mut rules = policy.connect.iter();
    match rules.find(|rule| matches(rule, protocol, to, is_own)) {
        Some(rule) if rule.allow => Ok(()),
        Some(rule) => Err(rule.to_string()),
        None => Err("no rule".into()),
    }
}

/// Decides about answers to an end that has sent to a published UDP port. Nothing proves
/// that it did: anything on its way can write any source. So rules with `!` concern it, and
/// networks that must be named. The kernel takes its own addresses of IPv4 from itself alone;
/// those of IPv6 it does not, so a neighbour on a link can have the guest answer to them.
pub fn check_answer(policy: &Policy, to: SocketAddr) -> Result<(), String> {
    let mut rules = policy.connect.iter();
    match rules.find(|rule| matches(rule, Protocol::Udp, to, || false)) {
        Some(rule) if rule.allow => Ok(()),
        Some(rule) => Err(rule.to_string()),
        None if find_special(to.ip()).is_some() => Err("no rule".into()),
        None => Ok(()),
    }
}

/// The address from which a connection goes out; `wanted` is the guest's word. Nothing:
/// the kernel chooses. An error: the guest may not have the address that it wants.
pub fn choose_source(
    policy: &Policy,
    wanted: IpAddr,
    is_v4: bool,
) -> Result<Option<IpAddr>, Errno> {
    let mut own = policy.source.iter().filter(|ip| ip.is_ipv4() == is_v4);
    if wanted.is_unspecified() {
        return Ok(own.next().copied());
    }
    own.find(|ip| **ip == wanted)
        .map(|ip| Some(*ip))
        .ok_or(Errno::EADDRNOTAVAIL)
}

/// Where the host listens for a listener of the guest, or a UDP socket that is bound to
/// `local`, and whether an IPv6 socket there has no IPv4. Nothing: it is not published.
pub fn find_published(
    policy: &Policy,
    protocol: Protocol,
    local: SocketAddr,
    flags: u32,
) -> Option<(SocketAddr, bool)> {
    if local.ip().is_loopback() {
        return None;
    }
    // One of IPv6 that is bound to an address has the family of that: IPv4 if it is mapped.
    let takes_v6 = flags & SOCKET_IPV6 != 0 && local.is_ipv6();
    let takes_v4 = !takes_v6 || flags & SOCKET_V6ONLY == 0 && local.ip().is_unspecified();
    let is_it = |one: &&Publish| one.protocol == protocol && one.port == local.port();
    let published = policy.publish.iter().filter(is_it);
    published.map(|one| one.address).find_map(|address| {
        if address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            let fits = if address.is_ipv4() {
                takes_v4
            } else {
                takes_v6
            };
            return fits.then_some((address, true));
        }
        if takes_v6 {
            return Some((address, !takes_v4));
        }
        Some(((Ipv4Addr::UNSPECIFIED, address.port()).into(), true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(connect: &[&str], publish: &[&str]) -> Policy {
        Policy {
            source: vec!["10.9.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            connect: connect.iter().map(|rule| rule.parse().unwrap()).collect(),
            publish: publish.iter().map(|port| port.parse().unwrap()).collect(),
            ..Policy::default()
        }
    }

    fn allows_by(protocol: Protocol, connect: &[&str], to: &str) -> bool {
        let own = IpAddr::from([10, 9, 0, 1]);
        let policy = policy(connect, &[]);
        check_connect(&policy, protocol, to.parse().unwrap(), |ip| ip == own).is_ok()
    }

    fn allows(connect: &[&str], to: &str) -> bool {
        allows_by(Protocol::Tcp, connect, to)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        assert!(!allows(&[], "1.2.3.4:5"));
        let rules = ["10.0.0.0/8:443", "!10.0.0.1", "10.0.0.0/24", "::/0"];
        assert!(allows(&rules, "10.0.0.1:443"));
        assert!(!allows(&rules, "10.0.0.1:80"));
        assert!(allows(&rules, "10.0.0.2:80"));
        assert!(!allows(&rules, "10.1.0.2:80"));
        assert!(allows(&rules, "[2001:db8::1]:80"));
        assert!(allows(&["0.0.0.0/0"], "8.8.8.8:1"));
    }

    #[test]
    fn a_rule_of_one_protocol_says_nothing_of_the_other() {
        let rules = ["!udp/10.0.0.0/24", "tcp/10.0.0.0/8:443", "udp/0.0.0.0/0:53"];
        for (to, tcp, udp) in [
            ("10.0.0.1:443", true, false),
            ("10.0.0.1:53", false, false),
            ("10.0.1.1:443", true, false),
            ("10.0.1.1:53", false, true),
        ] {
            assert_eq!(allows_by(Protocol::Tcp, &rules, to), tcp, "tcp {to}");
            assert_eq!(allows_by(Protocol::Udp, &rules, to), udp, "udp {to}");
        }
    }

    #[test]
    fn answers_go_where_no_rule_is_against_it() {
        let rules = [
            "!10.1.0.0/16",
            "!tcp/10.2.0.0/16",
            "!udp/10.3.0.0/16",
            "127.0.0.1",
            "10.0.0.0/8",
            "!fd00::/8",
        ];
        let policy = policy(&rules, &[]);
        for (to, is_allowed) in [
            ("192.0.2.1:5", true),
            ("[2001:db8::1]:5", true),
            ("10.2.0.1:5", true),
            ("10.3.0.1:5", false),
            ("10.9.0.1:5", true),
            ("10.1.0.1:5", false),
            ("[fd00::1]:5", false),
            ("127.0.0.1:5", true),
            ("127.0.0.2:5", false),
            ("169.254.169.254:80", false),
            ("[fe80::1]:5", false),
        ] {
            let answer = check_answer(&policy, to.parse().unwrap());
            assert_eq!(answer.is_ok(), is_allowed, "{to}");
        }
    }

    #[test]
    fn a_vm_that_is_drained_answers_and_connects_nowhere() {
        let policy = Policy {
            is_draining: true,
            ..policy(&["10.1.0.0/16", "!10.0.0.0/8", "0.0.0.0/0"], &[])
        };
        for (to, is_answered) in [
            ("10.1.0.1:5", true),
            ("10.2.0.1:5", false),
            ("1.2.3.4:5", true),
        ] {
            let to = to.parse().unwrap();
            assert_eq!(check_answer(&policy, to).is_ok(), is_answered, "{to}");
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                assert!(check_connect(&policy, protocol, to, |_| false).is_err());
            }
            let goes_on = check_rules(&policy, Protocol::Udp, to, |_| false);
            assert_eq!(goes_on.is_ok(), is_answered, "{to}");
        }
    }

    #[test]
    fn special_addresses_must_be_named() {
        let all = ["0.0.0.0/0", "::/0", "0.0.0.0/1", "fc00::/6", "::/127"];
        for to in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "0.0.0.0:1",
            "169.254.169.254:80",
            "224.0.0.1:1",
            "255.255.255.255:1",
            "[::1]:1",
            "[::]:1",
            "[fe80::1]:1",
            "[ff02::1]:1",
            "[::127.0.0.1]:1",
            "[64:ff9b::169.254.169.254]:80",
            "[64:ff9b:1::10.0.0.1]:1",
            "[2001:0:a00:1::1]:1",
            "[2002:a00:1::1]:1",
            "[::ffff:0:10.0.0.1]:1",
            "192.0.0.192:80",
            "168.63.129.16:80",
            "100.100.100.200:80",
            "[fd00:ec2::254]:80",
            "[fd20:ce::254]:80",
        ] {
            assert!(!allows(&all, to), "{to}");
        }
        assert!(allows(&["127.0.0.1/32:5000"], "127.0.0.1:5000"));
        assert!(!allows(&["127.0.0.1/32:5000"], "127.0.0.1:5001"));
        assert!(allows(&["127.0.0.0/8"], "127.0.0.2:1"));
        assert!(allows(&["::1"], "[::1]:1"));
        assert!(allows(&["fe80::/10"], "[fe80::1]:1"));
        assert!(allows(&["64:ff9b::/96"], "[64:ff9b::1.2.3.4]:1"));
        assert!(allows(&["168.63.129.16:53"], "168.63.129.16:53"));
        assert!(allows(&["0.0.0.0/0"], "168.63.129.17:80"));
        assert!(allows(&["::/0"], "[fd00:ec2::253]:80"));
    }

    #[test]
    fn the_hosts_own_addresses_must_be_named() {
        assert!(!allows(&["0.0.0.0/0", "10.9.0.0/31"], "10.9.0.1:22"));
        assert!(allows(&["10.9.0.0/31"], "10.9.0.0:22"));
        assert!(allows(&["0.0.0.0/0", "10.9.0.1:80"], "10.9.0.1:80"));
        assert!(!allows(&["0.0.0.0/0", "10.9.0.1:80"], "10.9.0.1:22"));
        // Those in networks that must be named, too; but 127.0.0.0/8 is one.
        let allows = |rule: &str, to: &str| {
            let (policy, to) = (policy(&[rule], &[]), to.parse().unwrap());
            check_connect(&policy, Protocol::Tcp, to, |_| true).is_ok()
        };
        assert!(!allows("169.254.0.0/16", "169.254.20.10:53"));
        assert!(allows("169.254.20.10", "169.254.20.10:53"));
        assert!(allows("127.0.0.0/8", "127.0.0.2:1"));
    }

    #[test]
    fn the_source_is_of_the_same_family() {
        let policy = policy(&[], &[]);
        let any = Ipv6Addr::UNSPECIFIED.into();
        let source = |ip: &str| Ok(Some(ip.parse().unwrap()));
        assert_eq!(choose_source(&policy, any, true), source("10.9.0.1"));
        assert_eq!(choose_source(&policy, any, false), source("fd00::1"));
        let other = "10.9.0.2".parse().unwrap();
        assert_eq!(
            choose_source(&policy, other, true),
            Err(Errno::EADDRNOTAVAIL)
        );
        assert_eq!(choose_source(&Policy::default(), any, true), Ok(None));
    }

    #[test]
    fn only_named_ports_are_published() {
        let policy = policy(
            &[],
            &[
                "udp/80",
                "tcp/80=10.0.0.5:8080",
                "tcp/80=[fd00::5]:81",
                "tcp/90",
            ],
        );
        let find = |local: &str, flags| {
            find_published(&policy, Protocol::Tcp, local.parse().unwrap(), flags)
        };
        let at = |address: &str, only| Some((address.parse().unwrap(), only));
        assert_eq!(find("0.0.0.0:81", 0), None);
        assert_eq!(find("127.0.0.1:80", 0), None);
        assert_eq!(find("0.0.0.0:80", 0), at("10.0.0.5:8080", true));
        assert_eq!(
            find("[::]:80", SOCKET_IPV6 | SOCKET_V6ONLY),
            at("[fd00::5]:81", true)
        );
        assert_eq!(find("0.0.0.0:90", 0), at("0.0.0.0:90", true));
        assert_eq!(find("[::]:90", SOCKET_IPV6), at("[::]:90", false));
        // An address has one family: that of a mapped one is IPv4.
        assert_eq!(find("10.1.0.5:90", SOCKET_IPV6), at("0.0.0.0:90", true));
        assert_eq!(find("[fd01::5]:90", SOCKET_IPV6), at("[::]:90", true));
        assert_eq!(find("[fd01::5]:80", SOCKET_IPV6), at("[fd00::5]:81", true));
        let any = "0.0.0.0:80".parse().unwrap();
        assert_eq!(
            find_published(&policy, Protocol::Udp, any, 0),
            at("0.0.0.0:80", true)
        );
        assert_eq!(
            find("[::]:90", SOCKET_IPV6 | SOCKET_V6ONLY),
            at("[::]:90", true)
        );
    }
}
