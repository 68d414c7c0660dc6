/* A ring of tail calls: with optimisation each function leaves by a jump into the next one. */
#include "count.h"

FN static long ring_b(long n, long x);
FN static long ring_c(long n, long x);

FN static long ring_a(long n, long x)
{
	COUNT("ring_a");
	if (n == 0)
		return x;
	return ring_b(n - 1, x * 3 + 1);
}

FN static long ring_b(long n, long x)
{
	COUNT("ring_b");
	if (n == 0)
		return x;
	return ring_c(n - 1, x ^ 0x55);
}

FN static long ring_c(long n, long x)
{
	COUNT("ring_c");
	if (n == 0)
		return x;
	return ring_a(n - 1, x - 7);
}

/* Through a pointer: an indirect jump at the end. */
FN static long through(long (*next)(long, long), long n, long x)
{
	COUNT("through");
	return next(n, x);
}

int main(void)
{
	COUNT("main");
	long sum = 0;
	for (int i = 0; i < 100; i++)
		sum += ring_a(600 + i, i) + through(ring_c, i, sum);
	printf("tailring %ld\n", sum);
	return 0;
}
