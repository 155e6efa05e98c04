// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that writes anything anywhere. The program lives on, and serves the next.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use common::{free_port, guest_slice, own_slice, pattern, policy, Conn, Host, Vm, SIZE};
use hallway_abi::region::MAILBOX_MESSAGES;
use hallway_abi::{datagram, message as abi};
use hallway_endpoint::mailbox::mailbox_at;
use hallway_endpoint::member::Slice;
use hallway_endpoint::message::{Handle, Message, Offer, Other};
use hallway_outsource::orders::Order;
use hallway_outsource::record::{Head, HEAD};
use hallway_shm::Mapping;

/// How long each kind of garbage is written.
const TIME: Duration = Duration::from_secs(3);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    /// A word that is often near to what is possible.
    fn word(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 63,
            3 => self.below(1 << 20) & !4095,
            4 => 1 << self.below(64),
            5 | 6 => self.below(300),
            _ => self.next(),
        }
    }
}

/// An echo server that takes what comes, until the process ends.
fn serve_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn map(host: &Host) -> Mapping {
    Mapping::new(host.region.as_fd(), SIZE as usize).unwrap()
}

fn check_alive(host: &mut Host, address: SocketAddr, generation: u32) {
    assert!(
        host.child.try_wait().unwrap().is_none(),
        "the program ended"
    );
    host.order(&Order::Departed, &[]);
    let mut vm = host.join(generation);
    let mut conn = vm.connect(address).unwrap();
    let bytes = pattern(100_000, 7);
    assert!(vm.exchange(&mut conn, &bytes) == bytes);
    vm.wait_other(abi::DONE, conn.own);
}

fn random_message(random: &mut Random, address: SocketAddr, port: u16) -> Message {
    let number = |random: &mut Random| match random.below(10) {
        0 => random.next() as u32,
        _ => random.below(130) as u32,
    };
    if random.below(2) == 0 {
        return Message::Other(Other {
            r#type: random.below(8) as u16,
            from: number(random),
            to: number(random),
            carrier: random.below(3) as u32,
            position: random.word(),
            reason: random.below(200) as u32,
        });
    }
    let size = 4096 << random.below(6);
    let is_odd = random.below(6) == 0;
    let kind = random.below(abi::KIND_MAX as u64 + 2) as u16;
    // A UDP socket has no port of its own.
    let has_port = (kind == abi::KIND_DATAGRAM) == is_odd;
    Message::Offer(Offer {
        from: number(random),
        to: if random.below(20) == 0 { 1 } else { 0 },
        carrier: if random.below(20) == 0 { 3 } else { 1 },
        kind,
        features: random.below(4) as u16,
        answers: if random.below(2) == 0 {
            0
        } else {
            number(random)
        },
        listener: number(random),
        flags: random.below(8) as u32,
        tunnel: None,
        local: SocketAddr::from(([0, 0, 0, 0], if has_port { port } else { 0 })),
        remote: address,
        ring_size: size as u32,
        handle: Handle {
            offset: if is_odd {
                random.word()
            } else {
                (64 + random.below(900)) * 4096
            },
            size: if is_odd { random.word() } else { size + 4096 },
        },
    })
}

/// Makes ring headers at random places, and breaks them.
fn scribble_rings(memory: &Mapping, slice: Slice, random: &mut Random) {
    for page in 64..964 {
        let at = slice.offset as usize + page * 4096;
        memory.write_u64(at, random.word());
        memory.write_u64(at + 72, random.word());
        memory.write_u32(at + 128, 0x474e_4952);
        memory.write_u32(at + 132, 4096 << random.below(6));
        memory.write_u32(at + 136, 1);
        memory.write_u64(at + 144, 1 << 63);
        let end = if random.below(4) == 0 {
            random.word()
        } else {
            0
        };
        memory.write_u64(at + 152, end);
    }
}

