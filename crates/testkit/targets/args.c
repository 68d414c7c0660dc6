/* Twelve integer arguments, results in every register, a static chain, and values kept in call-clobbered registers. */
#include "count.h"

FN static long twelve(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l)
{
	COUNT("twelve");
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l;
}

FN static long seven_small(char a, short b, int c, unsigned char d, unsigned short e, unsigned f, signed char g)
{
	COUNT("seven_small");
	return a + b + c + d + e + f + g;
}

/* The callee owns its argument area and may write to it. */
FN static long writes_its_arguments(long a, long b, long c, long d, long e, long f, long g, long h)
{
	COUNT("writes_its_arguments");
	volatile long *own_g = &g, *own_h = &h;
	*own_g += a + b + c;
	*own_h += d + e + f;
	return g * 1000 + h;
}

__extension__ typedef __int128 wide_int;

FN static wide_int wide(long a, long b)
{
	COUNT("wide");
	return ((wide_int)a << 64) | (unsigned long)b;
}

/* A nested function gets its frame in r10. */
FN static long with_nested(long x)
{
	COUNT("with_nested");
	long captured = x * 3;
	__attribute__((noinline)) long nested(long y)
	{
		captured += y;
		return captured;
	}
	return nested(1) + nested(2) + captured;
}

/* gcc may keep what it needs in registers this leaf does not touch, though the ABI says they are clobbered (-fipa-ra). */
FN static long leaf(long x)
{
	COUNT("leaf");
	return x + 1;
}

FN static long keeps_values(long a, long b, long c, long d, long e)
{
	COUNT("keeps_values");
	long x = leaf(a);
	return x + a * 3 + b * 5 + c * 7 + d * 11 + e * 13;
}

int main(void)
{
	COUNT("main");
	long sum = 0;
	for (long i = 0; i < 1009; i++) {
		long got = twelve(i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7, i + 8, i + 9, i + 10, i + 11);
		CHECK(got == 78 * i + 572);
		CHECK(seven_small(-1, -2, 3, 4, 5, 6, -7) == 8);
		CHECK(writes_its_arguments(1, 2, 3, 4, 5, 6, i, i) == (i + 6) * 1000 + i + 15);
		CHECK(wide(i, -i) == (((wide_int)i << 64) | (unsigned long)-i));
		CHECK(with_nested(i) == (3 * i + 1) + (3 * i + 3) + (3 * i + 3));
		CHECK(keeps_values(i, 2, 3, 4, 5) == i + 1 + 3 * i + 10 + 21 + 44 + 65);
		sum += got;
	}
	printf("args %ld\n", sum);
	return 0;
}
