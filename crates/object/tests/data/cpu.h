/* The same code for every instruction set version: narrow arithmetic, signed division where there is one, branches. */
#include "fixture.h"

__u64 input[16], output;

static __noinline int mix(int a, short b, __u8 c)
{
	int r = a - b;

	if ((__u32)a < (__u32)b)
		r += c >> 1;
	if (a < b)
		r ^= c;
	return r;
}

SEC("socket")
int compute(void *ctx)
{
	__u64 sum = 0;

	for (int i = 0; i < 16; i++)
		sum += (__u32)mix(input[i], input[i] >> 3, input[i] >> 7) / 3;
	__sync_fetch_and_add(&output, sum);
	return sum > 100;
}

char _license[] SEC("license") = "GPL";
