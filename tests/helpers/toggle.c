// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * toggle: switches Hallway off and on at random moments until SIGTERM, and
 * leaves it on.
 *
 *   toggle SEED MAX_MS PROGRAM OFF-WORD ON-WORD
 *
 * It runs PROGRAM OFF-WORD, PROGRAM ON-WORD, with pauses of 0 to MAX_MS
 * milliseconds between. Prints the rounds; fails as soon as PROGRAM fails.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop;

static void on_term(int number)
{
	(void)number;
	stop = 1;
}

static int run(char *program, char *word)
{
	sigset_t term, before;
	int status = -1;
	pid_t pid;

	/* One that comes before the child is PROGRAM is meant for us, and ends it. */
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, &before);
	pid = fork();
	if (!pid) {
		if (!freopen("/dev/null", "w", stdout))
			_exit(126);
		execlp(program, program, word, (char *)NULL);
		_exit(127);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	while (waitpid(pid, &status, 0) < 0)
		;
	return status;
}

static void nap(long max_ms)
{
	struct timespec t = { 0 };
	long us = random() % (max_ms * 1000 + 1);

	t.tv_sec = us / 1000000;
	t.tv_nsec = us % 1000000 * 1000;
	nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
	unsigned int rounds = 0;

	if (argc != 6)
		return 2;
	srandom(atoi(argv[1]));
	signal(SIGTERM, on_term);
	while (!stop) {
		nap(atol(argv[2]));
		if (run(argv[3], argv[4])) {
			fprintf(stderr, "%s %s failed\n", argv[3], argv[4]);
			return 1;
		}
		nap(atol(argv[2]) / 4);
		if (run(argv[3], argv[5])) {
			fprintf(stderr, "%s %s failed\n", argv[3], argv[5]);
			return 1;
		}
		rounds++;
	}
	printf("%u\n", rounds);
	return 0;
}
