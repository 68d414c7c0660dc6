/* Deep and mutual recursion: a function is active thousands of times at once. */
#include "count.h"

FN static long down(long n, long x)
{
	COUNT("down");
	if (n == 0)
		return x;
	return KEEP(down(n - 1, x * 3 + n)) + 1;
}

FN static long odd(long n);

FN static long even(long n)
{
	COUNT("even");
	return n == 0 ? 1 : KEEP(odd(n - 1)) * 2 + 1;
}

FN static long odd(long n)
{
	COUNT("odd");
	return n == 0 ? 0 : KEEP(even(n - 1)) * 2 - 1;
}

FN static long ackermann(long m, long n)
{
	COUNT("ackermann");
	if (m == 0)
		return n + 1;
	if (n == 0)
		return KEEP(ackermann(m - 1, 1));
	return KEEP(ackermann(m - 1, ackermann(m, n - 1)));
}

int main(void)
{
	COUNT("main");
	long sum = 0;
	for (int i = 0; i < 5; i++)
		sum += down(4001, i) + even(1000 + i);
	printf("recursion %ld %ld\n", sum, ackermann(2, 20));
	return 0;
}
