/* What only a kernel has: structures of functions, arenas. */
#include "fixture.h"

struct ops {
	int (*first)(int);
};

SEC("struct_ops/first")
int first(void *ctx)
{
	return 0;
}

SEC(".struct_ops")
struct ops table = { .first = (void *)first };

int __attribute__((address_space(1))) shared;

SEC("socket")
int in_arena(void *ctx)
{
	shared++;
	return 0;
}

SEC("socket")
int plain(void *ctx)
{
	return 1;
}

char _license[] SEC("license") = "GPL";
