/* Two timers interrupt anywhere, one as fast as the kernel ticks, one at 20 kHz; the handler calls traced functions too. */
#include "count.h"
#include <errno.h>
#include <signal.h>
#include <sys/time.h>

static volatile long ticks;
static volatile long sink;

FN static long both(long x)
{
	COUNT("both");
	return x * 7 + 3;
}

FN static long only_handler(long x)
{
	COUNT("only_handler");
	return both(x) ^ both(x + 1);
}

FN static void handler(int sig)
{
	COUNT("handler");
	int saved = errno;
	sink = only_handler(sig);
	ticks++;
	errno = saved;
}

FN static double only_main(double d, long x)
{
	COUNT("only_main");
	return d * 0.5 + (double)(both(x) & 15);
}

int main(void)
{
	COUNT("main");
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	CHECK(!sigaction(SIGPROF, &action, 0));
	CHECK(!sigaction(SIGALRM, &action, 0));
	struct itimerval every = {{0, 100}, {0, 100}}, often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
	CHECK(!setitimer(ITIMER_PROF, &every, 0));
	CHECK(!setitimer(ITIMER_REAL, &often, 0));
	while (ticks < 2000) {
		double d = 0, plain = 0;
		errno = 77;
		for (long i = 0; i < 1000; i++) {
			d = only_main(d, i);
			plain = plain * 0.5 + (double)((i * 7 + 3) & 15);
		}
		CHECK(d == plain);
		CHECK(errno == 77);
	}
	CHECK(!setitimer(ITIMER_REAL, &never, 0));
	CHECK(!setitimer(ITIMER_PROF, &never, 0));
	printf("sigprof done\n");
	return 0;
}
