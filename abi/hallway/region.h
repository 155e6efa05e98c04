/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The region: memory shared by its members, and the private page by which a
 * member joins it.
 *
 *   +-----------------------------+ 0
 *   | struct hallway_region       |  written by the daemon alone
 *   | struct hallway_member [64]  |
 *   +-----------------------------+ HALLWAY_HEADER_SIZE
 *   | slice of slot 0 (the host)  |  each written by its member alone, except
 *   | slice of slot 1             |  words that are marked otherwise
 *   | ...                         |
 *   +-----------------------------+ size
 *
 * A slice starts with struct hallway_slice, then one struct hallway_mailbox for
 * each slot of the region. The rest is ring memory, which the slice's owner
 * allocates.
 *
 * Every number is little-endian and naturally aligned. A field named reserved
 * is written as zero and not read. A reader loads each word once, bounds it by
 * what it knows privately, and uses its own copy.
 */
#ifndef HALLWAY_ABI_REGION_H
#define HALLWAY_ABI_REGION_H

#include "constants.h"
#include "types.h"

/* One slot of the member table; 128 bytes. */
struct hallway_member {
	__u8 uuid[16];		/* of the VM, as DMI tells it (RFC 4122 order) */
	__u32 generation;	/* 0: never used; a joining member gets a new one */
	__u32 state;		/* HALLWAY_MEMBER_* */
	__u64 slice_offset;	/* bytes from the start of the region, 4 KiB aligned */
	__u64 slice_size;	/* bytes, 4 KiB aligned */
	char name[HALLWAY_NAME_SIZE];	/* host name; UTF-8, to be shown only */
	__u32 cid;		/* that the configuration gives; 0: none */
	__u8 reserved[20];
};

/* The head of a region. */
struct hallway_region {
	__u64 magic;		/* HALLWAY_REGION_MAGIC; written last */
	__u16 major;
	__u16 minor;
	__u32 header_size;	/* HALLWAY_HEADER_SIZE */
	__u64 size;		/* bytes of the whole region, a power of two */
	__u8 uuid[16];
	__u8 key[16];		/* of the connection tokens (SipHash-2-4) */
	__u32 slots;		/* entries used in the member table, 2..64 */
	__u32 change;		/* incremented after every change of the table */
	__u8 reserved[64];
	struct hallway_member member[HALLWAY_SLOTS_MAX];
};

/*
 * The head of a slice; 4096 bytes. address_seq is odd while the addresses are
 * being written: read it, copy, read it again, and retry if it changed or is odd.
 * Retries are bounded: a member whose address_seq never rests publishes nothing.
 */
struct hallway_slice {
	__u64 magic;		/* HALLWAY_SLICE_MAGIC; written last */
	__u32 generation;	/* as in the member table: else stale */
	__u32 heartbeat;	/* incremented at least each second */
	__u32 address_seq;
	__u32 address_count;	/* 0..HALLWAY_ADDRESSES_MAX */
	__u64 tx_bytes;		/* through rings to all members; to be shown only */
	__u64 rx_bytes;		/* through rings from all members; the same */
	__u32 channels;		/* promoted connections now; the same */
	__u32 settled;		/* a change: no channel to one departed by then is left */
	__u32 senders;		/* connections and tunnels, trunks too, through which it
				 * sent in the last half second or so
				 */
	__u8 reserved[12];
	__u8 address[HALLWAY_ADDRESSES_MAX][16]; /* IPv6, or IPv4-mapped */
	__u8 reserved2[3008];
};

/*
 * A mailbox carries messages and pending bits from the owner of the slice to the
 * member of one slot. head and tail run freely modulo 2^32.
 *
 * An index states the generations of both sides. Indexes of another pair of
 * generations mean an empty mailbox.
 */
struct hallway_mailbox_index {
	__u32 index;
	__u32 sender_generation;
	__u32 receiver_generation;
	__u8 reserved[52];
};

