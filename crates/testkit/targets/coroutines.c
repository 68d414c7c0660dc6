/* Coroutines on small stacks of their own: calls begin on one stack while others are half done. */
#include "count.h"
#include <ucontext.h>

#define COROUTINES 8

static ucontext_t scheduler, coroutine[COROUTINES];
static long produced[COROUTINES];
static int running, done[COROUTINES];

FN static long step(long x)
{
	COUNT("step");
	return x * 17 + 5;
}

FN static void give_way(int id)
{
	COUNT("give_way");
	CHECK(!swapcontext(&coroutine[id], &scheduler));
}

FN static long nest(int id, int depth)
{
	COUNT("nest");
	produced[id] = step(produced[id]);
	if (depth == 0) {
		give_way(id);
		return 1;
	}
	return KEEP(nest(id, depth - 1)) + 1;
}

FN static void body(int id)
{
	COUNT("body");
	for (int i = 0; i < 20 + id; i++)
		CHECK(nest(id, i % 7) == i % 7 + 1);
	done[id] = 1;
	running--;
}

int main(void)
{
	COUNT("main");
	for (volatile int i = 0; i < COROUTINES; i++) {
		CHECK(!getcontext(&coroutine[i]));
		coroutine[i].uc_stack.ss_size = 64 << 10;
		coroutine[i].uc_stack.ss_sp = malloc(64 << 10);
		coroutine[i].uc_link = &scheduler;
		makecontext(&coroutine[i], (void (*)(void))body, 1, i);
		running++;
	}
	while (running) {
		for (int i = 0; i < COROUTINES; i++) {
			if (!done[i])
				CHECK(!swapcontext(&scheduler, &coroutine[i]));
		}
	}
	long sum = 0;
	for (int i = 0; i < COROUTINES; i++)
		sum ^= produced[i];
	printf("coroutines %lx\n", sum);
	return 0;
}
