/* The program replaces itself by itself, four times; the counts of all lives add up. */
#include "count.h"

FN static long step(long x)
{
	COUNT("step");
	return x * 3 + 1;
}

int main(int argc, char **argv)
{
	COUNT("main");
	int life = argc > 1 ? atoi(argv[1]) : 0;
	long x = life;
	for (int i = 0; i < 53 + life; i++)
		x = step(x);
	printf("life %d %ld\n", life, x);
	fflush(stdout);
	if (life < 4) {
		char next[16];
		snprintf(next, sizeof next, "%d", life + 1);
		execl("/proc/self/exe", argv[0], next, (char *)0);
		CHECK(!"exec failed");
	}
	return 0;
}
