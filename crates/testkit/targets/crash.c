/* The program dies of SIGSEGV in the middle of a traced call: what was counted until then stays readable. */
#include "count.h"

static volatile int zero;

FN static long step(long n)
{
	COUNT("step");
	if (n == 1000)
		*(volatile long *)(long)zero = 1;
	return n + 1;
}

int main(void)
{
	COUNT("main");
	printf("crash soon\n");
	fflush(stdout);
	for (long n = 0;;)
		n = step(n);
}
