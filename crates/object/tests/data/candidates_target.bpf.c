// also: clang-14 clang-16
/* Two types of one name for `candidates.bpf.c`. */
#include "fixture.h"

struct twin {
	int a;
	int b;
};

struct twin___two {
	int a;
	int c;
};

struct twin one;
struct twin___two two;

SEC("socket")
int nothing(void *ctx)
{
	return one.a + two.a;
}

char _license[] SEC("license") = "GPL";
