// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the structures with what a C compiler makes of `abi/hallway/*.h`.
#![allow(missing_docs)]

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use hallway_abi::{datagram, loan, message, region, ring, tunnel};

/// C expressions of integer type, each with the value that Rust has for it.
fn expectations() -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = Vec::new();
    macro_rules! layout {
        ($c:literal, $rust:ty: $($member:ident)*) => {
            all.push((concat!("sizeof(struct ", $c, ")").into(), size_of::<$rust>() as u64));
            $(all.push((
                concat!("offsetof(struct ", $c, ", ", stringify!($member), ")").into(),
                offset_of!($rust, $member) as u64,
            ));)*
        };
    }
    layout!("hallway_member", region::Member:
        uuid generation state slice_offset slice_size name cid reserved);
    layout!("hallway_region", region::Region:
        magic major minor header_size size uuid key slots change reserved member);
    layout!("hallway_slice", region::Slice:
        magic generation heartbeat address_seq address_count tx_bytes rx_bytes channels settled
        senders reserved address reserved2);
    layout!("hallway_mailbox_index", region::MailboxIndex:
        index sender_generation receiver_generation reserved);
    layout!("hallway_mailbox", region::Mailbox: head tail reserved pending reserved2 message);
    layout!("hallway_request", region::Request:
        serial major minor command reserved region vm name reserved2);
    layout!("hallway_reply", region::Reply:
        serial status slot generation major minor outsourcer tunnel_ranges tunnel_ports peer_cid
        doorbell);
    layout!("hallway_ports", region::Ports: first last);
    layout!("hallway_home", region::Home: seq count reserved address);
    layout!("hallway_candidates", region::Candidates: seq count reserved address);
    layout!("hallway_wanted", region::Wanted: set seq reserved);
    layout!("hallway_cpu_order", region::CpuOrder: online reserved);
    layout!("hallway_cpu_report", region::CpuReport: seq order status online present reserved);
    layout!("hallway_page", region::Page:
        magic major minor reserved entry home candidates wanted cpu_order cpu_report region_key
        cid peer_cid reserved2);
    layout!("hallway_ring", ring::Ring:
        head tail_event reserved0 tail head_event reserved1 magic size carrier reserved2
        start end grown area_size reserved3 area reserved4 options reserved5);
    layout!("hallway_options", ring::Options: changed asked answered info_size unacked value info);
    layout!("hallway_datagram", datagram::Datagram:
        length port address tos hops discover origin icmp_type icmp_code segment error info
        offender);
    all.push((
        "offsetof(struct hallway_datagram, type)".into(),
        offset_of!(datagram::Datagram, r#type) as u64,
    ));
    layout!("hallway_call", message::Call: answers listener flags reserved);
    layout!("hallway_tunnel", message::Tunnel: answers local_port remote_port);
    all.push((
        "offsetof(struct hallway_tunnel, type)".into(),
        offset_of!(message::Tunnel, r#type) as u64,
    ));
    layout!("hallway_frame", tunnel::Frame: length flags);
    layout!("hallway_loan_attach", loan::Attach:
        socket reserved tx_size rx_size tx_offset rx_offset);
    layout!("hallway_loan_send", loan::Send: commit flags reserve state offset reserved);
    layout!("hallway_loan_receive", loan::Receive: release state offset length flags reserved);
    for (name, number) in [
        ("ATTACH", loan::ATTACH),
        ("SEND", loan::SEND),
        ("RECEIVE", loan::RECEIVE),
    ] {
        all.push((format!("_IOC_NR(HALLWAY_LOAN_{name})"), number.into()));
        let letter = format!("_IOC_TYPE(HALLWAY_LOAN_{name})");
        all.push((letter, loan::LETTER.into()));
    }
    for (name, value) in [
        ("NONE", loan::NONE),
        ("FOUND", loan::FOUND),
        ("END", loan::END),
        ("EOR", loan::EOR),
    ] {
        all.push((format!("HALLWAY_LOAN_{name}"), value.into()));
    }
    for uuid in [[0; 16], [0xff; 16], *b"sixteen letters."] {
        let bytes = uuid.map(|byte| byte.to_string()).join(", ");
        all.push((
            format!("hallway_cid((const __u8[16]){{ {bytes} }})"),
            tunnel::cid(&uuid).into(),
        ));
        for given in [2, 3, 0x3fff_ffff, 0x4000_0000] {
            all.push((
                format!("hallway_member_cid({given}, (const __u8[16]){{ {bytes} }})"),
                tunnel::member_cid(given, &uuid).into(),
            ));
        }
    }
    for (name, value) in [
        ("type", offset_of!(message::Head, r#type)),
        ("reserved", offset_of!(message::Head, reserved)),
        ("from", offset_of!(message::Head, from)),
        ("to", offset_of!(message::Head, to)),
        ("carrier", offset_of!(message::Head, carrier)),
        ("offer.token", offset_of!(message::Offer, token)),
        ("offer.call", offset_of!(message::Offer, token)),
        ("offer.tunnel", offset_of!(message::Offer, token)),
        ("offer.local", offset_of!(message::Offer, local)),
        ("offer.remote", offset_of!(message::Offer, remote)),
        ("offer.local_port", offset_of!(message::Offer, local_port)),
        ("offer.remote_port", offset_of!(message::Offer, remote_port)),
        ("offer.kind", offset_of!(message::Offer, kind)),
        ("offer.features", offset_of!(message::Offer, features)),
        ("offer.ring_size", offset_of!(message::Offer, ring_size)),
        ("offer.handle", offset_of!(message::Offer, handle)),
        ("other.position", offset_of!(message::Other, position)),
        ("other.reason", offset_of!(message::Other, reason)),
    ] {
        all.push((
            format!("offsetof(struct hallway_message, {name})"),
            value as u64,
        ));
    }
    let entry = "((struct hallway_page *)0)->entry[0]";
    all.push((
        format!("sizeof({entry})"),
        size_of::<region::PageEntry>() as u64,
    ));
    all.push((
        "offsetof(struct hallway_page, entry[0].reply) - offsetof(struct hallway_page, entry[0])"
            .into(),
        offset_of!(region::PageEntry, reply) as u64,
    ));
    all
}

#[test]
fn rust_and_c_agree() {
    let all = expectations();
    let mut source = String::from(
        "#include <linux/ioctl.h>\n#include <stdio.h>\n#include \"datagram.h\"\n#include \"loan.h\"\n\
         #include \"message.h\"\n\
         #include \"region.h\"\n#include \"ring.h\"\n#include \"tunnel.h\"\nint main(void)\n{\n",
    );
    for (expression, _) in &all {
        writeln!(
            source,
            "printf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .unwrap();
    }
    source.push_str("return 0;\n}\n");

    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (scratch.join("headers.c"), scratch.join("headers"));
    std::fs::write(&file, source).unwrap();
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../abi/hallway");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-I"])
        .arg(&headers)
        .arg("-o")
        .args([&program, &file])
        .output()
        .expect("this test needs a C compiler called cc: install gcc");
    assert!(
        compiled.status.success(),
        "cc: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );

    let output = Command::new(&program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut lines = output.lines();
    for (expression, value) in &all {
        assert_eq!(lines.next().unwrap(), value.to_string(), "{expression}");
    }
    assert_eq!(lines.next(), None);
}
