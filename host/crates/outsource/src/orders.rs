// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What hallwayd tells the program.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use hallway_endpoint::orders::{Report, CONTROL_FD, PACKET_MAX};

/// An order of hallwayd.
pub type Order = hallway_endpoint::orders::Order<Policy>;

/// What the guest may do. By default that is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Addresses of the host from which connections go out. Without one of the family
    /// the host's kernel chooses.
    pub source: Vec<IpAddr>,
    /// Where the guest may connect to: the first rule that matches decides.
    pub connect: Vec<Rule>,
    /// Ports of the guest that the host publishes.
    pub publish: Vec<Publish>,
    /// The guest is to end its connections, and gets no others; rules about answers stay.
    pub is_draining: bool,
    /// Connections that the guest may have at a time.
    pub sockets: u32,
    /// Listeners, and UDP sockets with a published port, that the guest may have at a time.
    pub listeners: u32,
    /// Connects that the guest may make in a second, and other ends of UDP to which it may
    /// begin to send; 0: any number.
    pub rate: u32,
    /// Those that it may make at once, after it has made none for a while.
    pub burst: u32,
    /// Connections that may arrive in a second; 0: any number.
    pub arrival_rate: u32,
    /// Those that may arrive at once, after none has for a while.
    pub arrival_burst: u32,
    /// Microseconds that the program looks for more work before it sleeps.
    pub spin_us: u32,
}

/// A rule about connections: `10.0.0.0/8:443`, `[fd00::]/8:80-90`, `!10.0.0.1`, `!udp/::/0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    /// Whether what matches is allowed.
    pub allow: bool,
    /// Nothing: both.
    pub protocol: Option<Protocol>,
    /// Address of the network.
    pub address: IpAddr,
    /// Bits of the address that count.
    pub prefix: u8,
    /// The first and the last port; nothing: all.
    pub ports: Option<(u16, u16)>,
}

/// A protocol of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Connections and listeners.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Splits off a protocol at the beginning, if there is one.
fn split_protocol(text: &str) -> (Option<Protocol>, &str) {
    match text.split_once('/') {
        Some(("tcp", rest)) => (Some(Protocol::Tcp), rest),
        Some(("udp", rest)) => (Some(Protocol::Udp), rest),
        _ => (None, text),
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp/",
            Self::Udp => "udp/",
        })
    }
}

/// A port of the guest that the host publishes: `tcp/8080`, `udp/53=10.0.0.5:5353`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Publish {
    /// Protocol of both ports.
    pub protocol: Protocol,
    /// Port in the guest.
    pub port: u16,
    /// Address and port on the host. `[::]` means both families.
    pub address: SocketAddr,
}

/// Bits of an address.
pub fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() {
        32
    } else {
        128
    }
}

fn parse<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no {what}"))
}

/// Splits `address`, and what follows it. IPv6 may stand in brackets, and must where
/// ports follow.
fn split_address(text: &str) -> Result<(IpAddr, &str), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest
            .split_once(']')
            .ok_or_else(|| format!("{text:?} has no ]"))?;
        let address: Ipv6Addr = parse(address, "IPv6 address")?;
        return Ok((address.into(), rest));
    }
    let is_v6 = text.matches(':').count() > 1;
    let end = if is_v6 { "/" } else { "/:" };
    let at = text.find(|c| end.contains(c)).unwrap_or(text.len());
    Ok((parse(&text[..at], "IP address")?, &text[at..]))
}

/// Refuses an IPv4 address that is written as one of IPv6.
pub fn check_family(address: IpAddr) -> Result<IpAddr, String> {
    match (address, address.to_canonical()) {
        (IpAddr::V6(_), IpAddr::V4(plain)) => Err(format!("an IPv4 address is written as {plain}")),
        _ => Ok(address),
    }
}

fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse(first, "port")?, parse(last, "port")?);
    if first > last {
        return Err(format!("{text:?} is no range of ports"));
    }
    Ok((first, last))
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (allow, rest) = match text.strip_prefix('!') {
            Some(rest) => (false, rest),
            None => (true, text),
        };
        let (protocol, rest) = split_protocol(rest);
        let (address, rest) = split_address(rest)?;
        let (prefix, ports) = match rest.split_once(':') {
            Some((prefix, ports)) => (prefix, Some(parse_ports(ports)?)),
            None => (rest, None),
        };
        let prefix = match prefix.strip_prefix('/') {
            Some(prefix) => parse(prefix, "prefix")?,
            None if prefix.is_empty() => longest(address),
            None => return Err(format!("{text:?}: what is {prefix:?}?")),
        };
        if prefix > longest(address) {
            return Err(format!("{text:?}: the prefix is too long"));
        }
        // No destination matches such a rule: each is looked up as what it is.
        check_family(address).map_err(|why| format!("{text:?}: {why}"))?;
        Ok(Self {
            allow,
            protocol,
            address,
            prefix,
            ports,
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.allow {
            f.write_str("!")?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, "{protocol}")?;
        }
        match (self.address, self.ports) {
            (IpAddr::V6(address), Some(_)) => write!(f, "[{address}]/{}", self.prefix)?,
            (address, _) => write!(f, "{address}/{}", self.prefix)?,
        }
        match self.ports {
            Some((first, last)) if first == last => write!(f, ":{first}"),
            Some((first, last)) => write!(f, ":{first}-{last}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (Some(protocol), rest) = split_protocol(text) else {
            return Err(format!("{text:?} does not begin with tcp/ or udp/"));
        };
        let (port, address) = match rest.split_once('=') {
            Some((port, address)) => (parse(port, "port")?, Some(parse(address, "address:port")?)),
            None => (parse(rest, "port")?, None),
        };
        if port == 0 {
            return Err(format!("{text:?}: port 0 cannot be published"));
        }
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        if address.is_some_and(|address: SocketAddr| address.port() == 0) {
            return Err(format!("{text:?}: a port of the host must be named"));
        }
        if let Some(address) = address {
            check_family(address.ip()).map_err(|why| format!("{text:?}: {why}"))?;
        }
        Ok(Self {
            protocol,
            port,
            address: address.unwrap_or(everywhere),
        })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.protocol, self.port)?;
        if self.address != SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port)) {
            write!(f, "={}", self.address)?;
        }
        Ok(())
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

as_text!(Rule);
as_text!(Publish);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        for (text, shown) in [
            ("10.0.0.0/8:443", "10.0.0.0/8:443"),
            ("[fd00::]/8:80-90", "[fd00::]/8:80-90"),
            ("!10.0.0.1", "!10.0.0.1/32"),
            ("::/0", "::/0"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("[::1]:22", "[::1]/128:22"),
            ("127.0.0.1:5000", "127.0.0.1/32:5000"),
            ("tcp/10.0.0.0/8:443", "tcp/10.0.0.0/8:443"),
            ("!udp/[fd00::]/8:53", "!udp/[fd00::]/8:53"),
            ("!udp/::/0", "!udp/::/0"),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse(), Ok(rule));
        }
        for text in [
            "",
            "!",
            "10.0.0.0/33",
            "10.0.0.0/8:",
            "10.0.0.0/8:9-8",
            "[::1",
            "::1/129",
            "x",
            "10.0.0.1:70000",
            "[::]x",
            "sctp/10.0.0.1",
            "udp/!10.0.0.1",
            "udp/53",
            "!::ffff:10.0.0.1",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }

    #[test]
    fn published_ports_are_read_and_shown() {
        let publish: Publish = "tcp/8080".parse().unwrap();
        assert_eq!(publish.address, "[::]:8080".parse().unwrap());
        assert_eq!(publish.to_string(), "tcp/8080");
        let publish: Publish = "tcp/80=10.0.0.5:8080".parse().unwrap();
        assert_eq!((publish.port, publish.address.port()), (80, 8080));
        assert_eq!(publish.to_string(), "tcp/80=10.0.0.5:8080");
        let publish: Publish = "udp/53".parse().unwrap();
        assert_eq!(publish.protocol, Protocol::Udp);
        assert_eq!(publish.to_string(), "udp/53");
        for text in [
            "sctp/53",
            "udp/0",
            "tcp/",
            "tcp/0",
            "tcp/80=10.0.0.5",
            "tcp/80=10.0.0.5:0",
            "tcp/80=[::ffff:10.0.0.5]:80",
            "80",
        ] {
            assert!(text.parse::<Publish>().is_err(), "{text}");
        }
    }

    #[test]
    fn orders_are_json() {
        let order: Order =
            serde_json::from_str(r#"{"order":"policy","policy":{"connect":["!::/0"]}}"#).unwrap();
        let Order::Policy { policy } = &order else {
            panic!("{order:?}");
        };
        assert!(!policy.connect[0].allow && policy.sockets == 0);
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        let text = serde_json::to_string(&Order::Report { number: 7 }).unwrap();
        assert_eq!(text, r#"{"order":"report","number":7}"#);
    }
}
