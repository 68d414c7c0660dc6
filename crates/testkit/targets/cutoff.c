/* All files below $SKEP_DIR are cut off to nothing while threads and children call functions. */
#include "count.h"
#include <ftw.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define THREADS 6

static pthread_barrier_t before, after;

FN static long step(long x)
{
	COUNT("step");
	return x * 3 + 1;
}

FN static long steps(long x, int n)
{
	COUNT("steps");
	for (int i = 0; i < n; i++)
		x = step(x);
	return x;
}

static int cut(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)at;
	if (type == FTW_F)
		/* The agent is a file that even its owner may not write to. */
		CHECK(chmod(path, 0600) == 0 && truncate(path, 0) == 0);
	return 0;
}

static void *work(void *arg)
{
	long x = steps((long)arg, 5003);
	pthread_barrier_wait(&before);
	/* While it happens, and behind it. */
	x = steps(x, 20011);
	pthread_barrier_wait(&after);
	return (void *)steps(x, 5003);
}

static void *late(void *arg)
{
	return (void *)steps((long)arg, 307);
}

int main(void)
{
	long sum = 0;
	void *x;
	pthread_t threads[THREADS];
	pthread_barrier_init(&before, 0, THREADS + 1);
	pthread_barrier_init(&after, 0, THREADS + 1);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], 0, work, (void *)i) == 0);
	pthread_barrier_wait(&before);
	if (getenv("SKEP_DIR"))
		CHECK(nftw(getenv("SKEP_DIR"), cut, 16, FTW_PHYS) == 0);
	sum += steps(1, 101);
	for (int i = 0; i < 3; i++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0)
			_exit(steps(i, 11) & 1);
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) < 2);
	}
	CHECK(system("exit 3") >> 8 == 3);
	pthread_barrier_wait(&after);
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_join(threads[i], &x) == 0);
		sum += (long)x;
	}
	for (int i = 0; i < 5; i++) {
		CHECK(pthread_create(&threads[0], 0, late, &sum) == 0 && pthread_join(threads[0], &x) == 0);
	}
	printf("cutoff %ld\n", sum);
	return 0;
}
