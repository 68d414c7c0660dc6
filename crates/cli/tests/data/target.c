/* What the tests trace: known numbers of calls, then whatever the arguments say. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

KEEP int leaf(int n)
{
	__asm__ volatile("" ::: "memory");
	return n + 1;
}

KEEP int twice(int n)
{
	return leaf(n) + leaf(n + 1);
}

KEEP int never(int n)
{
	return leaf(n) * 3 + n;
}

int main(int argc, char **argv)
{
	int sum = argc > 100 ? never(1) : 0;

	for (int i = 0; i < 1000; i++)
		sum += twice(i);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "wait")) { /* for a line or the end of stdin */
			char line[64];

			puts("ready");
			fflush(stdout);
			if (!fgets(line, sizeof(line), stdin))
				return 0;
		} else if (!strcmp(argv[i], "crash")) {
			*(volatile int *)0 = sum;
		} else if (!strcmp(argv[i], "killed")) {
			kill(getpid(), SIGKILL);
		} else if (!strcmp(argv[i], "abort")) {
			abort();
		} else {
			return atoi(argv[i]);
		}
	}
	return 0;
}
