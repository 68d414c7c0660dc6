/* Three threads want one lock, which one of them holds for long; each has another one for itself. */
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void remember(pthread_mutex_t *own)
{
	pthread_mutex_lock(own);
	pthread_mutex_unlock(own);
}

__attribute__((noinline)) static void publish(void *slow)
{
	pthread_mutex_lock(&shared);
	if (slow)
		usleep(200);
	pthread_mutex_unlock(&shared);
}

static void *work(void *slow)
{
	pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;

	for (int i = 0; i < 100; i++) {
		remember(&own);
		publish(slow);
	}
	return 0;
}

int main(void)
{
	pthread_t threads[3];

	for (long i = 0; i < 3; i++)
		pthread_create(&threads[i], 0, work, i ? 0 : "slow");
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], 0);
}
