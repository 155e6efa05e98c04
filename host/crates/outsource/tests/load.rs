// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many connections at a time, each with its own amount of bytes and its own ring.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::thread;

use common::{pattern, policy, Conn, Host, Vm};
use hallway_abi::message as abi;
use hallway_endpoint::message::Message;

const CONNECTIONS: usize = 24;

/// A connection, what it has still to send, and what came.
struct Transfer {
    conn: Conn,
    sent: usize,
    out: Vec<u8>,
    back: Vec<u8>,
}

/// Echoes each connection in a thread of its own: first slowly, then as it comes.
fn serve(listener: TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 20_000];
            let mut size = 1;
            loop {
                let count = stream.read(&mut buffer[..size]).unwrap();
                if count == 0 {
                    return stream.shutdown(Shutdown::Write).unwrap();
                }
                stream.write_all(&buffer[..count]).unwrap();
                size = (size + 37).min(20_000);
            }
        });
    }
}

fn start(vm: &mut Vm, address: SocketAddr, n: usize) -> Transfer {
    let own = vm.next_endpoint();
    let (tx, handle) = vm.peer.make_ring_of(4096 << (n % 5)).unwrap();
    vm.offer(Vm::socket_offer(own, address, &tx, handle));
    let is_it = |message: &Message| matches!(message, Message::Offer(one) if one.answers == own);
    let Message::Offer(offer) = vm.wait_message(is_it) else {
        unreachable!()
    };
    Transfer {
        conn: vm.conn(own, tx, handle, offer),
        sent: 0,
        out: pattern(300_000 + n * 4099, n as u64 + 1),
        back: Vec::new(),
    }
}

impl Transfer {
    /// Moves what can be moved. True: something was.
    fn step(&mut self, vm: &mut Vm) -> bool {
        let sent = vm.write(&mut self.conn, &self.out[self.sent..]);
        self.sent += sent;
        if self.sent == self.out.len() && !self.conn.tx.is_ended() {
            vm.end(&mut self.conn);
        }
        sent + vm.read(&mut self.conn, &mut self.back) > 0
    }

    fn is_over(&self) -> bool {
        self.conn.tx.is_ended() && self.conn.rx.is_finished()
    }

    /// Asks for doorbells. True: there is something to do.
    fn arm(&mut self) -> bool {
        let may_write = self.sent < self.out.len() && self.conn.tx.arm(1, 2048);
        let may_read = !self.conn.rx.is_finished() && self.conn.rx.arm();
        may_write || may_read
    }
}

#[test]
fn no_byte_and_no_doorbell_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || serve(listener));
    let host = Host::start(policy(&[]));
    let mut vm = host.join(21);
    let mut transfers: Vec<_> = (0..CONNECTIONS)
        .map(|n| start(&mut vm, address, n))
        .collect();
    while !transfers.iter().all(Transfer::is_over) {
        let mut has_moved = false;
        for transfer in &mut transfers {
            has_moved |= !transfer.is_over() && transfer.step(&mut vm);
        }
        vm.peer.flush();
        if !has_moved {
            let mut has_news = false;
            for transfer in &mut transfers {
                has_news |= !transfer.is_over() && transfer.arm();
            }
            if !has_news && !transfers.iter().all(Transfer::is_over) {
                vm.sleep();
            }
        }
    }
    for transfer in transfers {
        assert!(transfer.back == transfer.out);
        let done = vm.wait_other(abi::DONE, transfer.conn.own);
        assert_eq!((done.position, done.reason), (transfer.out.len() as u64, 0));
        vm.send_done(&transfer.conn, 0);
    }
    let report = host.wait_report(|report| report.sockets == 0);
    assert_eq!((report.corrupt, report.sent), (0, report.received));
}
