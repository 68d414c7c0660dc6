/* Allocates on several ways and prints them: for each call, `STACK BYTES`, the stack as its callers' return addresses, outermost first. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))

static void *kept[64];
static int n;
static char lines[64][64];

#define CALLER ((unsigned long)__builtin_return_address(0))

static NOINLINE void leaf(unsigned long outer, size_t size)
{
	kept[n] = malloc(size);
	snprintf(lines[n], sizeof(lines[n]), "%012lx;%012lx %zu", outer, CALLER, size);
	n++;
}

static NOINLINE void left(size_t size)
{
	leaf(CALLER, size);
	__asm__ volatile("");
}

static NOINLINE void right(size_t size)
{
	leaf(CALLER, 2 * size);
	leaf(CALLER, 3 * size);
	__asm__ volatile("");
}

static NOINLINE void deep(int more)
{
	if (more)
		deep(more - 1);
	else
		left(1000);
	__asm__ volatile("");
}

int main(void)
{
	for (int i = 1; i <= 5; i++)
		left(i);
	right(100);
	left(70);
	deep(40);
	for (int i = 0; i < n; i++) {
		puts(lines[i]);
		free(kept[i]);
	}
	return 0;
}
