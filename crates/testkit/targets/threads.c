/* Eight threads call the same functions at the same time: every call counts once. */
#include "count.h"
#include <pthread.h>

FN static long leaf(long x)
{
	COUNT("leaf");
	return x * 2862933555777941757L + 3037000493L;
}

FN static long middle(long x)
{
	COUNT("middle");
	return leaf(x) + (leaf(x ^ 5) >> 7);
}

FN static void *worker(void *arg)
{
	COUNT("worker");
	long x = (long)arg;
	for (int i = 0; i < 20011; i++)
		x = middle(x);
	return (void *)x;
}

int main(void)
{
	COUNT("main");
	pthread_t threads[8];
	long sum = 0;
	for (long i = 0; i < 8; i++)
		CHECK(!pthread_create(&threads[i], 0, worker, (void *)i));
	for (int i = 0; i < 8; i++) {
		void *result;
		CHECK(!pthread_join(threads[i], &result));
		sum += (long)result;
	}
	printf("threads %lx\n", sum);
	return 0;
}
