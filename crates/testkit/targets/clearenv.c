/* The environment is emptied, then the program executes itself: a tracer may lose the second life, not the first. */
#include "count.h"

FN static long first_life(long x)
{
	COUNT("first_life");
	return x + 1;
}

FN static long second_life(long x)
{
	COUNT("second_life");
	return x + 2;
}

int main(int argc, char **argv)
{
	long x = 0;
	if (argc > 1) {
		for (int i = 0; i < 31; i++)
			x = second_life(x);
		printf("clearenv second %ld\n", x);
		return 0;
	}
	for (int i = 0; i < 29; i++)
		x = first_life(x);
	printf("clearenv first %ld\n", x);
	fflush(stdout);
	char *next[] = {argv[0], (char *)"again", 0};
	char counts[4096];
	snprintf(counts, sizeof counts, "TARGET_COUNTS=%s", getenv("TARGET_COUNTS") ? getenv("TARGET_COUNTS") : "");
	char *only[] = {counts, 0};
	clearenv();
	for (int i = 0; i < 29; i++)
		first_life(x);
	execve("/proc/self/exe", next, only);
	CHECK(!"exec failed");
}
