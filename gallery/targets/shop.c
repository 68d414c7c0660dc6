/* One function with two callers, and twice as slow for one of them: which? */
#include <time.h>

static void spend(long ns)
{
	struct timespec begin, now;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < ns);
}

__attribute__((noinline)) void price(int discounts)
{
	spend(discounts ? 600000 : 20000);
}

__attribute__((noinline)) void browse(void)
{
	price(0);
	__asm__ volatile("");
}

__attribute__((noinline)) void checkout(void)
{
	price(3);
	__asm__ volatile("");
}

int main(void)
{
	for (int i = 0; i < 40; i++) {
		browse();
		if (i % 4 == 0)
			checkout();
	}
}