#[test]
fn garbage_in_messages_and_rings() {
    let address = serve_echo();
    let port = free_port();
    let mut host = Host::start(policy(&[port]));
    host.report();
    let before = host.count_fds();
    let memory = map(&host);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut vm = host.join(21);
    let end = Instant::now() + TIME;
    let mut rounds = 0;
    while Instant::now() < end {
        scribble_rings(&memory, guest_slice(21), &mut random);
        for _ in 0..20 {
            vm.peer.send(&random_message(&mut random, address, port));
            vm.peer.set_pending(random.below(4096) as u32);
        }
        vm.peer.flush();
        // What the program wrote to its own slice is open to the guest, too.
        for _ in 0..50 {
            let at = own_slice().offset + mailbox_at(3) as u64 + random.below(7 << 20);
            memory.write_u64(at as usize & !7, random.word());
        }
        vm.peer.look(4096, |_| {});
        if random.below(10) == 0 {
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
        rounds += 1;
        if rounds % 100 == 0 {
            host.report();
        }
    }
    let report = host.report();
    assert!(report.corrupt > 0, "{report:?}");
    assert!(report.sockets <= 100 && report.listeners <= 10);
    check_alive(&mut host, address, 22);
    host.order(&Order::Departed, &[]);
    host.report();
    assert_eq!(host.count_fds(), before);
}

#[test]
fn garbage_everywhere() {
    let address = serve_echo();
    let mut host = Host::start(policy(&[]));
    let memory = map(&host);
    let mut random = Random(0xfeed_f00d_dead_beef);
    let mut vm = host.join(21);
    let slice = guest_slice(21);
    let mailboxes = [
        slice.offset as usize + mailbox_at(own_slice().slot),
        own_slice().offset as usize + mailbox_at(slice.slot),
    ];
    let end = Instant::now() + TIME;
    let mut rounds = 0;
    while Instant::now() < end {
        for at in mailboxes {
            for _ in 0..10 {
                let word = at + random.below(12288) as usize / 8 * 8;
                memory.write_u64(word, random.word());
            }
        }
        // Indexes that the program takes for good now and then.
        let at = mailboxes[0];
        memory.write_u32(at + 4, 21);
        memory.write_u32(at + 8, own_slice().generation);
        let index = memory.read_u32(at + 64);
        let step = random.below(MAILBOX_MESSAGES as u64 + 2) as u32;
        memory.write_u32(at, index.wrapping_add(step));
        for _ in 0..500 {
            let base = if random.below(2) == 0 {
                slice
            } else {
                own_slice()
            };
            let word = base.offset + random.below(base.size) / 8 * 8;
            memory.write_u64(word as usize, random.word());
        }
        vm.peer.set_pending(0);
        vm.peer.flush();
        rounds += 1;
        if rounds % 100 == 0 {
            host.report();
        }
    }
    check_alive(&mut host, address, 22);
}

/// A record of which some fields are garbage, and the bytes of it that are published.
fn random_record(random: &mut Random, address: SocketAddr) -> (Vec<u8>, usize) {
    let to = match random.below(4) {
        0 => SocketAddr::from((random.next().to_ne_bytes().map(u16::from), 9)),
        1 => SocketAddr::from(([127, 0, 0, 2], random.below(3) as u16)),
        _ => address,
    };
    let length = random.below(3000) as usize;
    let head = Head {
        tos: random.next() as u8,
        hops: random.next() as u8,
        discover: random.below(8) as u8,
        segment: random.below(200) as u16,
        ..Head::new(datagram::DATAGRAM_DATA, to, length)
    };
    let mut raw = head.write().to_vec();
    raw.resize(head.total(), 0x5a);
    if random.below(8) == 0 {
        for _ in 0..=random.below(4) {
            let at = random.below(HEAD as u64) as usize;
            raw[at] = random.word() as u8;
        }
    }
    let published = match random.below(16) {
        0 => random.below(raw.len() as u64) as usize,
        _ => raw.len(),
    };
    (raw, published)
}

/// Writes a record, as far as there is space.
fn write_record(vm: &mut Vm, conn: &mut Conn, raw: &[u8], published: usize) {
    let runs = conn.tx.free_runs(raw.len() as u32);
    if runs.len() < raw.len() {
        return;
    }
    runs.write(raw);
    if conn.tx.publish(published as u32) {
        vm.peer.set_pending(conn.its);
    }
}

#[test]
fn garbage_in_records() {
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let mut host = Host::start(policy(&[]));
    host.report();
    let before = host.count_fds();
    let mut random = Random(0x0dd_ba11_5eed_f00d);
    let mut vm = host.join(21);
    let end = Instant::now() + TIME;
    let mut sockets = 0;
    while Instant::now() < end {
        let mut conn = vm.open_datagrams().unwrap();
        sockets += 1;
        for _ in 0..50 {
            let (raw, published) = random_record(&mut random, address);
            write_record(&mut vm, &mut conn, &raw, published);
            vm.peer.flush();
            // Of some sockets nothing that comes is read.
            let unread = conn.rx.used_runs(u32::MAX).len() as u32;
            if sockets % 4 != 0 && conn.rx.consume(unread) {
                vm.peer.set_pending(conn.its);
            }
        }
        if random.below(2) == 0 {
            conn.tx.end();
        }
        vm.send_done(&conn, 0);
        vm.wait_other(abi::DONE, conn.own);
        vm.free(&conn);
    }
    let report = host.report();
    assert!(report.corrupt > 10 && report.sent > 10_000, "{report:?}");
    host.order(&Order::Departed, &[]);
    host.report();
    assert_eq!(host.count_fds(), before);
    check_alive(&mut host, serve_echo(), 22);
}

/// Connections that work are broken in the middle, each in another way.
#[test]
fn each_broken_word_resets_its_connection_alone() {
    let address = serve_echo();
    let mut host = Host::start(policy(&[]));
    let memory = map(&host);
    let mut vm: Vm = host.join(21);
    let mut good = vm.connect(address).unwrap();
    let words: [(usize, u64, bool); 5] = [
        (0, 1 << 40, true),
        (0, u64::MAX, true),
        (152, 1 << 62, true),
        (152, 5, true),
        (64, 1 << 40, false),
    ];
    for (n, (word, value, is_own)) in words.into_iter().enumerate() {
        let mut conn = vm.connect(address).unwrap();
        vm.write_all(&mut conn, b"echo");
        assert_eq!(vm.read_exact(&mut conn, 4), b"echo");
        let (base, handle) = if is_own {
            (guest_slice(21).offset, conn.handle())
        } else {
            (own_slice().offset, conn.offer.handle)
        };
        memory.write_u64((base + handle.offset) as usize + word, value);
        if !is_own {
            // The program looks at the tail when it has something to write.
            vm.write_all(&mut conn, b"more");
        }
        vm.peer.set_pending(conn.its);
        let done = vm.wait_other(abi::DONE, conn.own);
        assert_eq!(done.reason, libc::ECONNRESET as u32, "{n}");
        assert_eq!(host.report().corrupt, n as u64 + 1);
        vm.send_done(&conn, 0);
        host.wait_report(|report| report.sockets == 1);
    }
    vm.write_all(&mut good, b"still");
    assert_eq!(vm.read_exact(&mut good, 5), b"still");
    check_alive(&mut host, address, 22);
}
