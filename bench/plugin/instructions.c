// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A plugin of QEMU's TCG that counts the instructions of a guest with one CPU
 * between marks that a guest program sets (../programs/mark.h).
 *
 * A mark is a long no-op with a number in its displacement. It starts or stops a
 * slot. At each stop a line "SLOT INSTRUCTIONS" goes to the file FOLDER/PID, PID
 * of this QEMU, so that rounds can be compared: one that a timer interrupted is
 * larger than its neighbours. Where a program says that it is at its end, the
 * blocks that it ran go to FOLDER/PID.blocks as "SLOT ADDRESS INSTRUCTIONS".
 *
 * Counted are translated blocks times the instructions in them. A block that an
 * exception leaves counts whole; a repeated string instruction counts at each turn.
 *
 *   qemu-system-x86_64 -plugin instructions.so,folder=FOLDER
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../programs/mark.h"

/* QEMU's plugin interface, version 1, as its documentation describes it. */
typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*fn)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, enum qemu_plugin_op op,
					      void *to, uint64_t n);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
					    void (*fn)(unsigned int cpu, void *data),
					    enum qemu_plugin_cb_flags flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t i);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);

int qemu_plugin_version = 1;
int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv);

/* A block, and how often it ran. */
struct block {
	uint64_t address;
	uint64_t turns;
	uint32_t size;			/* instructions */
	struct block *next;		/* of the same hash */
	struct block *older;
	uint64_t before;		/* turns when the open slot was started */
	uint64_t counted[MARK_SLOTS];	/* turns in each slot */
};

#define BUCKETS (1u << 16)

static struct block *buckets[BUCKETS];
static struct block *newest;
static int open_slot = -1;
static FILE *rounds;
static char path[4096];

static struct block *find_block(uint64_t address, uint32_t size)
{
	struct block **bucket = &buckets[(address ^ address >> 16 ^ size << 3) % BUCKETS];
	struct block *block;

	for (block = *bucket; block; block = block->next)
		if (block->address == address && block->size == size)
			return block;
	block = calloc(1, sizeof(*block));
	if (!block)
		abort();
	block->address = address;
	block->size = size;
	block->next = *bucket;
	block->older = newest;
	*bucket = newest = block;
	return block;
}

static void start(int slot)
{
	struct block *block;

	for (block = newest; block; block = block->older)
		block->before = block->turns;
	open_slot = slot;
}

static void stop(int slot)
{
	struct block *block;
	uint64_t sum = 0;

	if (slot != open_slot)
		return;
	open_slot = -1;
	for (block = newest; block; block = block->older) {
		block->counted[slot] += block->turns - block->before;
		sum += (block->turns - block->before) * block->size;
	}
	fprintf(rounds, "%d %llu\n", slot, (unsigned long long)sum);
	fflush(rounds);
}

static void write_blocks(void)
{
	char name[sizeof(path) + 8];
	struct block *block;
	FILE *file;
	int slot;

	snprintf(name, sizeof(name), "%s.blocks", path);
	file = fopen(name, "w");
	if (!file)
		return;
	for (block = newest; block; block = block->older) {
		for (slot = 0; slot < MARK_SLOTS; slot++)
			if (block->counted[slot])
				fprintf(file, "%d %llx %llu\n", slot, (unsigned long long)block->address,
					(unsigned long long)block->counted[slot] * block->size);
		memset(block->counted, 0, sizeof(block->counted));
	}
	fclose(file);
}

static void reach_mark(unsigned int cpu, void *data)
{
	unsigned int mark = (uintptr_t)data;
	int slot = mark % MARK_SLOTS;

	(void)cpu;
	switch (mark - slot) {
	case MARK_BASE + MARK_START:
		start(slot);
		break;
	case MARK_BASE + MARK_STOP:
		stop(slot);
		break;
	case MARK_BASE + MARK_END:
		write_blocks();
		break;
	}
}

/* nopl DISPLACEMENT(%rax), with four bytes of displacement */
static bool is_mark(const struct qemu_plugin_insn *insn, uint32_t *mark)
{
	static const uint8_t nopl[] = { 0x0f, 0x1f, 0x80 };
	const uint8_t *code = qemu_plugin_insn_data(insn);

	if (qemu_plugin_insn_size(insn) != sizeof(nopl) + sizeof(*mark) || memcmp(code, nopl, sizeof(nopl)))
		return false;
	memcpy(mark, code + sizeof(nopl), sizeof(*mark));
	return *mark >= MARK_BASE && *mark <= MARK_BASE + MARK_END;
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t i, n = qemu_plugin_tb_n_insns(tb);
	struct block *block = find_block(qemu_plugin_tb_vaddr(tb), n);
	struct qemu_plugin_insn *insn;
	uint32_t mark;

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &block->turns, 1);
	for (i = 0; i < n; i++) {
		insn = qemu_plugin_tb_get_insn(tb, i);
		if (is_mark(insn, &mark))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, reach_mark, QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)mark);
	}
}

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "folder=", 7))
		return -1;
	snprintf(path, sizeof(path), "%s/%d", argv[0] + 7, (int)getpid());
	rounds = fopen(path, "w");
	if (!rounds)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
	return 0;
}
