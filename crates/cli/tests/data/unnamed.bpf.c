/* A program whose section's name no loader knows. */
#include "../../bpf/skep.bpf.h"

__u64 calls;

SEC("mine/leaf")
int count(void *ctx)
{
	calls++;
	return 0;
}

char _license[] SEC("license") = "GPL";
