/* Threads end by pthread_exit and pthread_cancel from deep inside; cleanup handlers run on the way out. */
#include "count.h"
#include <pthread.h>
#include <semaphore.h>

static volatile int cleaned;
static sem_t inside;
static int idle[2];

FN static void cleanup(void *arg)
{
	COUNT("cleanup");
	(void)arg;
	__atomic_fetch_add(&cleaned, 1, __ATOMIC_RELAXED);
}

FN static long leave_deep(int depth)
{
	COUNT("leave_deep");
	long result = 0;
	if (depth == 0)
		pthread_exit((void *)42);
	pthread_cleanup_push(cleanup, 0);
	result = KEEP(leave_deep(depth - 1)) + 1;
	pthread_cleanup_pop(0);
	return result;
}

FN static long wait_deep(int depth)
{
	COUNT("wait_deep");
	long result = 0;
	if (depth == 0) {
		char byte;
		sem_post(&inside);
		for (;;) /* a cancellation point that nothing ever ends */
			result += read(idle[0], &byte, 1);
	}
	pthread_cleanup_push(cleanup, 0);
	result = KEEP(wait_deep(depth - 1)) + 1;
	pthread_cleanup_pop(0);
	return result;
}

FN static void *leaver(void *arg)
{
	COUNT("leaver");
	return (void *)leave_deep((int)(long)arg);
}

FN static void *waiter(void *arg)
{
	COUNT("waiter");
	return (void *)wait_deep((int)(long)arg);
}

int main(void)
{
	COUNT("main");
	CHECK(!pipe(idle) && !sem_init(&inside, 0, 0));
	int expect = 0;
	for (long i = 0; i < 50; i++) {
		pthread_t thread;
		void *result;
		CHECK(!pthread_create(&thread, 0, leaver, (void *)i));
		CHECK(!pthread_join(thread, &result) && result == (void *)42);
		CHECK(!pthread_create(&thread, 0, waiter, (void *)i));
		CHECK(!sem_wait(&inside));
		CHECK(!pthread_cancel(thread));
		CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
		expect += 2 * (int)i;
	}
	CHECK(cleaned == expect);
	printf("cancel %d\n", cleaned);
	return 0;
}
