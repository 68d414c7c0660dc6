// clang: -g0
// also: clang-14 clang-16
/* No type information at all: globals and functions must do without. */
#include "fixture.h"

__u32 calls;
const volatile __u32 step = 3;

static __noinline __u32 add(__u32 n)
{
	return n + step;
}

SEC("xdp")
int pass(void *ctx)
{
	calls = add(calls);
	return 2;
}

char _license[] SEC("license") = "GPL";
