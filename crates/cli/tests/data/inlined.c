/* Functions that are inlined into one another, for `skep symbolize` and `skep addr2line`. */
#include <stdio.h>

#define INLINE static inline __attribute__((always_inline))

volatile int sink;

INLINE int leaf(int x)
{
	for (int i = 0; i < x; i++)
		sink += i * x;
	return x * 3;
}

INLINE int middle(int x)
{
	return leaf(x) + 1;
}

__attribute__((noinline)) int outer(int x)
{
	return middle(x) * 2;
}

int main(int argc, char **argv)
{
	(void)argv;
	printf("%p\n", (void *)outer);
	fflush(stdout);
	int n = outer(argc) + middle(argc + 1);
	getchar(); /* the test looks at the process */
	return n == 0;
}
