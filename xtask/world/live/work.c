/* Functions for the C compilers, three hundred, or eight hundred with `-DMANY`. */
#include <stdio.h>
#include <string.h>

#define FUNCTION(n) \
static double f##n(const char *text, int count) \
{ \
	double sums[8] = { 0 }; \
	for (int i = 0; i < count; i++) { \
		for (size_t k = 0; k < strlen(text); k++) \
			sums[(i + k) % 8] += text[k] * (1##n % (i + 2)) / (k + 1.0); \
		switch ((1##n + i) % 5) { \
		case 0: sums[i % 8] /= 2; break; \
		case 1: sums[1] += sums[2]; /* fall through */ \
		case 2: sums[3] -= 1##n; break; \
		default: sums[7] = sums[i % 7] * 0.5; \
		} \
	} \
	return sums[1##n % 8] + sums[0]; \
}
#define CALL(n) sum += f##n("the quick brown fox", 1##n % 50);

#define TEN(what, n) what(n##0) what(n##1) what(n##2) what(n##3) what(n##4) what(n##5) what(n##6) what(n##7) what(n##8) what(n##9)
#define HUNDRED(what, n) TEN(what, n##0) TEN(what, n##1) TEN(what, n##2) TEN(what, n##3) TEN(what, n##4) \
	TEN(what, n##5) TEN(what, n##6) TEN(what, n##7) TEN(what, n##8) TEN(what, n##9)

#ifdef MANY
#define REST(what) HUNDRED(what, 3) HUNDRED(what, 4) HUNDRED(what, 5) HUNDRED(what, 6) HUNDRED(what, 7)
#else
#define REST(what)
#endif
#define ALL(what) HUNDRED(what, 0) HUNDRED(what, 1) HUNDRED(what, 2) REST(what)

ALL(FUNCTION)

int main(void)
{
	double sum = 0;
	ALL(CALL)
	printf("%.6f\n", sum);
	return 5;
}
