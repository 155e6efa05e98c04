// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Reads blocks of a disk past the page cache, one after another, in several processes.
 *
 *   disk DEVICE BYTES PROCESSES SECONDS
 *
 * Prints one JSON object. Each process reads a part of the disk of its own, over and over.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "common.h"

#define BYTES_MAX (1 << 20)
#define PROCESSES_MAX 64

/* Returns the blocks that were read. until: as of now(). */
static uint64_t read_blocks(int fd, size_t bytes, off_t begin, off_t end, uint64_t until)
{
	off_t at = begin;
	uint64_t n = 0;
	void *block;

	if (posix_memalign(&block, 4096, bytes))
		errx(1, "no memory");
	while (now() < until) {
		if (pread(fd, block, bytes, at) != (ssize_t)bytes)
			err(1, "read");
		at = at + 2 * (off_t)bytes <= end ? at + (off_t)bytes : begin;
		n++;
	}
	return n;
}

int main(int argc, char **argv)
{
	size_t bytes = argc == 5 ? atoi(argv[2]) : 0;
	int processes = argc == 5 ? atoi(argv[3]) : 0;
	uint64_t *blocks, begin, all = 0;
	double seconds;
	int i, fd, status;
	off_t part;

	if (!bytes || bytes > BYTES_MAX || bytes % 512 || processes < 1 ||
	    processes > PROCESSES_MAX)
		errx(2, "DEVICE BYTES PROCESSES SECONDS");
	fd = open(argv[1], O_RDONLY | O_DIRECT);
	if (fd < 0)
		err(1, "%s", argv[1]);
	part = lseek(fd, 0, SEEK_END) / processes / BYTES_MAX * BYTES_MAX;
	if (!part)
		errx(1, "%s: less than 1 MiB for each process", argv[1]);
	blocks = mmap(NULL, processes * sizeof(*blocks), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (blocks == MAP_FAILED)
		err(1, "mmap");
	begin = now();
	for (i = 0; i < processes; i++) {
		pid_t pid = fork();

		if (pid < 0)
			err(1, "fork");
		if (pid)
			continue;
		blocks[i] = read_blocks(fd, bytes, i * part, (i + 1) * part,
					begin + (uint64_t)(atof(argv[4]) * 1e9));
		return 0;
	}
	for (i = 0; i < processes; i++)
		if (wait(&status) < 0 || status)
			errx(1, "a process has failed");
	seconds = (now() - begin) / 1e9;
	for (i = 0; i < processes; i++)
		all += blocks[i];
	printf("{\"bytes\": %llu, \"seconds\": %.3f, \"megabytes_per_second\": %.3f}\n",
	       (unsigned long long)(all * bytes), seconds, all * bytes / seconds / 1e6);
	return 0;
}
