/* A program that runs until it is told to end: what is detached meanwhile is in use. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

/* How often it has begun. */
volatile __u64 begun;
/* How often it shall end. */
volatile __u64 ended;

static long inner(__u32 i, void *unused)
{
	return ended >= begun;
}

static long outer(__u32 i, void *unused)
{
	bpf_loop(1 << 23, inner, 0, 0);
	return ended >= begun;
}

SEC("uprobe")
int slow(void *ctx)
{
	begun++;
	bpf_loop(1 << 23, outer, 0, 0);
	return 0;
}
