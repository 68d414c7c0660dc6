/* Reads one word of the context, at return; which is said with `--set`. */
#include "../../bpf/skep.bpf.h"

const volatile int word = 2;
__u64 calls, sum;

SEC("fexit.multi")
int reads(__u64 *ctx)
{
	__u64 v;

	switch (word) {
	case 0: v = ctx[0]; asm volatile(""); break;
	case 1: v = ctx[1]; asm volatile(""); break;
	case 2: v = ctx[2]; asm volatile(""); break;
	case 5: v = ctx[5]; asm volatile(""); break;
	case 6: v = ctx[6]; asm volatile(""); break;
	default: v = ctx[12]; asm volatile(""); break;
	}
	calls++;
	sum += v;
	return 0;
}

char _license[] SEC("license") = "GPL";
