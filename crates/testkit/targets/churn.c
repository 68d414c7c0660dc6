/* A thousand threads that live for a few calls each: per-thread state of a tracer is made and dropped all the time. */
#include "count.h"
#include <pthread.h>

FN static long work(long x)
{
	COUNT("work");
	return x * 31 + 7;
}

FN static void *brief(void *arg)
{
	COUNT("brief");
	long x = (long)arg;
	for (int i = 0; i < 3; i++)
		x = work(x);
	return (void *)x;
}

int main(void)
{
	COUNT("main");
	long sum = 0;
	for (long round = 0; round < 125; round++) {
		pthread_t threads[8];
		for (long i = 0; i < 8; i++)
			CHECK(!pthread_create(&threads[i], 0, brief, (void *)(round * 8 + i)));
		for (int i = 0; i < 8; i++) {
			void *result;
			CHECK(!pthread_join(threads[i], &result));
			sum += (long)result;
		}
	}
	printf("churn %ld\n", sum);
	return 0;
}
