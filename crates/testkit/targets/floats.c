/* Floating point arguments and results: xmm0-7, st(0), st(0)+st(1), pairs of xmm, 256-bit vectors, and the stack. */
#include "count.h"
#include <complex.h>
#include <fenv.h>
#include <immintrin.h>

FN static double ten_doubles(double a, double b, double c, double d, double e, double f, double g, double h, double i, double j)
{
	COUNT("ten_doubles");
	return a + b * 2 + c * 3 + d * 4 + e * 5 + f * 6 + g * 7 + h * 8 + i * 9 + j * 10;
}

FN static float floats(float a, float b, float c)
{
	COUNT("floats");
	return a * b - c;
}

FN static long double extended(long double a, double b, long double c)
{
	COUNT("extended");
	return a * b + c;
}

FN static double mixed(int a, double b, long c, float d, char e, double f, long g, double h, long i, double j, long k, double l)
{
	COUNT("mixed");
	return a + b + (double)c + d + e + f + (double)g + h + (double)i + j + (double)k + l;
}

FN static double complex twin(double a, double b)
{
	COUNT("twin");
	return a + b * I;
}

FN static long double complex twin_extended(long double a, long double b)
{
	COUNT("twin_extended");
	return a + b * I;
}

__attribute__((target("avx"), noinline, noclone)) static __m256d vector(__m256d a, __m256d b)
{
	COUNT("vector");
	return _mm256_add_pd(a, b);
}

__attribute__((target("avx"))) static void vectors(double x)
{
	union {
		__m256d v;
		double d[4];
	} got;
	got.v = vector(_mm256_set_pd(x, x + 1, x + 2, x + 3), _mm256_set1_pd(x));
	CHECK(got.d[0] == 2 * x + 3 && got.d[1] == 2 * x + 2 && got.d[2] == 2 * x + 1 && got.d[3] == 2 * x);
}

int main(void)
{
	COUNT("main");
	double sum = 0;
	fesetround(FE_UPWARD); /* a control word to keep */
	for (int i = 0; i < 1013; i++) {
		double x = i;
		sum += ten_doubles(x, x, x, x, x, x, x, x, x, x);
		CHECK(floats((float)i, 2.0f, 1.0f) == (float)(2 * i - 1));
		CHECK(extended(x, 3.0, 0.25L) == x * 3.0L + 0.25L);
		CHECK(mixed(i, x, i, (float)x, 1, x, i, x, i, x, i, x) == 11 * x + 1);
		double complex z = twin(x, -x);
		CHECK(creal(z) == x && cimag(z) == -x);
		long double complex w = twin_extended(x, x + 0.5L);
		CHECK(creall(w) == x && cimagl(w) == x + 0.5L);
		if (__builtin_cpu_supports("avx"))
			vectors(x);
		CHECK(fegetround() == FE_UPWARD);
	}
	printf("floats %.1f\n", sum);
	return 0;
}
