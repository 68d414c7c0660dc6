/* Variadic functions with forty arguments: nothing in the callee says how far its arguments reach. */
#include "count.h"
#include <stdarg.h>

FN static long sum_longs(int n, ...)
{
	COUNT("sum_longs");
	va_list list;
	va_start(list, n);
	long sum = 0;
	for (int i = 0; i < n; i++)
		sum = sum * 3 + va_arg(list, long);
	va_end(list);
	return sum;
}

FN static double sum_mixed(int n, ...)
{
	COUNT("sum_mixed");
	va_list list;
	va_start(list, n);
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += i & 1 ? va_arg(list, double) : (double)va_arg(list, long);
	va_end(list);
	return sum;
}

FN static int through_list(char *to, size_t room, const char *format, ...)
{
	COUNT("through_list");
	va_list list;
	va_start(list, format);
	int length = vsnprintf(to, room, format, list);
	va_end(list);
	return length;
}

#define TEN(x) x + 0L, x + 1L, x + 2L, x + 3L, x + 4L, x + 5L, x + 6L, x + 7L, x + 8L, x + 9L
#define MIX(x) x + 0L, x + 0.5, x + 1L, x + 1.5, x + 2L, x + 2.5, x + 3L, x + 3.5, x + 4L, x + 4.5

int main(void)
{
	COUNT("main");
	static const char format[] = "%ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld "
				     "%ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld";
	char direct[600], nested[600];
	for (long i = 0; i < 307; i++) {
		long expect = 0;
		for (long k = 0; k < 40; k++)
			expect = expect * 3 + i + k % 10 + k / 10 * 10;
		CHECK(sum_longs(40, TEN(i), TEN(i + 10), TEN(i + 20), TEN(i + 30)) == expect);
		CHECK(sum_longs(0) == 0 && sum_longs(1, 5L) == 5);
		CHECK(sum_mixed(40, MIX(0), MIX(1), MIX(2), MIX(3)) == 150.0);
		int length = snprintf(direct, sizeof direct, format, TEN(i), TEN(i + 10), TEN(i + 20), TEN(i + 30));
		CHECK(through_list(nested, sizeof nested, format, TEN(i), TEN(i + 10), TEN(i + 20), TEN(i + 30)) == length);
		CHECK(!strcmp(direct, nested));
	}
	printf("variadic %s\n", direct);
	return 0;
}
