/* Frames of a size known only at run time, aligned frames, and stack arguments after them. */
#include "count.h"
#include <alloca.h>

FN static long fill(volatile char *bytes, long n, long a, long b, long c, long d, long e, long f)
{
	COUNT("fill");
	for (long i = 0; i < n; i++)
		bytes[i] = (char)(i + e + f);
	return a + b + c + d + e + f;
}

FN static long with_alloca(long n)
{
	COUNT("with_alloca");
	char *bytes = (char *)alloca((size_t)n + 1);
	long sum = fill(bytes, n + 1, 1, 2, 3, 4, n, 6);
	return sum + (unsigned char)bytes[n];
}

FN static long with_vla(long n, long a, long b, long c, long d, long e, long f, long g)
{
	COUNT("with_vla");
	volatile char bytes[n + 1];
	long sum = fill(bytes, n + 1, a, b, c, d, e, f);
	return sum + (unsigned char)bytes[n] + g;
}

FN static long with_alignment(long n, long a, long b, long c, long d, long e, long f)
{
	COUNT("with_alignment");
	_Alignas(128) volatile char bytes[256];
	CHECK(((uintptr_t)bytes & 127) == 0);
	return fill(bytes, 256, a, b, c, d, e, f) + n;
}

int main(void)
{
	COUNT("main");
	long sum = 0;
	for (long n = 0; n < 211; n++) {
		CHECK(with_alloca(n) == 16 + n + (unsigned char)(2 * n + 6));
		CHECK(with_vla(n, 1, 2, 3, 4, 5, 6, 7) == 28 + (unsigned char)(n + 11));
		sum += with_alignment(n, 1, 2, 3, 4, 5, 6);
	}
	printf("alloca %ld\n", sum);
	return 0;
}
