/* longjmp leaves many frames at once, by every spelling of setjmp: the frames never return, and the next calls are right. */
#include "count.h"
#include <setjmp.h>

static jmp_buf plain;
static sigjmp_buf with_mask;

FN static long deep(int depth, int how, long x)
{
	COUNT("deep");
	if (depth == 0) {
		if (how == 0)
			longjmp(plain, 7);
		if (how == 1)
			siglongjmp(with_mask, 8);
		return x;
	}
	return KEEP(deep(depth - 1, how, x + depth)) * 2 + 1;
}

FN static int round_plain(int depth)
{
	COUNT("round_plain");
	volatile int kept = depth;
	int got = setjmp(plain);
	if (got == 0)
		deep(depth, 0, 1);
	CHECK(kept == depth);
	return got;
}

FN static int round_underscore(int depth)
{
	COUNT("round_underscore");
	int got = _setjmp(plain);
	if (got == 0)
		deep(depth, 0, 1);
	return got;
}

FN static int round_mask(int depth)
{
	COUNT("round_mask");
	int got = sigsetjmp(with_mask, 1);
	if (got == 0)
		deep(depth, 1, 1);
	return got;
}

int main(void)
{
	COUNT("main");
	long sum = 0;
	for (int i = 0; i < 300; i++) {
		sum += round_plain(i % 97);
		sum += round_underscore(i % 31);
		sum += round_mask(i % 61);
		sum += deep(i % 11, 2, i);
	}
	printf("longjmp %ld\n", sum);
	return 0;
}