struct hallway_mailbox {
	struct hallway_mailbox_index head;	/* written by the sender */
	struct hallway_mailbox_index tail;	/* written by the receiver */
	__u8 reserved[384];
	/*
	 * Bit n: endpoint n of the receiver was rung; bit 0: the mailbox has
	 * messages. The sender sets bits, the receiver takes them, and sets
	 * bit 0 itself before it looks for the first time. All of it is done by
	 * bus-locked instructions: a kernel booted with one CPU patches the
	 * lock prefix of ordinary atomics away.
	 */
	__u64 pending[HALLWAY_ENDPOINTS_MAX / 64];
	__u8 reserved2[3072];
	__u8 message[HALLWAY_MAILBOX_MESSAGES][HALLWAY_MESSAGE_SIZE];
};

/*
 * The private page: BAR2 of the doorbell device, shared by one VM and the
 * daemon. The guest writes a request, then its serial, then rings doorbell
 * HALLWAY_DAEMON_ID. The daemon writes a reply, then its serial, then rings the
 * guest. Live migration copies the source's page over the destination's: a reply
 * counts only if its serial is that of a request made since.
 */

struct hallway_request {	/* written by the guest; 128 bytes */
	__u32 serial;		/* higher than in request and reply; 0: none;
				 * written last
				 */
	__u16 major;
	__u16 minor;
	__u32 command;		/* HALLWAY_COMMAND_* */
	__u32 reserved;
	__u8 region[16];	/* uuid of the region */
	__u8 vm[16];		/* uuid of the VM */
	char name[HALLWAY_NAME_SIZE];	/* host name of the VM */
	__u8 reserved2[16];
};

struct hallway_ports {
	__u32 first;
	__u32 last;
};

struct hallway_reply {		/* written by the daemon; 192 bytes */
	__u32 serial;		/* of the request answered; written last */
	__u32 status;		/* HALLWAY_STATUS_* */
	__u32 slot;		/* of this VM in the region */
	__u32 generation;
	__u16 major;		/* of the daemon */
	__u16 minor;
	__u32 outsourcer;	/* its slot in the region; 0: there is none */
	/*
	 * Which ports of this VM others may reach by tunnels: 1 + the number of
	 * ranges, or 0 for any port. Current while the guest is joined.
	 */
	__u32 tunnel_ranges;
	struct hallway_ports tunnel_ports[HALLWAY_TUNNEL_RANGES];
	/*
	 * hallway_cid() of the one other member that the region has by the configuration; 0:
	 * the daemon knows of none. From minor version HALLWAY_MINOR_PEERS on; superseded by
	 * peer_cid of the page.
	 */
	__u32 peer_cid;
	__u16 doorbell[HALLWAY_SLOTS_MAX]; /* peer id that rings the slot; 0: none;
					    * current while the guest is joined
					    */
};

/*
 * Candidates: VMs with which a region can be made for this one, but is not yet.
 * Both lists are written as a slice's addresses are, under an odd seq.
 */
struct hallway_home {		/* written by the guest */
	__u32 seq;
	__u32 count;
	__u8 reserved[8];
	__u8 address[HALLWAY_HOME_MAX][16];	/* IPv6, or IPv4-mapped */
};

struct hallway_candidates {	/* written by the daemon */
	__u32 seq;
	__u32 count;
	__u8 reserved[8];
	__u8 address[HALLWAY_CANDIDATES_MAX][16];
};

struct hallway_wanted {		/* written by the guest */
	__u64 set;		/* bit n: there is traffic with address n ... */
	__u32 seq;		/* ... of the list of this seq; written last */
	__u32 reserved;
};

/*
 * How many of its CPUs a guest is to have online. The order is a state: the guest
 * makes it true, and keeps it so. Live migration takes it along; the destination's
 * daemon writes its own.
 */
struct hallway_cpu_order {	/* written by the daemon */
	__u32 online;		/* CPUs; 0: all, the daemon does not care */
	__u32 reserved;
};

struct hallway_cpu_report {	/* written by the guest, as a slice's addresses are */
	__u32 seq;		/* 0: it knows nothing of such orders */
	__u32 order;		/* that this is about */
	__u32 status;		/* HALLWAY_CPUS_* */
	__u32 online;		/* CPUs */
	__u32 present;		/* CPUs */
	__u32 reserved;
};

