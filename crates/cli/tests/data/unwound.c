/* Calls `leaf` on many ways, built without frame pointers, and prints for each call the addresses that the unwinder of exceptions finds there,
 * innermost first. The first is in `leaf` itself. With a number as argument it stops in so manieth call. */
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define DEEPEST 120
#define KEEP(x) __asm__ volatile("" : : "r"(x) : "memory")

static int last = -1;

NOINLINE void leaf(int n)
{
	void *at[DEEPEST];
	int count = backtrace(at, DEEPEST);

	for (int i = 0; i < count; i++)
		printf("%lx%c", (unsigned long)at[i], i + 1 < count ? ';' : '\n');
	if (--last == 0) {
		fflush(stdout);
		for (;;)
			pause();
	}
	KEEP(n);
}

/* Keeps numbers in all registers that calls preserve, rbp too: following it leads nowhere. */
NOINLINE long busy(long a, long b)
{
	long c = a * 3, d = b * 5, e = a ^ b, f = a + b;

	for (int i = 0; i < 2; i++) {
		leaf(i);
		__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
	}
	return a + b + c + d + e + f;
}

/* Needs its frame pointer: its stack has a size that is known when it runs. */
NOINLINE void sized(unsigned n)
{
	char *room = alloca(n);

	memset(room, 1, n);
	busy(n, room[n - 1]);
	KEEP(room);
}

/* Aligns its stack, and has one of unknown size. */
NOINLINE void aligned(unsigned n)
{
	_Alignas(128) char room[256];
	char *more = alloca(n);

	memset(room, n, sizeof(room));
	memset(more, n, n);
	sized(n);
	KEEP(room);
	KEEP(more);
}

NOINLINE void big(void)
{
	char room[100000];

	KEEP(room);
	aligned(40);
	KEEP(room);
}

NOINLINE void deep(int more)
{
	if (more)
		deep(more - 1);
	else
		big();
	KEEP(more);
}

static int compare(const void *a, const void *b)
{
	busy(*(const int *)a, *(const int *)b);
	return *(const int *)a - *(const int *)b;
}

static void handler(int number)
{
	busy(number, 7);
}

static void *thread(void *arg)
{
	sized((unsigned)(uintptr_t)arg);
	return NULL;
}

NOINLINE void many_arguments(int a, int b, int c, int d, int e, int f, int g, int h, int i)
{
	busy(a + b + c + d + e + f + g, h + i);
	KEEP(a);
}

int main(int argc, char **argv)
{
	int numbers[] = { 3, 1, 2 };
	stack_t other = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	pthread_t other_thread;

	if (argc > 1)
		last = atoi(argv[1]);
	leaf(0);
	deep(20);
	many_arguments(1, 2, 3, 4, 5, 6, 7, 8, 9);
	qsort(numbers, 3, sizeof(numbers[0]), compare);
	sigaltstack(&other, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	pthread_create(&other_thread, NULL, thread, (void *)64);
	pthread_join(other_thread, NULL);
	fflush(stdout);
	return 0;
}
