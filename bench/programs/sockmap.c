// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Joins TCP connections over loopback by a sockmap, as service meshes do: what a socket
 * sends is put into the queue of the other end, and bypasses TCP.
 *
 *   sockmap CGROUP COMMAND...
 *
 * Two BPF programs do it: one puts each IPv4 socket of the cgroup into a map as it becomes
 * connected, by its two ports; one redirects each message to the socket with these ports
 * exchanged. They are there until the command ends.
 */
#include <err.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct key {
	uint32_t local, remote;		/* ports, in the host's order */
};

#define KEY (-(int)sizeof(struct key))	/* on the program's stack */
#define INSN(CODE, DST, SRC, OFF, IMM)					\
	((struct bpf_insn){ .code = (CODE), .dst_reg = (DST),		\
			    .src_reg = (SRC), .off = (OFF), .imm = (IMM) })
#define MOVE(DST, SRC)		INSN(BPF_ALU64 | BPF_MOV | BPF_X, DST, SRC, 0, 0)
#define SET(DST, VALUE)		INSN(BPF_ALU64 | BPF_MOV | BPF_K, DST, 0, 0, VALUE)
#define ADD(DST, VALUE)		INSN(BPF_ALU64 | BPF_ADD | BPF_K, DST, 0, 0, VALUE)
#define LOAD(DST, SRC, OFF)	INSN(BPF_LDX | BPF_MEM | BPF_W, DST, SRC, OFF, 0)
#define STORE(DST, OFF, SRC)	INSN(BPF_STX | BPF_MEM | BPF_W, DST, SRC, OFF, 0)
#define FROM_NETWORK(DST)	INSN(BPF_ALU | BPF_END | BPF_TO_BE, DST, 0, 0, 32)
#define SKIP_UNLESS(DST, VALUE, N) INSN(BPF_JMP | BPF_JNE | BPF_K, DST, 0, N, VALUE)
#define SKIP_IF(DST, VALUE, N)	INSN(BPF_JMP | BPF_JEQ | BPF_K, DST, 0, N, VALUE)
#define CALL(FUNCTION)		INSN(BPF_JMP | BPF_CALL, 0, 0, 0, FUNCTION)
#define EXIT			INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* Two instructions. */
#define SET_MAP(DST, FD)						\
	INSN(BPF_LD | BPF_DW | BPF_IMM, DST, BPF_PSEUDO_MAP_FD, 0, FD),	\
	INSN(0, 0, 0, 0, 0)

static int call_bpf(int command, union bpf_attr *attr, const char *what)
{
	int result = syscall(SYS_bpf, command, attr, sizeof(*attr));

	if (result < 0)
		err(1, "%s", what);
	return result;
}

static int make_map(void)
{
	union bpf_attr attr = {
		.map_type = BPF_MAP_TYPE_SOCKHASH,
		.key_size = sizeof(struct key),
		.value_size = sizeof(uint32_t),
		.max_entries = 4096,
	};

	return call_bpf(BPF_MAP_CREATE, &attr, "a map of sockets");
}

static int load(int type, const struct bpf_insn *insns, size_t count)
{
	static char log[65536];
	union bpf_attr attr = {
		.prog_type = type,
		.insns = (uintptr_t)insns,
		.insn_cnt = count,
		.license = (uintptr_t)"Dual MIT/GPL",
		.log_level = 1,
		.log_buf = (uintptr_t)log,
		.log_size = sizeof(log),
	};
	int program = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));

	if (program < 0)
		err(1, "a program is refused: %s", log);
	return program;
}

static void join(int cgroup)
{
	int map = make_map();
	const struct bpf_insn enter[] = {
		MOVE(6, 1),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, op)),
		SKIP_IF(2, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, 1),
		SKIP_UNLESS(2, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, 14),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, family)),
		SKIP_UNLESS(2, AF_INET, 12),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, local_port)),
		STORE(10, KEY, 2),
		LOAD(2, 6, offsetof(struct bpf_sock_ops, remote_port)),
		FROM_NETWORK(2),
		STORE(10, KEY + 4, 2),
		MOVE(1, 6),
		SET_MAP(2, map),
		MOVE(3, 10),
		ADD(3, KEY),
		SET(4, BPF_ANY),
		CALL(BPF_FUNC_sock_hash_update),
		SET(0, 1),
		EXIT,
	};
	const struct bpf_insn redirect[] = {
		MOVE(6, 1),
		LOAD(2, 6, offsetof(struct sk_msg_md, local_port)),
		STORE(10, KEY + 4, 2),
		LOAD(2, 6, offsetof(struct sk_msg_md, remote_port)),
		FROM_NETWORK(2),
		STORE(10, KEY, 2),
		MOVE(1, 6),
		SET_MAP(2, map),
		MOVE(3, 10),
		ADD(3, KEY),
		SET(4, BPF_F_INGRESS),
		CALL(BPF_FUNC_msg_redirect_hash),
		EXIT,
	};

	union bpf_attr verdict = {
		.target_fd = map,
		.attach_bpf_fd = load(BPF_PROG_TYPE_SK_MSG, redirect,
				      sizeof(redirect) / sizeof(*redirect)),
		.attach_type = BPF_SK_MSG_VERDICT,
	};
	/* A link ends with its descriptor; what is attached without one would stay. */
	union bpf_attr link = {
		.link_create = {
			.prog_fd = load(BPF_PROG_TYPE_SOCK_OPS, enter,
					sizeof(enter) / sizeof(*enter)),
			.target_fd = cgroup,
			.attach_type = BPF_CGROUP_SOCK_OPS,
		},
	};

	int held;

	call_bpf(BPF_PROG_ATTACH, &verdict, "the map has no program");
	/* The command inherits it. */
	held = call_bpf(BPF_LINK_CREATE, &link, "the cgroup has no program");
	if (fcntl(held, F_SETFD, 0))
		err(1, "a link to the cgroup");
}

int main(int argc, char **argv)
{
	int cgroup;

	if (argc < 3)
		errx(2, "sockmap CGROUP COMMAND...");
	cgroup = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cgroup < 0)
		err(1, "%s", argv[1]);
	join(cgroup);
	execv(argv[2], argv + 2);
	err(1, "%s", argv[2]);
}