struct hallway_page {
	__u64 magic;		/* HALLWAY_PAGE_MAGIC; written last by the daemon */
	__u16 major;		/* of the daemon */
	__u16 minor;
	__u8 reserved[52];
	struct {
		struct hallway_request request;
		struct hallway_reply reply;
	} entry[HALLWAY_PAGE_ENTRIES];
	struct hallway_home home;
	struct hallway_candidates candidates;
	struct hallway_wanted wanted;
	struct hallway_cpu_order cpu_order;
	struct hallway_cpu_report cpu_report;
	/*
	 * By entry: how the key of its region begins; written before the reply. From minor
	 * version HALLWAY_MINOR_KEYS on.
	 */
	__u8 region_key[HALLWAY_PAGE_ENTRIES][8];
	/*
	 * The CID of this VM, written before a reply; 0: that of its UUID. And by entry that
	 * of the one other member that the region has by the configuration, written before
	 * the region's table has that member; 0: the daemon knows of none. From minor version
	 * HALLWAY_MINOR_CIDS on.
	 */
	__u32 cid;
	__u32 peer_cid[HALLWAY_PAGE_ENTRIES];
	__u8 reserved2[12];
};

HALLWAY_ASSERT_SIZE(struct hallway_member, 128);
HALLWAY_ASSERT_OFFSET(struct hallway_member, slice_offset, 24);
HALLWAY_ASSERT_OFFSET(struct hallway_member, name, 40);
HALLWAY_ASSERT_OFFSET(struct hallway_member, cid, 104);
HALLWAY_ASSERT_SIZE(struct hallway_region, 128 + 64 * 128);
HALLWAY_ASSERT_OFFSET(struct hallway_region, uuid, 24);
HALLWAY_ASSERT_OFFSET(struct hallway_region, slots, 56);
HALLWAY_ASSERT_OFFSET(struct hallway_region, member, 128);
HALLWAY_ASSERT_SIZE(struct hallway_slice, 4096);
HALLWAY_ASSERT_OFFSET(struct hallway_slice, senders, 48);
HALLWAY_ASSERT_OFFSET(struct hallway_slice, address, 64);
HALLWAY_ASSERT_SIZE(struct hallway_mailbox_index, 64);
HALLWAY_ASSERT_SIZE(struct hallway_mailbox, 12288);
HALLWAY_ASSERT_OFFSET(struct hallway_mailbox, pending, 512);
HALLWAY_ASSERT_OFFSET(struct hallway_mailbox, message, 4096);
HALLWAY_ASSERT_SIZE(struct hallway_request, 128);
HALLWAY_ASSERT_OFFSET(struct hallway_request, region, 16);
HALLWAY_ASSERT_SIZE(struct hallway_reply, 192);
HALLWAY_ASSERT_OFFSET(struct hallway_reply, outsourcer, 20);
HALLWAY_ASSERT_OFFSET(struct hallway_reply, peer_cid, 60);
HALLWAY_ASSERT_OFFSET(struct hallway_reply, doorbell, 64);
HALLWAY_ASSERT_SIZE(struct hallway_page, HALLWAY_PAGE_SIZE);
HALLWAY_ASSERT_OFFSET(struct hallway_page, entry, 64);
HALLWAY_ASSERT_OFFSET(struct hallway_page, home, 2624);
HALLWAY_ASSERT_OFFSET(struct hallway_page, candidates, 2896);
HALLWAY_ASSERT_OFFSET(struct hallway_page, wanted, 3936);
HALLWAY_ASSERT_SIZE(struct hallway_cpu_report, 24);
HALLWAY_ASSERT_OFFSET(struct hallway_page, cpu_order, 3952);
HALLWAY_ASSERT_OFFSET(struct hallway_page, cpu_report, 3960);
HALLWAY_ASSERT_OFFSET(struct hallway_page, region_key, 3984);
HALLWAY_ASSERT_OFFSET(struct hallway_page, cid, 4048);
HALLWAY_ASSERT_OFFSET(struct hallway_page, peer_cid, 4052);

#endif /* HALLWAY_ABI_REGION_H */
