/* The program allows itself 64 MiB more address space than it has, then starts threads. */
#include "count.h"
#include <pthread.h>
#include <sys/resource.h>

#define THREADS 12

FN static long step(long x)
{
	COUNT("step");
	return x * 3 + 1;
}

static void *work(void *arg)
{
	long x = (long)arg;
	for (int i = 0; i < 1009; i++)
		x = step(x);
	return (void *)x;
}

int main(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	struct rlimit limit;
	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = pages * 4096 + (64 << 20);
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);

	pthread_t threads[THREADS];
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 16);
	long sum = 0;
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], &attr, work, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++) {
		void *x;
		CHECK(pthread_join(threads[i], &x) == 0);
		sum += (long)x;
	}
	void *block = malloc(16 << 20);
	CHECK(block);
	free(block);
	printf("limits %ld\n", sum);
	return 0;
}
